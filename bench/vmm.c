/*
 * What husk-vmm costs, natively: a real husk-vmm in its jail, with a tiny guest. Started by bench/vmm.py with a directory
 * for layer files and a count; prints a line for each figure: its name and one number for each round (microseconds, pages,
 * bytes). The clock starts before the process is made. The first KVM_RUN lies between two moments that are both told: husk-vmm's
 * answer that it has let the vCPU go, and the first byte that the guest prints.
 */
#include <sys/stat.h>

#include "vmm_world.h"

#define MEBIBYTE (1u << 20)
#define CHANGED (64u * MEBIBYTE)
#define SMALL VMM_MEMORY_MIN
#define LARGE (1ull << 30)
#define ROUNDS_MAX 1000

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

/* ---- fork ---- */

/* How long it takes to copy what has changed, into memory that nobody has used yet. */
static double copy_once(void)
{
	uint8_t *from = mmap(NULL, CHANGED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *to = mmap(NULL, CHANGED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	world_check(from != MAP_FAILED && to != MAP_FAILED);
	memset(from, 0x5a, CHANGED);
	double begin = now_us();
	memcpy(to, from, CHANGED);
	double took = now_us() - begin;
	munmap(from, CHANGED);
	munmap(to, CHANGED);
	return took;
}

/* Pause, snapshot, resume: how long the guest stood still, and how many pages were written. */
static double fork_once(struct vmm *vmm, uint64_t *pages)
{
	struct image image = { .state = layer_file(), .memory = layer_file(), .disk = layer_file() };
	const int fds[] = { image.state, image.memory, image.disk };

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
	image_free(&image);
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

static void fork_rounds(void)
{
	static struct series pause = { .name = "fork" }, again = { .name = "fork_again" };
	static struct series pages_again = { .name = "pages_again" }, copy = { .name = "copy" },
			     own = { .name = "memory" };
	static struct guest guest;
	uint64_t pages;

	guest_init(&guest);
	guest_print(&guest, 'x');
	const uint8_t forever[] = { 0xf3, 0x90, 0xeb, 0xfc }; /* 1: pause; jmp 1b: it changes nothing more */
	guest_bytes(&guest, forever, sizeof(forever));
	for (unsigned i = 0; i < rounds; i++) {
		struct vmm vmm;

		vmm_start(&vmm);
		vmm_equip(&vmm, LARGE, NULL, 0);
		vmm_boot(&vmm, &guest, CHANGED);
		world_check(vmm_wait_printed(&vmm, 0));
		add(&own, own_memory(&vmm));
		add(&copy, copy_once());
		add(&pause, fork_once(&vmm, &pages));
		world_check(pages >= CHANGED / PAGE_BYTES);
		add(&again, fork_once(&vmm, &pages));
		add(&pages_again, (double)pages);
		vmm_end(&vmm);
	}
	print(&pause);
	print(&copy);
	print(&again);
	print(&pages_again);
	print(&own);
}

int main(int argc, char **argv)
{
	static struct series start = { .name = "start" }, start_byte = { .name = "start_byte" };
	static struct series pool = { .name = "pool" }, pool_byte = { .name = "pool_byte" };
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
	}
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
		print(&steps[i]);
	print(&start);
	print(&start_byte);
	print(&pool);
	print(&pool_byte);
	fork_rounds();
	return 0;
}
