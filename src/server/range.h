/*
 * The Range header of RFC 9110, for api_files.c. Bytes only, and one range: a list of several is answered with the whole, as
 * the standard allows.
 */
#ifndef HUSK_SERVER_RANGE_H
#define HUSK_SERVER_RANGE_H

#include <stdint.h>

enum range_kind {
	RANGE_WHOLE, /* no range, or none that is understood */
	RANGE_PART,
	RANGE_OUTSIDE, /* well-formed, and nothing of the file is in it */
};

/* `header` may be NULL. For RANGE_PART *offset and *length (at least 1) lie inside the `size` bytes. */
enum range_kind range_parse(const char *header, uint64_t size, uint64_t *offset, uint64_t *length);

#endif
