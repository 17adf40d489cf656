/*
 * The handle on an instance: opening it, finding a sandbox's supervisor and talking to it, and clearing up after
 * supervisors that were killed. A supervisor holds the lock of its sandbox for as long as it lives, whatever ends it, so
 * a lock that can be taken is the proof that nobody looks after that sandbox any more.
 */
#include <sys/socket.h>
#include <sys/un.h>

#include "engine/engine.h"
#include "jail/cgroup.h"
#include "sandbox/egress.h"
#include "sandbox/lifecycle.h"
#include "sandbox/pool.h"
#include "wire/wire.h"

#define SETTLE_MS 60000 /* how long a call waits for a sandbox that is being created or woken */

/* ---- the remains of a killed supervisor ---- */

/* What was a machine is taken apart from outside, the way its supervisor would have done it. */
static void clear_machine(struct husk *husk, const struct catalog_sandbox *row)
{
	cleanup_free char *name = str_format("%s-%u", husk->paths.scope, row->slot);
	cleanup_free char *directory = path_machine(&husk->paths, row->slot);
	cleanup_free char *socket_path = path_socket(&husk->paths, row->id);
	struct husk_error err = { 0 };

	if (!name || !directory || !socket_path)
		return;
	if (cgroup_destroy(husk->paths.scope, name, &err) < 0)
		log_line(LOG_WARN, "%s", err.message);
	engine_sweep(husk->paths.runtime, name);
	dir_remove(directory, NULL);
	unlink(socket_path);
}

/* Its lock is ours: nobody else clears it at the same time. */
static void clear_remains(struct husk *husk, const struct catalog_sandbox *row)
{
	cleanup_free char *directory = path_sandbox(&husk->paths, row->id);
	cleanup_free char *partial = directory ? str_format("%s/image.partial", directory) : NULL;
	bool pooled = row->state == CATALOG_POOL || row->state == CATALOG_PREPARING;

	clear_machine(husk, row);
	if (partial)
		dir_remove(partial, NULL);
	if (sandbox_has_image(husk, row->id)) {
		unsigned from = 1u << CATALOG_CREATING | 1u << CATALOG_RUNNING | 1u << CATALOG_PAUSED;
		catalog_sandbox_move(husk->catalog, row->id, from, CATALOG_HIBERNATED, NULL);
		catalog_event(husk->catalog, row->id, "recovered", "{\"state\":\"hibernated\"}", NULL);
		return;
	}
	if (pooled || row->state == CATALOG_CREATING) {
		catalog_sandbox_forget(husk->catalog, row->id, NULL);
		if (directory)
			dir_remove(directory, NULL);
		return;
	}
	egress_secrets_drop(husk, row->id);
	catalog_sandbox_end(husk->catalog, row->id, "crashed", NULL);
	catalog_event(husk->catalog, row->id, "recovered", "{\"state\":\"ended\"}", NULL);
	catalog_event(husk->catalog, row->id, "ended", "{\"reason\":\"crashed\"}", NULL);
}

size_t husk_recover(struct husk *husk, const char *only)
{
	unsigned live = 1u << CATALOG_PREPARING | 1u << CATALOG_POOL | 1u << CATALOG_CREATING | 1u << CATALOG_RUNNING |
			1u << CATALOG_PAUSED;
	struct catalog_sandbox **rows = NULL;
	size_t cleared = 0;

	if (catalog_sandbox_list(husk->catalog, live, &rows, NULL) < 0)
		return 0;
	for (size_t i = 0; rows[i]; i++) {
		if (only && strcmp(rows[i]->id, only) != 0)
			continue;
		cleanup_close int lock = supervisor_lock(husk, rows[i]->id, NULL);
		if (lock < 0)
			continue;
		/* With the lock in hand, look again: it may have ended properly in between. */
		struct catalog_sandbox **now = NULL;
		if (catalog_sandbox_list(husk->catalog, live, &now, NULL) < 0)
			break;
		for (size_t j = 0; now[j]; j++) {
			if (strcmp(now[j]->id, rows[i]->id) != 0)
				continue;
			clear_remains(husk, now[j]);
			cleared++;
		}
		catalog_sandbox_list_free(now);
		cleanup_free char *path = path_lock(&husk->paths, rows[i]->id);
		if (path)
			unlink(path);
	}
	catalog_sandbox_list_free(rows);
	return cleared;
}

/* ---- the handle ---- */

int husk_open(const char *home, struct husk **out, struct husk_error *err)
{
	struct husk *husk = calloc(1, sizeof(*husk));

	if (!husk)
		return husk_fail_memory(err);
	if (paths_open(home, &husk->paths, err) < 0) {
		free(husk);
		return -1;
	}
	cleanup_free char *database = path_catalog(&husk->paths);
	if (!database || catalog_open(database, &husk->catalog, err) < 0) {
		husk_close(husk);
		return database ? -1 : husk_fail_memory(err);
	}
	husk_recover(husk, NULL);
	*out = husk;
	return 0;
}

void husk_close(struct husk *husk)
{
	if (!husk)
		return;
	catalog_close(husk->catalog);
	if (!husk->is_view)
		paths_close(&husk->paths);
	free(husk);
}

/* ---- talking to a supervisor ---- */

int supervisor_dial(struct husk *husk, const char *id, struct husk_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	cleanup_free char *path = path_socket(&husk->paths, id);
	cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cleanup_buf struct buf hello = { 0 };
	cleanup_free char *payload = malloc(WIRE_PAYLOAD_MAX);
	struct wire_header header;

	if (!path || !payload || strlen(path) >= sizeof(address.sun_path) ||
	    wire_put_int(&hello, TAG_VERSION, WIRE_VERSION) < 0)
		return husk_fail_memory(err);
	memcpy(address.sun_path, path, strlen(path) + 1);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		if (errno == ENOENT || errno == ECONNREFUSED)
			return husk_fail(err, HUSK_GONE, "nothing answers for sandbox %s", id);
		return husk_fail_errno(err, "cannot connect to sandbox %s", id);
	}
	if (wire_send(fd, 0, WIRE_HELLO, 0, hello.data, hello.size, err) < 0)
		return -1;
	int got = wire_receive(fd, &header, payload, err);
	if (got < 0)
		return -1;
	if (got == 0 || header.type != WIRE_HELLO || wire_get_int(payload, header.size, TAG_VERSION, 0) != WIRE_VERSION)
		return husk_fail(err, HUSK_GONE, "sandbox %s closed the connection", id);
	return steal_fd(&fd);
}

/* Waits for END; anything else of this channel does not belong in a call without streams. */
int supervisor_call(int fd, uint16_t method, const struct buf *arguments, struct buf *results, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	cleanup_free char *payload = malloc(WIRE_PAYLOAD_MAX);
	struct wire_header header;

	if (!payload || wire_put_int(&message, TAG_METHOD, method) < 0 ||
	    (arguments && arguments->size && buf_append(&message, arguments->data, arguments->size) < 0))
		return husk_fail_memory(err);
	if (wire_send(fd, 1, WIRE_OPEN, 0, message.data, message.size, err) < 0)
		return -1;
	do {
		int got = wire_receive(fd, &header, payload, err);
		if (got < 0)
			return -1;
		if (got == 0)
			return husk_fail(err, HUSK_GONE, "the sandbox ended during the call");
	} while (header.type != WIRE_END || header.channel != 1);
	if (results && header.size && buf_append(results, payload, header.size) < 0)
		return husk_fail_memory(err);
	return wire_end_status(payload, header.size, err);
}

int husk_connect(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + SETTLE_MS;
	bool searched = false;

	for (;;) {
		struct catalog_sandbox *row = NULL;
		if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
			return -1;
		int result = -1;
		bool again = false;
		if (row->state == CATALOG_ENDED) {
			husk_fail(err, HUSK_GONE, "sandbox %s has ended (%s)", row->id, row->end_reason);
		} else if (row->state == CATALOG_HIBERNATED) {
			again = husk_wake(husk, row->id, err) == 0;
		} else if (row->state == CATALOG_CREATING) {
			again = time_monotonic_ms() < deadline;
			if (!again)
				husk_fail(err, HUSK_TIMEOUT, "sandbox %s is still being created", row->id);
			usleep(5000);
		} else {
			result = supervisor_dial(husk, row->id, err);
			/* Gone: its supervisor was killed (clear up and say so), or it just ended or went to sleep. */
			if (result < 0 && !searched && (!err || err->code == HUSK_GONE)) {
				husk_recover(husk, row->id);
				searched = again = true;
			}
		}
		catalog_sandbox_free(row);
		if (!again)
			return result;
	}
}

int husk_call(struct husk *husk, const char *sandbox, uint16_t method, const struct buf *arguments, struct buf *results,
	      struct husk_error *err)
{
	cleanup_close int fd = husk_connect(husk, sandbox, err);

	return fd < 0 ? -1 : supervisor_call(fd, method, arguments, results, err);
}
