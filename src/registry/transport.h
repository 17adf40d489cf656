/*
 * One HTTP request to a registry, or to the target of its redirect. registry.c handles redirects and authentication.
 * Everything has a limit: time without progress, size of headers, size of a body. The server's answers are untrusted.
 */
#ifndef HUSK_REGISTRY_TRANSPORT_H
#define HUSK_REGISTRY_TRANSPORT_H

#include "base/base.h"

#define TRANSPORT_URL_MAX 8192

struct transport_reply;

struct transport_request {
	const char *url;           /* http or https */
	const char *accept;        /* NULL: anything */
	const char *authorization; /* value of the header; NULL: none */
	const char *method;        /* "HEAD", "POST" or "PUT"; NULL: GET, or POST of a form */
	const char *form;          /* POST this; NULL: no form */
	const void *body;          /* of a POST or PUT; NULL: an empty one */
	size_t body_size;
	const char *type; /* of the body */
	const char *ca;   /* file of certificates that verify this server; NULL: the host's */
	uint64_t from;    /* request the bytes from here on; 0: all */
	bool public_only; /* refuse to connect to private addresses */
	/* Bytes of the body when the status is 200 or 206; -1 (with err) ends the request. `reply` has the headers. */
	int (*sink)(void *data, const struct transport_reply *reply, const char *bytes, size_t size,
		    struct husk_error *err);
	/* Called often; non-zero ends the request with GONE. May be NULL. */
	bool (*stop)(void *data);
	void *data;
};

struct transport_reply {
	long status;
	char type[128]; /* Content-Type without parameters; empty if missing, like all of these */
	char location[TRANSPORT_URL_MAX];
	char challenge[4096]; /* WWW-Authenticate; if there are several, Bearer */
	char digest[128];     /* Docker-Content-Digest */
	int64_t retry_after;  /* seconds; -1: none */
	int64_t range_start;  /* of Content-Range; -1: none */
	bool was_private;     /* the address of the connection was not public */
	char text[512];       /* the beginning of an error's body, without control characters */
};

/* Connections are kept, for each thread, and used again by its next request. 0 if there is an answer, with any status.
 * UNAVAILABLE: the server was not reached, or the connection failed; the same
 * request may be repeated. */
int transport_perform(const struct transport_request *request, struct transport_reply *reply, struct husk_error *err);
/* Text for a query or a form; caller frees, NULL with err. */
char *transport_escape(const char *text, struct husk_error *err);
/* `location` as seen from `url`, absolute and http or https; caller frees. NULL with INVALID. */
char *transport_resolve(const char *url, const char *location, struct husk_error *err);
/* Do two URLs have the same scheme, host and port? */
bool transport_same_origin(const char *a, const char *b);

#endif
