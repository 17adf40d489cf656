/*
 * Parses HTTP/1 answers: the head, and the chunks of a body. The answers come from a program inside a sandbox
 * (server/proxy.c) or from a server that libhusk talks to (remote/remote_http.c). The bytes are untrusted, so only this
 * code parses them. It keeps no state except its structures, and it is fuzzed.
 */
#ifndef HUSK_HTTP1_H
#define HUSK_HTTP1_H

#include "base/base.h"

#define HTTP1_HEAD_MAX (32u << 10)
#define HTTP1_HEADERS_MAX 100

struct http1_header {
	const char *name, *value; /* a value has no control characters and no blanks around it */
};

struct http1_head {
	char *text;      /* memory of the headers' strings */
	unsigned status; /* 100 to 599 */
	struct http1_header headers[HTTP1_HEADERS_MAX];
	size_t count;
	bool chunked;
	int64_t length; /* Content-Length; -1: not given, or the body is chunked */
};

/* Parses the head at the beginning of `bytes` and returns its size. 0: more bytes are needed. -1 with PROTOCOL:
 * malformed, or larger than HTTP1_HEAD_MAX. http1_head_free frees. */
ssize_t http1_head_parse(const char *bytes, size_t size, struct http1_head *out, struct husk_error *err);
void http1_head_free(struct http1_head *head);
const char *http1_head_find(const struct http1_head *head, const char *name); /* the first with that name; NULL: none */

/* A body in chunks; zero-initialise. */
struct http1_chunks {
	enum { CHUNK_SIZE, CHUNK_EXTENSION, CHUNK_DATA, CHUNK_END, CHUNK_TRAILER, CHUNK_DONE } at;
	uint64_t left;  /* first the size that is being read, then the data left */
	size_t digits;  /* of the size */
	size_t skipped; /* bytes of extensions and trailers: bounded, because they are ignored */
	bool blank;     /* the current trailer line is empty so far */
};
/* Decodes `*size` bytes in place: afterwards `bytes` holds the data, `*size` its size. 1: end of the body (bytes after
 * it are discarded); 0: more to come; -1 with PROTOCOL. */
int http1_chunks_decode(struct http1_chunks *chunks, char *bytes, size_t *size, struct husk_error *err);

#endif
