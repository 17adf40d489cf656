/*
 * Ring buffer of process output; see ring.h. Called by process.c (append) and attach.c (peek). It must never fail
 * or block: a process's output is only ever shortened at its oldest end.
 */
#include "agent/ring.h"

#define RING_FIRST 4096u

static void ring_copy_out(const struct ring *ring, char *target)
{
	size_t held = (size_t)(ring->end - ring->start);
	const char *run;

	for (size_t done = 0; done < held;) {
		size_t size = ring_peek(ring, ring->start + done, &run);
		memcpy(target + done, run, size);
		done += size;
	}
}

static void ring_grow(struct ring *ring, size_t wanted)
{
	size_t capacity = ring->capacity ? ring->capacity : RING_FIRST;
	struct ring bigger = *ring;

	while (capacity < wanted && capacity < RING_MAX)
		capacity *= 2;
	if (capacity == ring->capacity)
		return;
	bigger.data = malloc(capacity);
	if (!bigger.data)
		return;
	bigger.capacity = capacity;

	/* Positions depend on the capacity: lay the held bytes out linearly, then put them where they now belong. */
	size_t held = (size_t)(ring->end - ring->start);
	size_t at = (size_t)(ring->start & (capacity - 1)), first = MIN(held, capacity - at);
	char *linear = held ? malloc(held) : NULL;
	if (held && !linear) {
		free(bigger.data);
		return;
	}
	if (held) {
		ring_copy_out(ring, linear);
		memcpy(bigger.data + at, linear, first);
		memcpy(bigger.data, linear + first, held - first);
	}
	free(linear);
	free(ring->data);
	*ring = bigger;
}

void ring_append(struct ring *ring, const char *data, size_t size)
{
	size_t held = (size_t)(ring->end - ring->start);

	if (size == 0)
		return;
	if (held + size > ring->capacity)
		ring_grow(ring, held + size);
	if (size > ring->capacity) { /* only the tail can be kept */
		ring->end += size - ring->capacity;
		data += size - ring->capacity;
		size = ring->capacity;
	}
	if (size > 0) {
		size_t at = (size_t)(ring->end & (ring->capacity - 1)), first = MIN(size, ring->capacity - at);
		memcpy(ring->data + at, data, first);
		memcpy(ring->data, data + first, size - first);
		ring->end += size;
	}
	if (ring->end - ring->start > ring->capacity)
		ring->start = ring->end - ring->capacity;
}

size_t ring_peek(const struct ring *ring, uint64_t offset, const char **data)
{
	if (offset < ring->start || offset >= ring->end)
		return 0;
	size_t at = (size_t)(offset & (ring->capacity - 1));
	*data = ring->data + at;
	return MIN((size_t)(ring->end - offset), ring->capacity - at);
}

void ring_free(struct ring *ring)
{
	free(ring->data);
	*ring = (struct ring){ 0 };
}
