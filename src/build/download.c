/*
 * A GET over a given connection (download.h). The socket does not block. Every wait is short, and checks afterwards
 * whether the caller wants to stop.
 */
#include "build/download.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "husk.h"

#define POLL_MS 200
#define SILENT_MS 60000 /* without a byte */
#define PIECE (64u << 10)

struct stream {
	const struct download *download;
	SSL_CTX *context;
	SSL *tls; /* NULL: plain */
};

static void stream_close(struct stream *stream)
{
	SSL_free(stream->tls);
	SSL_CTX_free(stream->context);
}

static int fail_lost(const struct stream *stream, const char *why, struct husk_error *err)
{
	return husk_fail(err, HUSK_UNAVAILABLE, "%s: %s", stream->download->url->host, why);
}

static int stream_wait(const struct stream *stream, short events, struct husk_error *err)
{
	int64_t end = time_monotonic_ms() + SILENT_MS;
	struct pollfd wait = { .fd = stream->download->fd, .events = events };

	while (time_monotonic_ms() < end) {
		if (stream->download->stop(stream->download->data, err) < 0)
			return -1;
		if (poll(&wait, 1, POLL_MS) > 0)
			return 0;
	}
	return fail_lost(stream, "nothing arrives any more", err);
}

/* After a call of OpenSSL that did not succeed: 0 to call it again, 1: the end of the stream, -1. */
static int tls_wait(const struct stream *stream, int result, struct husk_error *err)
{
	switch (SSL_get_error(stream->tls, result)) {
	case SSL_ERROR_WANT_READ:
		return stream_wait(stream, POLLIN, err);
	case SSL_ERROR_WANT_WRITE:
		return stream_wait(stream, POLLOUT, err);
	case SSL_ERROR_ZERO_RETURN:
		return 1;
	default:
		return fail_lost(stream, "the connection was closed", err);
	}
}

/* ---- bytes ---- */

/* How many bytes arrived; 0: the end. */
static ssize_t stream_read(const struct stream *stream, void *bytes, size_t size, struct husk_error *err)
{
	for (;;) {
		ERR_clear_error();
		int got = stream->tls ? SSL_read(stream->tls, bytes, (int)size)
				      : (int)recv(stream->download->fd, bytes, size, 0);
		if (got > 0 || (got == 0 && !stream->tls))
			return got;
		if (stream->tls) {
			int again = tls_wait(stream, got, err);
			if (again)
				return again < 0 ? -1 : 0;
		} else if (errno != EAGAIN && errno != EINTR) {
			return fail_lost(stream, strerror(errno), err);
		} else if (stream_wait(stream, POLLIN, err) < 0) {
			return -1;
		}
	}
}

static int stream_write(const struct stream *stream, const char *bytes, size_t size, struct husk_error *err)
{
	while (size > 0) {
		ERR_clear_error();
		int sent = stream->tls ? SSL_write(stream->tls, bytes, (int)size)
				       : (int)send(stream->download->fd, bytes, size, MSG_NOSIGNAL);
		if (sent > 0) {
			bytes += sent;
			size -= (size_t)sent;
		} else if (stream->tls) {
			if (tls_wait(stream, sent, err))
				return fail_lost(stream, "the connection was closed", err);
		} else if (errno != EAGAIN && errno != EINTR) {
			return fail_lost(stream, strerror(errno), err);
		} else if (stream_wait(stream, POLLOUT, err) < 0) {
			return -1;
		}
	}
	return 0;
}

/* ---- TLS ---- */

static int fail_handshake(const struct stream *stream, struct husk_error *err)
{
	const char *host = stream->download->url->host;
	long verified = SSL_get_verify_result(stream->tls);
	unsigned long code = ERR_peek_error();
	const char *reason = code ? ERR_reason_error_string(code) : NULL;

	if (verified != X509_V_OK)
		return husk_fail(err, HUSK_DENIED, "the certificate of %s is not trusted by this host: %s", host,
				 X509_verify_cert_error_string(verified));
	return husk_fail(err, HUSK_DENIED, "no TLS connection to %s: %s", host, reason ? reason : "it hung up");
}

static int tls_begin(struct stream *stream, struct husk_error *err)
{
	const char *host = stream->download->url->host;
	X509_VERIFY_PARAM *verify;
	int result;

	stream->context = SSL_CTX_new(TLS_client_method());
	if (!stream->context || SSL_CTX_set_min_proto_version(stream->context, TLS1_2_VERSION) != 1 ||
	    SSL_CTX_set_default_verify_paths(stream->context) != 1)
		return husk_fail(err, HUSK_INTERNAL, "cannot set TLS up");
	SSL_CTX_set_verify(stream->context, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_options(stream->context, SSL_OP_IGNORE_UNEXPECTED_EOF); /* lengths say whether it is complete */
	stream->tls = SSL_new(stream->context);
	verify = stream->tls ? SSL_get0_param(stream->tls) : NULL;
	/* An address is compared with the certificate's addresses, a name with its names. */
	if (!verify || SSL_set_fd(stream->tls, stream->download->fd) != 1 ||
	    (X509_VERIFY_PARAM_set1_ip_asc(verify, host) != 1 &&
	     (X509_VERIFY_PARAM_set1_host(verify, host, 0) != 1 || SSL_set_tlsext_host_name(stream->tls, host) != 1)))
		return husk_fail_memory(err);
	for (ERR_clear_error(); (result = SSL_connect(stream->tls)) != 1; ERR_clear_error()) {
		int why = SSL_get_error(stream->tls, result);
		if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
			return fail_handshake(stream, err);
		if (stream_wait(stream, why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, err) < 0)
			return -1;
	}
	return 0;
}

/* ---- the request and its answer ---- */

static int ask(const struct stream *stream, struct husk_error *err)
{
	const struct url *url = stream->download->url;
	cleanup_buf struct buf out = { 0 };
	bool usual = url->port == (url->tls ? 443 : 80);
	int bad = buf_printf(&out, "GET %s HTTP/1.1\r\nHost: %s", url->target, url->host);

	bad |= usual ? 0 : buf_printf(&out, ":%u", url->port);
	bad |= buf_append_string(&out, "\r\nUser-Agent: husk/" HUSK_VERSION "\r\nAccept: */*\r\n"
				       "Accept-Encoding: identity\r\nConnection: close\r\n\r\n");
	return bad ? husk_fail_memory(err) : stream_write(stream, out.data, out.size, err);
}

/* Appends what arrives next to `in`; 0: the end. */
static ssize_t receive(const struct stream *stream, struct buf *in, struct husk_error *err)
{
	if (buf_reserve(in, PIECE) < 0)
		return husk_fail_memory(err);
	ssize_t got = stream_read(stream, in->data + in->size, PIECE, err);
	in->size += (size_t)MAX(got, 0);
	return got;
}

static int read_head(const struct stream *stream, struct buf *in, struct http1_head *head, struct husk_error *err)
{
	for (;;) {
		ssize_t used = in->size ? http1_head_parse(in->data, in->size, head, err) : 0;
		if (used < 0)
			return -1;
		if (used > 0) {
			buf_consume(in, (size_t)used);
			if (head->status >= 200)
				return 0;
			http1_head_free(head); /* 1xx: the answer follows */
			continue;
		}
		ssize_t got = receive(stream, in, err);
		if (got <= 0)
			return got < 0 ? -1 : fail_lost(stream, "the connection was closed without an answer", err);
	}
}

/* Passes the body on, piece by piece. */
static int read_body(const struct stream *stream, struct buf *in, const struct http1_head *head,
		     int (*sink)(void *data, const char *bytes, size_t size, struct husk_error *err), void *data,
		     struct husk_error *err)
{
	struct http1_chunks chunks = { 0 };
	int64_t left = head->length;
	int done = left == 0;

	while (!done) {
		size_t size = left >= 0 ? (size_t)MIN((uint64_t)in->size, (uint64_t)left) : in->size;
		if (head->chunked && (done = http1_chunks_decode(&chunks, in->data, &size, err)) < 0)
			return -1;
		if (size && sink(data, in->data, size, err) < 0)
			return -1;
		left -= left >= 0 ? (int64_t)size : 0;
		in->size = 0;
		if (done || left == 0)
			break;
		ssize_t got = receive(stream, in, err);
		if (got < 0)
			return -1;
		if (got == 0 && (head->chunked || left > 0))
			return fail_lost(stream, "the connection was closed before the end of the file", err);
		done = got == 0;
	}
	return 0;
}

struct complaint {
	char *text;
	size_t size, used;
};

static int take_complaint(void *data, const char *bytes, size_t size, struct husk_error *err)
{
	struct complaint *complaint = data;

	for (size_t i = 0; i < size && complaint->used + 1 < complaint->size; i++)
		complaint->text[complaint->used++] = bytes[i] >= ' ' && bytes[i] <= '~' ? bytes[i] : ' ';
	while (complaint->used && complaint->text[complaint->used - 1] == ' ')
		complaint->used--;
	complaint->text[complaint->used] = '\0';
	return complaint->used + 1 < complaint->size ? 0 : husk_fail(err, HUSK_LIMIT, "enough");
}

static int run(struct stream *stream, struct http1_head *head, struct complaint *complaint, struct husk_error *err)
{
	const struct download *download = stream->download;
	cleanup_buf struct buf in = { 0 };

	if ((download->url->tls && tls_begin(stream, err) < 0) || ask(stream, err) < 0 ||
	    read_head(stream, &in, head, err) < 0)
		return -1;
	if (head->status == 200)
		return read_body(stream, &in, head, download->sink, download->data, err);
	read_body(stream, &in, head, take_complaint, complaint, NULL); /* as much of it as there is */
	return 0;
}

/* Blocks SIGPIPE, which OpenSSL's writes to a closed connection would send to the caller's process. */
int download_run(const struct download *download, struct http1_head *head, char *said, size_t said_size,
		 struct husk_error *err)
{
	cleanup(stream_close) struct stream stream = { .download = download };
	struct complaint complaint = { .text = said, .size = said_size };
	const struct timespec at_once = { 0 };
	sigset_t broken, before, waiting;
	int flags = fcntl(download->fd, F_GETFL);

	*said = '\0';
	if (flags < 0 || fcntl(download->fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return husk_fail_errno(err, "cannot use a connection");
	sigemptyset(&broken);
	sigaddset(&broken, SIGPIPE);
	sigpending(&waiting);
	pthread_sigmask(SIG_BLOCK, &broken, &before);
	int result = run(&stream, head, &complaint, err);
	if (!sigismember(&waiting, SIGPIPE))
		while (sigtimedwait(&broken, NULL, &at_once) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (result < 0)
		http1_head_free(head);
	return result;
}
