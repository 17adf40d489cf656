/*
 * What the files that carry HTTP requests share: leash_web.c carries them, leash_stream.c is a socket with or without TLS
 * around it, leash_secret.c puts secrets in on the way out and hides them on the way back.
 */
#ifndef HUSK_LEASH_WEB_H
#define HUSK_LEASH_WEB_H

#include <openssl/ssl.h>

#include "net/leash_http.h"
#include "net/leash_proxy.h"

/* ---- leash_stream.c ---- */

struct stream {
	int fd;     /* not blocking; not owned */
	SSL *ssl;   /* NULL: plain */
	short want; /* what the last call waits for: POLLIN, POLLOUT */
	bool over;  /* the other side has said its last */
};

#define STREAM_WAIT (-1)
#define STREAM_BROKEN (-2)
/* Bytes, or 0 when it is over, or STREAM_WAIT, or STREAM_BROKEN. */
ssize_t stream_read(struct stream *stream, void *data, size_t size);
ssize_t stream_write(struct stream *stream, const void *data, size_t size);
bool stream_pending(const struct stream *stream); /* bytes wait that poll does not see */
void stream_finish(struct stream *stream);        /* says that nothing more comes from us */
void stream_free(struct stream *stream);

/* TLS towards the host, whose certificate must be good for `name`. */
int stream_connect_tls(struct proxy *proxy, struct stream *stream, const char *name, struct husk_error *err);
/* TLS towards the guest, in the name of the host. */
int stream_accept_tls(struct stream *stream, struct authority *authority, const char *name, struct husk_error *err);

/* ---- leash_secret.c ---- */

/* Appends the header's value with the secrets of this host in it. */
int secret_swap(const struct terms *terms, const char *name, uint16_t port, const struct http_field *field,
		struct buf *out);

/* Whether a secret is sent under this name in place of what the guest sends; and the lines of all that are. */
bool secret_replaces(const struct terms *terms, const char *name, uint16_t port, const struct http_field *field);
int secret_headers(const struct terms *terms, const char *name, uint16_t port, struct buf *out);

/* Hides the values in what comes back, should the host repeat them. */
struct mask {
	const char **values; /* of the terms, which must outlive it */
	size_t count;
	struct buf tail; /* what may be the beginning of one */
};
int mask_open(struct mask *mask, const struct terms *terms, const char *name, uint16_t port);
/* Takes these bytes (`last`: there are no more) and appends what is safe to pass on. */
int mask_feed(struct mask *mask, const void *data, size_t size, bool last, struct buf *out);
void mask_free(struct mask *mask);

#endif
