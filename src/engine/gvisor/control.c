/*
 * The control socket of a running runsc sandbox: JSON requests with descriptors, JSON answers. gvisor.c uses it for
 * everything after `runsc create`, because a call takes one millisecond and a start of runsc twenty. The sandbox process is
 * where a guest would be after breaking out of its kernel. So an answer is bounded in size and time, and is trusted only as
 * "it worked" or as a message to show.
 */
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "engine/gvisor/gvisor.h"

#define ANSWER_MAX (16u << 20) /* a list of processes is long */
#define ANSWER_CHUNK 65536u
#define FDS_MAX 8

int control_connect(const char *path, struct husk_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	cleanup_close int fd = -1;

	if (strlen(path) >= sizeof(address.sun_path))
		return husk_fail(err, HUSK_INVALID, "socket path '%s' is too long; choose a shorter HUSK_HOME", path);
	memcpy(address.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return husk_fail_errno(err, "cannot make a socket");
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return husk_fail_errno(err, "cannot reach the sandbox process at %s", path);
	return steal_fd(&fd);
}

/* Descriptors travel with the first byte; the rest of a long request may need more writes. */
static int request_send(int fd, const char *text, size_t size, const int *fds, size_t count, struct husk_error *err)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int) * FDS_MAX)];
	} control = { 0 };
	struct iovec part = { .iov_base = (void *)text, .iov_len = size };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	ssize_t put;

	if (count > 0) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int) * count);
		memcpy(CMSG_DATA(&control.header), fds, sizeof(int) * count);
	}
	do
		put = sendmsg(fd, &message, MSG_NOSIGNAL);
	while (put < 0 && errno == EINTR);
	while (put >= 0 && (size_t)put < size) {
		ssize_t more = send(fd, text + put, size - (size_t)put, MSG_NOSIGNAL);

		if (more < 0 && errno != EINTR)
			put = -1;
		else if (more > 0)
			put += more;
	}
	return put < 0 ? husk_fail_errno(err, "cannot talk to the sandbox process") : 0;
}

/* Can this be a complete document? Parsing half of a long one again and again would take longer than receiving it. */
static bool may_be_whole(const struct buf *answer)
{
	size_t size = answer->size;

	while (size > 0 && answer->data[size - 1] == '\n')
		size--;
	return size > 0 && answer->data[size - 1] == '}';
}

/* Reads until the bytes are one JSON document. NULL on failure. */
static json_t *answer_receive(int fd, int timeout_ms, struct husk_error *err)
{
	cleanup_buf struct buf answer = { 0 };
	int64_t deadline = time_monotonic_ms() + timeout_ms;

	while (answer.size < ANSWER_MAX) {
		struct pollfd wait = { .fd = fd, .events = POLLIN };
		int64_t left = deadline - time_monotonic_ms();
		json_t *parsed;
		ssize_t got;

		if (left <= 0 || poll(&wait, 1, (int)left) == 0) {
			husk_fail(err, HUSK_TIMEOUT, "the sandbox process gave no answer within %d s",
				  timeout_ms / 1000);
			return NULL;
		}
		if (buf_reserve(&answer, answer.size < ANSWER_CHUNK ? 4096 : ANSWER_CHUNK) < 0) {
			husk_fail_memory(err);
			return NULL;
		}
		/* recv, not recvmsg: the kernel closes descriptors that are sent along. */
		got = recv(fd, answer.data + answer.size, answer.capacity - answer.size - 1, MSG_DONTWAIT);
		if (got < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (got <= 0) {
			husk_fail(err, HUSK_GONE, "the sandbox process has ended");
			return NULL;
		}
		answer.size += (size_t)got;
		parsed = may_be_whole(&answer) ? json_loadb(answer.data, answer.size, 0, NULL) : NULL;
		if (parsed)
			return parsed;
	}
	husk_fail(err, HUSK_PROTOCOL, "the sandbox process sent an answer without end");
	return NULL;
}

/* A message of runsc may be a stack trace of many lines: the first line says what happened. */
static int answer_check(json_t *answer, const char *method, struct husk_error *err)
{
	const char *reason = json_string_value(json_object_get(answer, "err"));
	int length;

	if (json_is_true(json_object_get(answer, "success")))
		return 0;
	if (!reason)
		return husk_fail(err, HUSK_PROTOCOL, "the sandbox process answered %s with something else", method);
	length = (int)strcspn(reason, "\n");
	length = MIN(length, 500);
	if (strstr(reason, "unknown method"))
		return husk_fail(err, HUSK_UNAVAILABLE, "this runsc has no %s (%.*s); husk was made for %d", method,
				 length, reason, GVISOR_VERSION_MIN);
	return husk_fail(err, strstr(reason, "no space left") ? HUSK_LIMIT : HUSK_INTERNAL, "%.*s", length, reason);
}

int control_call(int fd, const char *method, json_t *arg, const int *fds, size_t count, int timeout_ms, json_t **out,
		 struct husk_error *err)
{
	json_t *request = json_pack("{s:s, s:o}", "method", method, "arg", arg), *answer;
	cleanup_free char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
	int result;

	json_decref(request);
	if (!text)
		return husk_fail_memory(err);
	if (count > FDS_MAX)
		return husk_fail(err, HUSK_INTERNAL, "%zu descriptors are too many for %s", count, method);
	if (request_send(fd, text, strlen(text), fds, count, err) < 0)
		return -1;
	answer = answer_receive(fd, timeout_ms, err);
	if (!answer)
		return -1;
	result = answer_check(answer, method, err);
	if (result == 0 && out)
		*out = json_incref(json_object_get(answer, "result"));
	json_decref(answer);
	return result;
}
