/*
 * One HTTP GET over a connection that exists already, with or without TLS. The server is not trusted: its answer is parsed by
 * base/http1.c, and time and size have limits.
 */
#ifndef HUSK_BUILD_DOWNLOAD_H
#define HUSK_BUILD_DOWNLOAD_H

#include "base/http1.h"
#include "build/url.h"

struct download {
	const struct url *url;
	int fd; /* connected; stays the caller's */
	/* Bytes of the body of an answer with status 200; -1 (with err) ends the download. */
	int (*sink)(void *data, const char *bytes, size_t size, struct husk_error *err);
	/* Called often; -1 (with err) ends the download. */
	int (*stop)(void *data, struct husk_error *err);
	void *data;
};

/* 0: there is an answer, with any status; http1_head_free frees the head. `said` gets the beginning of the body of an error, without
 * control characters. UNAVAILABLE: the connection failed; another try may succeed. DENIED: TLS failed. */
int download_run(const struct download *download, struct http1_head *head, char *said, size_t said_size,
		 struct husk_error *err);

#endif
