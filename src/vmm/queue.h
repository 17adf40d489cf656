/*
 * The virtqueue (split, virtio 1.1): the one place where descriptors of a hostile driver are read. A descriptor is copied
 * once, then checked, then used; chains are bounded; what a chain points at is checked to be guest memory, whole. A driver
 * that breaks the rules breaks its own queue: it is not looked at again until the driver resets the device.
 */
#ifndef HUSK_VMM_QUEUE_H
#define HUSK_VMM_QUEUE_H

#include <sys/uio.h>

#include "vmm/memory.h"

#define QUEUE_SIZE_MAX 256
#define CHAIN_MAX 258 /* segments of a request: as many as a queue has descriptors, and a table of them */

/* Everything of it is state that a snapshot keeps. */
struct queue {
	uint64_t descriptors, available, used; /* guest addresses */
	uint16_t size;
	uint16_t next_available, next_used;
	uint16_t signalled; /* next_used when the driver was last interrupted */
	uint8_t ready, broken, event_index, signalled_once;
};

/* One request: its readable bytes, then its writable ones. The bytes are the guest's and may change at any time. */
struct chain {
	uint16_t head;
	struct iovec vector[CHAIN_MAX];
	size_t readable, writable; /* segments; the writable ones follow */
	size_t readable_bytes, writable_bytes;
};

/* Is what the driver has set up a queue at all? Called when it says that it is ready. */
bool queue_valid(const struct queue *queue, const struct memory *memory);
/* 1: the next request; 0: none is waiting, and the driver will tell about the next one; -1: the queue is broken. */
int queue_pop(struct queue *queue, const struct memory *memory, struct chain *chain);
/* The last chain popped waits in the queue again, as if it had not been looked at. */
void queue_unpop(struct queue *queue);
/* Done with: the device wrote `written` bytes into it. */
void queue_push(struct queue *queue, const struct memory *memory, uint16_t head, uint32_t written);
/* Whether the driver wants to hear of what was pushed since this was last asked. */
bool queue_wants_interrupt(struct queue *queue, const struct memory *memory);

/* Copies out of the readable, or into the writable bytes from `offset`; -1 when the chain has not so many. */
int chain_read(const struct chain *chain, size_t offset, void *out, size_t size);
int chain_write(const struct chain *chain, size_t offset, const void *data, size_t size);
/* A part of the readable (or writable) segments as an iovec; the count of segments, or -1 when there are not so many bytes. */
int chain_slice(const struct chain *chain, bool writable, size_t offset, size_t size,
		struct iovec out[static CHAIN_MAX]);

#endif
