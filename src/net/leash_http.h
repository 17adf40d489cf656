/*
 * The part of HTTP/1 that a filter needs: which host a request names, where its head and its body end, and where the
 * answer ends. Requests come from a hostile guest, and another parser reads them later: a request that two parsers
 * could read differently is refused. Answers come from all kinds of servers: an answer that cannot be parsed lasts
 * until the connection ends.
 */
#ifndef HUSK_LEASH_HTTP_H
#define HUSK_LEASH_HTTP_H

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

enum http_framing { BODY_NONE, BODY_LENGTH, BODY_CHUNKED, BODY_OPEN /* until the connection ends; answers only */ };

struct http_request {
	struct http_text line; /* the first line without its end */
	struct http_text method;
	struct http_text path; /* with the query; or "*" */
	struct http_field fields[HTTP_FIELDS_MAX];
	size_t field_count;
	char host[POLICY_NAME_MAX + 1]; /* normalised */
	uint16_t port;                  /* 0: it gives none */
	enum http_framing framing;
	uint64_t length; /* BODY_LENGTH */
	bool upgrade;    /* asks for another protocol on this connection */
	bool close;      /* no other request follows on this connection */
};

struct http_response {
	int status;
	enum http_framing framing;
	uint64_t length; /* BODY_LENGTH */
	bool close;      /* the server ends the connection after it */
};

/* Do these first bytes look like HTTP/1? 1: yes, 0: too few to say, -1: no. */
int http_looks(const char *data, size_t size);
/* Returns the head's size once it is complete, 0 before, -1 with *why if it is refused. Texts point into `data`. */
ssize_t http_request_parse(const char *data, size_t size, struct http_request *out, const char **why);
/* The size of a response's head; 0: incomplete; -1: not a response. `bodiless`: the answer to a HEAD request. */
ssize_t http_response_parse(const char *data, size_t size, bool bodiless, struct http_response *out);
bool http_is(struct http_text text, const char *word); /* case-insensitive */

/* The first line of a request's body, as far as received. */
struct http_opening {
	bool settled; /* it is not a request line */
	bool gap;     /* a blank was read since the last word */
	bool simple;  /* "GET /path": a complete request of HTTP/0.9 */
	unsigned word;
	size_t size; /* of the word */
	char text[9];
	size_t length; /* of the line */
};

/* Follows a body to its end. */
struct http_body {
	enum http_framing framing;
	uint64_t left; /* bytes left of the length, or of the chunk */
	enum { CHUNK_SIZE, CHUNK_DATA, CHUNK_END, CHUNK_TRAILER, CHUNK_DONE } state;
	bool strict; /* of a request */
	char line[256];
	size_t line_size;
	size_t trailer_size;
	struct http_opening opening;
};
void http_body_start(struct http_body *body, const struct http_request *request);
void http_body_start_answer(struct http_body *body, const struct http_response *response);
bool http_body_done(const struct http_body *body);
/* The bytes that were fed last may be a part of a request line: they must not be sent yet. */
bool http_body_undecided(const struct http_body *body);
/* How many of these bytes belong to the body. -1 if its framing is invalid, or if a request's body begins with a
 * request line: a server that ignores the body would read an unchecked second request there. */
ssize_t http_body_feed(struct http_body *body, const char *data, size_t size);

#endif
