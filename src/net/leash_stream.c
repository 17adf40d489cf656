/*
 * A socket with optional TLS, for leash_web.c. Towards the internet, certificates are checked against the host's
 * authorities, which are read through a descriptor that was opened before the jail closed, and those of the policy. Towards the guest, the leash
 * presents a certificate of the sandbox's own authority. Both sides speak HTTP/1.1 only.
 */
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/stat.h>

#include "net/authority.h"
#include "net/leash_web.h"
#include "net/trust.h"

#define HANDSHAKE_TIMEOUT_MS 15000
#define AUTHORITIES_MAX (8u << 20)

static const unsigned char http_protocol[] = "\x08http/1.1";

/* ---- bytes ---- */

static ssize_t explain(struct stream *stream, int result)
{
	int error = SSL_get_error(stream->ssl, result);

	ERR_clear_error();
	if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
		stream->want = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
		return STREAM_WAIT;
	}
	return error == SSL_ERROR_ZERO_RETURN ? 0 : STREAM_BROKEN;
}

ssize_t stream_read(struct stream *stream, void *data, size_t size)
{
	ssize_t got;

	stream->want = POLLIN;
	if (stream->ssl) {
		int result = SSL_read(stream->ssl, data, (int)MIN(size, 65536));

		got = result > 0 ? result : explain(stream, result);
	} else {
		got = recv(stream->fd, data, size, MSG_DONTWAIT);
		if (got < 0)
			got = errno == EAGAIN || errno == EINTR ? STREAM_WAIT : STREAM_BROKEN;
	}
	if (got == 0)
		stream->over = true;
	return got;
}

ssize_t stream_write(struct stream *stream, const void *data, size_t size)
{
	stream->want = POLLOUT;
	if (stream->ssl) {
		int result = SSL_write(stream->ssl, data, (int)MIN(size, 65536));

		if (result > 0)
			return result;
		ssize_t why = explain(stream, result);
		return why == 0 ? STREAM_BROKEN : why;
	}
	ssize_t put = send(stream->fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (put < 0)
		return errno == EAGAIN || errno == EINTR ? STREAM_WAIT : STREAM_BROKEN;
	return put;
}

bool stream_pending(const struct stream *stream)
{
	return stream->ssl && SSL_pending(stream->ssl) > 0;
}

void stream_finish(struct stream *stream)
{
	if (stream->ssl)
		SSL_shutdown(stream->ssl);
	else
		shutdown(stream->fd, SHUT_WR);
	ERR_clear_error();
}

void stream_free(struct stream *stream)
{
	SSL_free(stream->ssl);
	stream->ssl = NULL;
}

/* ---- handshakes ---- */

/* The `result` of a failed handshake, in words. */
static int handshake_fail(struct stream *stream, struct husk_error *err)
{
	long verdict = SSL_get_verify_result(stream->ssl);

	if (verdict != X509_V_OK && !SSL_is_server(stream->ssl)) {
		ERR_clear_error();
		return husk_fail(err, HUSK_PROTOCOL, "its certificate is not good: %s",
				 X509_verify_cert_error_string(verdict));
	}
	return authority_fail(err, "the TLS handshake failed");
}

static int handshake(struct stream *stream, struct husk_error *err)
{
	int64_t end = time_monotonic_ms() + HANDSHAKE_TIMEOUT_MS;

	for (;;) {
		int result = SSL_do_handshake(stream->ssl);

		if (result == 1)
			return 0;
		int error = SSL_get_error(stream->ssl, result);
		if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
			return handshake_fail(stream, err);
		ERR_clear_error();
		if (!flow_wait(stream->fd, error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT,
			       (int)MAX(0, end - time_monotonic_ms())))
			return husk_fail(err, HUSK_TIMEOUT, "the TLS handshake took longer than %d s",
					 HANDSHAKE_TIMEOUT_MS / 1000);
	}
}

static int stream_wrap(struct stream *stream, SSL_CTX *context, struct husk_error *err)
{
	if (fd_set_nonblocking(stream->fd, true) < 0)
		return husk_fail_errno(err, "cannot set up the connection");
	stream->ssl = SSL_new(context);
	if (!stream->ssl || SSL_set_fd(stream->ssl, stream->fd) != 1)
		return authority_fail(err, "cannot set up TLS");
	SSL_set_mode(stream->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	return 0;
}

/* ---- towards the world ---- */

struct adding {
	X509_STORE *store;
	size_t count;
};

static int add_authority(void *data, X509 *certificate)
{
	struct adding *adding = data;

	adding->count += X509_STORE_add_cert(adding->store, certificate) == 1;
	return 0;
}

static int load_authorities(int fd, X509_STORE *store, struct husk_error *err)
{
	struct stat found;

	if (fd < 0 || fstat(fd, &found) < 0 || found.st_size <= 0 || found.st_size > (off_t)AUTHORITIES_MAX)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "the host has no certificate authorities; install the package ca-certificates");
	cleanup_free char *text = malloc((size_t)found.st_size + 1);
	if (!text || pread(fd, text, (size_t)found.st_size, 0) != found.st_size)
		return husk_fail_errno(err, "cannot read the host's certificate authorities");
	text[found.st_size] = '\0';
	struct adding adding = { .store = store };
	int result = trust_each(text, add_authority, &adding, err);

	if (result == 0 && adding.count == 0)
		result = husk_fail(err, HUSK_UNAVAILABLE, "the host's certificate authorities cannot be read");
	return result;
}

static int add_trust(const char *trust, X509_STORE *store, struct husk_error *err)
{
	struct adding adding = { .store = store };

	return trust ? trust_each(trust, add_authority, &adding, err) : 0;
}

/* One for each terms, made when the first secret is used: reading some hundred certificates takes milliseconds. */
static SSL_CTX *client_context(struct proxy *proxy, struct terms *terms, struct husk_error *err)
{
	pthread_mutex_lock(&proxy->tls_lock);
	if (!terms->client) {
		SSL_CTX *context = SSL_CTX_new(TLS_client_method());

		if (!context || !SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) ||
		    SSL_CTX_set_alpn_protos(context, http_protocol, sizeof(http_protocol) - 1) != 0) {
			authority_fail(err, "cannot set up TLS");
		} else if (load_authorities(proxy->authorities, SSL_CTX_get_cert_store(context), err) == 0 &&
			   add_trust(terms->policy->trust, SSL_CTX_get_cert_store(context), err) == 0) {
			SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
			/* Many servers close without a TLS close message; their data is still valid. */
			SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
			terms->client = steal_pointer(context);
		}
		SSL_CTX_free(context);
	}
	SSL_CTX *context = terms->client;
	pthread_mutex_unlock(&proxy->tls_lock);
	return context;
}

int stream_connect_tls(struct proxy *proxy, struct terms *terms, struct stream *stream, const char *name,
		       struct husk_error *err)
{
	SSL_CTX *context = client_context(proxy, terms, err);

	if (!context || stream_wrap(stream, context, err) < 0)
		return -1;
	if (SSL_set_tlsext_host_name(stream->ssl, name) != 1 || SSL_set1_host(stream->ssl, name) != 1)
		return authority_fail(err, "cannot set up TLS");
	SSL_set_connect_state(stream->ssl);
	return handshake(stream, err);
}

/* ---- towards the guest ---- */

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *size, const unsigned char *offered,
			   unsigned offered_size, void *data)
{
	unsigned char *chosen;

	(void)ssl;
	(void)data;
	if (SSL_select_next_proto(&chosen, size, http_protocol, sizeof(http_protocol) - 1, offered, offered_size) !=
	    OPENSSL_NPN_NEGOTIATED)
		return SSL_TLSEXT_ERR_ALERT_FATAL;
	*out = chosen;
	return SSL_TLSEXT_ERR_OK;
}

int stream_accept_tls(struct stream *stream, struct authority *authority, const char *name, struct husk_error *err)
{
	SSL_CTX *context = authority_mint(authority, name, err);

	if (!context)
		return -1;
	SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
	int result = stream_wrap(stream, context, err);
	SSL_CTX_free(context); /* the connection keeps a reference */
	if (result < 0)
		return -1;
	SSL_set_accept_state(stream->ssl);
	return handshake(stream, err);
}
