/*
 * Contact with a sandbox's supervisor: finds it, wakes a hibernated sandbox on the way, and makes calls. Everything in
 * libhusk that needs a live sandbox uses this file. Every wait has a deadline, because a supervisor may hang.
 */
#include "instance/contact.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "instance/recover.h"
#include "wire/wire.h"

#define SETTLE_MS 60000 /* how long a call waits for a sandbox that is being created or woken */
#define LOOK_TURNS 100  /* of 5 ms: how often a waiting call checks whether the other process is gone */
#define CALL_MS 45000
#define IMAGE_MS (20 * 60 * 1000) /* for calls that read all memory and disk of a guest */
#define KILL_MS 2000
#define LOOK_MS 10000 /* how often a long call checks whether the supervisor still greets */
#define LOOKS_MAX 2   /* checks without a greeting, one after the other, that end the call */

int supervisor_patience(uint16_t method)
{
	switch (method) {
	case METHOD_SANDBOX_KILL:
		return KILL_MS;
	case METHOD_SANDBOX_CLAIM:
	case METHOD_SANDBOX_CHECKPOINT:
	case METHOD_SANDBOX_HIBERNATE:
	case METHOD_SANDBOX_POINT:
	case METHOD_SANDBOX_EFFECT: /* the host's answer */
	case METHOD_SANDBOX_REWIND: /* the turn before it */
	case METHOD_FILE_MOVE:      /* may cross filesystems or move a large tree */
	case METHOD_FILE_REMOVE:    /* likewise */
	case METHOD_REPLACE:        /* one rename for each file of a merge */
		return IMAGE_MS;
	default:
		return CALL_MS;
	}
}

static int fail_timeout(const char *id, struct husk_error *err)
{
	return husk_fail(err, HUSK_TIMEOUT, "the supervisor of sandbox %s does not answer; end it with husk rm %s", id,
			 id);
}

/* A full connection queue or a full socket delays the caller by at most that time. */
static int limited_socket(int timeout_ms)
{
	struct timeval limit = { .tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000 };
	cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0)
		return -1;
	return steal_fd(&fd);
}

static int exchange_hello(int fd, const char *id, int64_t flags, int64_t deadline_ms, struct husk_error *err)
{
	cleanup_buf struct buf hello = { 0 };
	cleanup_free char *payload = malloc(WIRE_PAYLOAD_MAX);
	struct wire_header header = { 0 };
	struct husk_error why = { 0 };

	if (!payload || wire_put_int(&hello, TAG_VERSION, WIRE_VERSION) < 0 ||
	    wire_put_int(&hello, TAG_FLAGS, flags) < 0)
		return husk_fail_memory(err);
	int got = wire_send(fd, 0, WIRE_HELLO, 0, hello.data, hello.size, &why);
	if (got == 0)
		got = wire_receive_until(fd, &header, payload, deadline_ms, &why);
	if (got < 0 && why.code == HUSK_TIMEOUT)
		return fail_timeout(id, err);
	if (got < 0)
		return husk_fail(err, why.code, "sandbox %s: %s", id, why.message);
	if (got == 0 || header.type != WIRE_HELLO || wire_get_int(payload, header.size, TAG_VERSION, 0) != WIRE_VERSION)
		return husk_fail(err, HUSK_GONE, "sandbox %s closed the connection", id);
	int64_t answered = wire_get_int(payload, header.size, TAG_FLAGS, 0);
	if (answered & HELLO_LATER)
		return husk_fail(err, HUSK_CONFLICT, "sandbox %s is going to sleep", id);
	if (flags & ~answered & HELLO_LIMITED) /* an older supervisor would let the client do everything */
		return husk_fail(
			err, HUSK_UNAVAILABLE,
			"sandbox %s was started by an older Husk that cannot be used over the server; use it on its "
			"host, or hibernate and wake it there",
			id);
	return 0;
}

static int dial_address(const struct sockaddr_un *address, const char *id, int64_t flags, int timeout_ms,
			struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + timeout_ms;
	cleanup_close int fd = limited_socket(timeout_ms);

	if (fd < 0 || connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0) {
		if (errno == ENOENT || errno == ECONNREFUSED)
			return husk_fail(err, HUSK_GONE, "nothing answers for sandbox %s", id);
		if (errno == EAGAIN)
			return fail_timeout(id, err);
		return husk_fail_errno(err, "cannot connect to sandbox %s", id);
	}
	return exchange_hello(fd, id, flags, deadline, err) < 0 ? -1 : steal_fd(&fd);
}

/* `flags`: of HELLO. CONFLICT: the sandbox is being hibernated. */
static int dial(struct husk *husk, const char *id, int64_t flags, int timeout_ms, struct husk_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	cleanup_free char *path = path_socket(&husk->paths, id);

	if (!path || strlen(path) >= sizeof(address.sun_path))
		return husk_fail_memory(err);
	memcpy(address.sun_path, path, strlen(path) + 1);
	return dial_address(&address, id, flags, timeout_ms, err);
}

int supervisor_dial(struct husk *husk, const char *id, int timeout_ms, struct husk_error *err)
{
	return dial(husk, id, 0, timeout_ms, err);
}

/* False: the supervisor at the other end does not greet a new connection, so it is stopped or hangs. Any other answer is
 * one, and a tunnel through a server has no address to ask at. */
static bool greets(int fd, char id[static sizeof(((struct sockaddr_un *)0)->sun_path)])
{
	struct sockaddr_un address = { 0 };
	socklen_t size = sizeof(address) - 1; /* the rest stays zero: a path has an end */
	struct husk_error why = { 0 };

	if (getpeername(fd, (struct sockaddr *)&address, &size) < 0 || address.sun_family != AF_UNIX ||
	    !address.sun_path[0])
		return true;
	const char *slash = strrchr(address.sun_path, '/');
	const char *name = slash ? slash + 1 : address.sun_path;
	snprintf(id, sizeof(address.sun_path), "%.*s", (int)strcspn(name, "."), name);
	cleanup_close int other = dial_address(&address, id, 0, SUPERVISOR_DIAL_MS, &why);
	return other >= 0 || why.code != HUSK_TIMEOUT;
}

/* Waits until there is something to read, the connection has ended, or the deadline is over. */
static int await_answer(int fd, int64_t deadline_ms, struct husk_error *err)
{
	char id[sizeof(((struct sockaddr_un *)0)->sun_path)] = "";

	for (unsigned silent = 0; silent < LOOKS_MAX;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int64_t left = deadline_ms - time_monotonic_ms();
		int n = left <= 0 ? 1 : poll(&p, 1, (int)MIN(left, LOOK_MS));

		if (n > 0)
			return 0;
		if (n == 0)
			silent = greets(fd, id) ? 0 : silent + 1;
		else if (errno != EINTR)
			return husk_fail_errno(err, "cannot wait for an answer");
	}
	return fail_timeout(id, err);
}

/* Waits for END. Other frames of this channel are not allowed in a call without streams. */
int supervisor_call(int fd, uint16_t method, const struct buf *arguments, struct buf *results, int timeout_ms,
		    struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	cleanup_free char *payload = malloc(WIRE_PAYLOAD_MAX);
	int64_t deadline = time_monotonic_ms() + timeout_ms;
	struct wire_header header;

	if (!payload || wire_put_open(&message, method, arguments) < 0)
		return husk_fail_memory(err);
	if (wire_send(fd, 1, WIRE_OPEN, 0, message.data, message.size, err) < 0)
		return -1;
	do {
		if (await_answer(fd, deadline, err) < 0)
			return -1;
		/* A frame that has begun arrives soon. */
		int got = wire_receive_until(fd, &header, payload, MIN(deadline, time_monotonic_ms() + CALL_MS), err);
		if (got < 0)
			return -1;
		if (got == 0)
			return husk_fail(err, HUSK_GONE, "the sandbox ended during the call");
	} while (header.type != WIRE_END || header.channel != 1);
	if (results && header.size && buf_append(results, payload, header.size) < 0)
		return husk_fail_memory(err);
	return wire_end_status(payload, header.size, err);
}

/* A search for the supervisor of a sandbox, with its state. */
struct search {
	int64_t deadline;
	int64_t flags; /* of HELLO */
	unsigned turn;
	bool recovered; /* the search has checked whether the supervisor was killed */
};

/* For a running sandbox. -1 with again: the sandbox may have changed its state. */
static int connect_awake(struct husk *husk, const char *id, struct search *search, bool *again, struct husk_error *err)
{
	struct husk_error why = { 0 };
	int fd = dial(husk, id, search->flags, SUPERVISOR_DIAL_MS, &why);

	/* GONE: the supervisor was killed (then clean up and report it), or the sandbox has just ended or
	 * hibernated. */
	if (fd < 0 && why.code == HUSK_GONE && !search->recovered) {
		husk_recover(husk, id);
		search->recovered = *again = true;
	}
	if (fd < 0 && why.code == HUSK_CONFLICT) /* the sandbox is being hibernated: wake it afterwards */
		*again = true;
	if (fd < 0 && err)
		*err = why;
	return fd;
}

/* One step of the search; -1 with again: another step is required. */
static int connect_once(struct husk *husk, const struct catalog_sandbox *row, struct search *search, bool *again,
			struct husk_error *err)
{
	switch (row->state) {
	case CATALOG_ENDED:
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended (%s)", row->id, row->end_reason);
	case CATALOG_HIBERNATED:
		*again = husk_wake(husk, row->id, err) == 0;
		return -1;
	case CATALOG_CREATING:
		if (++search->turn % LOOK_TURNS == 0) /* the process that creates the sandbox may have been killed */
			husk_recover(husk, row->id);
		*again = true;
		return -1;
	default:
		return connect_awake(husk, row->id, search, again, err);
	}
}

static int search_supervisor(struct husk *husk, const char *sandbox, int64_t flags, struct husk_error *err)
{
	struct search search = { .deadline = time_monotonic_ms() + SETTLE_MS, .flags = flags };

	for (;;) {
		struct catalog_sandbox *row = NULL;
		bool again = false;
		if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
			return -1;
		int fd = connect_once(husk, row, &search, &again, err);
		bool late = again && time_monotonic_ms() > search.deadline;
		if (late)
			husk_fail(err, HUSK_TIMEOUT, "sandbox %s is still being created, woken or put to sleep",
				  row->id);
		bool slept = row->state == CATALOG_HIBERNATED;
		catalog_sandbox_free(row);
		if (!again || late)
			return fd;
		usleep(slept ? 500 : 5000); /* a woken sandbox answers by now, unless another caller is waking it */
	}
}

int husk_connect(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	if (husk->remote)
		return remote_tunnel(husk->remote, sandbox, err);
	return search_supervisor(husk, sandbox, HELLO_GUEST, err);
}

int husk_tunnel(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	if (husk->remote)
		return remote_tunnel(husk->remote, sandbox, err);
	return search_supervisor(husk, sandbox, HELLO_GUEST | HELLO_LIMITED, err);
}

int husk_call(struct husk *husk, const char *sandbox, uint16_t method, const struct buf *arguments, struct buf *results,
	      struct husk_error *err)
{
	cleanup_close int fd = husk_connect(husk, sandbox, err);

	return fd < 0 ? -1 : supervisor_call(fd, method, arguments, results, supervisor_patience(method), err);
}
