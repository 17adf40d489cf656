/*
 * TLS for huskd: accepts connections, runs each handshake on its own thread, and passes the plain end to libmicrohttpd
 * (tls_stream.h). libmicrohttpd has its own TLS, but Debian 12's version (0.9.75) moves an upgraded connection
 * (terminals, ports, libhusk's tunnels) four bytes at a time. A slow handshake holds a thread for a bounded time, and
 * the number of handshakes is limited.
 */
#include <openssl/err.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "remote/tls_stream.h"
#include "server/core.h"

#define HANDSHAKE_MS 10000
#define HANDSHAKES_MAX 256
#define STREAMS_MAX (PEERS_MAX + PEERS_SPARE)
#define PAUSE_US 50000 /* when there are no descriptors left */

/* One per process, as there is one TCP listener; set before the thread starts. */
static struct {
	SSL_CTX *context;
	struct MHD_Daemon *daemon;
	int fd;
	pthread_t thread;
	_Atomic unsigned handshakes, streams;
	_Atomic bool over;
} listening = { .fd = -1 };

struct newcomer {
	int fd;
	struct sockaddr_storage address;
	socklen_t size;
};

int tls_load(const char *certificate, const char *key, struct husk_error *err)
{
	SSL_CTX *context = SSL_CTX_new(TLS_server_method());

	if (!context || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) {
		SSL_CTX_free(context);
		return husk_fail(err, HUSK_INTERNAL, "cannot set TLS up");
	}
	SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
					  SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
	if (SSL_CTX_use_certificate_chain_file(context, certificate) != 1 ||
	    SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1 ||
	    SSL_CTX_check_private_key(context) != 1) {
		ERR_clear_error();
		SSL_CTX_free(context);
		return husk_fail(err, HUSK_INVALID, "'%s' and '%s' are not a certificate and its key, in PEM",
				 certificate, key);
	}
	listening.context = context;
	return 0;
}

static void stream_over(void *data)
{
	(void)data;
	atomic_fetch_sub(&listening.streams, 1);
}

static void *greet(void *data)
{
	struct newcomer *newcomer = data;
	SSL *tls = SSL_new(listening.context);
	bool good = tls && fd_set_nonblocking(newcomer->fd, true) == 0 && SSL_set_fd(tls, newcomer->fd) == 1;

	if (good) {
		SSL_set_accept_state(tls);
		good = tls_shake_hands(tls, newcomer->fd, HANDSHAKE_MS);
	}

	atomic_fetch_sub(&listening.handshakes, 1);
	if (good) {
		int plain = tls_stream(tls, newcomer->fd, stream_over, NULL, NULL);
		/* libmicrohttpd closes the descriptor if it cannot accept it. */
		if (plain >= 0)
			MHD_add_connection(listening.daemon, plain, (struct sockaddr *)&newcomer->address,
					   newcomer->size);
	} else {
		SSL_free(tls);
		fd_close(&newcomer->fd);
		stream_over(NULL);
	}
	free(newcomer);
	return NULL;
}

static void welcome(struct newcomer *newcomer)
{
	bool room = atomic_fetch_add(&listening.streams, 1) < STREAMS_MAX;

	if (room && atomic_fetch_add(&listening.handshakes, 1) < HANDSHAKES_MAX &&
	    thread_start(NULL, true, greet, newcomer) == 0)
		return;
	if (room)
		atomic_fetch_sub(&listening.handshakes, 1);
	stream_over(NULL);
	fd_close(&newcomer->fd);
	free(newcomer);
}

static void *accept_main(void *data)
{
	(void)data;
	while (!atomic_load(&listening.over)) {
		struct newcomer *newcomer = calloc(1, sizeof(*newcomer));
		if (!newcomer) {
			usleep(PAUSE_US);
			continue;
		}
		newcomer->size = sizeof(newcomer->address);
		newcomer->fd =
			accept4(listening.fd, (struct sockaddr *)&newcomer->address, &newcomer->size, SOCK_CLOEXEC);
		if (newcomer->fd >= 0) {
			welcome(newcomer);
			continue;
		}
		bool short_of = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
		free(newcomer);
		if (short_of)
			usleep(PAUSE_US);
	}
	return NULL;
}

int tls_listen(struct MHD_Daemon *daemon, int fd, struct husk_error *err)
{
	listening.daemon = daemon;
	listening.fd = fd;
	if (thread_start(&listening.thread, false, accept_main, NULL) == 0)
		return 0;
	listening.fd = -1;
	return husk_fail(err, HUSK_UNAVAILABLE, "cannot start a thread that accepts connections");
}

void tls_stop(void)
{
	if (listening.fd < 0)
		return;
	atomic_store(&listening.over, true);
	shutdown(listening.fd, SHUT_RDWR); /* accept returns */
	pthread_join(listening.thread, NULL);
	fd_close(&listening.fd);
}
