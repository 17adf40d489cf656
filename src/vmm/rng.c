/*
 * The virtio entropy device: fills the driver's buffers with random bytes of the host. It keeps no state. An answer has
 * at most REQUEST_MAX bytes, so that a guest cannot keep the loop busy with a request of gigabytes.
 */
#include "vmm/rng.h"

#define REQUEST_MAX 4096u

void rng_fill(const struct chain *chain, uint32_t *written)
{
	uint8_t bytes[REQUEST_MAX];
	size_t size = MIN(chain->writable_bytes, sizeof(bytes));

	*written = 0;
	if (size > 0 && random_bytes(bytes, size) == 0 && chain_write(chain, 0, bytes, size) == 0)
		*written = (uint32_t)size;
	explicit_bzero(bytes, sizeof(bytes));
}

static void rng_work(struct virtio_device *device, size_t index)
{
	struct queue *queue = &device->state.queues[index];
	struct chain chain;
	uint32_t written;

	while (queue_pop(queue, device->memory, &chain) > 0) {
		rng_fill(&chain, &written);
		queue_push(queue, device->memory, chain.head, written);
	}
	virtio_signal(device, queue);
}

static void rng_idle(struct virtio_device *device)
{
	(void)device; /* there is no state */
}

static const struct virtio_ops rng_ops = {
	.name = "rng",
	.number = 4,
	.queue_count = 1,
	.queue_size = 64,
	.start = rng_idle,
	.work = rng_work,
	.reset = rng_idle,
};

int rng_create(struct rng *rng, const struct memory *memory, struct loop *loop, struct husk_error *err)
{
	return virtio_create(&rng->device, &rng_ops, memory, loop, err);
}
