/*
 * The virtio block device: reads, writes, flush, discard, write-zeroes, identity. The driver is hostile: sectors are
 * checked against the disk, sizes against the chain, and every request that has room for it gets a status. It must never
 * write to a read-only disk, whatever the driver negotiated.
 */
#include "vmm/block.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#define SECTOR 512ull
#define SEGMENTS_MAX 126
#define DISCARD_SECTORS_MAX (1u << 21) /* a GiB at a time */

enum {
	FEATURE_SEG_MAX = 1 << 2,
	FEATURE_RO = 1 << 5,
	FEATURE_BLK_SIZE = 1 << 6,
	FEATURE_FLUSH = 1 << 9,
	FEATURE_DISCARD = 1 << 13,
	FEATURE_WRITE_ZEROES = 1 << 14
};
enum {
	REQUEST_READ = 0,
	REQUEST_WRITE = 1,
	REQUEST_FLUSH = 4,
	REQUEST_ID = 8,
	REQUEST_DISCARD = 11,
	REQUEST_ZEROES = 13
};
enum { STATUS_OK = 0, STATUS_ERROR = 1, STATUS_UNSUPPORTED = 2 };

struct request_header {
	uint32_t type, reserved;
	uint64_t sector;
};

struct range {
	uint64_t sector;
	uint32_t sectors, flags;
};

/* As the standard lays it out. */
struct config {
	uint64_t capacity;
	uint32_t size_max, seg_max;
	uint16_t cylinders;
	uint8_t heads, sectors;
	uint32_t blk_size;
	uint8_t physical_block_exp, alignment_offset;
	uint16_t min_io_size;
	uint32_t opt_io_size;
	uint8_t writeback, unused;
	uint16_t num_queues;
	uint32_t max_discard_sectors, max_discard_seg, discard_sector_alignment;
	uint32_t max_write_zeroes_sectors, max_write_zeroes_seg;
	uint8_t write_zeroes_may_unmap, unused1[3];
} __attribute__((packed));
_Static_assert(sizeof(struct config) <= VIRTIO_CONFIG_MAX, "the configuration of a block device");

static bool read_only(const struct block *block)
{
	return block->disk.plain >= 0;
}

void block_describe(struct block *block)
{
	struct config config = {
		.capacity = block->disk.bytes / SECTOR,
		.seg_max = SEGMENTS_MAX,
		.blk_size = 4096,
		.max_discard_sectors = DISCARD_SECTORS_MAX,
		.max_discard_seg = 1,
		.discard_sector_alignment = (uint32_t)(CLUSTER_BYTES / SECTOR),
		.max_write_zeroes_sectors = DISCARD_SECTORS_MAX,
		.max_write_zeroes_seg = 1,
		.write_zeroes_may_unmap = 1,
	};

	block->device.features |= FEATURE_SEG_MAX | FEATURE_FLUSH;
	if (read_only(block)) {
		block->device.features |= FEATURE_RO;
		config.blk_size = 512; /* the size of an image need not be a multiple of a page */
	} else {
		block->device.features |= FEATURE_DISCARD | FEATURE_WRITE_ZEROES;
	}
	block->device.features |= FEATURE_BLK_SIZE;
	memcpy(block->device.state.config, &config, sizeof(config));
	block->device.config_size = sizeof(config);
}

/* ---- requests ---- */

/* True if all these bytes are on the disk. */
static bool in_disk(const struct block *block, uint64_t sector, uint64_t size)
{
	uint64_t sectors = block->disk.bytes / SECTOR;

	return size % SECTOR == 0 && sector <= sectors && size / SECTOR <= sectors - sector;
}

static int transfer(struct block *block, const struct chain *chain, uint64_t sector, bool write, size_t size)
{
	struct iovec vector[CHAIN_MAX];
	int count = chain_slice(chain, !write, write ? sizeof(struct request_header) : 0, size, vector);

	if (count < 0 || !in_disk(block, sector, size))
		return STATUS_ERROR;
	if (count == 0)
		return STATUS_OK;
	block->moved += size;
	int result = write ? disk_write(&block->disk, sector * SECTOR, vector, count, size)
			   : disk_read(&block->disk, sector * SECTOR, vector, count, size);
	return result < 0 ? STATUS_ERROR : STATUS_OK;
}

static int discard(struct block *block, const struct chain *chain)
{
	struct range range;

	if (chain->readable_bytes != sizeof(struct request_header) + sizeof(range) ||
	    chain_read(chain, sizeof(struct request_header), &range, sizeof(range)) < 0 || range.flags & ~1u)
		return STATUS_UNSUPPORTED;
	uint64_t size = range.sectors * SECTOR;
	if (range.sectors > DISCARD_SECTORS_MAX || !in_disk(block, range.sector, size))
		return STATUS_ERROR;
	return disk_discard(&block->disk, range.sector * SECTOR, size) < 0 ? STATUS_ERROR : STATUS_OK;
}

static int identify(const struct block *block, const struct chain *chain, size_t room)
{
	char id[20] = { 0 };

	snprintf(id, sizeof(id), "%s", read_only(block) ? "husk-root" : "husk-disk");
	return room < sizeof(id) || chain_write(chain, 0, id, sizeof(id)) < 0 ? STATUS_ERROR : STATUS_OK;
}

static int carry_out(struct block *block, const struct chain *chain, const struct request_header *header, size_t room)
{
	bool changes =
		header->type == REQUEST_WRITE || header->type == REQUEST_DISCARD || header->type == REQUEST_ZEROES;

	if (changes && read_only(block))
		return STATUS_ERROR;
	switch (header->type) {
	case REQUEST_READ:
		return transfer(block, chain, header->sector, false, room);
	case REQUEST_WRITE:
		return transfer(block, chain, header->sector, true, chain->readable_bytes - sizeof(*header));
	case REQUEST_FLUSH:
		return disk_flush(&block->disk) < 0 ? STATUS_ERROR : STATUS_OK;
	case REQUEST_DISCARD:
	case REQUEST_ZEROES:
		return discard(block, chain);
	case REQUEST_ID:
		return identify(block, chain, room);
	default:
		return STATUS_UNSUPPORTED;
	}
}

uint32_t block_request(struct block *block, const struct chain *chain)
{
	struct request_header header;
	uint8_t status;

	if (chain->writable_bytes == 0)
		return 0;
	/* The last byte is the status, independent of the driver's segments. */
	size_t room = chain->writable_bytes - 1;
	status = chain_read(chain, 0, &header, sizeof(header)) < 0 ? STATUS_ERROR
								   : (uint8_t)carry_out(block, chain, &header, room);
	if (chain_write(chain, room, &status, 1) < 0)
		return 0;
	return (uint32_t)room + 1;
}

/* ---- the queue ---- */

static void set_timer(const struct block *block, int64_t after_us)
{
	const struct itimerspec when = { .it_value = { .tv_sec = after_us / 1000000,
						       .tv_nsec = after_us % 1000000 * 1000 + 1 } };

	timerfd_settime(block->timer, 0, &when, NULL);
}

/* 0: continue; otherwise how long to wait. */
static int64_t charge(struct block *block, const struct chain *chain)
{
	uint64_t size = chain->readable_bytes + chain->writable_bytes;
	int64_t wait = limit_take(&block->operations, 1);

	if (wait)
		return wait;
	wait = limit_take(&block->bytes, size);
	if (wait)
		limit_return(&block->operations, 1);
	return wait;
}

static void block_work(struct virtio_device *device, size_t index)
{
	struct block *block = (struct block *)device;
	struct queue *queue = &device->state.queues[index];
	struct chain chain;

	while (queue_pop(queue, device->memory, &chain) > 0) {
		int64_t wait = charge(block, &chain);

		if (wait) {
			queue_unpop(queue);
			set_timer(block, wait);
			break;
		}
		queue_push(queue, device->memory, chain.head, block_request(block, &chain));
		virtio_signal(device, queue);
	}
}

static void timer_ready(struct watch *watch, uint32_t events)
{
	struct block *block = watch->data;
	uint64_t count;

	(void)events;
	(void)!read(block->timer, &count, sizeof(count));
	pthread_mutex_lock(&block->device.lock);
	if (virtio_running(&block->device))
		block_work(&block->device, 0);
	pthread_mutex_unlock(&block->device.lock);
}

static void block_idle(struct virtio_device *device)
{
	(void)device; /* requests finish before the lock is released, so none is in progress here */
}

static const struct virtio_ops block_ops = {
	.name = "block",
	.number = 2,
	.queue_count = 1,
	.queue_size = 256,
	.start = block_idle,
	.work = block_work,
	.reset = block_idle,
};

int block_create(struct block *block, const struct memory *memory, struct loop *loop, struct husk_error *err)
{
	block->disk = (struct disk)DISK_INIT;
	block->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (block->timer < 0)
		return husk_fail_errno(err, "cannot make a timer");
	if (loop_watch(loop, &block->timer_watch, block->timer, EPOLLIN, timer_ready, block, err) < 0)
		return -1;
	return virtio_create(&block->device, &block_ops, memory, loop, err);
}
