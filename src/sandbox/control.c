/*
 * What can be done to a sandbox that exists: look at it, end it, give it more time, pause it, send it to sleep. Thin: the
 * supervisor does the work; a hibernated sandbox has none, and is dealt with here under its lock.
 */
#include "sandbox/egress.h"
#include "sandbox/lifecycle.h"
#include "sandbox/pool.h"
#include "sandbox/view.h"
#include "wire/wire.h"

int husk_inspect(struct husk *husk, const char *sandbox, struct husk_sandbox **out, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	*out = sandbox_from_row(row);
	catalog_sandbox_free(row);
	return *out ? 0 : husk_fail_memory(err);
}

/* Ends a sandbox that is asleep. Its lock keeps a waker away meanwhile. */
static int end_asleep(struct husk *husk, const struct catalog_sandbox *row, const char *reason, struct husk_error *err)
{
	cleanup_free char *directory = path_sandbox(&husk->paths, row->id);
	cleanup_free char *image = directory ? str_format("%s/image", directory) : NULL;
	cleanup_free char *lock_path = path_lock(&husk->paths, row->id);
	cleanup_free char *detail = str_format("{\"reason\":\"%s\"}", reason);
	cleanup_close int lock = supervisor_lock(husk, row->id, err);

	if (lock < 0)
		return -1;
	if (!image || !lock_path || !detail)
		return husk_fail_memory(err);
	if (catalog_sandbox_end(husk->catalog, row->id, reason, err) < 0)
		return -1;
	catalog_event(husk->catalog, row->id, "ended", detail, NULL);
	egress_secrets_drop(husk, row->id);
	unlink(lock_path);
	return dir_remove(image, err);
}

void husk_expire(struct husk *husk, const struct catalog_sandbox *row)
{
	struct husk_error err = { 0 };

	if (end_asleep(husk, row, "ttl", &err) < 0)
		log_line(LOG_WARN, "%s", err.message);
}

/* One that is still being made may have lost whoever was making it: its supervisor is asked directly, not waited for. */
static int end_unmade(struct husk *husk, const char *id, struct husk_error *err)
{
	cleanup_close int fd = supervisor_dial(husk, id, NULL);

	if (fd >= 0)
		return supervisor_call(fd, METHOD_SANDBOX_KILL, NULL, NULL, err);
	return husk_call(husk, id, METHOD_SANDBOX_KILL, NULL, NULL, err);
}

int husk_kill(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;
	int result;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	if (row->state == CATALOG_ENDED)
		result = husk_fail(err, HUSK_GONE, "sandbox %s has ended already (%s)", row->id, row->end_reason);
	else if (row->state == CATALOG_HIBERNATED)
		result = end_asleep(husk, row, "killed", err);
	else if (row->state == CATALOG_CREATING)
		result = end_unmade(husk, row->id, err);
	else
		result = husk_call(husk, row->id, METHOD_SANDBOX_KILL, NULL, NULL, err);
	/* Killed while its supervisor was being killed too: gone is what was asked for. */
	if (result < 0 && row->state != CATALOG_ENDED && err && err->code == HUSK_GONE) {
		husk_recover(husk, row->id);
		result = 0;
	}
	catalog_sandbox_free(row);
	return result;
}

int husk_extend(struct husk *husk, const char *sandbox, int64_t ttl_seconds, bool persistent, int64_t *expires_ms,
		struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;
	cleanup_buf struct buf arguments = { 0 }, results = { 0 };
	int64_t expires = persistent ? 0 : time_wall_ms() + ttl_seconds * 1000;
	int result;

	if (!persistent && (ttl_seconds < 1 || ttl_seconds > 365ll * 24 * 3600))
		return husk_fail_field(err, "ttl_seconds",
				       "ttl must be between 1 second and 365 days, not %lld seconds",
				       (long long)ttl_seconds);
	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	if (row->state == CATALOG_HIBERNATED) { /* no need to wake it for this */
		result = catalog_sandbox_set_expiry(husk->catalog, row->id, expires, persistent, err);
	} else if (wire_put_int(&arguments, TAG_TTL_SECONDS, ttl_seconds) < 0 ||
		   wire_put_int(&arguments, TAG_PERSISTENT, persistent) < 0) {
		result = husk_fail_memory(err);
	} else {
		result = husk_call(husk, row->id, METHOD_SANDBOX_EXTEND, &arguments, &results, err);
		expires = wire_get_int(results.data, results.size, TAG_EXPIRES_MS, expires);
	}
	if (result == 0 && expires_ms)
		*expires_ms = expires;
	catalog_sandbox_free(row);
	return result;
}

int husk_pause(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	return husk_call(husk, sandbox, METHOD_SANDBOX_PAUSE, NULL, NULL, err);
}

int husk_resume(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	return husk_call(husk, sandbox, METHOD_SANDBOX_RESUME, NULL, NULL, err);
}

int husk_hibernate(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	bool asleep = row->state == CATALOG_HIBERNATED;
	catalog_sandbox_free(row);
	if (asleep)
		return husk_fail(err, HUSK_CONFLICT, "sandbox %s is hibernated already", sandbox);
	return husk_call(husk, sandbox, METHOD_SANDBOX_HIBERNATE, NULL, NULL, err);
}
