/*
 * Cleans up after a supervisor that was killed or hangs, and ends hibernated sandboxes whose TTL has passed. A supervisor
 * holds its sandbox's lock for as long as it lives. So a lock that can be taken proves that the supervisor is dead. Called
 * by husk_open, after failed connects, and by gc. A sandbox must never be touched without its lock.
 */
#include "instance/recover.h"

#include <signal.h>
#include <sys/syscall.h>

#include "engine/engine.h"
#include "instance/console.h"
#include "instance/contact.h"
#include "instance/egress_policy.h"
#include "instance/instance.h"
#include "instance/moments.h"
#include "instance/points.h"
#include "instance/snapshots.h"
#include "instance/spawn.h"
#include "instance/versions.h"
#include "instance/workshop.h"
#include "jail/cgroup.h"

#define FORCE_MS 2000 /* how long a killed supervisor may take to be gone */
#define STILL_MS 3000
#define OVERDUE_MS 15000 /* a sandbox this long past its TTL has a supervisor that does not work */

/* ---- the remains of a killed supervisor ---- */

/* Takes a machine apart from outside, in the same way as its supervisor does. */
static void clear_machine(struct husk *husk, const struct catalog_sandbox *row)
{
	cleanup_free char *name = str_format("%s-%u", husk->paths.scope, row->slot);
	cleanup_free char *directory = path_machine(&husk->paths, row->slot);
	struct husk_error err = { 0 };

	if (!name || !directory)
		return;
	if (cgroup_destroy(husk->paths.scope, name, &err) < 0)
		log_line(LOG_WARN, "%s", err.message);
	engine_sweep(husk->paths.runtime, name);
	console_keep(&husk->paths, row->slot, row->id);
	engine_remove(directory, NULL);
}

static void end_row(struct husk *husk, const struct catalog_sandbox *row, const char *reason)
{
	cleanup_free char *detail = str_format("{\"reason\":\"%s\"}", reason);

	images_discard(husk, row->id, NULL);
	egress_secrets_drop(husk, row->id);
	if (catalog_sandbox_end(husk->catalog, row->id, reason, NULL) == 0 && row->state != CATALOG_ENDED)
		catalog_event(husk->catalog, row->id, "ended", detail, NULL);
}

/* With the sandbox's lock, so that no other process does the same. `reason`: why the sandbox ends; NULL: decided by
 * what is left of it. */
static void clear_remains(struct husk *husk, const struct catalog_sandbox *row, const char *reason)
{
	cleanup_free char *directory = path_sandbox(&husk->paths, row->id);
	cleanup_free char *partial = directory ? str_format("%s/image.partial", directory) : NULL;
	bool pooled = row->state == CATALOG_POOL || row->state == CATALOG_PREPARING;

	clear_machine(husk, row);
	if (partial)
		engine_remove(partial, NULL);
	if (directory)
		image_sweep(directory);
	points_recover(husk, row->id);
	if (row->state == CATALOG_ENDED || (reason && !pooled)) {
		end_row(husk, row, reason ? reason : row->end_reason);
	} else if (sandbox_has_image(husk, row->id)) {
		unsigned from = 1u << CATALOG_CREATING | 1u << CATALOG_RUNNING | 1u << CATALOG_PAUSED;
		catalog_sandbox_move(husk->catalog, row->id, from, CATALOG_HIBERNATED, NULL);
		catalog_event(husk->catalog, row->id, "recovered", "{\"state\":\"hibernated\"}", NULL);
	} else if (pooled || row->state == CATALOG_CREATING) {
		catalog_sandbox_forget(husk->catalog, row->id, NULL);
		if (directory)
			engine_remove(directory, NULL);
	} else {
		catalog_event(husk->catalog, row->id, "recovered", "{\"state\":\"ended\"}", NULL);
		end_row(husk, row, "crashed");
	}
}

/* Sandboxes that may have a machine: live, or ended with remains. NULL on failure. */
static struct catalog_sandbox **with_machines(struct husk *husk, bool ended)
{
	unsigned live = 1u << CATALOG_PREPARING | 1u << CATALOG_POOL | 1u << CATALOG_CREATING | 1u << CATALOG_RUNNING |
			1u << CATALOG_PAUSED;
	struct catalog_sandbox **rows = NULL;
	int result = ended ? catalog_sandbox_remains(husk->catalog, &rows, NULL)
			   : catalog_sandbox_list(husk->catalog, live, &rows, NULL);

	return result < 0 ? NULL : rows;
}

/* With the lock of `id`: reads its row again, because the sandbox may have ended properly in between. */
static size_t clear_locked(struct husk *husk, const char *id, bool ended, const char *reason)
{
	struct catalog_sandbox **rows = with_machines(husk, ended);
	size_t cleared = 0;

	for (size_t i = 0; rows && rows[i]; i++) {
		if (strcmp(rows[i]->id, id) != 0)
			continue;
		clear_remains(husk, rows[i], reason);
		cleared++;
	}
	catalog_sandbox_list_free(rows);
	supervisor_unname(husk, id);
	return cleared;
}

/* Sockets of supervisors that were killed between the last change of their row and their own end. No row leads to such a
 * socket, but its lock is free. */
static void clear_sockets(struct husk *husk)
{
	cleanup_dir DIR *dir = opendir(husk->paths.run);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		size_t length = strcspn(entry->d_name, ".");
		bool ours = str_starts(entry->d_name, "sb-") && str_equal(entry->d_name + length, ".sock");
		cleanup_free char *id = ours ? strndup(entry->d_name, length) : NULL;
		cleanup_close int lock = id ? supervisor_lock(husk, id, NULL) : -1;
		if (lock >= 0)
			supervisor_unname(husk, id);
	}
}

/* ---- a supervisor that does not answer ---- */

/* Not only supervisors: a process that creates a sandbox also holds its lock for a while. */
static bool is_supervisor(const char *pid)
{
	cleanup_free char *path = str_format("/proc/%s/comm", pid);
	cleanup_free char *name = path ? file_read(path, 64, NULL, NULL) : NULL;

	return str_equal(name, SUPERVISOR_NAME "\n");
}

/* The supervisor's process, found by the lock on its descriptor; -1: none. */
static int find_supervisor(struct husk *husk, const char *id)
{
	cleanup_free char *lock = path_lock(&husk->paths, id);
	cleanup_dir DIR *processes = opendir("/proc");
	struct dirent *entry;

	while (lock && processes && (entry = readdir(processes))) {
		char path[300], target[4096];
		if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
			continue;
		snprintf(path, sizeof(path), "/proc/%s/fd/%d", entry->d_name, SUPERVISOR_LOCK_FD);
		cleanup_close int pidfd = (int)syscall(SYS_pidfd_open, atoi(entry->d_name), 0);
		ssize_t size = pidfd < 0 ? -1 : readlink(path, target, sizeof(target) - 1);
		if (size <= 0)
			continue;
		target[size] = '\0';
		if (strcmp(target, lock) == 0 && is_supervisor(entry->d_name))
			return steal_fd(&pidfd);
	}
	return -1;
}

int supervisor_force(struct husk *husk, const char *id, const char *reason, struct husk_error *err)
{
	cleanup_close int supervisor = find_supervisor(husk, id);
	cleanup_close int lock = -1;

	if (supervisor >= 0)
		syscall(SYS_pidfd_send_signal, supervisor, SIGKILL, NULL, 0);
	for (int64_t end = time_monotonic_ms() + FORCE_MS; lock < 0; usleep(5000)) {
		lock = supervisor_lock(husk, id, err);
		if (lock < 0 && time_monotonic_ms() > end)
			return husk_wrap(err, "its supervisor does not answer and cannot be ended");
	}
	/* A process that was waking the sandbox may have put it back to sleep before the lock was free. */
	if (clear_locked(husk, id, false, reason) == 0)
		return husk_fail(err, HUSK_CONFLICT, "sandbox %s has just ended or gone back to sleep", id);
	return 0;
}

/* The TTL passed a while ago: the supervisor hangs, or the clock was set. */
static bool stands_still(struct husk *husk, const struct catalog_sandbox *row)
{
	struct husk_error err = { 0 };
	bool awake = row->state == CATALOG_RUNNING || row->state == CATALOG_PAUSED;

	if (!awake || row->persistent || !row->expires_ms || row->expires_ms + OVERDUE_MS > time_wall_ms())
		return false;
	cleanup_close int fd = supervisor_dial(husk, row->id, STILL_MS, &err);
	return fd < 0 && err.code == HUSK_TIMEOUT;
}

size_t husk_recover(struct husk *husk, const char *only)
{
	size_t cleared = 0;

	for (int ended = 0; ended < 2; ended++) {
		struct catalog_sandbox **rows = with_machines(husk, ended);
		for (size_t i = 0; rows && rows[i]; i++) {
			if (only && strcmp(rows[i]->id, only) != 0)
				continue;
			cleanup_close int lock = supervisor_lock(husk, rows[i]->id, NULL);
			if (lock >= 0)
				cleared += clear_locked(husk, rows[i]->id, ended, NULL);
			else if (stands_still(husk, rows[i]) && supervisor_force(husk, rows[i]->id, "ttl", NULL) == 0)
				cleared++;
		}
		catalog_sandbox_list_free(rows);
	}
	if (!only) {
		clear_sockets(husk);
		workshop_sweep(husk);
		version_sweep(husk, NULL, NULL);
		cleared += snapshots_recover(husk, NULL);
		moments_prune(husk, NULL);
	}
	return cleared;
}

/* ---- asleep ---- */

static int fail_awake(const struct catalog_sandbox *row, struct husk_error *err)
{
	if (row->state == CATALOG_ENDED)
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended (%s)", row->id, row->end_reason);
	return husk_fail(err, HUSK_CONFLICT, "sandbox %s has just been woken", row->id);
}

int recover_asleep(struct husk *husk, const char *id, asleep_fn *change, void *data, struct husk_error *err)
{
	cleanup_close int lock = supervisor_lock(husk, id, err);
	struct catalog_sandbox *row = NULL;

	if (lock < 0)
		return -1;
	int result = catalog_sandbox_get(husk->catalog, id, &row, err);
	if (result == 0)
		result = row->state == CATALOG_HIBERNATED ? change(husk, row, data, err) : fail_awake(row, err);
	catalog_sandbox_free(row);
	supervisor_unname(husk, id);
	return result;
}

static int end_asleep(struct husk *husk, const struct catalog_sandbox *row, void *data, struct husk_error *err)
{
	const char *reason = data;
	cleanup_free char *detail = str_format("{\"reason\":\"%s\"}", reason);

	if (!detail)
		return husk_fail_memory(err);
	if (catalog_sandbox_ending(husk->catalog, row->id, reason, err) < 0)
		return -1;
	catalog_event(husk->catalog, row->id, "ended", detail, NULL);
	egress_secrets_drop(husk, row->id);
	int result = images_discard(husk, row->id, err);
	return result < 0 ? -1 : catalog_sandbox_end(husk->catalog, row->id, reason, err);
}

int recover_end_asleep(struct husk *husk, const struct catalog_sandbox *row, const char *reason, struct husk_error *err)
{
	return recover_asleep(husk, row->id, end_asleep, (void *)reason, err);
}

void husk_expire(struct husk *husk, const struct catalog_sandbox *row)
{
	struct husk_error err = { 0 };

	if (recover_end_asleep(husk, row, "ttl", &err) < 0)
		log_line(LOG_WARN, "%s", err.message);
}
