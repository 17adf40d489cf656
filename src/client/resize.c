/*
 * Other limits of processors and memory for an existing sandbox. A running one is changed by its supervisor; a hibernated one
 * has them when it wakes. The size of its disk is part of its image and cannot change.
 */
#include "instance/contact.h"
#include "instance/instance.h"
#include "instance/limits.h"
#include "wire/wire.h"

/* Called with the wanted limits in the row. */
static int resize_awake(struct husk *husk, const struct catalog_sandbox *row, uint64_t before, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };

	/* As for a create, more memory must be within the tenant's quota. */
	if (row->memory_bytes > before && catalog_quota(husk->catalog, 0, row->memory_bytes - before, err) < 0)
		return -1;
	int bad = wire_put_int(&arguments, TAG_MEMORY, (int64_t)row->memory_bytes);
	bad |= wire_put_int(&arguments, TAG_CPU_MILLI, row->cpu_milli);
	if (bad)
		return husk_fail_memory(err);
	return husk_call(husk, row->id, METHOD_SANDBOX_RESIZE, &arguments, NULL, err);
}

int husk_resize(struct husk *husk, const char *sandbox, uint32_t cpu_milli, uint64_t memory_bytes,
		struct husk_error *err)
{
	if (husk->remote)
		return remote_resize(husk->remote, sandbox, cpu_milli, memory_bytes, err);
	struct catalog_sandbox *row = NULL;

	if (limits_check(cpu_milli, memory_bytes, err) < 0)
		return -1;
	if (!cpu_milli && !memory_bytes)
		return husk_fail_field(err, "cpus", "nothing is asked for; give cpus or memory");
	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	uint64_t before = row->memory_bytes;
	row->cpu_milli = cpu_milli ? cpu_milli : row->cpu_milli;
	row->memory_bytes = memory_bytes ? memory_bytes : row->memory_bytes;
	int result = limits_check_engine(row, err);
	/* The row says whether it sleeps, in the same transaction: one that is just waking is asked itself. */
	int asleep =
		result < 0 || row->state != CATALOG_HIBERNATED
			? 0
			: catalog_sandbox_resize(husk->catalog, row->id, row->cpu_milli, row->memory_bytes, true, err);
	if (asleep < 0)
		result = -1;
	else if (result == 0 && !asleep)
		result = resize_awake(husk, row, before, err);
	catalog_sandbox_free(row);
	return result;
}
