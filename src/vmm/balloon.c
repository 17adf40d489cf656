/*
 * The virtio balloon; see balloon.h. Runs in the main loop. The guest may name any page: only whole pages of its own
 * memory are given back, and losing their content is its own loss.
 */
#include "vmm/balloon.h"

#define FEATURE_DEFLATE_ON_OOM (1ull << 2)
#define FEATURE_REPORTING (1ull << 5)
#define NUMBERS_MAX 65536u

/* Optional queues that are not offered take no number, so reporting is the third. */
enum { QUEUE_INFLATE, QUEUE_DEFLATE, QUEUE_REPORT };

struct config {
	uint32_t target, actual;
};

void balloon_inflate(struct balloon *balloon, const struct chain *chain)
{
	size_t count = MIN(chain->readable_bytes / sizeof(uint32_t), NUMBERS_MAX);
	uint32_t numbers[256];

	for (size_t done = 0; done < count;) {
		size_t part = MIN(count - done, ARRAY_SIZE(numbers));

		if (chain_read(chain, done * sizeof(uint32_t), numbers, part * sizeof(uint32_t)) < 0)
			return;
		for (size_t i = 0; i < part; i++)
			memory_discard(balloon->device.memory, numbers[i] * PAGE_BYTES, PAGE_BYTES);
		balloon->returned += part;
		done += part;
	}
}

void balloon_report(struct balloon *balloon, const struct chain *chain)
{
	for (size_t i = 0; i < chain->writable; i++) {
		const struct iovec *segment = &chain->vector[chain->readable + i];
		uint64_t offset = (uint64_t)((uint8_t *)segment->iov_base - balloon->device.memory->host);
		/* Converted back to a guest address, so that one function checks and discards. */
		uint64_t low = balloon->device.memory->low,
			 address = offset < low ? offset : offset - low + MEMORY_HIGH;

		memory_discard(balloon->device.memory, address, segment->iov_len);
		balloon->returned += segment->iov_len / PAGE_BYTES;
	}
}

static void balloon_work(struct virtio_device *device, size_t index)
{
	struct balloon *balloon = (struct balloon *)device;
	struct queue *queue = &device->state.queues[index];
	struct chain chain;

	while (queue_pop(queue, device->memory, &chain) > 0) {
		if (index == QUEUE_INFLATE)
			balloon_inflate(balloon, &chain);
		if (index == QUEUE_REPORT)
			balloon_report(balloon, &chain);
		/* Nothing to do: the host supplies a page when the guest touches it. */
		queue_push(queue, device->memory, chain.head, 0);
	}
	virtio_signal(device, queue);
}

void balloon_target(struct balloon *balloon, uint32_t pages)
{
	pthread_mutex_lock(&balloon->device.lock);
	memcpy(balloon->device.state.config, &pages, sizeof(pages));
	virtio_config_changed(&balloon->device);
	pthread_mutex_unlock(&balloon->device.lock);
}

static void balloon_idle(struct virtio_device *device)
{
	(void)device; /* the guest remembers which pages it gave back */
}

static const struct virtio_ops balloon_ops = {
	.name = "balloon",
	.number = 5,
	.queue_count = 3,
	.queue_size = 128,
	.start = balloon_idle,
	.work = balloon_work,
	.reset = balloon_idle,
	.configured = balloon_idle, /* `actual`, only informative */
};

int balloon_create(struct balloon *balloon, const struct memory *memory, struct loop *loop, struct husk_error *err)
{
	balloon->device.features = FEATURE_DEFLATE_ON_OOM | FEATURE_REPORTING;
	balloon->device.config_size = sizeof(struct config);
	return virtio_create(&balloon->device, &balloon_ops, memory, loop, err);
}
