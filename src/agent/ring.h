/*
 * Keeps the last bytes of one output stream. Bytes have absolute offsets; when the ring is full, the oldest are
 * dropped. The ring starts without memory and doubles as needed, because most processes print little. If more is to be
 * kept than RING_MAX, the bytes that leave the memory go to a file.
 */
#ifndef HUSK_AGENT_RING_H
#define HUSK_AGENT_RING_H

#include "base/base.h"

#define RING_MAX (1024u * 1024u)

struct ring {
	char *data;
	size_t capacity;     /* power of two, at most RING_MAX */
	uint64_t start, end; /* absolute offsets of the bytes kept; the `start` bytes before them were dropped */
	uint64_t memory;     /* the first byte in memory; those from `start` to here are in the file */
	uint64_t room;       /* of the file, which is used as a ring too; 0: there is none */
	int file;
};

/* Keeps `bytes` instead of RING_MAX, with an unnamed file in /var/tmp. Call it before the first ring_append. */
int ring_keep(struct ring *ring, uint64_t bytes, struct husk_error *err);
/* Adds bytes, and drops the oldest. If memory for growth or room on the disk is missing, bytes are dropped earlier; this
 * never fails. */
void ring_append(struct ring *ring, const char *data, size_t size);
/* Copies at most `size` bytes from `offset` (within start..end) on, and returns how many. It may be fewer than there are;
 * 0 before the end means that the file has lost them: they are dropped, and `start` has moved. */
size_t ring_read(struct ring *ring, uint64_t offset, char *out, size_t size);
void ring_free(struct ring *ring);

#endif
