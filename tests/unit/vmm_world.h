/*
 * A husk-vmm of a test's own, and tiny guests for it. The process is the real one, in its jail, behind its filters; a
 * guest is a few instructions and the rings of its devices, in the form of a kernel image. Used by the tests of husk-vmm's
 * process and by its bench. What cannot be set up ends the program with the line that says what.
 */
#ifndef HUSK_TEST_VMM_WORLD_H
#define HUSK_TEST_VMM_WORLD_H

#include <asm/bootparam.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "jail/jail.h"
#include "vmm/vm.h"

#define WORLD_UID "2113929217" /* 0x7e000001: nobody's */
#define WORLD_PATIENCE_MS 60000
#define WORLD_DISK (1ull << 20)
#define WORLD_COUNTER 0x200000ull /* where the guest counts its rounds */
#define WORLD_LOAD 0x1000000ull   /* where it is loaded */

#define world_check(condition)                                                                                         \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, strerror(errno));          \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

/* Why husk-vmm cannot run here; NULL: it can. */
static inline const char *world_lacks(void)
{
	int fd;

#if defined(__SANITIZE_ADDRESS__)
	/* Its run-time makes calls of its own, and ends the program where one fails. */
	return "built with sanitizers";
#endif
	if (geteuid() != 0)
		return "not root";
	fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return "/dev/kvm does not open";
	close(fd);
	return NULL;
}

static inline int world_file(void)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	world_check(fd >= 0);
	return fd;
}

/* ---- guests ---- */

#define GUEST_SIZE 0x40000u
#define GUEST_CODE 0x200u  /* the entry, as the boot protocol has it */
#define GUEST_DATA 0x8000u /* rings and buffers */

struct guest {
	uint8_t image[GUEST_SIZE]; /* as it is at WORLD_LOAD */
	size_t code, data;         /* where the next goes */
};

static inline void guest_init(struct guest *guest)
{
	memset(guest, 0, sizeof(*guest));
	guest->code = GUEST_CODE;
	guest->data = GUEST_DATA;
}

static inline void guest_bytes(struct guest *guest, const void *bytes, size_t size)
{
	world_check(guest->code + size <= GUEST_DATA);
	memcpy(guest->image + guest->code, bytes, size);
	guest->code += size;
}

/* mov ebx,address; mov eax,value; mov [rbx],eax */
static inline void guest_write(struct guest *guest, uint64_t address, uint32_t value)
{
	uint8_t bytes[] = { 0xbb, 0, 0, 0, 0, 0xb8, 0, 0, 0, 0, 0x89, 0x03 };
	uint32_t low = (uint32_t)address;

	memcpy(bytes + 1, &low, sizeof(low));
	memcpy(bytes + 6, &value, sizeof(value));
	guest_bytes(guest, bytes, sizeof(bytes));
}

/* 1: cmp word [address],value; jne 1b */
static inline void guest_wait(struct guest *guest, uint64_t address, uint16_t value)
{
	uint8_t bytes[] = { 0x66, 0x81, 0x3c, 0x25, 0, 0, 0, 0, 0, 0, 0x75, 0xf4 };
	uint32_t low = (uint32_t)address;

	memcpy(bytes + 4, &low, sizeof(low));
	memcpy(bytes + 8, &value, sizeof(value));
	guest_bytes(guest, bytes, sizeof(bytes));
}

/* mov edx,0x3f8; mov al,c; out dx,al */
static inline void guest_print(struct guest *guest, char c)
{
	const uint8_t bytes[] = { 0xba, 0xf8, 0x03, 0, 0, 0xb0, (uint8_t)c, 0xee };

	guest_bytes(guest, bytes, sizeof(bytes));
}

/* mov edx,0x3f8; 1: inc qword [COUNTER]; test dword [COUNTER],0x3ff; jnz 1b; mov al,'.'; out dx,al; jmp 1b */
static inline void guest_tick(struct guest *guest)
{
	static const uint8_t bytes[] = { 0xba, 0xf8, 0x03, 0,    0,    0x48, 0xff, 0x04, 0x25, 0,    0,
					 0x20, 0,    0xf7, 0x04, 0x25, 0,    0,    0x20, 0,    0xff, 0x03,
					 0,    0,    0x75, 0xeb, 0xb0, '.',  0xee, 0xeb, 0xe6 };

	guest_bytes(guest, bytes, sizeof(bytes));
}

/* Room for data; its guest address. */
static inline uint64_t guest_room(struct guest *guest, size_t size)
{
	size_t at = (guest->data + 15) & ~(size_t)15;

	world_check(at + size <= GUEST_SIZE);
	guest->data = at + size;
	return WORLD_LOAD + at;
}

static inline uint64_t guest_data(struct guest *guest, const void *data, size_t size)
{
	uint64_t address = guest_room(guest, size);

	memcpy(guest->image + (address - WORLD_LOAD), data, size);
	return address;
}

/* ---- a driver ---- */

#define RING_SIZE 16u
enum { RING_NEXT = 1, RING_WRITE = 2 };

struct ring {
	uint64_t descriptors, available, used;
	uint16_t count, heads; /* descriptors and requests so far */
};

static inline struct ring ring_new(struct guest *guest)
{
	struct ring ring = { .descriptors = guest_room(guest, RING_SIZE * 16),
			     .available = guest_room(guest, 6 + RING_SIZE * 2),
			     .used = guest_room(guest, 6 + RING_SIZE * 8) };
	return ring;
}

/* One segment of a request; `more` follow. */
static inline void ring_add(struct guest *guest, struct ring *ring, uint64_t address, uint32_t size, uint16_t flags,
			    bool first)
{
	struct {
		uint64_t address;
		uint32_t size;
		uint16_t flags, next;
	} descriptor = { address, size, flags, (uint16_t)(ring->count + 1) };
	uint8_t *available = guest->image + (ring->available - WORLD_LOAD);

	world_check(ring->count < RING_SIZE);
	memcpy(guest->image + (ring->descriptors - WORLD_LOAD) + 16u * ring->count, &descriptor, sizeof(descriptor));
	if (first) {
		memcpy(available + 4 + 2 * ring->heads, &ring->count, sizeof(ring->count));
		ring->heads++;
		memcpy(available + 2, &ring->heads, sizeof(ring->heads));
	}
	ring->count++;
}

/* Code that starts a device with these queues, as the standard has it, and tells it of each. */
static inline void guest_start_device(struct guest *guest, uint32_t device, const struct ring *rings, uint32_t count,
				      uint32_t features)
{
	uint64_t base = DEVICE_BASE + device * VIRTIO_WINDOW;

	guest_write(guest, base + 0x70, 0);
	guest_write(guest, base + 0x70, 3);
	guest_write(guest, base + 0x24, 0);
	guest_write(guest, base + 0x20, features);
	guest_write(guest, base + 0x24, 1);
	guest_write(guest, base + 0x20, 1); /* the modern interface */
	guest_write(guest, base + 0x70, 11);
	for (uint32_t i = 0; i < count; i++) {
		guest_write(guest, base + 0x30, i);
		guest_write(guest, base + 0x38, RING_SIZE);
		guest_write(guest, base + 0x80, (uint32_t)rings[i].descriptors);
		guest_write(guest, base + 0x90, (uint32_t)rings[i].available);
		guest_write(guest, base + 0xa0, (uint32_t)rings[i].used);
		guest_write(guest, base + 0x44, 1);
	}
	guest_write(guest, base + 0x70, 15);
	for (uint32_t i = 0; i < count; i++)
		guest_write(guest, base + 0x50, i);
}

static inline void guest_wait_used(struct guest *guest, const struct ring *ring, uint16_t requests)
{
	guest_wait(guest, ring->used + 2, requests);
}

/* The guest as a kernel, with `extra` bytes behind it that are not zero: memory that is this machine's alone. */
static inline int guest_kernel(const struct guest *guest, size_t extra)
{
	struct boot_params head = { 0 };
	size_t setup = 1024, size = setup + GUEST_SIZE + extra;
	int fd = world_file();
	uint8_t *bytes;

	head.hdr.setup_sects = 1;
	head.hdr.boot_flag = 0xaa55;
	head.hdr.header = 0x53726448;
	head.hdr.version = 0x020f;
	head.hdr.xloadflags = XLF_KERNEL_64;
	head.hdr.pref_address = WORLD_LOAD;
	head.hdr.init_size = (uint32_t)(GUEST_SIZE + extra);
	head.hdr.cmdline_size = 255;
	head.hdr.initrd_addr_max = INT32_MAX;
	world_check(ftruncate(fd, (off_t)size) == 0);
	bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	world_check(bytes != MAP_FAILED);
	memcpy(bytes, &head, setup);
	memcpy(bytes + setup, guest->image, GUEST_SIZE);
	memset(bytes + setup + GUEST_SIZE, 0x5a, extra);
	munmap(bytes, size);
	return fd;
}

/* ---- the process ---- */

struct vmm {
	pid_t pid;
	int pidfd, control, console, log;
	int link; /* the host's end of what the guest may connect to; -1: nothing */
};

static inline void vmm_open(struct vmm *vmm, int *theirs)
{
	int ends[2];

	world_check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
	*vmm = (struct vmm){
		.pid = -1, .pidfd = -1, .control = ends[0], .console = world_file(), .log = world_file(), .link = -1
	};
	*theirs = ends[1];
}

/* As this user: the threads of one user are counted together. */
static inline void vmm_start_as(struct vmm *vmm, const char *uid)
{
	cleanup_free char *program = place_find("husk-vmm");
	const char *const argv[] = { "husk-vmm", uid, uid, NULL };
	struct husk_error err = { 0 };
	int theirs;

	vmm_open(vmm, &theirs);
	const struct jail_start start = {
		.program = program, .argv = argv, .fds = &theirs, .fd_count = 1, .log = vmm->log
	};
	world_check(program);
	world_check(jail_start(&start, &vmm->pid, &vmm->pidfd, &err) == 0);
	close(theirs);
}

static inline void vmm_start(struct vmm *vmm)
{
	vmm_start_as(vmm, WORLD_UID);
}

static inline void vmm_send(struct vmm *vmm, enum control_type type, uint64_t a, uint64_t b, const int *fds,
			    size_t count)
{
	const struct control_request request = { .version = CONTROL_VERSION, .type = type, .value = { a, b } };

	/* One that has ended is seen when there is no reply. */
	control_send(vmm->control, &request, sizeof(request), fds, count, NULL);
}

/* Code HUSK_GONE: it has ended instead of answering. */
static inline struct control_reply vmm_reply(struct vmm *vmm)
{
	struct pollfd wait = { .fd = vmm->control, .events = POLLIN };
	struct control_reply reply = { 0 };
	int fds[CONTROL_FDS_MAX];
	size_t count;

	world_check(poll(&wait, 1, WORLD_PATIENCE_MS) == 1);
	if (control_receive(vmm->control, &reply, sizeof(reply), fds, &count, NULL) <= 0)
		reply.code = HUSK_GONE;
	return reply;
}

static inline struct control_reply vmm_ask(struct vmm *vmm, enum control_type type, uint64_t a, uint64_t b,
					   const int *fds, size_t count)
{
	vmm_send(vmm, type, a, b, fds, count);
	return vmm_reply(vmm);
}

/* The same, with a descriptor that is closed here afterwards. */
static inline struct control_reply vmm_give(struct vmm *vmm, enum control_type type, uint64_t a, uint64_t b, int fd)
{
	struct control_reply reply = vmm_ask(vmm, type, a, b, &fd, 1);

	close(fd);
	return reply;
}

static inline void world_done(const struct control_reply reply)
{
	if (reply.code)
		fprintf(stderr, "husk-vmm: code %u: %s\n", reply.code, reply.message);
	world_check(reply.code == 0);
}

static inline void vmm_plain(struct vmm *vmm, enum control_type type)
{
	world_done(vmm_ask(vmm, type, 0, 0, NULL, 0));
}

static inline struct control_reply vmm_shape(struct vmm *vmm, uint64_t memory)
{
	return vmm_give(vmm, CONTROL_SHAPE, 1, memory, open("/dev/kvm", O_RDWR | O_CLOEXEC));
}

/* Everything but memory and a start. */
static inline void vmm_equip(struct vmm *vmm, uint64_t memory, const int *disks, size_t disk_count)
{
	int base = world_file(), ends[2];

	world_check(ftruncate(base, 4096) == 0);
	world_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
	vmm->link = ends[0];
	world_done(vmm_shape(vmm, memory));
	world_done(vmm_give(vmm, CONTROL_CONSOLE, 1 << 20, 0, dup(vmm->console)));
	world_done(vmm_give(vmm, CONTROL_BASE, 0, 0, base));
	for (size_t i = 0; i < disk_count; i++)
		world_done(vmm_give(vmm, CONTROL_DISK, WORLD_DISK, 0, dup(disks[i])));
	world_done(vmm_give(vmm, CONTROL_DISK, WORLD_DISK, 0, world_file()));
	world_done(vmm_give(vmm, CONTROL_PORT, VMM_AGENT_PORT, 0, ends[1]));
}

static inline void vmm_boot(struct vmm *vmm, const struct guest *guest, size_t extra)
{
	const int fds[] = { guest_kernel(guest, extra), world_file() };

	world_check(write(fds[1], "none", 4) == 4);
	world_done(vmm_ask(vmm, CONTROL_BOOT, 0, 0, fds, ARRAY_SIZE(fds)));
	close(fds[0]);
	close(fds[1]);
}

/* How much the guest has printed. */
static inline off_t vmm_printed(const struct vmm *vmm)
{
	return lseek(vmm->console, 0, SEEK_END);
}

static inline bool vmm_ended(const struct vmm *vmm)
{
	struct pollfd end = { .fd = vmm->pidfd, .events = POLLIN };

	return poll(&end, 1, 0) == 1;
}

/* Until it has printed more than this; false when the machine ended before. */
static inline bool vmm_wait_printed(const struct vmm *vmm, off_t past)
{
	for (int i = 0; vmm_printed(vmm) <= past; i++) {
		world_check(i < WORLD_PATIENCE_MS);
		if (vmm_ended(vmm))
			return false;
		usleep(1000);
	}
	return true;
}

/* Kills it if need be; what it ended with, as waitid says. */
static inline siginfo_t vmm_end(struct vmm *vmm)
{
	siginfo_t ended = { 0 };

	close(vmm->control);
	close(vmm->console);
	close(vmm->log);
	if (vmm->link >= 0)
		close(vmm->link);
	syscall(SYS_pidfd_send_signal, vmm->pidfd, SIGKILL, NULL, 0);
	while (waitid(P_PIDFD, (id_t)vmm->pidfd, &ended, WEXITED) < 0 && errno == EINTR)
		;
	close(vmm->pidfd);
	return ended;
}

/* ---- images ---- */

struct image {
	int state, memory, disk; /* disk: the next layer, empty */
};

static inline struct image image_new(void)
{
	return (struct image){ .state = world_file(), .memory = world_file(), .disk = world_file() };
}

static inline void image_free(struct image *image)
{
	close(image->state);
	close(image->memory);
	close(image->disk);
}

/* A step of what is done ahead of a snapshot: of a layer that is open already, or of the image's, which is opened. */
static inline struct control_reply image_ahead(struct vmm *vmm, const struct image *image, uint64_t most)
{
	return vmm_ask(vmm, CONTROL_AHEAD, most, 0, image ? &image->memory : NULL, image ? 1 : 0);
}

/* Once through all of memory. */
static inline void image_sweep(struct vmm *vmm, const struct image *image)
{
	struct control_reply reply = image_ahead(vmm, image, 1024);

	for (world_done(reply); !reply.value[AHEAD_SWEPT]; world_done(reply))
		reply = image_ahead(vmm, NULL, 1024);
}

/* Of a machine that is paused. */
static inline struct control_reply image_take(struct vmm *vmm, const struct image *image)
{
	const int fds[] = { image->state, image->memory, image->disk };

	return vmm_ask(vmm, CONTROL_SNAPSHOT, 0, 0, fds, ARRAY_SIZE(fds));
}

/* Into a machine that is equipped, from one layer of memory. */
static inline struct control_reply image_restore(struct vmm *vmm, const struct image *image)
{
	struct control_reply reply = vmm_give(vmm, CONTROL_MEMORY, 0, 0, dup(image->memory));

	return reply.code ? reply : vmm_give(vmm, CONTROL_RESTORE, 0, 0, dup(image->state));
}

#endif
