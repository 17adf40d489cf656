/*
 * The virtio block device. Its work runs in the disk's own loop, because a flush may take as long as the host's disk
 * takes. block_request is apart so that it can be tested and fuzzed without a queue.
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
	int timer; /* when a limit lets the next request through */
	struct watch timer_watch;
	uint64_t moved; /* bytes read and written */
};

int block_create(struct block *block, const struct memory *memory, struct loop *loop, struct husk_error *err);
/* The disk is there: its size and abilities become the device's. */
void block_describe(struct block *block);
/* Carries out one request; returns how many bytes of the chain were written to (with the status), 0 when there was no
 * room for a status. */
uint32_t block_request(struct block *block, const struct chain *chain);

#endif
