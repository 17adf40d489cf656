/*
 * A hostile driver: the input is guest memory and a list of what the driver writes into device registers and queues, for
 * each kind of device. Whatever it does, nothing outside of guest memory may be touched and nothing may hang.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "vmm/vm.h"

#define WINDOW 65536u /* of guest memory that the input fills */
#define STEPS 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct loop loop;
static struct memory memory;
static struct block root, disk;
static struct net net;
static struct vsock vsock;
static struct rng rng;
static struct balloon balloon;
static struct virtio_device *const devices[] = { &root.device,  &disk.device, &net.device,
						 &vsock.device, &rng.device,  &balloon.device };

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
	must(net_create(&net, &memory, &loop, NULL));
	must(vsock_create(&vsock, &memory, &loop, NULL));
	must(rng_create(&rng, &memory, &loop, NULL));
	must(balloon_create(&balloon, &memory, &loop, NULL));
	must(disk_open_plain(&root.disk, new_file(1 << 20), NULL));
	must(disk_add_layer(&disk.disk, new_file(0), 1 << 20, NULL));
	block_describe(&root);
	block_describe(&disk);
}

/* A device whose driver is ready, with queues where the input says. */
static void start_device(struct virtio_device *device, const uint8_t *where)
{
	const uint32_t reset = 0, running = 15;

	virtio_write(device, 0x70, &reset, sizeof(reset));
	device->state.driver_features = device->features;
	for (size_t i = 0; i < device->ops->queue_count; i++) {
		struct queue *queue = &device->state.queues[i];

		queue->size = (uint16_t)(1u << (where[i] % 9));
		queue->descriptors = (where[i] & 0xf0u) << 8;
		queue->available = queue->descriptors + 0x400;
		queue->used = queue->descriptors + 0x800;
		queue->event_index = where[i] & 1;
		queue->ready = queue_valid(queue, &memory);
	}
	virtio_write(device, 0x70, &running, sizeof(running));
}

static void offer_socket(void)
{
	int ends[2];

	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
	must((int)write(ends[0], "hello", 5));
	close(ends[0]);
	if (vsock_offer(&vsock, VMM_AGENT_PORT, ends[1], NULL) < 0)
		close(ends[1]);
}

/* A link that has frames for the guest, of sizes and bytes that the input has. */
static int plug_in(const uint8_t *bytes, size_t size)
{
	int ends[2];

	must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
	for (size_t i = 0; i < 3; i++)
		(void)!write(ends[0], bytes, size >> (4 * i));
	must(net_attach(&net, ends[1], 2, NULL));
	return ends[0];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int wire = -1;

	if (!memory.host)
		set_up();
	if (size < 8)
		return 0;
	struct virtio_device *device = devices[data[0] % ARRAY_SIZE(devices)];
	size_t steps = MIN(data[1] % STEPS, (size - 8) / 8);
	const uint8_t *step = data + 8, *content = step + 8 * steps;
	size_t length = MIN((size_t)(data + size - content), WINDOW);

	memset(memory.host, 0, WINDOW);
	memcpy(memory.host, content, length);
	if (device == &vsock.device)
		offer_socket();
	if (device == &net.device)
		wire = plug_in(content, length);
	start_device(device, data + 2);
	for (size_t i = 0; i < device->ops->queue_count; i++)
		device->ops->work(device, i);
	/* Register writes in any order, each followed by work on a queue. */
	for (size_t i = 0; i < steps; i++, step += 8) {
		uint64_t value = 0;
		size_t queue = step[7] % device->ops->queue_count;

		memcpy(&value, step + 2, 4);
		virtio_write(device, (step[0] | (step[1] & 1u) << 8) & ~3u, &value, 4);
		virtio_read(device, step[6], &value, 1u << (step[7] % 4));
		if (virtio_running(device) && device->state.queues[queue].ready)
			device->ops->work(device, queue);
	}
	device->ops->reset(device);
	if (wire >= 0) {
		must(net_attach(&net, -1, 0, NULL));
		close(wire);
	}
	return 0;
}
