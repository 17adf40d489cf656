/*
 * The virtio balloon: returns memory that the guest does not need to the host. The guest is asked to give up pages (a
 * target in pages), or its kernel reports pages that have become free.
 */
#ifndef HUSK_VMM_BALLOON_H
#define HUSK_VMM_BALLOON_H

#include "vmm/virtio.h"

struct balloon {
	struct virtio_device device; /* first */
	uint64_t returned;           /* pages given back to the host */
};

int balloon_create(struct balloon *balloon, const struct memory *memory, struct loop *loop, struct husk_error *err);
/* Asks the guest to give up this many pages of 4 KiB, or to take them back. */
void balloon_target(struct balloon *balloon, uint32_t pages);
/* One request of a queue; exposed for tests and fuzzing. */
void balloon_inflate(struct balloon *balloon, const struct chain *chain);
void balloon_report(struct balloon *balloon, const struct chain *chain);

#endif
