/*
 * TLS to a server. The handshake runs here, on the caller's thread, so that its failures can be reported. After that
 * tls_stream.c owns the connection, and the rest of libhusk reads and writes a plain descriptor.
 */
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <signal.h>
#include <sys/socket.h>

#include "remote/remote_http.h"
#include "remote/tls_stream.h"

#define HANDSHAKE_SECONDS 20

int tls_setup(struct remote *remote, const char *ca_file, struct husk_error *err)
{
	/* The program may exit while threads of connections still run, so OpenSSL must not free its data at exit. */
	OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
	remote->tls = SSL_CTX_new(TLS_client_method());
	if (!remote->tls || SSL_CTX_set_min_proto_version(remote->tls, TLS1_2_VERSION) != 1)
		return husk_fail(err, HUSK_INTERNAL, "cannot set TLS up");
	SSL_CTX_set_verify(remote->tls, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_mode(remote->tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	if (!ca_file || !*ca_file)
		return SSL_CTX_set_default_verify_paths(remote->tls) == 1
			       ? 0
			       : husk_fail(err, HUSK_UNAVAILABLE,
					   "cannot read this host's trust store; install the package ca-certificates");
	if (access(ca_file, R_OK) < 0)
		return husk_fail_errno(err, "cannot read the certificate '%s' of --ca or HUSK_CA", ca_file);
	if (SSL_CTX_load_verify_locations(remote->tls, ca_file, NULL) != 1)
		return husk_fail_field(err, "ca", "'%s' of --ca or HUSK_CA holds no certificate in PEM", ca_file);
	return 0;
}

/* ---- the handshake ---- */

static int fail_handshake(const struct remote *remote, SSL *tls, struct husk_error *err)
{
	long verified = SSL_get_verify_result(tls);
	unsigned long code = ERR_peek_error();
	const char *reason = code ? ERR_reason_error_string(code) : NULL;

	if (verified != X509_V_OK)
		return husk_fail(
			err, HUSK_DENIED,
			"the certificate of %s is not trusted: %s; if it is yours, name the certificate that vouches "
			"for it with --ca FILE or HUSK_CA",
			remote->url, X509_verify_cert_error_string(verified));
	if (code && ERR_GET_REASON(code) == SSL_R_WRONG_VERSION_NUMBER)
		return husk_fail(err, HUSK_UNAVAILABLE, "%s does not speak TLS; use http://%s:%s", remote->url,
				 remote->host, remote->port);
	return husk_fail(err, HUSK_UNAVAILABLE, "no TLS connection to %s: %s; check host and port", remote->url,
			 reason ? reason : "it hung up");
}

/* Blocks SIGPIPE, which a broken connection would send to the caller's process. */
static int shake_hands(SSL *tls)
{
	const struct timespec at_once = { 0 };
	sigset_t broken, before, waiting;

	sigemptyset(&broken);
	sigaddset(&broken, SIGPIPE);
	sigpending(&waiting);
	pthread_sigmask(SIG_BLOCK, &broken, &before);
	ERR_clear_error();
	int result = SSL_connect(tls);
	if (!sigismember(&waiting, SIGPIPE))
		while (sigtimedwait(&broken, NULL, &at_once) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return result == 1 ? 0 : -1;
}

static SSL *make_tls(const struct remote *remote, int fd)
{
	SSL *tls = SSL_new(remote->tls);
	X509_VERIFY_PARAM *verify = tls ? SSL_get0_param(tls) : NULL;

	/* An address is compared with the certificate's addresses, a name with its names. */
	if (!verify || SSL_set_fd(tls, fd) != 1 ||
	    (X509_VERIFY_PARAM_set1_ip_asc(verify, remote->host) != 1 &&
	     (X509_VERIFY_PARAM_set1_host(verify, remote->host, 0) != 1 ||
	      SSL_set_tlsext_host_name(tls, remote->host) != 1))) {
		SSL_free(tls);
		return NULL;
	}
	return tls;
}

static void thread_over(void *data)
{
	struct remote *remote = data;

	pthread_mutex_lock(&remote->lock);
	remote->threads--;
	pthread_cond_broadcast(&remote->changed);
	pthread_mutex_unlock(&remote->lock);
}

int tls_wrap(struct remote *remote, int fd, struct husk_error *err)
{
	const struct timeval limit = { .tv_sec = HANDSHAKE_SECONDS };
	SSL *tls = make_tls(remote, fd);

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit,
		   sizeof(limit)); /* in force until the socket becomes non-blocking */
	if (!tls || shake_hands(tls) < 0) {
		if (tls)
			fail_handshake(remote, tls, err);
		else
			husk_fail_memory(err);
		SSL_free(tls);
		fd_close(&fd);
		return -1;
	}
	pthread_mutex_lock(&remote->lock);
	remote->threads++;
	pthread_mutex_unlock(&remote->lock);
	return tls_stream(tls, fd, thread_over, remote, err);
}
