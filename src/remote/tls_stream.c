/*
 * The thread of a TLS connection; see tls_stream.h. One loop moves bytes between the TLS connection and the socket
 * pair, and never waits for one side while the other has work.
 */
#include "remote/tls_stream.h"

#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/thread.h"

#define PIECE (32u << 10)
#define STACK (256u << 10)

struct stream {
	SSL *tls;
	int socket, plain;  /* the TCP socket; this thread's end of the pair */
	struct buf out, in; /* to the peer; to the caller */
	bool caller_ended, peer_ended;
	bool told; /* the caller was informed that the peer has ended */
	bool deaf; /* the peer reads no more; its remaining bytes are still passed on */
	void (*over)(void *data);
	void *data;
};

bool tls_shake_hands(SSL *tls, int socket, int64_t limit_ms)
{
	int64_t deadline = time_monotonic_ms() + limit_ms;

	for (;;) {
		ERR_clear_error();
		int result = SSL_do_handshake(tls);
		if (result == 1)
			return true;
		int why = SSL_get_error(tls, result);
		struct pollfd wait = { .fd = socket, .events = why == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN };
		int64_t left = deadline - time_monotonic_ms();
		if ((why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) || left <= 0)
			return false;
		if (poll(&wait, 1, (int)left) < 0 && errno != EINTR)
			return false;
	}
}

static void stream_free(struct stream *stream)
{
	SSL_free(stream->tls);
	fd_close(&stream->socket);
	fd_close(&stream->plain);
	buf_free(&stream->out);
	buf_free(&stream->in);
	free(stream);
}

/* Returns true if the connection is still usable after a call that returned `result`; `*wants`: what to wait for. */
static bool tls_goes_on(const struct stream *stream, int result, short *wants)
{
	int why = SSL_get_error(stream->tls, result);

	if (why == SSL_ERROR_WANT_WRITE)
		*wants |= POLLOUT;
	return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE;
}

static bool from_peer(struct stream *stream, short *wants)
{
	while (!stream->peer_ended && stream->in.size < PIECE) {
		if (buf_reserve(&stream->in, PIECE) < 0)
			return false;
		ERR_clear_error();
		int count = SSL_read(stream->tls, stream->in.data + stream->in.size, PIECE);
		if (count <= 0 && SSL_get_error(stream->tls, count) == SSL_ERROR_ZERO_RETURN)
			stream->peer_ended = true;
		else if (count <= 0)
			return tls_goes_on(stream, count, wants);
		else
			stream->in.size += (size_t)count;
	}
	return true;
}

static bool to_peer(struct stream *stream, short *wants)
{
	while (stream->out.size) {
		ERR_clear_error();
		int count = SSL_write(stream->tls, stream->out.data, (int)MIN(stream->out.size, PIECE));
		if (count <= 0)
			return tls_goes_on(stream, count, wants);
		buf_consume(&stream->out, (size_t)count);
	}
	return true;
}

static bool from_caller(struct stream *stream)
{
	if (buf_reserve(&stream->out, PIECE) < 0)
		return false;
	ssize_t count = recv(stream->plain, stream->out.data + stream->out.size, PIECE, MSG_DONTWAIT);
	if (count > 0 && !stream->deaf)
		stream->out.size += (size_t)count;
	stream->caller_ended |= count == 0;
	return count >= 0 || errno == EAGAIN || errno == EINTR;
}

static bool to_caller(struct stream *stream)
{
	ssize_t count = send(stream->plain, stream->in.data, stream->in.size, MSG_DONTWAIT | MSG_NOSIGNAL);

	if (count > 0)
		buf_consume(&stream->in, (size_t)count);
	return count >= 0 || errno == EAGAIN || errno == EINTR;
}

/* The peer will send no more: the caller reads to the end, and may still write. */
static void tell_end(struct stream *stream)
{
	if (stream->peer_ended && !stream->in.size && !stream->told) {
		shutdown(stream->plain, SHUT_WR);
		stream->told = true;
	}
}

/* Waits until one side has bytes, or room. Nothing is read from a caller that has closed. */
static int await(const struct stream *stream, bool reads, short wants)
{
	short plain = (short)((stream->out.size < PIECE ? POLLIN : 0) | (stream->in.size ? POLLOUT : 0));
	short below = (short)((reads && !stream->peer_ended && stream->in.size < PIECE ? POLLIN : 0) | wants |
			      (stream->out.size && !stream->deaf ? POLLOUT : 0));
	struct pollfd wait[] = {
		{ .fd = plain && !stream->caller_ended ? stream->plain : -1, .events = plain },
		{ .fd = below ? stream->socket : -1, .events = below },
	};

	if (poll(wait, ARRAY_SIZE(wait), -1) < 0)
		return errno == EINTR ? 0 : -1;
	return wait[0].revents & (POLLIN | POLLHUP | POLLERR) ? 1 : 0;
}

/* One round; returns false at the end. If the caller has closed, answers are dropped, but its bytes are still sent. */
static bool move(struct stream *stream)
{
	short wants = 0;

	if (!stream->deaf && !to_peer(stream, &wants)) {
		stream->deaf = true;
		stream->out.size = 0;
	}
	bool reads = from_peer(stream, &wants);
	if (stream->in.size && (stream->caller_ended || !to_caller(stream)))
		stream->in.size = 0;
	if ((!reads && !stream->in.size) || (stream->caller_ended && !stream->out.size))
		return false;
	tell_end(stream);
	int ready = await(stream, reads, wants);
	if (ready < 0)
		return false;
	return ready == 0 || stream->out.size >= PIECE || from_caller(stream);
}

static void *stream_main(void *data)
{
	struct stream *stream = data;
	void (*over)(void *) = stream->over;
	void *over_data = stream->data;

	while (move(stream))
		;
	SSL_shutdown(stream->tls);
	stream_free(stream);
	over(over_data);
	return NULL;
}

int tls_stream(SSL *tls, int socket, void (*over)(void *data), void *data, struct husk_error *err)
{
	struct stream *stream = calloc(1, sizeof(*stream));
	int pair[2];

	if (!stream || fd_set_nonblocking(socket, true) < 0 ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
		husk_fail_errno(err, "cannot make a socket pair");
		free(stream);
		SSL_free(tls);
		fd_close(&socket);
		over(data);
		return -1;
	}
	*stream = (struct stream){ .tls = tls, .socket = socket, .plain = pair[0], .over = over, .data = data };
	errno = thread_quiet(NULL, STACK, stream_main, stream);
	if (errno == 0)
		return pair[1];
	husk_fail_errno(err, "cannot start a thread");
	fd_close(&pair[1]);
	stream_free(stream);
	over(data);
	return -1;
}
