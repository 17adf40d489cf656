/*
 * METHOD_DIAL: a byte stream, in both directions, to a TCP port or a unix socket of the guest. TCP connections go only
 * to the guest's loopback address.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "agent/agent.h"

struct dial {
	struct channel channel;
	struct source source;
	uint16_t port;  /* 0: `path` */
	char *path;     /* of a unix socket */
	char what[128]; /* "port 8000", "socket /run/…", for messages */
	bool over_ipv6; /* the second try */
	bool connected, out_ended;
	struct buf input;
	bool input_ended, input_shut;
};

/* The address to connect to; returns its size. */
static socklen_t dial_address(const struct dial *dial, struct sockaddr_storage *out)
{
	struct sockaddr_un *local = (struct sockaddr_un *)out;
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	*out = (struct sockaddr_storage){ 0 };
	if (dial->path) {
		local->sun_family = AF_UNIX;
		snprintf(local->sun_path, sizeof(local->sun_path), "%s", dial->path);
		return sizeof(*local);
	}
	if (dial->over_ipv6) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(dial->port);
		v6->sin6_addr = (struct in6_addr)IN6ADDR_LOOPBACK_INIT;
		return sizeof(*v6);
	}
	v4->sin_family = AF_INET;
	v4->sin_port = htons(dial->port);
	v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return sizeof(*v4);
}

static int dial_refused(const struct dial *dial, struct husk_error *err)
{
	return husk_fail(err, HUSK_NOT_FOUND, "nothing listens on %s in this sandbox", dial->what);
}

static int dial_connect(struct agent *agent, struct dial *dial, struct husk_error *err)
{
	struct sockaddr_storage address;
	socklen_t size = dial_address(dial, &address);
	int on = 1;

	cleanup_close int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return husk_fail_errno(err, "cannot dial %s", dial->what);
	if (connect(fd, (struct sockaddr *)&address, size) < 0 && errno != EINPROGRESS) {
		/* A unix socket answers at once. */
		if (dial->path && (errno == ECONNREFUSED || errno == ENOENT))
			return dial_refused(dial, err);
		if (dial->path && errno == EAGAIN)
			return husk_fail(err, HUSK_LIMIT, "%s has too many connections waiting; try again", dial->what);
		return husk_fail_errno(err, "cannot dial %s", dial->what);
	}
	if (!dial->path && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
		return husk_fail_errno(err, "cannot dial %s", dial->what);
	if (source_open(agent, &dial->source, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, err) < 0)
		return -1;
	steal_fd(&fd);
	return 0;
}

static void dial_fail(struct agent *agent, struct dial *dial)
{
	struct husk_error err;

	if (errno == ECONNREFUSED)
		dial_refused(dial, &err);
	else
		husk_fail_errno(&err, "%s", dial->what);
	channel_end(agent, &dial->channel, &err, NULL);
}

/* The connection attempt succeeded or failed. Returns false if the channel has ended. */
static bool dial_answered(struct agent *agent, struct dial *dial)
{
	struct husk_error err;
	socklen_t size = sizeof(errno);
	int why = 0;

	if (getsockopt(dial->source.fd, SOL_SOCKET, SO_ERROR, &why, &size) < 0)
		why = errno;
	if (why == ECONNREFUSED && dial->port && !dial->over_ipv6) {
		source_close(agent, &dial->source);
		dial->over_ipv6 = true;
		/* If this guest has no IPv6, the refusal on IPv4 is the answer. */
		if (dial_connect(agent, dial, &err) == 0)
			return true;
		errno = ECONNREFUSED;
		dial_fail(agent, dial);
		return false;
	}
	if (why) {
		errno = why;
		dial_fail(agent, dial);
		return false;
	}
	dial->connected = true;
	channel_message(agent, &dial->channel, NULL);
	return true;
}

/* Host to port. Input for a peer that has closed is discarded: the end of the connection is reported to the host. */
static bool dial_feed(struct dial *dial)
{
	if (dial->input.size == 0) {
		if (dial->input_ended && !dial->input_shut) {
			dial->input_shut = true;
			if (shutdown(dial->source.fd, SHUT_WR) < 0 && errno != ENOTCONN)
				log_line(LOG_DEBUG, "shutdown of %s: %s", dial->what, strerror(errno));
			return true;
		}
		return false;
	}
	if (!dial->source.writable)
		return false;
	ssize_t count = source_write(&dial->source, dial->input.data, dial->input.size);
	if (count < 0 && errno == EAGAIN)
		return false;
	if (count < 0) {
		count = (ssize_t)dial->input.size;
		dial->input_shut = dial->input_ended = true;
	}
	channel_consumed(&dial->channel, (size_t)count);
	buf_consume(&dial->input, (size_t)count);
	return true;
}

/* Port to host. */
static bool dial_drain(struct agent *agent, struct dial *dial)
{
	size_t size = channel_allowance(agent, &dial->channel, STREAM_OUT);

	if (dial->out_ended || !dial->source.readable || size == 0)
		return false;
	ssize_t count = source_read(&dial->source, uplink_data_begin(agent, size), size);
	if (count < 0 && errno == EAGAIN)
		return false;
	if (count > 0) {
		uplink_data_commit(agent, &dial->channel, STREAM_OUT, (size_t)count);
		return true;
	}
	if (count < 0) /* a reset ends both directions */
		dial->input_shut = dial->input_ended = true;
	dial->out_ended = true;
	uplink_send(agent, dial->channel.number, WIRE_EOF, STREAM_OUT, NULL, 0);
	return true;
}

static bool dial_pump(struct agent *agent, struct channel *channel)
{
	struct dial *dial = (struct dial *)channel;

	if (!dial->connected) {
		if (!dial->source.writable && !dial->source.readable)
			return false;
		if (!dial_answered(agent, dial) || !dial->connected)
			return true;
	}
	bool moved = dial_feed(dial);
	moved |= dial_drain(agent, dial);
	if (dial->out_ended && dial->input_shut)
		channel_end(agent, channel, NULL, NULL);
	return moved;
}

static void dial_data(struct agent *agent, struct channel *channel, const char *bytes, size_t size)
{
	struct dial *dial = (struct dial *)channel;

	(void)agent;
	if (dial->input_ended)
		channel_consumed(channel, size);
	else if (buf_append(&dial->input, bytes, size) < 0)
		agent_die("out of memory for %s", dial->what);
}

static void dial_eof(struct agent *agent, struct channel *channel)
{
	(void)agent;
	((struct dial *)channel)->input_ended = true;
}

static void dial_cancel(struct agent *agent, struct channel *channel)
{
	channel_end(agent, channel, NULL, NULL);
}

static void dial_release(struct agent *agent, struct channel *channel)
{
	struct dial *dial = (struct dial *)channel;

	source_close(agent, &dial->source);
	buf_free(&dial->input);
	free(dial->path);
}

static const struct channel_ops dial_ops = {
	.data = dial_data,
	.eof = dial_eof,
	.cancel = dial_cancel,
	.pump = dial_pump,
	.release = dial_release,
};

static int dial_target(struct dial *dial, const struct request *request, struct husk_error *err)
{
	dial->port = (uint16_t)request_int(request, TAG_PORT, 0);
	if (request_string(request, TAG_PATH, &dial->path, err) < 0)
		return -1;
	if (!dial->path == !dial->port)
		return husk_fail(err, HUSK_INVALID, "dial: give a port, or the path of a unix socket");
	if (dial->port)
		snprintf(dial->what, sizeof(dial->what), "port %u", dial->port);
	else
		snprintf(dial->what, sizeof(dial->what), "socket %s", dial->path);
	return 0;
}

int dial_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	struct dial *dial = calloc(1, sizeof(*dial));

	if (!dial)
		return husk_fail_memory(err);
	dial->source.fd = -1;
	if (dial_target(dial, request, err) < 0 || dial_connect(agent, dial, err) < 0) {
		free(dial->path);
		free(dial);
		return -1;
	}
	channel_add(agent, &dial->channel, number, &dial_ops);
	return 0;
}
