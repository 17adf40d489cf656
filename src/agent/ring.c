/*
 * Ring buffer of process output; see ring.h. process.c appends, attach.c reads. Appending never fails and never waits for
 * a reader: when the ring is full, the oldest output is dropped.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

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
	struct ring bigger = *ring;
	bigger.data = malloc(capacity);
	bigger.capacity = capacity;
	if (!bigger.data)
		return;
	if (ring->end > ring->memory) { /* the content is one piece or two, and each moves to its new position */
		size_t held = (size_t)(ring->end - ring->memory), at = ring_at(ring, ring->memory);
		size_t first = MIN(held, ring->capacity - at);
		ring_place(&bigger, ring->memory, ring->data + at, first);
		ring_place(&bigger, ring->memory + first, ring->data, held - first);
	}
	free(ring->data);
	*ring = bigger;
}

/* ---- the file ---- */

int ring_keep(struct ring *ring, uint64_t bytes, struct husk_error *err)
{
	char path[] = "/var/tmp/output-XXXXXX";

	if (bytes <= RING_MAX)
		return 0;
	int file = mkostemp(path, O_CLOEXEC);
	if (file < 0)
		return husk_fail_errno(err, "cannot keep %llu bytes of output: '%s'", (unsigned long long)bytes, path);
	unlink(path); /* it ends with the process's entry in the table, or with the agent */
	ring->file = file;
	ring->room = bytes - RING_MAX;
	return 0;
}

/* Writes to the file's positions of these offsets. */
static bool ring_store(const struct ring *ring, uint64_t offset, const char *data, size_t size)
{
	while (size > 0) {
		uint64_t at = offset % ring->room;
		ssize_t count = pwrite(ring->file, data, (size_t)MIN(size, ring->room - at), (off_t)at);
		if (count <= 0)
			return false;
		offset += (uint64_t)count;
		data += count;
		size -= (size_t)count;
	}
	return true;
}

/* The oldest bytes leave the memory, up to the offset `to`. If the file does not take them, all before `to` are dropped.
 * Bytes that later ones would overwrite at once are not written: the room may be a single byte. */
static void ring_leave(struct ring *ring, uint64_t to)
{
	uint64_t from = MAX(ring->memory, to > ring->room ? to - ring->room : 0);
	size_t size = (size_t)(to - from), at = ring_at(ring, from);
	size_t first = MIN(size, ring->capacity - at);
	bool stored = ring->room && ring_store(ring, from, ring->data + at, first) &&
		      ring_store(ring, from + first, ring->data, size - first);

	ring->memory = to;
	if (!stored)
		ring->start = to;
	else if (to - ring->start > ring->room)
		ring->start = to - ring->room;
}

void ring_append(struct ring *ring, const char *data, size_t size)
{
	size_t held = (size_t)(ring->end - ring->memory);

	if (held + size > ring->capacity)
		ring_grow(ring, held + size);
	while (size > 0) {
		size_t part = MIN(size, ring->capacity);
		if (part == 0) { /* no memory at all */
			ring->end += size;
			ring->start = ring->memory = ring->end;
			return;
		}
		if (ring->end + part - ring->memory > ring->capacity)
			ring_leave(ring, ring->end + part - ring->capacity);
		ring_place(ring, ring->end, data, part);
		ring->end += part;
		data += part;
		size -= part;
	}
}

size_t ring_read(struct ring *ring, uint64_t offset, char *out, size_t size)
{
	if (offset < ring->start || offset >= ring->end)
		return 0;
	if (offset >= ring->memory) {
		size_t at = ring_at(ring, offset);
		size = MIN(MIN(size, (size_t)(ring->end - offset)), ring->capacity - at);
		memcpy(out, ring->data + at, size);
		return size;
	}
	uint64_t at = offset % ring->room;
	size = (size_t)MIN(MIN(size, ring->memory - offset), ring->room - at);
	ssize_t count = pread(ring->file, out, size, (off_t)at);
	if (count > 0)
		return (size_t)count;
	ring->start = ring->memory;
	return 0;
}

void ring_free(struct ring *ring)
{
	if (ring->room)
		close(ring->file);
	free(ring->data);
	*ring = (struct ring){ 0 };
}
