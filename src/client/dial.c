/*
 * A TCP port or a unix socket inside a sandbox as a socket of the caller. The agent connects inside the guest. Here, two threads carry bytes
 * between the call and one end of a socket pair; the caller has the other end. The threads have no owner: they end, and
 * free what they share, when both sides are finished.
 *
 * The threads must not disturb the program that they run in: they block all signals. When the caller closes its end while
 * the guest still sends, the guest's connection is reset, as on a real network.
 */
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include "base/thread.h"
#include "client/call.h"

#define CHUNK (64u * 1024u)
/* Time between the caller's close and the cut of the guest's connection, for bytes in transit. */
#define LINGER_SECONDS 10
#define UNIX_PATH_MAX 107 /* of sockaddr_un, without the NUL */
/* A unix socket whose listener has not accepted the last few connections yet refuses the next one at once. */
#define WAITING_MS 3000
#define WAITING_STEP_US 20000

struct relay {
	struct call *call;
	int fd; /* our end of the pair */
	pthread_mutex_t lock;
	pthread_cond_t over; /* `ended` became true */
	bool ended;          /* the guest's side is over */
};

static void relay_free(struct relay *relay)
{
	call_free(relay->call);
	fd_close(&relay->fd);
	pthread_cond_destroy(&relay->over);
	pthread_mutex_destroy(&relay->lock);
	free(relay);
}

static struct relay *relay_new(struct call *call, int fd)
{
	struct relay *relay = calloc(1, sizeof(*relay));

	if (!relay)
		return NULL;
	cond_open(&relay->over);
	pthread_mutex_init(&relay->lock, NULL);
	relay->call = call;
	relay->fd = fd;
	return relay;
}

/* The caller sends no more, but may still read. What the guest sends is useless only when the caller has closed its end
 * completely (POLLHUP; the shutdown by the other thread looks the same). */
static void wait_for_close(struct relay *relay)
{
	struct pollfd p = { .fd = relay->fd };

	while (!(p.revents & (POLLHUP | POLLERR)))
		if (poll(&p, 1, -1) < 0 && errno != EINTR)
			break;
	int64_t until = time_monotonic_ms() + LINGER_SECONDS * 1000;
	pthread_mutex_lock(&relay->lock);
	while (!relay->ended && cond_wait_until(&relay->over, &relay->lock, until) != ETIMEDOUT)
		;
	bool ended = relay->ended;
	pthread_mutex_unlock(&relay->lock);
	if (!ended)
		call_cancel(relay->call, NULL);
}

/* The caller's bytes to the guest. */
static void *relay_to_guest(void *data)
{
	struct relay *relay = data;
	cleanup_free char *chunk = malloc(CHUNK);
	ssize_t n = -1;

	while (chunk) {
		n = read(relay->fd, chunk, CHUNK);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0 || call_write(relay->call, chunk, (size_t)n, NULL) < 0)
			break;
	}
	if (n > 0)
		return NULL; /* the call is over: the other thread handles it */
	call_write_eof(relay->call, NULL);
	wait_for_close(relay);
	return NULL;
}

static bool send_all(int fd, const char *data, size_t size)
{
	while (size > 0) {
		ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		data += n;
		size -= (size_t)n;
	}
	return true;
}

/* The guest's bytes to the caller; then the end of the relay. */
static void *relay_to_caller(void *data)
{
	struct relay *relay = data;
	struct call_event event;
	pthread_t other;
	bool listening = true;
	bool paired = pthread_create(&other, NULL, relay_to_guest, relay) == 0;

	while (paired && call_next(relay->call, &event, NULL) == 0 && event.type != WIRE_END) {
		if (event.type == WIRE_EOF)
			shutdown(relay->fd, SHUT_WR);
		if (event.type != WIRE_DATA || !listening)
			continue;
		listening = send_all(relay->fd, event.data, event.size);
		if (!listening)
			call_cancel(relay->call, NULL);
	}
	pthread_mutex_lock(&relay->lock);
	relay->ended = true;
	pthread_cond_broadcast(&relay->over);
	pthread_mutex_unlock(&relay->lock);
	shutdown(relay->fd, SHUT_RDWR);
	if (paired)
		pthread_join(other, NULL);
	relay_free(relay);
	return NULL;
}

/* `what` names the other end in errors. */
static int dial(struct husk *husk, const char *sandbox, const struct buf *message, const char *what,
		struct husk_error *err)
{
	cleanup_call struct call *call = NULL;
	cleanup_close int ours = -1, theirs = -1;
	struct call_event event;
	int pair[2];

	if (call_start(husk, sandbox, METHOD_DIAL, message, &call, err) < 0 ||
	    call_first_message(call, &event, err) < 0)
		return -1;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return husk_fail_errno(err, "cannot make a socket pair for %s", what);
	ours = pair[0];
	theirs = pair[1];
	struct relay *relay = relay_new(call, ours);
	if (!relay)
		return husk_fail_memory(err);
	steal_pointer(call);
	steal_fd(&ours);
	errno = thread_quiet(NULL, 0, relay_to_caller, relay); /* which starts the other one */
	if (errno != 0) {
		husk_fail_errno(err, "cannot start a thread for %s", what);
		relay_free(relay);
		return -1;
	}
	return steal_fd(&theirs);
}

int husk_dial(struct husk *husk, const char *sandbox, uint16_t port, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	char what[16];

	if (!port)
		return husk_fail_field(err, "port", "port 0 does not exist; 1 to 65535 do");
	snprintf(what, sizeof(what), "port %u", port);
	if (wire_put_int(&message, TAG_PORT, port) < 0)
		return husk_fail_memory(err);
	return dial(husk, sandbox, &message, what, err);
}

int husk_dial_unix(struct husk *husk, const char *sandbox, const char *path, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };

	if (!path || path[0] != '/' || !path[1] || strlen(path) > UNIX_PATH_MAX)
		return husk_fail_field(err, "path", "give the absolute path of a unix socket, of at most %d bytes",
				       UNIX_PATH_MAX);
	if (wire_put_string(&message, TAG_PATH, path) < 0)
		return husk_fail_memory(err);
	for (int64_t end = time_monotonic_ms() + WAITING_MS;; usleep(WAITING_STEP_US)) {
		struct husk_error why = { 0 };
		int fd = dial(husk, sandbox, &message, path, &why);
		if (fd >= 0)
			return fd;
		if (why.code != HUSK_LIMIT || time_monotonic_ms() > end)
			return husk_fail(err, why.code, "%s", why.message);
	}
}
