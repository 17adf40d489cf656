/*
 * HTTP/1, read as far as a filter must: which host a request names, where its head and its body end, and where the answer
 * ends. Requests come from a hostile guest, and another parser reads them after us: what two parsers could read
 * differently is refused. Answers come from servers of all kinds: what cannot be followed lasts until the connection ends.
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
/* The head's size once it is whole, 0 while it is not, -1 with *why when it is refused. Texts point into `data`. */
ssize_t http_request_parse(const char *data, size_t size, struct http_request *out, const char **why);
/* The size of a response's head; 0 while it is not whole; -1 when it is none. `bodiless`: it answers a HEAD request. */
ssize_t http_response_parse(const char *data, size_t size, bool bodiless, struct http_response *out);
bool http_is(struct http_text text, const char *word); /* whatever the case */

/* The first line of a request's body, as far as it was read. */
struct http_opening {
	bool settled; /* it is no request line */
	bool gap;     /* a blank was read since the last word */
	bool simple;  /* "GET /path": a whole request of HTTP/0.9 */
	unsigned word;
	size_t size; /* of the word */
	char text[9];
};

/* Follows a body to its end. */
struct http_body {
	enum http_framing framing;
	uint64_t left; /* of the length, or of the chunk */
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
/* How many of these bytes belong to the body. -1 when it is not framed as it must be, and when a request's body begins with
 * a request line: a server that ignores the body would read a second request there, which nobody has judged. */
ssize_t http_body_feed(struct http_body *body, const char *data, size_t size);

#endif
