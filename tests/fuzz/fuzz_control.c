/*
 * Requests on the control socket that no engine of ours would send: any type at any stage, with any values, texts and
 * descriptors, also of the wrong kind. Each gets one reply, and no descriptor is left open. There is no virtual machine
 * behind it: what KVM would be asked for fails.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "vmm/serve.h"

#define REQUESTS 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct vm vm;

static void must(int result)
{
	if (result < 0)
		abort();
}

static size_t open_fds(void)
{
	size_t count = 0;
	DIR *list = opendir("/proc/self/fd");

	if (!list)
		abort();
	while (readdir(list))
		count++;
	closedir(list);
	return count;
}

/* One that could be meant: a file with what the input has, a socket, an event, nothing. */
static int descriptor(unsigned kind, const uint8_t *data, size_t size)
{
	int ends[2], fd;

	switch (kind % 4) {
	case 0:
		fd = memfd_create("fuzz", MFD_CLOEXEC);
		must(fd);
		must(write_full(fd, data, MIN(size, 8192u)));
		return fd;
	case 1:
		must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
		close(ends[1]);
		return ends[0];
	case 2:
		fd = memfd_create("fuzz", MFD_CLOEXEC);
		must(fd);
		must(ftruncate(fd, 4096 * (off_t)(size % 64)));
		return fd;
	default:
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
		must(fd);
		return fd;
	}
}

/* As after a shape, without vCPUs. */
static void begin(void)
{
	if (!vm.end_fd) {
		vm.memory.pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
		must(vm_create(&vm, NULL));
	}
	must(memory_create(&vm.memory, VMM_MEMORY_MIN, NULL));
	vm.stage = VM_SHAPED;
}

static void end(void)
{
	/* Whoever paused it holds the devices. */
	for (size_t i = 0; vm.stage == VM_PAUSED && i < DEVICE_COUNT; i++)
		pthread_mutex_unlock(&vm.devices[i]->lock);
	net_attach(&vm.net, -1, 0, NULL);
	for (size_t i = 0; i < VSOCK_CONNECTIONS; i++) {
		struct vsock_connection *c = &vm.vsock.connections[i];

		if (c->stage == VSOCK_WAITING)
			c->stage = VSOCK_CONNECTED;
	}
	vm.vsock.device.ops->reset(&vm.vsock.device);
	disk_close(&vm.root.disk);
	disk_close(&vm.disk.disk);
	fd_close(&vm.serial.log);
	fd_close(&vm.kvm);
	fd_close(&vm.fd);
	memory_free(&vm.memory);
	vm.hold = true;
}

/* Type, values and descriptors from 16 bytes; the text is what follows. */
static void request(const uint8_t *data, size_t size)
{
	struct control_request asked = { .version = CONTROL_VERSION, .type = data[0] % (CONTROL_AHEAD + 2) };
	struct control_reply reply = { 0 };
	int fds[CONTROL_FDS_MAX];
	size_t count = data[1] % (CONTROL_FDS_MAX + 1);

	asked.value[0] = data[2] | (uint64_t)data[3] << 12 | (uint64_t)data[4] << (data[5] % 57);
	asked.value[1] = data[6] | (uint64_t)data[7] << (data[8] % 57);
	asked.value[2] = data[9];
	if (data[10] == 255)
		asked.version = data[9];
	memcpy(asked.text, data + 16, MIN(size - 16, sizeof(asked.text) - (data[10] != 254)));
	for (size_t i = 0; i < count; i++)
		fds[i] = descriptor(data[11 + i], data + 16, size - 16);
	serve_request(&vm, &asked, fds, count, &reply);
	if (memchr(reply.message, '\0', sizeof(reply.message)) == NULL || (reply.code && !reply.message[0]))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	begin();
	size_t before = open_fds();
	for (int i = 0; i < REQUESTS && size >= 16; i++) {
		size_t part = MIN(size, 16u + data[15] % 128u);

		request(data, part);
		data += part;
		size -= part;
	}
	end();
	if (open_fds() != before)
		abort();
	return 0;
}
