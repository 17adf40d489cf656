/*
 * HTTP/1 answers, as a program inside a sandbox sends them (server/proxy.c) or a server that libhusk talks to
 * (remote/remote_http.c): the head, and the chunks of a body. The bytes are an attacker's, so this is all there is that
 * parses them, it keeps nothing between calls but what is in its structures, and it is fuzzed.
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
	char *text;      /* what the headers point into */
	unsigned status; /* 100 to 599 */
	struct http1_header headers[HTTP1_HEADERS_MAX];
	size_t count;
	bool chunked;
	int64_t length; /* Content-Length; -1: none was given, or the body is chunked */
};

/* The head at the beginning of `bytes`: its size; 0 when more bytes are needed; -1 with PROTOCOL when it is none, or is
 * larger than HTTP1_HEAD_MAX. http1_head_free frees. */
ssize_t http1_head_parse(const char *bytes, size_t size, struct http1_head *out, struct husk_error *err);
void http1_head_free(struct http1_head *head);
const char *http1_head_find(const struct http1_head *head, const char *name); /* the first of that name; NULL: none */

/* A body in chunks; zero-initialise. */
struct http1_chunks {
	enum { CHUNK_SIZE, CHUNK_EXTENSION, CHUNK_DATA, CHUNK_END, CHUNK_TRAILER, CHUNK_DONE } at;
	uint64_t left;  /* of the size while it is read, then of the data */
	size_t digits;  /* of the size */
	size_t skipped; /* bytes of extensions and trailers: bounded, since they carry nothing */
	bool blank;     /* the trailer's line has nothing in it yet */
};
/* Takes `*size` bytes and leaves the data that was among them at the front of `bytes`, its size in `*size`. 1 at the end
 * of the body (what follows it is thrown away), 0 when more is to come, -1 with PROTOCOL. */
int http1_chunks_decode(struct http1_chunks *chunks, char *bytes, size_t *size, struct husk_error *err);

#endif
