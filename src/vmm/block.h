/*
 * The virtio block device. It works in the disk's own loop, because a flush may take as long as the host's disk.
 * block_request is separate, so that it can be tested and fuzzed without a queue.
 */
#ifndef HUSK_VMM_BLOCK_H
#define HUSK_VMM_BLOCK_H

#include "vmm/disk.h"
#include "vmm/limit.h"
#include "vmm/virtio.h"

struct block {
	struct virtio_device device; /* first */
	struct disk disk;
	struct limit bytes, operations;
	int timer; /* set for when a limit allows the next request */
	struct watch timer_watch;
	uint64_t moved; /* bytes read and written */
};

int block_create(struct block *block, const struct memory *memory, struct loop *loop, struct husk_error *err);
/* Sets the device's size and features after the disk was opened. */
void block_describe(struct block *block);
/* Carries out one request. Returns how many bytes of the chain were written (including the status), 0 if there was no
 * room for a status. */
uint32_t block_request(struct block *block, const struct chain *chain);

#endif
