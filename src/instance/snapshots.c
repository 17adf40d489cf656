/*
 * Snapshots: images of running sandboxes, kept under an id and optional names. The catalog row is added before the image is
 * written and removed before the image is deleted. A row is not "ready" until its image is on disk, and only a ready
 * snapshot can be used.
 */
#include "instance/snapshots.h"

#include "engine/engine.h"
#include "instance/contact.h"
#include "instance/instance.h"
#include "instance/pairs.h"
#include "instance/spawn.h"
#include "instance/view.h"
#include "wire/wire.h"

void snapshot_drop(struct husk *husk, const char *id)
{
	cleanup_free char *directory = path_snapshot(&husk->paths, id);
	cleanup_free char *partial = directory ? str_format(IMAGE_PARTIAL, directory) : NULL;

	if (partial)
		engine_remove(partial, NULL);
	catalog_snapshot_remove(husk->catalog, id, NULL);
	if (directory)
		image_discard(directory, NULL);
}

void snapshot_settle(struct husk *husk, const char *id, int *lock)
{
	cleanup_free char *path = path_lock(&husk->paths, id);

	if (path && *lock >= 0)
		unlink(path);
	fd_close(lock);
}

/* Adds the row; then the supervisor of the sandbox writes the image. */
static int save(struct husk *husk, int fd, const struct catalog_sandbox *row, const char *name, char *id, int lock,
		int64_t *effect, struct husk_error *err)
{
	cleanup_free char *directory = path_snapshot(&husk->paths, id);
	cleanup_buf struct buf arguments = { 0 }, results = { 0 };
	struct catalog_snapshot snapshot = {
		.id = id,
		.name = (char *)name,
		.sandbox = row->id,
		.template_name = row->template_name,
		.template_digest = row->template_digest,
		.isolation = row->isolation,
		.created_ms = time_wall_ms(),
		.memory_bytes = row->memory_bytes,
		.disk_bytes = row->disk_bytes,
		.cpu_milli = row->cpu_milli,
		.pids = row->pids,
		.environment = row->environment,
		.metadata = row->metadata,
		.egress = row->egress,
		.volumes = row->volumes,
	};

	if (!directory || wire_put_string(&arguments, TAG_PATH, directory) < 0 ||
	    wire_put_int(&arguments, TAG_FLAGS, lock) < 0)
		return husk_fail_memory(err);
	if (catalog_snapshot_add(husk->catalog, &snapshot, err) < 0)
		return -1;
	int result = supervisor_call(fd, METHOD_SANDBOX_CHECKPOINT, &arguments, &results,
				     supervisor_patience(METHOD_SANDBOX_CHECKPOINT), err);
	if (result < 0)
		snapshot_drop(husk, id);
	else if (effect)
		*effect = wire_get_int(results.data, results.size, TAG_EFFECT, 0);
	return result;
}

int snapshot_take(struct husk *husk, const char *sandbox, const char *name, char id[static 32], char **parent,
		  int64_t *effect, struct husk_error *err)
{
	cleanup_close int fd = husk_connect(husk, sandbox, err);
	struct catalog_sandbox *row = NULL;

	if (fd < 0 || catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	*parent = strdup(row->id);
	int result = *parent ? 0 : husk_fail_memory(err);
	if (result == 0 && random_id("sn-", 10, id) < 0)
		result = husk_fail_errno(err, "cannot make an id");
	cleanup_close int lock = result == 0 ? supervisor_lock_new(husk, id, err) : -1;
	if (lock >= 0 && save(husk, fd, row, name, id, lock, effect, err) < 0)
		snapshot_settle(husk, id, &lock);
	catalog_sandbox_free(row);
	return steal_fd(&lock);
}

/* ---- remains of killed processes ---- */

/* With its lock held: is it still unfinished? Its creator may have finished after the list was read and before the lock was
 * taken. */
static bool is_unfinished(struct husk *husk, const char *id)
{
	struct catalog_snapshot **list = NULL;
	bool found = false;

	if (catalog_snapshot_list(husk->catalog, true, &list, NULL) < 0)
		return false;
	for (size_t i = 0; list[i] && !found; i++)
		found = str_equal(list[i]->id, id);
	catalog_snapshot_list_free(list);
	return found;
}

/* 1: no process works on it, and it is removed. */
static size_t drop_abandoned(struct husk *husk, const char *id, uint64_t *bytes)
{
	cleanup_free char *path = path_lock(&husk->paths, id);
	cleanup_free char *directory = path_snapshot(&husk->paths, id);
	cleanup_close int lock = path && directory ? supervisor_lock(husk, id, NULL) : -1;

	if (lock < 0)
		return 0;
	bool drop = is_unfinished(husk, id);
	if (drop && bytes)
		*bytes += dir_bytes(directory);
	if (drop)
		snapshot_drop(husk, id);
	unlink(path);
	return drop;
}

size_t snapshots_recover(struct husk *husk, uint64_t *bytes)
{
	struct catalog_snapshot **list = NULL;
	size_t dropped = 0;

	if (catalog_snapshot_list(husk->catalog, true, &list, NULL) < 0)
		return 0;
	for (size_t i = 0; list[i]; i++)
		dropped += drop_abandoned(husk, list[i]->id, bytes);
	catalog_snapshot_list_free(list);
	supervisor_locks_sweep(husk, "sn-", NULL);
	return dropped;
}

/* ---- for callers of libhusk ---- */

/* Kept steps of builds count for a tenant's quota, and no list shows them: so they give way. True: there were some. */
static bool make_room(struct husk *husk, const struct husk_error *err)
{
	size_t count = 0;
	uint64_t bytes = 0;

	return err && err->code == HUSK_LIMIT && husk_build_prune(husk, 0, &count, &bytes, NULL) == 0 && count > 0;
}

static int make_ready(struct husk *husk, const char *id, struct husk_error *err)
{
	cleanup_free char *directory = path_snapshot(&husk->paths, id);

	if (!directory)
		return husk_fail_memory(err);
	if (engine_image_sync(directory, err) < 0)
		return -1;
	uint64_t bytes = dir_bytes(directory);
	int result = catalog_snapshot_finish(husk->catalog, id, bytes, err);
	return result < 0 && make_room(husk, err) ? catalog_snapshot_finish(husk->catalog, id, bytes, err) : result;
}

int husk_snapshot_create(struct husk *husk, const char *sandbox, const char *name, struct husk_snapshot **out,
			 struct husk_error *err)
{
	if (husk->remote)
		return remote_snapshot_create(husk->remote, sandbox, name, out, err);
	char id[32];
	cleanup_free char *parent = NULL;
	struct catalog_snapshot *row = NULL;

	if (name && name_check("name", name, err) < 0)
		return -1;
	if (catalog_quota_snapshots(husk->catalog, err) < 0 &&
	    (!make_room(husk, err) || catalog_quota_snapshots(husk->catalog, err) < 0))
		return -1;
	int lock = snapshot_take(husk, sandbox, name, id, &parent, NULL, err);
	if (lock < 0)
		return -1;
	int result = make_ready(husk, id, err);
	if (result < 0)
		snapshot_drop(husk, id);
	snapshot_settle(husk, id, &lock);
	if (result < 0)
		return -1;
	cleanup_free char *detail = str_format("{\"snapshot\":\"%s\"}", id);
	catalog_event(husk->catalog, parent, "snapshot", detail, NULL);
	if (!out)
		return 0;
	if (catalog_snapshot_get(husk->catalog, id, &row, err) < 0)
		return -1;
	*out = snapshot_from_row(row);
	catalog_snapshot_free(row);
	return *out ? 0 : husk_fail_memory(err);
}

int snapshot_find(struct husk *husk, const char *snapshot, struct catalog_snapshot **out, struct husk_error *err)
{
	const char *slash = snapshot ? strchr(snapshot, '/') : NULL;
	cleanup_free char *tenant = slash ? strndup(snapshot, (size_t)(slash - snapshot)) : NULL;

	if (!slash)
		return catalog_snapshot_get(husk->catalog, snapshot, out, err);
	if (!tenant)
		return husk_fail_memory(err);
	return catalog_snapshot_get_shared(husk->catalog, str_equal(tenant, HUSK_SHARER) ? NULL : tenant, slash + 1,
					   out, err);
}

int husk_snapshot_share(struct husk *husk, const char *snapshot, bool shared, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "sharing snapshots", "do it on the server's host", err);
	struct catalog_snapshot *row = NULL;

	if (catalog_snapshot_get(husk->catalog, snapshot, &row, err) < 0)
		return -1;
	bool bound = row->volumes && !str_equal(row->volumes, "[]");
	int result = shared && bound
			     ? husk_fail(err, HUSK_CONFLICT,
					 "snapshot %s has volumes, which other tenants cannot have; it is not shared",
					 row->id)
			     : catalog_snapshot_share(husk->catalog, row->id, shared, err);
	catalog_snapshot_free(row);
	return result;
}

int husk_snapshot_remove(struct husk *husk, const char *snapshot, struct husk_error *err)
{
	if (husk->remote)
		return remote_snapshot_remove(husk->remote, snapshot, err);
	struct catalog_snapshot *row = NULL;

	if (catalog_snapshot_get(husk->catalog, snapshot, &row, err) < 0)
		return -1;
	snapshot_drop(husk, row->id);
	catalog_snapshot_free(row);
	return 0;
}

bool snapshot_is_step(const struct catalog_snapshot *row)
{
	const struct husk_pair mark = { HUSK_STEP_KEY, "1" };

	return json_has_pairs(row->metadata, &mark, 1, NULL) == 1;
}

int husk_build_prune(struct husk *husk, uint64_t limit, size_t *count, uint64_t *bytes, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "removing results of builds", "do it on the server's host", err);
	struct catalog_snapshot **list = NULL;
	uint64_t kept = 0;

	*count = 0;
	*bytes = 0;
	if (catalog_snapshot_list(husk->catalog, false, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) { /* the newest first */
		if (!snapshot_is_step(list[i]))
			continue;
		kept += list[i]->bytes;
		if (kept <= limit)
			continue;
		kept -= list[i]->bytes;
		++*count;
		*bytes += list[i]->bytes;
		snapshot_drop(husk, list[i]->id);
	}
	catalog_snapshot_list_free(list);
	return 0;
}

int husk_snapshot_untag(struct husk *husk, const char *name, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "tagging snapshots", "do it on the server's host", err);
	int last = catalog_snapshot_untag(husk->catalog, name, err);

	return last > 0 ? husk_snapshot_remove(husk, name, err) : last;
}

int husk_snapshot_tag(struct husk *husk, const char *snapshot, const char *name, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "tagging snapshots", "do it on the server's host", err);
	struct catalog_snapshot *row = NULL, *other = NULL;
	int result = 0;

	if (name_check("name", name, err) < 0 || catalog_snapshot_get(husk->catalog, snapshot, &row, err) < 0)
		return -1;
	bool taken = catalog_snapshot_get(husk->catalog, name, &other, NULL) == 0;
	if (!taken || !str_equal(other->id, row->id)) {
		if (taken)
			result = husk_snapshot_untag(husk, name, err);
		if (result == 0)
			result = catalog_snapshot_tag(husk->catalog, row->id, name, err);
	}
	catalog_snapshot_free(other);
	catalog_snapshot_free(row);
	return result;
}
