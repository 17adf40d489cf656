/*
 * The virtqueue (split, virtio 1.1): the one place where descriptors of a hostile driver are read. A descriptor is
 * copied once, then checked, then used. Chains are bounded, and every segment of a chain is checked to be guest memory.
 * A driver that breaks the rules breaks its own queue, which is ignored until the driver resets the device.
 */
#ifndef HUSK_VMM_QUEUE_H
#define HUSK_VMM_QUEUE_H

#include <sys/uio.h>

#include "vmm/memory.h"

#define QUEUE_SIZE_MAX 256
#define CHAIN_MAX 258 /* segments of a request: as many as a queue has descriptors, and a table of them */

/* All members are saved in a snapshot. */
struct queue {
	uint64_t descriptors, available, used; /* guest addresses */
	uint16_t size;
	uint16_t next_available, next_used;
	uint16_t signalled; /* next_used when the driver was last interrupted */
	uint8_t ready, broken, event_index, signalled_once;
};

/* One request: its readable bytes, then its writable ones. The guest may change the bytes at any time. */
struct chain {
	uint16_t head;
	struct iovec vector[CHAIN_MAX];
	size_t readable, writable; /* segments; the writable ones follow */
	size_t readable_bytes, writable_bytes;
};

/* Checks the queue that the driver has set up. Called when the driver reports it ready. */
bool queue_valid(const struct queue *queue, const struct memory *memory);
/* 1: the next request; 0: none is waiting, and the driver will notify about the next one; -1: the queue is broken. */
int queue_pop(struct queue *queue, const struct memory *memory, struct chain *chain);
/* Puts the last popped chain back into the queue. */
void queue_unpop(struct queue *queue);
/* The chain is done: the device wrote `written` bytes into it. */
void queue_push(struct queue *queue, const struct memory *memory, uint16_t head, uint32_t written);
/* True if the driver wants an interrupt for what was pushed since the last call. */
bool queue_wants_interrupt(struct queue *queue, const struct memory *memory);

/* Copies from the readable, or to the writable bytes at `offset`; -1 if the chain is too short. */
int chain_read(const struct chain *chain, size_t offset, void *out, size_t size);
int chain_write(const struct chain *chain, size_t offset, const void *data, size_t size);
/* A part of the readable (or writable) segments as an iovec. Returns the count of segments, or -1 if the chain is too
 * short. */
int chain_slice(const struct chain *chain, bool writable, size_t offset, size_t size,
		struct iovec out[static CHAIN_MAX]);

#endif
