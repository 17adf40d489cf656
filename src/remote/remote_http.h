/*
 * Declarations that the files of src/remote/ share: the server's address, connections to it, and one request with its
 * answer. A connection is always a plain descriptor. For https:// it is one end of a socket pair, and a thread at the
 * other end does TLS (remote_tls.c).
 */
#ifndef HUSK_REMOTE_HTTP_H
#define HUSK_REMOTE_HTTP_H

#include <openssl/ssl.h>
#include <pthread.h>

#include "base/http1.h"
#include "base/jansson.h"
#include "remote/remote.h"

struct remote {
	char *url;
	char *path;        /* of a unix socket; NULL: TCP */
	char *host, *port; /* TCP */
	char *token;       /* NULL: none */
	SSL_CTX *tls;      /* NULL: plain */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	size_t threads; /* threads that do TLS for connections */
};

/* ---- remote_connect.c ---- */

/* A new connection, or -1 with an error that says what to do. */
int remote_connect(struct remote *remote, struct husk_error *err);

/* ---- remote_tls.c ---- */

/* `ca_file` NULL: the host's trust store. */
int tls_setup(struct remote *remote, const char *ca_file, struct husk_error *err);
/* Does the handshake on a connected socket, which it takes over, and returns the descriptor of the plain stream. */
int tls_wrap(struct remote *remote, int fd, struct husk_error *err);

/* ---- remote_events.c ---- */

/* Server-sent events: calls `take` for each, with its name and its document (borrowed; NULL: not JSON). Zero-initialise, set the last
 * two; events_free frees. */
struct events {
	struct buf line;
	char name[16];
	void (*take)(void *data, const char *name, json_t *document);
	void *data;
};
int events_sink(void *events, const void *bytes, size_t size); /* a husk_sink */
void events_free(struct events *events);

/* ---- remote_http.c ---- */

#define ANSWER_MAX (64u << 20) /* of a JSON document */

struct exchange {
	const char *method;
	char *target; /* path and query, from target_make and target_add; NULL: out of memory */
	json_t *body; /* NULL: none. Freed by exchange_run */
	/* A body of any size instead of `body`, with its Content-Type. */
	husk_source source;
	void *source_data;
	const char *type;
	const char *idempotency_key; /* NULL: none */
	bool no_build; /* a create fails if its template is not built yet; the caller builds it, and sees the progress */
	/* Receives the bytes of a successful answer as they arrive; NULL: the answer is one document. */
	husk_sink sink;
	void *sink_data;
	/* Called several times a second while the answer is waited for; non-zero ends the exchange with GONE. NULL: never. */
	int (*stop)(void *data);
	void *stop_data;
	/* The wanted header of the answer, and its value (NULL: missing), which the caller frees. */
	const char *wanted_header;
	char *header;
};

/* Makes the request and frees the members of `x` except `header`. The answer goes to the sink, or as JSON to *out,
 * which may be NULL. Fails with the server's error. */
int exchange_run(struct remote *remote, struct exchange *x, json_t **out, struct husk_error *err);
/* The answer to a GET as JSON; frees `target`. */
int exchange_get(struct remote *remote, char *target, json_t **out, struct husk_error *err);

/* "%s": the next argument, escaped as one segment of the path or one value of the query; "%d": an int64_t. */
char *target_make(const char *format, ...);
/* Adds "?name=value" or "&name=value", escaped; a value of NULL adds nothing. Without memory, frees `target` and
 * returns NULL. */
char *target_add(char *target, const char *name, const char *value);
char *target_add_int(char *target, const char *name, int64_t value);

int http_send(struct remote *remote, int fd, const char *bytes, size_t size, struct husk_error *err);
/* Puts the request line and the headers that every request has; the caller adds the rest and the empty line. */
int http_put_head(struct remote *remote, struct buf *out, const char *method, const char *target);
/* Handles an error answer: reads the rest of it, fills err, returns -1. */
int http_fail(struct remote *remote, int fd, struct buf *in, const struct http1_head *head, struct husk_error *err);
/* The code that the object "error" of an error document names. */
enum husk_code http_code(const json_t *error, unsigned status);
/* The connection broke: GONE. */
int http_lost(const struct remote *remote, struct husk_error *err);

#endif
