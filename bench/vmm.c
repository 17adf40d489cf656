/*
 * What husk-vmm costs, natively: a real husk-vmm in its jail, with a tiny guest. Started by bench/vmm.py with a directory
 * for layer files and a count; prints a line for each figure: its name and one number for each round (microseconds, pages,
 * bytes). The clock starts before the process is made. The first KVM_RUN lies between two moments that are both told: husk-vmm's
 * answer that it has let the vCPU go, and the first byte that the guest prints. The peer of each is a bare KVM program of a
 * few lines, which does what cannot be left out.
 */
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "vmm_world.h"

#define MEBIBYTE (1u << 20)
#define FEW (16u * MEBIBYTE)
#define MUCH (1024u * MEBIBYTE)
#define SMALL VMM_MEMORY_MIN
#define LARGE (2ull << 30)
#define ROUNDS_MAX 1000
#define FORK_ROUNDS_MAX 10 /* each writes a GiB */
#define CHILDREN 100
#define CHILD_ROUNDS 30

static const char *place;
static unsigned rounds;

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* ---- what is measured ---- */

struct series {
	const char *name;
	double values[ROUNDS_MAX];
	size_t count;
};

static void add(struct series *series, double value)
{
	series->values[series->count++ % ROUNDS_MAX] = value;
}

static void print(const struct series *series)
{
	printf("%s", series->name);
	for (size_t i = 0; i < series->count; i++)
		printf(" %.1f", series->values[i]);
	printf("\n");
}

static int layer_file(void)
{
	int fd = open(place, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	world_check(fd >= 0);
	return fd;
}

/* ---- from nothing, and from a shell ---- */

static struct image baked;

static void bake(void)
{
	static struct guest guest;
	struct vmm vmm;

	/* mov edx,0x3f8; 1: out dx,al; jmp 1b: whenever it is stopped, the next thing it does is to print. */
	const uint8_t prints[] = { 0xba, 0xf8, 0x03, 0, 0, 0xee, 0xeb, 0xfd };

	guest_init(&guest);
	guest_bytes(&guest, prints, sizeof(prints));
	baked = (struct image){ .state = layer_file(), .memory = layer_file(), .disk = layer_file() };
	vmm_start(&vmm);
	vmm_equip(&vmm, SMALL, NULL, 0);
	vmm_boot(&vmm, &guest, MEBIBYTE);
	world_check(vmm_wait_printed(&vmm, 0));
	vmm_plain(&vmm, CONTROL_PAUSE);
	world_done(image_take(&vmm, &baked));
	vmm_end(&vmm);
}

/* The guest prints into a pipe, so that its first byte wakes us. */
static void wait_byte(int console)
{
	struct pollfd wait = { .fd = console, .events = POLLIN };

	world_check(poll(&wait, 1, WORLD_PATIENCE_MS) == 1);
}

static void equip(struct vmm *vmm, int console)
{
	int base = layer_file(), disk = layer_file();

	world_check(ftruncate(base, 4096) == 0);
	vmm_send(vmm, CONTROL_CONSOLE, 1 << 20, 0, &console, 1);
	vmm_send(vmm, CONTROL_BASE, 0, 0, &base, 1);
	vmm_send(vmm, CONTROL_DISK, WORLD_DISK, 0, &disk, 1);
	close(base);
	close(disk);
}

static void replies(struct vmm *vmm, int count)
{
	while (count-- > 0)
		world_done(vmm_reply(vmm));
}

static void finish(struct vmm *vmm, int kvm, const int pipe_ends[static 2])
{
	vmm_end(vmm);
	close(kvm);
	close(pipe_ends[0]);
	close(pipe_ends[1]);
}

/* Each step waited for, to see what it takes. */
static void steps_once(struct series *steps)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), pipe_ends[2];
	double at[7];
	struct vmm vmm;

	world_check(kvm >= 0 && pipe2(pipe_ends, O_CLOEXEC) == 0);
	at[0] = now_us();
	vmm_start(&vmm);
	at[1] = now_us();
	/* Asked before there is a machine it has nothing to say; but that it says. */
	world_check(vmm_ask(&vmm, CONTROL_STATS, 0, 0, NULL, 0).code == HUSK_CONFLICT);
	at[2] = now_us();
	world_done(vmm_ask(&vmm, CONTROL_SHAPE, 1, SMALL, &kvm, 1));
	at[3] = now_us();
	equip(&vmm, pipe_ends[1]);
	vmm_send(&vmm, CONTROL_MEMORY, 0, 0, &baked.memory, 1);
	replies(&vmm, 4);
	at[4] = now_us();
	world_done(vmm_ask(&vmm, CONTROL_RESTORE, 0, 0, &baked.state, 1));
	at[5] = now_us();
	vmm_send(&vmm, CONTROL_RESUME, 0, 0, NULL, 0);
	wait_byte(pipe_ends[0]);
	at[6] = now_us();
	for (int i = 0; i < 6; i++)
		add(&steps[i], at[i + 1] - at[i]);
	finish(&vmm, kvm, pipe_ends);
}

/* As the engine does it: waits for what it must know, which is that there is a shell, and that it took the image. */
static void start_once(struct series *let_go, struct series *first_byte)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), pipe_ends[2];
	struct vmm vmm;

	world_check(kvm >= 0 && pipe2(pipe_ends, O_CLOEXEC) == 0);
	double begin = now_us();
	vmm_start(&vmm);
	vmm_send(&vmm, CONTROL_SHAPE, 1, SMALL, &kvm, 1);
	equip(&vmm, pipe_ends[1]);
	replies(&vmm, 4);
	vmm_send(&vmm, CONTROL_MEMORY, 0, 0, &baked.memory, 1);
	vmm_send(&vmm, CONTROL_RESTORE, 0, 0, &baked.state, 1);
	replies(&vmm, 2);
	world_done(vmm_ask(&vmm, CONTROL_RESUME, 0, 0, NULL, 0));
	add(let_go, now_us() - begin);
	wait_byte(pipe_ends[0]);
	add(first_byte, now_us() - begin);
	finish(&vmm, kvm, pipe_ends);
}

/* A shell that waits in a pool gets its image and goes: nothing is waited for in between. */
static void pool_once(struct series *let_go, struct series *first_byte)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), pipe_ends[2];
	struct vmm vmm;

	world_check(kvm >= 0 && pipe2(pipe_ends, O_CLOEXEC) == 0);
	vmm_start(&vmm);
	world_done(vmm_ask(&vmm, CONTROL_SHAPE, 1, SMALL, &kvm, 1));
	equip(&vmm, pipe_ends[1]);
	replies(&vmm, 3);
	usleep(2000); /* it lies there */
	double begin = now_us();
	vmm_send(&vmm, CONTROL_MEMORY, 0, 0, &baked.memory, 1);
	vmm_send(&vmm, CONTROL_RESTORE, 0, 0, &baked.state, 1);
	vmm_send(&vmm, CONTROL_RESUME, 0, 0, NULL, 0);
	replies(&vmm, 3);
	add(let_go, now_us() - begin);
	wait_byte(pipe_ends[0]);
	add(first_byte, now_us() - begin);
	finish(&vmm, kvm, pipe_ends);
}

/* ---- the peer: KVM and nothing else ---- */

#define BARE_MEMORY (128ull << 20)

struct bare {
	int kvm, vm, vcpu;
	struct kvm_run *run;
	uint8_t *memory;
};

/* A machine with the same memory and interrupt controllers, whose first instruction (real mode, at 0x1000) is an OUT. */
static void bare_make(struct bare *bare)
{
	bare->kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	for (int i = 0; i < 8 && bare->vm <= 0; i++)
		bare->vm = ioctl(bare->kvm, KVM_CREATE_VM, 0ul);
	bare->memory =
		mmap(NULL, BARE_MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	world_check(bare->kvm >= 0 && bare->vm > 0 && bare->memory != MAP_FAILED);
	struct kvm_userspace_memory_region region = { .memory_size = BARE_MEMORY,
						      .userspace_addr = (uintptr_t)bare->memory };
	world_check(ioctl(bare->vm, KVM_SET_USER_MEMORY_REGION, &region) == 0);
	world_check(ioctl(bare->vm, KVM_CREATE_IRQCHIP, 0) == 0);
	bare->vcpu = ioctl(bare->vm, KVM_CREATE_VCPU, 0ul);
	bare->run = mmap(NULL, (size_t)ioctl(bare->kvm, KVM_GET_VCPU_MMAP_SIZE, 0), PROT_READ | PROT_WRITE, MAP_SHARED,
			 bare->vcpu, 0);
	world_check(bare->vcpu >= 0 && bare->run != MAP_FAILED);
}

/* Until it prints. */
static void bare_go(struct bare *bare)
{
	struct kvm_regs regs = { .rip = 0x1000, .rflags = 2 };
	struct kvm_sregs sregs;

	bare->memory[0x1000] = 0xe6; /* out 0x10,al */
	bare->memory[0x1001] = 0x10;
	world_check(ioctl(bare->vcpu, KVM_GET_SREGS, &sregs) == 0);
	sregs.cs.base = sregs.cs.selector = 0;
	world_check(ioctl(bare->vcpu, KVM_SET_SREGS, &sregs) == 0 && ioctl(bare->vcpu, KVM_SET_REGS, &regs) == 0);
	int result;
	do
		result = ioctl(bare->vcpu, KVM_RUN, 0ul);
	while (result < 0 && (errno == EINTR || errno == EAGAIN));
	world_check(result == 0 && bare->run->exit_reason == KVM_EXIT_IO);
}

/* A process that makes one and tells of its first word; and one that was made before, and waits for a byte. */
static void bare_once(struct series *start, struct series *pool)
{
	for (int ready = 0; ready < 2; ready++) {
		int ends[2];
		char byte = 0;

		world_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
		double begin = now_us();
		pid_t pid = fork();
		if (pid == 0) {
			struct bare bare = { 0 };

			bare_make(&bare);
			if (ready)
				world_check(write(ends[1], "r", 1) == 1 && read(ends[1], &byte, 1) == 1);
			bare_go(&bare);
			world_check(write(ends[1], "x", 1) == 1);
			_exit(0);
		}
		if (ready) {
			world_check(read(ends[0], &byte, 1) == 1);
			usleep(2000);
			begin = now_us();
			world_check(write(ends[0], "g", 1) == 1);
		}
		world_check(pid > 0 && read(ends[0], &byte, 1) == 1);
		add(ready ? pool : start, now_us() - begin);
		waitpid(pid, NULL, 0);
		close(ends[0]);
		close(ends[1]);
	}
}

/* ---- fork ---- */

/* How long it takes to copy what has changed, into memory that nobody has used yet. */
static double copy_once(size_t size)
{
	uint8_t *from = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	world_check(from != MAP_FAILED && to != MAP_FAILED);
	memset(from, 0x5a, size);
	double begin = now_us();
	memcpy(to, from, size);
	double took = now_us() - begin;
	munmap(from, size);
	munmap(to, size);
	return took;
}

/* As the engine does it: through memory ahead until little is left, and how long the guest stood still at most meanwhile. */
static double ahead(struct vmm *vmm, const struct image *image)
{
	struct control_reply reply = image_ahead(vmm, image, 1024);
	uint64_t pages = 0, held = 0;

	for (int sweeps = 0; sweeps < 6; reply = image_ahead(vmm, NULL, 1024)) {
		world_done(reply);
		pages += reply.value[AHEAD_PAGES];
		held = MAX(held, reply.value[AHEAD_HELD]);
		if (!reply.value[AHEAD_SWEPT])
			continue;
		if (pages <= 256)
			break;
		pages = 0;
		sweeps++;
	}
	return (double)held / 1000;
}

/* Pause, snapshot, resume: how long the guest stood still, and how many pages the new layer holds. */
static double fork_once(struct vmm *vmm, struct image *image, double *held, uint64_t *pages)
{
	*image = (struct image){ .state = layer_file(), .memory = layer_file(), .disk = layer_file() };
	const int fds[] = { image->state, image->memory, image->disk };

	*held = ahead(vmm, image);
	double begin = now_us();
	vmm_send(vmm, CONTROL_PAUSE, 0, 0, NULL, 0);
	vmm_send(vmm, CONTROL_SNAPSHOT, 0, 0, fds, ARRAY_SIZE(fds));
	vmm_send(vmm, CONTROL_RESUME, 0, 0, NULL, 0);
	world_done(vmm_reply(vmm));
	struct control_reply reply = vmm_reply(vmm);
	world_done(reply);
	world_done(vmm_reply(vmm));
	double took = now_us() - begin;
	*pages = reply.value[SNAPSHOT_MEMORY_PAGES];
	return took;
}

/* Resident memory of the process but for the guest's, which is the part that is neither dumped nor shared by a fork. */
static double own_memory(const struct vmm *vmm)
{
	cleanup_free char *path = str_format("/proc/%d/smaps", vmm->pid);
	cleanup_free char *text = path ? file_read(path, 64u << 20, NULL, NULL) : NULL;
	double total = 0, rss = 0;
	char *rest = text;

	world_check(text);
	for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
		if (strncmp(line, "Pss:", 4) == 0)
			rss = strtod(line + 4, NULL);
		else if (strncmp(line, "VmFlags:", 8) == 0 && !(strstr(line, " dd") && strstr(line, " dc")))
			total += rss * 1024;
	}
	return total;
}

/* Writes to each page of `size` bytes and prints; with `rest` it changes nothing from then on. */
static void dirty_guest(struct guest *guest, uint32_t size, bool rest)
{
	uint8_t fill[] = { 0xbf, 0,    0,    0,    0x04, 0xb9, 0, 0, 0,    0, /* mov edi,64 MiB; mov ecx,PAGES */
			   0x89, 0x0f, 0x81, 0xc7, 0,    0x10, 0, 0, 0xff, 0xc9, 0x75, 0xf4 };
	/* 1: mov [rdi],ecx; add edi,4096; dec ecx; jnz 1b */
	const uint8_t forever[] = { 0xf3, 0x90, 0xeb, 0xfc }; /* 1: pause; jmp 1b */
	uint32_t pages = size / PAGE_BYTES;

	guest_init(guest);
	memcpy(fill + 6, &pages, sizeof(pages));
	guest_bytes(guest, fill, sizeof(fill));
	guest_print(guest, 'x');
	if (rest)
		guest_bytes(guest, forever, sizeof(forever));
}

static void dirty_start(struct vmm *vmm, uint32_t size)
{
	static struct guest guest;

	dirty_guest(&guest, size, true);
	vmm_start(vmm);
	vmm_equip(vmm, LARGE, NULL, 0);
	vmm_boot(vmm, &guest, 0);
	world_check(vmm_wait_printed(vmm, 0));
}

static void fork_rounds(void)
{
	static struct series few = { .name = "fork_few" }, much = { .name = "fork_much" }, held = { .name = "held" };
	static struct series again = { .name = "fork_again" }, pages_again = { .name = "pages_again" },
			     copy = { .name = "copy" }, own = { .name = "memory" };

	for (unsigned i = 0; i < MIN(rounds, FORK_ROUNDS_MAX); i++) {
		for (int large = 0; large < 2; large++) {
			struct image image, second;
			uint64_t pages;
			double stood;
			struct vmm vmm;

			dirty_start(&vmm, large ? MUCH : FEW);
			add(&own, own_memory(&vmm));
			add(large ? &much : &few, fork_once(&vmm, &image, &stood, &pages));
			world_check(pages >= (large ? MUCH : FEW) / PAGE_BYTES);
			if (large)
				add(&held, stood);
			add(&again, fork_once(&vmm, &second, &stood, &pages));
			add(&pages_again, (double)pages);
			vmm_end(&vmm);
			image_free(&image);
			image_free(&second);
		}
		add(&copy, copy_once(MUCH));
	}
	const struct series *const all[] = { &few, &much, &held, &copy, &again, &pages_again, &own };
	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		print(all[i]);
}

/* ---- many children of one parent ---- */

static double whole_pss(const struct vmm *vmm)
{
	cleanup_free char *path = str_format("/proc/%d/smaps_rollup", vmm->pid);
	cleanup_free char *text = path ? file_read(path, 1u << 16, NULL, NULL) : NULL;
	const char *line = text ? strstr(text, "Pss:") : NULL;

	world_check(line);
	return strtod(line + 4, NULL) * 1024;
}

/* From a shell that waits, as pool_once; the child is left running. */
static double child_once(struct vmm *child, unsigned number, uint64_t memory, const struct image *image)
{
	cleanup_free char *uid = str_format("%lu", strtoul(WORLD_UID, NULL, 10) + number);
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), pipe_ends[2];

	world_check(kvm >= 0 && pipe2(pipe_ends, O_CLOEXEC) == 0);
	vmm_start_as(child, uid);
	world_done(vmm_ask(child, CONTROL_SHAPE, 1, memory, &kvm, 1));
	equip(child, pipe_ends[1]);
	replies(child, 3);
	usleep(2000);
	double begin = now_us();
	vmm_send(child, CONTROL_MEMORY, 0, 0, &image->memory, 1);
	vmm_send(child, CONTROL_RESTORE, 0, 0, &image->state, 1);
	vmm_send(child, CONTROL_RESUME, 0, 0, NULL, 0);
	replies(child, 3);
	wait_byte(pipe_ends[0]);
	double took = now_us() - begin;
	close(kvm);
	close(pipe_ends[0]);
	close(pipe_ends[1]);
	return took;
}

static void child_rounds(void)
{
	static struct series first = { .name = "child_byte" }, small = { .name = "restore_byte" },
			     pss = { .name = "child_pss" };
	static struct vmm children[CHILDREN];
	static struct guest printer;
	struct image image;
	uint64_t pages;
	double stood;
	struct vmm parent;

	/* Whenever it is stopped, the next thing it does is to print. */
	const uint8_t prints[] = { 0xba, 0xf8, 0x03, 0, 0, 0xee, 0xeb, 0xfd };

	dirty_guest(&printer, MUCH, false);
	guest_bytes(&printer, prints, sizeof(prints));
	vmm_start(&parent);
	vmm_equip(&parent, LARGE, NULL, 0);
	vmm_boot(&parent, &printer, 0);
	world_check(vmm_wait_printed(&parent, 0));
	fork_once(&parent, &image, &stood, &pages);
	vmm_end(&parent);
	for (unsigned i = 0; i < CHILD_ROUNDS; i++) {
		struct vmm child, other;

		add(&first, child_once(&child, 0, LARGE, &image));
		vmm_end(&child);
		add(&small, child_once(&other, 0, SMALL, &baked));
		vmm_end(&other);
	}
	for (unsigned i = 0; i < CHILDREN; i++) {
		child_once(&children[i], i, LARGE, &image);
		vmm_plain(&children[i], CONTROL_PAUSE); /* idle: all of them would share two processors */
	}
	for (unsigned i = 0; i < CHILDREN; i++)
		add(&pss, whole_pss(&children[i]));
	for (unsigned i = 0; i < CHILDREN; i++)
		vmm_end(&children[i]);
	image_free(&image);
	print(&first);
	print(&small);
	print(&pss);
}

int main(int argc, char **argv)
{
	static struct series start = { .name = "start" }, start_byte = { .name = "start_byte" };
	static struct series pool = { .name = "pool" }, pool_byte = { .name = "pool_byte" };
	static struct series bare = { .name = "bare" }, bare_pool = { .name = "bare_pool" };
	static struct series steps[] = { { .name = "step:process" }, { .name = "step:jail" },
					 { .name = "step:machine" }, { .name = "step:files" },
					 { .name = "step:restore" }, { .name = "step:run" } };
	const char *lacks = world_lacks();

	if (argc != 3 || lacks) {
		fprintf(stderr, "%s\n", lacks ? lacks : "usage: vmm DIRECTORY COUNT");
		return lacks ? 77 : 2;
	}
	place = argv[1];
	rounds = (unsigned)MIN(strtoul(argv[2], NULL, 10), (unsigned long)ROUNDS_MAX);
	bake();
	for (unsigned i = 0; i < rounds; i++) {
		steps_once(steps);
		start_once(&start, &start_byte);
		pool_once(&pool, &pool_byte);
		bare_once(&bare, &bare_pool);
	}
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
		print(&steps[i]);
	print(&start);
	print(&start_byte);
	print(&pool);
	print(&pool_byte);
	print(&bare);
	print(&bare_pool);
	fork_rounds();
	child_rounds();
	return 0;
}
