/*
 * Changes the CPU and memory limits of an existing sandbox. The supervisor changes those of a running sandbox; a
 * hibernated one has the new limits when it wakes. The size of its disk is part of its image and cannot change.
 */
#include "instance/contact.h"
#include "instance/instance.h"
#include "instance/limits.h"
#include "wire/wire.h"

/* Only what is asked for: the supervisor knows the rest, which another call may be changing. */
static int ask(struct husk *husk, const char *id, uint32_t cpu_milli, uint64_t memory_bytes, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };
	int bad = memory_bytes ? wire_put_int(&arguments, TAG_MEMORY, (int64_t)memory_bytes) : 0;

	bad |= cpu_milli ? wire_put_int(&arguments, TAG_CPU_MILLI, cpu_milli) : 0;
	return bad ? husk_fail_memory(err) : husk_call(husk, id, METHOD_SANDBOX_RESIZE, &arguments, NULL, err);
}

/* As for a create, more memory must be within the tenant's quota. It is checked again afterwards, because several sandboxes
 * may be resized at the same time. */
static int resize_awake(struct husk *husk, const char *id, uint32_t cpu_milli, uint64_t memory_bytes, uint64_t before,
			struct husk_error *err)
{
	bool grows = memory_bytes > before;

	if (grows && catalog_quota(husk->catalog, 0, memory_bytes - before, err) < 0)
		return -1;
	if (ask(husk, id, cpu_milli, memory_bytes, err) < 0)
		return -1;
	if (!grows || catalog_quota(husk->catalog, 0, 0, err) == 0)
		return 0;
	ask(husk, id, 0, before, NULL);
	return -1;
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
	int asleep = result < 0 || row->state != CATALOG_HIBERNATED
			     ? 0
			     : catalog_sandbox_resize(husk->catalog, row->id, cpu_milli, memory_bytes, true, err);
	if (asleep < 0)
		result = -1;
	else if (result == 0 && !asleep)
		result = resize_awake(husk, row->id, cpu_milli, memory_bytes, before, err);
	catalog_sandbox_free(row);
	return result;
}
