/*
 * The bounded memory of one output stream: bytes have absolute offsets, the oldest are dropped when it is full.
 * Starts without memory and doubles as needed, because most processes print little.
 */
#ifndef HUSK_AGENT_RING_H
#define HUSK_AGENT_RING_H

#include "base/base.h"

#define RING_MAX (1024u * 1024u)

struct ring {
	char *data;
	size_t capacity;     /* power of two, at most RING_MAX */
	uint64_t start, end; /* absolute offsets of what is held; `start` bytes were dropped */
};

/* Adds bytes, dropping the oldest past RING_MAX. Without memory to grow it drops sooner: it never fails. */
void ring_append(struct ring *ring, const char *data, size_t size);
/* The contiguous run at `offset` (within start..end): its size; 0 at the end. */
size_t ring_peek(const struct ring *ring, uint64_t offset, const char **data);
void ring_free(struct ring *ring);

#endif
