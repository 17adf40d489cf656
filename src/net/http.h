/*
 * Requests of HTTP/1, read as far as a filter must: which host, where the head ends, where the body ends. The bytes come
 * from a hostile guest, and another parser reads them after us: what two parsers could read differently is refused.
 */
#ifndef HUSK_HTTP_H
#define HUSK_HTTP_H

#include "base/base.h"
#include "net/policy.h"

#define HTTP_HEAD_MAX (64u << 10)
#define HTTP_FIELDS_MAX 128

struct http_text {
	const char *data;
	size_t size;
};

struct http_field {
	struct http_text name, value; /* the value without the blanks around it */
};

enum http_framing { BODY_NONE, BODY_LENGTH, BODY_CHUNKED };

struct http_request {
	struct http_text line; /* the first line without its end */
	struct http_field fields[HTTP_FIELDS_MAX];
	size_t field_count;
	char host[POLICY_NAME_MAX + 1]; /* normalised */
	uint16_t port;                  /* 0: it gives none */
	enum http_framing framing;
	uint64_t length; /* BODY_LENGTH */
	bool upgrade;    /* asks for another protocol on this connection */
};

/* Do these first bytes look like HTTP/1? 1: yes, 0: too few to say, -1: no. */
int http_looks(const char *data, size_t size);
/* The head's size once it is whole, 0 while it is not, -1 with *why when it is refused. Texts point into `data`. */
ssize_t http_request_parse(const char *data, size_t size, struct http_request *out, const char **why);
/* The size of a response's head and its status; 0 while it is not whole; -1 when it is none. */
ssize_t http_response_parse(const char *data, size_t size, int *status);
bool http_is(struct http_text text, const char *word); /* whatever the case */

/* Follows a body to its end. */
struct http_body {
	enum http_framing framing;
	uint64_t left; /* of the length, or of the chunk */
	enum { CHUNK_SIZE, CHUNK_DATA, CHUNK_END, CHUNK_TRAILER, CHUNK_DONE } state;
	char line[256];
	size_t line_size;
	size_t trailer_size;
};
void http_body_start(struct http_body *body, const struct http_request *request);
bool http_body_done(const struct http_body *body);
/* How many of these bytes belong to the body; -1 when it is not framed as it must be. */
ssize_t http_body_feed(struct http_body *body, const char *data, size_t size);

#endif
