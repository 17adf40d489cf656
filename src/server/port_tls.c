/*
 * TLS to a program behind a port of a sandbox, for ports that were declared as https (E2B's httpsPorts). Called by api_ports.c. The
 * certificate is not checked: programs in sandboxes have certificates of their own making, and the connection does not leave this
 * host. The program is hostile, so its handshake has a time limit.
 */
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "remote/tls_stream.h"
#include "server/proxy.h"

#define HANDSHAKE_MS 10000

static SSL_CTX *context; /* made once, never freed */

static void make_context(void)
{
	SSL_CTX *made = SSL_CTX_new(TLS_client_method());

	if (!made)
		return;
	SSL_CTX_set_verify(made, SSL_VERIFY_NONE, NULL);
	SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
				       SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_options(made, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
	context = made;
}

static void nothing(void *data)
{
	(void)data;
}

int port_tls(int fd, struct husk_error *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_context);
	SSL *tls = context ? SSL_new(context) : NULL;
	if (tls && fd_set_nonblocking(fd, true) == 0 && SSL_set_fd(tls, fd) == 1) {
		SSL_set_connect_state(tls);
		if (tls_shake_hands(tls, fd, HANDSHAKE_MS))
			return tls_stream(tls, fd, nothing, NULL, err);
	}
	ERR_clear_error();
	SSL_free(tls);
	fd_close(&fd);
	return husk_fail(err, HUSK_PROTOCOL,
			 "the program behind the port does not speak TLS, but the port is one of httpsPorts");
}
