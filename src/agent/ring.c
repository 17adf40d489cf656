/*
 * Ring buffer of process output; see ring.h. process.c appends, attach.c reads. Appending never fails and never blocks:
 * when the ring is full, the oldest output is dropped.
 */
#include "agent/ring.h"

#define RING_FIRST 4096u

/* The index of an offset; the capacity is a power of two. */
static size_t ring_at(const struct ring *ring, uint64_t offset)
{
	return (size_t)(offset & (ring->capacity - 1));
}

/* Copies bytes to the positions of their offsets. The caller makes sure that they fit. */
static void ring_place(struct ring *ring, uint64_t offset, const char *data, size_t size)
{
	size_t at = ring_at(ring, offset), first = MIN(size, ring->capacity - at);

	memcpy(ring->data + at, data, first);
	memcpy(ring->data, data + first, size - first);
}

/* If memory is missing, the ring keeps its size. */
static void ring_grow(struct ring *ring, size_t wanted)
{
	size_t capacity = ring->capacity ? ring->capacity : RING_FIRST;

	while (capacity < wanted && capacity < RING_MAX)
		capacity *= 2;
	if (capacity == ring->capacity)
		return;
	struct ring bigger = { .data = malloc(capacity), .capacity = capacity, .start = ring->start, .end = ring->end };
	if (!bigger.data)
		return;
	if (ring->end > ring->start) { /* the content is one piece or two, and each moves to its new position */
		size_t held = (size_t)(ring->end - ring->start), at = ring_at(ring, ring->start);
		size_t first = MIN(held, ring->capacity - at);
		ring_place(&bigger, ring->start, ring->data + at, first);
		ring_place(&bigger, ring->start + first, ring->data, held - first);
	}
	free(ring->data);
	*ring = bigger;
}

void ring_append(struct ring *ring, const char *data, size_t size)
{
	size_t held = (size_t)(ring->end - ring->start);

	if (held + size > ring->capacity)
		ring_grow(ring, held + size);
	if (size > ring->capacity) { /* only the tail can be kept */
		ring->end += size - ring->capacity;
		data += size - ring->capacity;
		size = ring->capacity;
	}
	if (size > 0)
		ring_place(ring, ring->end, data, size);
	ring->end += size;
	if (ring->end - ring->start > ring->capacity)
		ring->start = ring->end - ring->capacity;
}

size_t ring_peek(const struct ring *ring, uint64_t offset, const char **data)
{
	if (offset < ring->start || offset >= ring->end)
		return 0;
	size_t at = ring_at(ring, offset);
	*data = ring->data + at;
	return MIN((size_t)(ring->end - offset), ring->capacity - at);
}

void ring_free(struct ring *ring)
{
	free(ring->data);
	*ring = (struct ring){ 0 };
}
