/*
 * Requests of a hostile driver, past the queue: each device gets a chain whose segments lie in blocks of exactly their
 * size, so that a byte too far is found. The input says which device, how the chain is cut, and what is in it.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "vmm/vm.h"

#define SEGMENTS 8u
#define ROUNDS 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct loop loop;
static struct memory memory;
static struct block root, disk;
static struct vsock vsock;
static struct balloon balloon;

static void must(int result)
{
	if (result < 0)
		abort();
}

static int new_file(off_t size)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	must(fd);
	must(ftruncate(fd, size));
	return fd;
}

static void set_up(void)
{
	memory.pagemap = -1;
	must(memory_create(&memory, VMM_MEMORY_MIN, NULL));
	must(loop_open(&loop, NULL));
	must(block_create(&root, &memory, &loop, NULL));
	must(block_create(&disk, &memory, &loop, NULL));
	must(vsock_create(&vsock, &memory, &loop, NULL));
	must(balloon_create(&balloon, &memory, &loop, NULL));
	must(disk_open_plain(&root.disk, new_file(100 << 10), NULL));
	must(disk_add_layer(&disk.disk, new_file(0), 1 << 20, NULL));
}

/* ---- a chain from the input ---- */

struct input {
	const uint8_t *data;
	size_t size;
};

static unsigned take(struct input *input)
{
	if (input->size == 0)
		return 0;
	input->size--;
	return *input->data++;
}

/* Segments of up to 1 KiB, the readable ones filled. For the balloon they lie in guest memory, which it takes apart. */
static void make_chain(struct chain *chain, struct input *input, bool inside)
{
	unsigned cut = take(input);

	*chain = (struct chain){ .readable = cut % SEGMENTS, .writable = cut / SEGMENTS % SEGMENTS };
	for (size_t i = 0; i < chain->readable + chain->writable; i++) {
		size_t length = 1 + (take(input) | take(input) << 8) % 1024, filled = 0;
		struct iovec *segment = &chain->vector[i];

		*segment = (struct iovec){ .iov_base = inside ? memory.host + i * 65536 : malloc(length),
					   .iov_len = inside ? length * 64 : length };
		if (!segment->iov_base)
			abort();
		memset(segment->iov_base, 0, segment->iov_len);
		if (i < chain->readable) {
			filled = MIN(input->size, length);
			memcpy(segment->iov_base, input->data, filled);
			chain->readable_bytes += segment->iov_len;
		} else {
			chain->writable_bytes += segment->iov_len;
		}
		input->data += filled;
		input->size -= filled;
	}
}

static void free_chain(struct chain *chain, bool inside)
{
	for (size_t i = 0; !inside && i < chain->readable + chain->writable; i++)
		free(chain->vector[i].iov_base);
}

/* ---- the devices ---- */

static void offer_socket(void)
{
	int ends[2];

	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
	must((int)write(ends[0], "hello", 5));
	close(ends[0]);
	if (vsock_offer(&vsock, VMM_AGENT_PORT, ends[1], NULL) < 0)
		close(ends[1]);
}

static void handle(unsigned device, struct chain *chain)
{
	uint32_t written = 0;

	switch (device) {
	case 0:
	case 1:
		written = block_request(device ? &disk : &root, chain);
		break;
	case 2:
		vsock_packet(&vsock, chain);
		break;
	case 3:
		rng_fill(chain, &written);
		break;
	case 4:
		balloon_inflate(&balloon, chain);
		break;
	default:
		balloon_report(&balloon, chain);
	}
	if (written > chain->writable_bytes)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = { .data = data, .size = size };
	unsigned device = take(&input) % 6;

	if (!memory.host)
		set_up();
	if (device == 2)
		offer_socket();
	for (int i = 0; i < ROUNDS && input.size > 0; i++) {
		struct chain chain;

		make_chain(&chain, &input, device == 5);
		handle(device, &chain);
		free_chain(&chain, device == 5);
	}
	vsock.device.ops->reset(&vsock.device);
	return 0;
}
