/*
 * Keeps the last bytes of one output stream. Bytes have absolute offsets; when the ring is full, the oldest are
 * dropped. The ring starts without memory and doubles as needed, because most processes print little.
 */
#ifndef HUSK_AGENT_RING_H
#define HUSK_AGENT_RING_H

#include "base/base.h"

#define RING_MAX (1024u * 1024u)

struct ring {
	char *data;
	size_t capacity;     /* power of two, at most RING_MAX */
	uint64_t start, end; /* absolute offsets of the bytes held; the `start` bytes before them were dropped */
};

/* Adds bytes, and drops the oldest beyond RING_MAX. If memory for growth is missing, bytes are dropped earlier; this
 * never fails. */
void ring_append(struct ring *ring, const char *data, size_t size);
/* Returns the size of the contiguous bytes at `offset` (within start..end); 0 at the end. */
size_t ring_peek(const struct ring *ring, uint64_t offset, const char **data);
void ring_free(struct ring *ring);

#endif
