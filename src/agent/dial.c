/*
 * METHOD_DIAL: a TCP port of the guest as a byte stream in both directions. The agent connects only to the guest's loopback
 * address.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "agent/agent.h"

struct dial {
	struct channel channel;
	struct source source;
	uint16_t port;
	bool over_ipv6; /* the second try */
	bool connected, out_ended;
	struct buf input;
	bool input_ended, input_shut;
};

static int dial_connect(struct agent *agent, struct dial *dial, struct husk_error *err)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET,
				  .sin_port = htons(dial->port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6,
				   .sin6_port = htons(dial->port),
				   .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	const struct sockaddr *address = dial->over_ipv6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4;
	int on = 1;

	cleanup_close int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return husk_fail_errno(err, "cannot dial port %u", dial->port);
	if (connect(fd, address, dial->over_ipv6 ? sizeof(v6) : sizeof(v4)) < 0 && errno != EINPROGRESS)
		return husk_fail_errno(err, "cannot dial port %u", dial->port);
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
		return husk_fail_errno(err, "cannot dial port %u", dial->port);
	if (source_open(agent, &dial->source, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, err) < 0)
		return -1;
	steal_fd(&fd);
	return 0;
}

static void dial_fail(struct agent *agent, struct dial *dial)
{
	struct husk_error err;

	if (errno == ECONNREFUSED)
		husk_fail(&err, HUSK_NOT_FOUND, "nothing listens on port %u in this sandbox", dial->port);
	else
		husk_fail_errno(&err, "port %u", dial->port);
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
	if (why == ECONNREFUSED && !dial->over_ipv6) {
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
				log_line(LOG_DEBUG, "shutdown of port %u: %s", dial->port, strerror(errno));
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
		agent_die("out of memory for port %u", dial->port);
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
}

static const struct channel_ops dial_ops = {
	.data = dial_data,
	.eof = dial_eof,
	.cancel = dial_cancel,
	.pump = dial_pump,
	.release = dial_release,
};

int dial_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	struct dial *dial = calloc(1, sizeof(*dial));

	if (!dial)
		return husk_fail_memory(err);
	dial->source.fd = -1;
	dial->port = (uint16_t)request_int(request, TAG_PORT, 0);
	if (dial_connect(agent, dial, err) < 0) {
		free(dial);
		return -1;
	}
	channel_add(agent, &dial->channel, number, &dial_ops);
	return 0;
}
