/*
 * The Range header of RFC 9110, for api_files.c. Bytes only, and one range: for a list of several the whole file is
 * sent, as the standard allows.
 */
#ifndef HUSK_SERVER_RANGE_H
#define HUSK_SERVER_RANGE_H

#include <stdint.h>

enum range_kind {
	RANGE_WHOLE, /* no range, or one that is not supported */
	RANGE_PART,
	RANGE_OUTSIDE, /* well-formed, but completely outside the file */
};

/* `header` may be NULL. For RANGE_PART *offset and *length (at least 1) lie inside the `size` bytes. */
enum range_kind range_parse(const char *header, uint64_t size, uint64_t *offset, uint64_t *length);

#endif
