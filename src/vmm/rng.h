/* The virtio entropy device: the host's random numbers for the guest's kernel. */
#ifndef HUSK_VMM_RNG_H
#define HUSK_VMM_RNG_H

#include "vmm/virtio.h"

struct rng {
	struct virtio_device device; /* must be the first member */
};

int rng_create(struct rng *rng, const struct memory *memory, struct loop *loop, struct husk_error *err);
void rng_fill(const struct chain *chain, uint32_t *written); /* one request; exposed for tests and fuzzing */

#endif
