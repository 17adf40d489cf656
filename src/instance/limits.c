/*
 * The ranges of a sandbox's limits; see limits.h. Every limit that a caller gives is checked here before anything is started
 * or changed.
 */
#include "instance/limits.h"

#include "engine/engine.h"

#define MEMORY_MIN (64ull << 20)
#define MEMORY_MAX (1ull << 40)
#define DISK_MIN (16ull << 20)
#define DISK_MAX (16ull << 40)

int limits_check_range(const char *field, uint64_t value, uint64_t min, uint64_t max, const char *unit,
		       struct husk_error *err)
{
	if (value == 0 || (value >= min && value <= max))
		return 0;
	return husk_fail_field(err, field, "%s must be between %llu and %llu %s, not %llu", field,
			       (unsigned long long)min, (unsigned long long)max, unit, (unsigned long long)value);
}

int limits_check(uint32_t cpu_milli, uint64_t memory_bytes, struct husk_error *err)
{
	if (limits_check_range("memory", memory_bytes, MEMORY_MIN, MEMORY_MAX, "bytes", err) < 0)
		return -1;
	return limits_check_range("cpus", cpu_milli, 50, 1024 * 1000, "thousandths", err);
}

int limits_check_all(uint32_t cpu_milli, uint64_t memory_bytes, uint64_t disk_bytes, uint32_t pids,
		     struct husk_error *err)
{
	if (limits_check(cpu_milli, memory_bytes, err) < 0 ||
	    limits_check_range("disk", disk_bytes, DISK_MIN, DISK_MAX, "bytes", err) < 0)
		return -1;
	return limits_check_range("pids", pids, 8, 1u << 20, "processes", err);
}

/* A virtual machine has the memory that it was baked with. A higher limit could not be provided. */
int limits_check_engine(const struct catalog_sandbox *row, struct husk_error *err)
{
	const struct engine *engine = engine_find(row->isolation);
	uint64_t most = engine && engine->memory_max ? engine->memory_max() : 0;

	if (most && row->memory_bytes > most)
		return husk_fail_field(
			err, "memory", "memory must be at most %llu MiB with %s on this host, not %llu MiB",
			(unsigned long long)most >> 20, row->isolation, (unsigned long long)row->memory_bytes >> 20);
	return 0;
}
