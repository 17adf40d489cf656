/*
 * Changes to an existing sandbox: inspect, kill, extend, pause, resume, hibernate. The supervisor does the work. A
 * hibernated sandbox has no supervisor and is handled here, under its lock.
 */
#include "engine/engine.h"
#include "instance/contact.h"
#include "instance/create.h"
#include "instance/egress_policy.h"
#include "instance/moments.h"
#include "instance/recover.h"
#include "instance/view.h"
#include "wire/wire.h"

#define DIAL_MS 1000      /* a healthy supervisor answers at once */
#define KILL_TRY_MS 10000 /* for a sandbox that is being created or hibernated again and again */

int husk_inspect(struct husk *husk, const char *sandbox, struct husk_sandbox **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_inspect(husk->remote, sandbox, out, err);
	struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	*out = sandbox_from_row(row);
	catalog_sandbox_free(row);
	return *out ? 0 : husk_fail_memory(err);
}

/* Asks the supervisor, which does not wait for the guest. A supervisor that does not answer is killed. GONE: no
 * supervisor; CONFLICT: the sandbox is being hibernated. */
static int end_awake(struct husk *husk, const struct catalog_sandbox *row, struct husk_error *err)
{
	struct husk_error why = { 0 };
	cleanup_close int fd = supervisor_dial(husk, row->id, DIAL_MS, &why);
	int result = fd < 0 ? -1
			    : supervisor_call(fd, METHOD_SANDBOX_KILL, NULL, NULL,
					      supervisor_patience(METHOD_SANDBOX_KILL), &why);

	if (result < 0 && (why.code == HUSK_TIMEOUT || why.code == HUSK_PROTOCOL))
		return supervisor_force(husk, row->id, "killed", err);
	return result < 0 ? husk_fail(err, why.code, "%s", why.message) : 0;
}

static int end_once(struct husk *husk, const struct catalog_sandbox *row, struct husk_error *err)
{
	if (row->state == CATALOG_HIBERNATED)
		return recover_end_asleep(husk, row, "killed", err);
	int result = end_awake(husk, row, err);
	if (result < 0 && err->code == HUSK_GONE) /* its supervisor was killed, or does not exist yet */
		husk_recover(husk, row->id);
	return result;
}

/* Tries again; 0 also if the sandbox has ended meanwhile, as requested. */
static int end_again(struct husk *husk, const char *id, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;
	struct husk_error why = { 0 };

	if (catalog_sandbox_get(husk->catalog, id, &row, &why) < 0)
		return why.code == HUSK_NOT_FOUND ? 0 : husk_fail(err, why.code, "%s", why.message);
	int result = row->state == CATALOG_ENDED ? 0 : end_once(husk, row, err);
	catalog_sandbox_free(row);
	return result;
}

int husk_kill(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	if (husk->remote)
		return remote_kill(husk->remote, sandbox, err);
	int64_t end = time_monotonic_ms() + KILL_TRY_MS;
	struct catalog_sandbox *row = NULL;
	struct husk_error why = { 0 };

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	if (row->state == CATALOG_ENDED) {
		husk_fail(err, HUSK_GONE, "sandbox %s has ended already (%s)", row->id, row->end_reason);
		catalog_sandbox_free(row);
		return -1;
	}
	int result = end_once(husk, row, &why);
	/* Another process is creating, waking or hibernating the sandbox. That takes a moment, and then the kill
	 * continues. If a supervisor lives without a socket, it is handled like one that does not answer. */
	while (result < 0 && (why.code == HUSK_GONE || why.code == HUSK_CONFLICT) && time_monotonic_ms() < end) {
		usleep(10000);
		bool lost = why.code == HUSK_GONE && time_monotonic_ms() > end - KILL_TRY_MS + DIAL_MS;
		result = lost ? supervisor_force(husk, row->id, "killed", &why) : end_again(husk, row->id, &why);
	}
	catalog_sandbox_free(row);
	if (result == 0)
		moments_prune(husk, NULL);
	/* GONE says that the sandbox has ended, which it has not. */
	return result < 0 ? husk_fail(err, why.code == HUSK_GONE ? HUSK_TIMEOUT : why.code, "%s", why.message) : 0;
}

int husk_extend(struct husk *husk, const char *sandbox, int64_t ttl_seconds, bool persistent, int64_t *expires_ms,
		struct husk_error *err)
{
	if (husk->remote)
		return remote_extend(husk->remote, sandbox, ttl_seconds, persistent, expires_ms, err);
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
	} else if (wire_put_int(&arguments, TAG_TTL_SECONDS, persistent ? 0 : ttl_seconds) < 0 ||
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

int husk_set_idle(struct husk *husk, const char *sandbox, int64_t idle_seconds, struct husk_error *err)
{
	if (husk->remote)
		return remote_set_idle(husk->remote, sandbox, idle_seconds, err);
	cleanup_buf struct buf arguments = { 0 };
	struct catalog_sandbox *row = NULL;
	int result;

	if (idle_seconds < 0 || idle_seconds > 365ll * 24 * 3600)
		return husk_fail_field(err, "idle_seconds", "idle must be between 0 and 365 days, not %lld seconds",
				       (long long)idle_seconds);
	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	if (row->state == CATALOG_HIBERNATED) /* no need to wake it for this */
		result = catalog_sandbox_set_idle(husk->catalog, row->id, idle_seconds, err);
	else if (wire_put_int(&arguments, TAG_IDLE_SECONDS, idle_seconds) < 0)
		result = husk_fail_memory(err);
	else
		result = husk_call(husk, row->id, METHOD_SANDBOX_IDLE, &arguments, NULL, err);
	catalog_sandbox_free(row);
	return result;
}

int husk_pause(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	if (husk->remote)
		return remote_act(husk->remote, sandbox, "pause", err);
	return husk_call(husk, sandbox, METHOD_SANDBOX_PAUSE, NULL, NULL, err);
}

int husk_resume(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	if (husk->remote)
		return remote_act(husk->remote, sandbox, "resume", err);
	return husk_call(husk, sandbox, METHOD_SANDBOX_RESUME, NULL, NULL, err);
}

int husk_hibernate(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	if (husk->remote)
		return remote_act(husk->remote, sandbox, "hibernate", err);
	struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	bool asleep = row->state == CATALOG_HIBERNATED;
	catalog_sandbox_free(row);
	if (asleep)
		return husk_fail(err, HUSK_CONFLICT, "sandbox %s is hibernated already", sandbox);
	return husk_call(husk, sandbox, METHOD_SANDBOX_HIBERNATE, NULL, NULL, err);
}

/* By way of a hibernation: a kill in the middle leaves the sandbox hibernated, with everything that it had. */
int husk_reboot(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	if (husk->remote)
		return remote_act(husk->remote, sandbox, "reboot", err);
	struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	cleanup_free char *id = strdup(row->id);
	bool asleep = row->state == CATALOG_HIBERNATED;
	catalog_sandbox_free(row);
	if (!id)
		return husk_fail_memory(err);
	if (!asleep && husk_hibernate(husk, id, err) < 0)
		return -1;
	if (sandbox_reboot(husk, id, err) == 0)
		return 0;
	if (!asleep)
		husk_wake(husk, id, NULL); /* it continues as before the call */
	return husk_wrap(err, "cannot reboot sandbox %s", id);
}
