/*
 * multipart/form-data (RFC 7578) as it comes in, part by part, in constant memory. For e2b_files.c. What a client sends is
 * bounded: a part's headers by MULTIPART_HEAD_MAX, its body by nothing, since it is handed on.
 */
#ifndef HUSK_SERVER_MULTIPART_H
#define HUSK_SERVER_MULTIPART_H

#include "base/base.h"

#define MULTIPART_HEAD_MAX 16384u
#define MULTIPART_BOUNDARY_MAX 200u

/* Where the bytes come from: the count, 0 at the end, -1 when there will be no more. */
typedef ssize_t (*multipart_source)(void *data, void *bytes, size_t size);

struct multipart {
	multipart_source source;
	void *data;
	char delimiter[MULTIPART_BOUNDARY_MAX + 5]; /* CR LF - - boundary */
	struct buf bytes;
	bool ended;  /* the source is */
	bool broken; /* it ended inside a part */
};

/* `type`: the Content-Type. INVALID: it is not multipart, or has no boundary. multipart_close frees. */
int multipart_open(struct multipart *multipart, const char *type, multipart_source source, void *data,
		   struct husk_error *err);
void multipart_close(struct multipart *multipart);
/* The next part, past what is left of the current one: 1, with its names (NULL: not given; the caller's to free); 0 when
 * there is none; -1. */
int multipart_next(struct multipart *multipart, char **name, char **filename, struct husk_error *err);
/* Of the current part: the count, 0 at its end, -1 when the body breaks off. A husk_source. */
ssize_t multipart_read(void *multipart, void *bytes, size_t size);

#endif
