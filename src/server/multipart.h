/*
 * Parses multipart/form-data (RFC 7578) as it arrives, part by part, in constant memory. For e2b_files.c. The headers
 * of a part are limited by MULTIPART_HEAD_MAX; its body is not limited, because it is passed on.
 */
#ifndef HUSK_SERVER_MULTIPART_H
#define HUSK_SERVER_MULTIPART_H

#include "base/base.h"

#define MULTIPART_HEAD_MAX 16384u
#define MULTIPART_BOUNDARY_MAX 200u

/* The source of the bytes: returns the count, 0 at the end, -1 on failure. */
typedef ssize_t (*multipart_source)(void *data, void *bytes, size_t size);

struct multipart {
	multipart_source source;
	void *data;
	char delimiter[MULTIPART_BOUNDARY_MAX + 5]; /* CR LF - - boundary */
	struct buf bytes;
	bool ended;  /* the source is */
	bool broken; /* it ended inside a part */
};

/* `type`: the Content-Type. INVALID: not multipart, or without a boundary. Free with multipart_close. */
int multipart_open(struct multipart *multipart, const char *type, multipart_source source, void *data,
		   struct husk_error *err);
void multipart_close(struct multipart *multipart);
/* Skips the rest of the current part and returns the next: 1, with its names (NULL: not given; the caller frees them);
 * 0: no more parts; -1. */
int multipart_next(struct multipart *multipart, char **name, char **filename, struct husk_error *err);
/* Reads the current part: the count, 0 at its end, -1 if the body ends early. A husk_source. */
ssize_t multipart_read(void *multipart, void *bytes, size_t size);

#endif
