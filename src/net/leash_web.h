/*
 * Declarations that the files for HTTP requests share: leash_web.c carries requests, leash_stream.c is a socket with or
 * without TLS, leash_secret.c inserts secrets into requests and hides them in answers, leash_hold.c keeps requests that are
 * not to be sent, leash_effect.c sends them later.
 */
#ifndef HUSK_LEASH_WEB_H
#define HUSK_LEASH_WEB_H

#include <openssl/ssl.h>

#include "net/leash_http.h"
#include "net/leash_proxy.h"

/* ---- leash_stream.c ---- */

struct stream {
	int fd;     /* non-blocking; not owned */
	SSL *ssl;   /* NULL: plain */
	short want; /* what the last call waits for: POLLIN, POLLOUT */
	bool over;  /* the other side has ended */
};

#define STREAM_WAIT (-1)
#define STREAM_BROKEN (-2)
/* The number of bytes, 0 at the end, STREAM_WAIT, or STREAM_BROKEN. */
ssize_t stream_read(struct stream *stream, void *data, size_t size);
ssize_t stream_write(struct stream *stream, const void *data, size_t size);
bool stream_pending(const struct stream *stream); /* bytes are buffered that poll does not see */
void stream_finish(struct stream *stream);        /* informs the other side that nothing more follows */
void stream_free(struct stream *stream);

/* TLS towards the host, whose certificate must be valid for `name` by the host's authorities or those of the terms. */
int stream_connect_tls(struct proxy *proxy, struct terms *terms, struct stream *stream, const char *name,
		       struct husk_error *err);
/* TLS towards the guest, in the name of the host. */
int stream_accept_tls(struct stream *stream, struct authority *authority, const char *name, struct husk_error *err);

/* ---- leash_secret.c ---- */

/* Appends the header's value with the secrets of this host in it. */
int secret_swap(const struct terms *terms, const char *name, uint16_t port, const struct http_field *field,
		struct buf *out);

/* True if a secret replaces this header of the guest; the second function appends the headers of all such secrets. */
bool secret_replaces(const struct terms *terms, const char *name, uint16_t port, const struct http_field *field);
int secret_headers(const struct terms *terms, const char *name, uint16_t port, struct buf *out);

/* Hides secret values in answers, in case the host repeats them. */
struct mask {
	const char **values; /* from the terms, which must outlive the mask */
	size_t count;
	struct buf tail; /* bytes that may be the start of a value */
};
int mask_open(struct mask *mask, const struct terms *terms, const char *name, uint16_t port);
/* Takes these bytes (`last`: the final ones) and appends those that are safe to pass on. */
int mask_feed(struct mask *mask, const void *data, size_t size, bool last, struct buf *out);
void mask_free(struct mask *mask);

/* ---- leash_hold.c ---- */

struct hold_answer {
	uint64_t effect; /* its number; 0: it is refused */
	char status[48]; /* refused: "507 Insufficient Storage" */
	char reason[FLOW_TEXT];
};
/* True unless the request only reads: GET, HEAD, OPTIONS, TRACE. */
bool hold_changes(const struct http_request *request);
/* Begins to collect a request; NULL with the refusal. */
struct hold *hold_open(struct proxy *proxy, const struct http_request *request, bool tls, uint16_t port,
		       struct hold_answer *refusal);
/* Adds bytes of the body, as they are framed. -1 with the refusal. */
int hold_add(struct hold *hold, const char *data, size_t size, struct hold_answer *refusal);
/* The request is complete: hands it over, and waits until it is on disk. */
void hold_store(struct hold *hold, struct hold_answer *out);
/* The answer to the guest. */
int hold_respond(const struct hold *hold, const struct hold_answer *answer, struct buf *out);
void hold_free(struct hold *hold); /* NULL is allowed */
/* The bytes of a checked chunked body without its framing, in place; returns their number. The data ends with NUL. */
size_t hold_unchunk(char *data, size_t size);
/* The supervisor's answer. */
void hold_answered(struct proxy *proxy, const json_t *message);

/* ---- leash_effect.c ---- */

/* Sends a held request, on a thread of its own, and reports the outcome. Takes the parcel's data. */
void effect_start(struct proxy *proxy, struct parcel *parcel);

#endif
