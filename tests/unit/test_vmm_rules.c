/*
 * The system call filters of husk-vmm, proven from both ends. A real husk-vmm is watched call by call while a guest drives
 * every device and the engine asks for everything it can: each entry of each list must have been used. And what is not
 * on a list kills: tried with every system call there is, and inside of running threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <linux/if.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <net/ethernet.h>
#include <sched.h>
#include <sys/ioctl.h>

#include "vmm_trace.h"

#define MEMORY VMM_MEMORY_MIN
#define CALLS_MAX 512 /* one past the last system call */
/* The kernel's own probes: it lets these pass by any filter, and ends whoever calls them without one. */
#define CALL_URETPROBE 335
#define CALL_UPROBE 336

static void need_world(void)
{
	const char *lacks = world_lacks();

	if (lacks) {
		print_message("skipped: %s\n", lacks);
		skip();
	}
}

/* ---- what was used ---- */

/* Allowed, and not to be seen on every host: with the reason. */
static const struct {
	const char *name;
	uint32_t value;
	const char *why;
} excused[] = {
	{ "clock_gettime", 0, "usually answered without a call" },
	{ "restart_syscall", 0, "only after a stop" },
	{ "fstat", 0, "newer C libraries" },
	{ "newfstatat", 0, "older C libraries" },
	{ "ioctl", (uint32_t)KVM_GET_XSAVE, "processors with small registers" },
	{ "ioctl", (uint32_t)KVM_GET_XSAVE2, "processors with large registers" },
	{ "ioctl", (uint32_t)KVM_SET_TSC_KHZ, "only on a host with another clock than the image's" },
	{ "exit", 0, "a thread that ends before the process does" },
	{ "exit_group", 0, "the end of the first thread's process only" },
	{ "mprotect", 0, "a heap of a thread's own that grows" },
	{ "brk", 0, "a heap that grows" },
	{ "madvise", MADV_DONTNEED, "the stack of a thread that ends" },
	{ "sched_getaffinity", 0, "more than eight threads that allocate" },
};

#define RULES_MAX 256
static struct {
	const struct jail_rule *rule;
	bool used;
	bool libc; /* the C library's doing, on whatever thread it likes */
} known[RULES_COUNT][RULES_MAX];

static void learn_rules(void)
{
	for (size_t kind = 0; kind < RULES_COUNT; kind++) {
		const struct jail_rule *const *lists = rules_filters[kind].lists;
		size_t count = 0;

		for (size_t l = 0; lists[l]; l++) {
			for (const struct jail_rule *rule = lists[l]; rule->name; rule++) {
				assert_true(count < RULES_MAX);
				known[kind][count].libc = lists[l] == jail_libc_rules;
				known[kind][count++].rule = rule;
			}
		}
	}
}

static void note_call(void *data, enum rules_kind kind, const struct trace_call *call)
{
	(void)data;
	for (size_t i = 0; i < RULES_MAX && known[kind][i].rule; i++) {
		const struct jail_rule *rule = known[kind][i].rule;

		if ((uint64_t)rule->call == call->number &&
		    (!rule->argument || (call->arguments[rule->argument - 1] & rule->mask) == rule->value))
			known[kind][i].used = true;
	}
}

static bool is_excused(const struct jail_rule *rule)
{
	for (size_t i = 0; i < ARRAY_SIZE(excused); i++)
		if (strcmp(rule->name, excused[i].name) == 0 && (!rule->argument || rule->value == excused[i].value))
			return true;
	return false;
}

static bool used_anywhere(const struct jail_rule *rule)
{
	for (size_t kind = 0; kind < RULES_COUNT; kind++)
		for (size_t i = 0; i < RULES_MAX && known[kind][i].rule; i++)
			if (known[kind][i].rule == rule && known[kind][i].used)
				return true;
	return false;
}

static void all_used(void)
{
	unsigned unused = 0;

	for (size_t kind = 0; kind < RULES_COUNT; kind++) {
		for (size_t i = 0; i < RULES_MAX && known[kind][i].rule; i++) {
			const struct jail_rule *rule = known[kind][i].rule;
			bool used = known[kind][i].libc ? used_anywhere(rule) : known[kind][i].used;

			if (used || is_excused(rule))
				continue;
			print_error("never used by '%s': %s, argument %d = 0x%x\n", rules_filters[kind].name,
				    rule->name, rule->argument, rule->value);
			unused++;
		}
	}
	assert_int_equal(unused, 0);
}

/* ---- a guest that uses everything ---- */

struct block_header {
	uint32_t type, reserved;
	uint64_t sector;
};

static void block_request_add(struct guest *guest, struct ring *ring, uint32_t type, uint64_t sector, uint64_t data,
			      uint32_t size, bool write)
{
	const struct block_header header = { .type = type, .sector = sector };

	ring_add(guest, ring, guest_data(guest, &header, sizeof(header)), sizeof(header), RING_NEXT, true);
	if (size)
		ring_add(guest, ring, data, size, (uint16_t)(RING_NEXT | (write ? RING_WRITE : 0)), false);
	ring_add(guest, ring, guest_room(guest, 1), 1, RING_WRITE, false);
}

static void use_block(struct guest *guest)
{
	struct ring ring = ring_new(guest);
	const struct {
		uint64_t sector;
		uint32_t sectors, flags;
	} cluster = { .sectors = CLUSTER_BYTES / 512 };

	block_request_add(guest, &ring, 1, 0, guest_room(guest, 4096), 4096, false); /* write */
	block_request_add(guest, &ring, 0, 0, guest_room(guest, 4096), 4096, true);  /* read */
	block_request_add(guest, &ring, 4, 0, 0, 0, false);                          /* flush */
	block_request_add(guest, &ring, 11, 0, guest_data(guest, &cluster, sizeof(cluster)), sizeof(cluster), false);
	guest_start_device(guest, DEVICE_DISK, &ring, 1, 0);
	guest_wait_used(guest, &ring, ring.heads);
}

static void use_net(struct guest *guest)
{
	struct ring rings[] = { ring_new(guest), ring_new(guest) };
	uint8_t frame[12 + 60] = { 0 };

	memset(frame + 12, 0xff, 6);
	memcpy(frame + 12 + 6, "\x02\0\0\0\0\1\x88\xb5", 8);
	ring_add(guest, &rings[0], guest_room(guest, 2048), 2048, RING_WRITE, true);
	for (int i = 0; i < 3; i++)
		ring_add(guest, &rings[1], guest_data(guest, frame, sizeof(frame)), sizeof(frame), 0, true);
	guest_start_device(guest, DEVICE_NET, rings, ARRAY_SIZE(rings), 0);
	guest_wait_used(guest, &rings[1], rings[1].heads);
	guest_wait_used(guest, &rings[0], 1);
}

static void packet_add(struct guest *guest, struct ring *ring, uint16_t operation, uint32_t flags, const char *data)
{
	struct {
		struct vsock_header header;
		char data[16];
	} packet = { .header = { .source_cid = VSOCK_GUEST_CID,
				 .target_cid = 2,
				 .source_port = 77,
				 .target_port = VMM_AGENT_PORT,
				 .size = (uint32_t)strlen(data),
				 .type = 1,
				 .operation = operation,
				 .flags = flags,
				 .buffer_size = 65536 } };

	memcpy(packet.data, data, strlen(data));
	ring_add(guest, ring, guest_data(guest, &packet, sizeof(packet)),
		 (uint32_t)(sizeof(packet.header) + strlen(data)), 0, true);
}

/* Connects, sends, hears something, sends no more; then its driver goes while the connection still stands. */
static void use_vsock(struct guest *guest)
{
	struct ring rings[] = { ring_new(guest), ring_new(guest), ring_new(guest) };

	for (int i = 0; i < 2; i++)
		ring_add(guest, &rings[0], guest_room(guest, 4096), 4096, RING_WRITE, true);
	packet_add(guest, &rings[1], 1, 0, "");
	packet_add(guest, &rings[1], 5, 0, "hello host");
	packet_add(guest, &rings[1], 4, 2, "");
	ring_add(guest, &rings[2], guest_room(guest, 64), 64, RING_WRITE, true);
	guest_start_device(guest, DEVICE_VSOCK, rings, ARRAY_SIZE(rings), 0);
	guest_wait_used(guest, &rings[1], rings[1].heads);
	guest_wait_used(guest, &rings[0], 2);
	guest_write(guest, DEVICE_BASE + DEVICE_VSOCK * VIRTIO_WINDOW + 0x70, 0);
}

static void use_rng_and_balloon(struct guest *guest)
{
	struct ring rng = ring_new(guest), balloon[] = { ring_new(guest), ring_new(guest), ring_new(guest) };
	const uint32_t page = 0x3000000 >> 12;

	ring_add(guest, &rng, guest_room(guest, 64), 64, RING_WRITE, true);
	guest_start_device(guest, DEVICE_RNG, &rng, 1, 0);
	guest_wait_used(guest, &rng, 1);
	ring_add(guest, &balloon[0], guest_data(guest, &page, sizeof(page)), sizeof(page), 0, true);
	guest_start_device(guest, DEVICE_BALLOON, balloon, ARRAY_SIZE(balloon), 0);
	guest_wait_used(guest, &balloon[0], 1);
}

static struct guest *busy_guest(void)
{
	static struct guest guest;

	guest_init(&guest);
	use_block(&guest);
	guest_print(&guest, 'b');
	use_net(&guest);
	guest_print(&guest, 'n');
	use_vsock(&guest);
	guest_print(&guest, 'v');
	use_rng_and_balloon(&guest);
	guest_print(&guest, 'r');
	guest_tick(&guest);
	return &guest;
}

/* ---- its host ---- */

/* A tap in a network namespace of this test's own, and a frame on its way into it. */
static int tap_new(void)
{
	struct ifreq interface = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	int tap, header = 12, plain;

	assert_int_equal(unshare(CLONE_NEWNET), 0);
	tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
	if (tap < 0)
		return -1;
	assert_int_equal(ioctl(tap, TUNSETIFF, &interface), 0);
	assert_int_equal(ioctl(tap, TUNSETVNETHDRSZ, &header), 0);
	plain = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(plain >= 0);
	interface.ifr_flags = IFF_UP;
	assert_int_equal(ioctl(plain, SIOCSIFFLAGS, &interface), 0);
	assert_int_equal(ioctl(plain, SIOCGIFINDEX, &interface), 0);
	close(plain);
	plain = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	assert_true(plain >= 0);
	const struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_ifindex = interface.ifr_ifindex };
	uint8_t frame[60] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };
	assert_int_equal(sendto(plain, frame, sizeof(frame), 0, (const struct sockaddr *)&to, sizeof(to)),
			 sizeof(frame));
	close(plain);
	return tap;
}

static void hear(int link, const char *text)
{
	char got[16] = { 0 };
	size_t size = 0;

	while (size < strlen(text)) {
		struct pollfd wait = { .fd = link, .events = POLLIN };

		assert_int_equal(poll(&wait, 1, WORLD_PATIENCE_MS), 1);
		ssize_t part = read(link, got + size, strlen(text) - size);
		assert_true(part > 0);
		size += (size_t)part;
	}
	assert_string_equal(got, text);
}

/* So low that requests have to wait for their turn. */
static void set_limit(struct vmm *vmm, enum vmm_limit which)
{
	const struct control_request limit = { .version = CONTROL_VERSION,
					       .type = CONTROL_LIMIT,
					       .value = { which, 100, 1 } };

	assert_int_equal(control_send(vmm->control, &limit, sizeof(limit), NULL, 0, NULL), 0);
	world_done(vmm_reply(vmm));
}

/* As many layers as a disk can have, each with a cluster of its own: the next snapshot makes one of them. */
static void fill_disks(int disks[static VMM_LAYERS_MAX - 1])
{
	cleanup(disk_close) struct disk disk = DISK_INIT;
	size_t needed;

	for (size_t i = 0; i < VMM_LAYERS_MAX - 1; i++) {
		char text[] = "layer";
		struct iovec vector = { .iov_base = text, .iov_len = sizeof(text) };

		disks[i] = world_file();
		assert_int_equal(disk_add_layer(&disk, dup(disks[i]), WORLD_DISK, NULL), 0);
		assert_int_equal(disk_write(&disk, i * CLUSTER_BYTES, &vector, 1, sizeof(text)), 0);
		assert_int_equal(disk_seal(&disk, &needed, NULL), 0);
	}
}

static void every_rule_is_used(void **state)
{
	int disks[VMM_LAYERS_MAX - 1];
	struct trace parent, child;
	struct image image = image_new();
	struct vmm *vmm = &parent.vmm;
	int tap;

	(void)state;
	need_world();
	tap = tap_new();
	if (tap < 0) {
		print_message("skipped: /dev/net/tun does not open\n");
		skip();
	}
	learn_rules();
	fill_disks(disks);
	trace_start(&parent, note_call, NULL);
	vmm_equip(vmm, MEMORY, disks, ARRAY_SIZE(disks));
	assert_int_equal(write(vmm->link, "hello guest", 11), 11);
	world_done(vmm_give(vmm, CONTROL_TAP, 0x020000000002, 0, tap));
	set_limit(vmm, LIMIT_BLOCK_OPERATIONS);
	set_limit(vmm, LIMIT_NET_SEND_PACKETS);
	vmm_boot(vmm, busy_guest(), 0);
	hear(vmm->link, "hello host");
	assert_true(vmm_wait_printed(vmm, 4));
	vmm_plain(vmm, CONTROL_STATS);
	image_sweep(vmm, &image);
	vmm_plain(vmm, CONTROL_PAUSE);
	world_done(image_take(vmm, &image));
	vmm_plain(vmm, CONTROL_STATS);
	vmm_plain(vmm, CONTROL_RESUME);
	assert_true(vmm_wait_printed(vmm, vmm_printed(vmm)));

	int touched = world_file();
	world_done(vmm_ask(vmm, CONTROL_TOUCHED, 0, 0, &touched, 1));
	trace_start(&child, note_call, NULL);
	vmm_equip(&child.vmm, MEMORY, NULL, 0);
	world_done(vmm_give(&child.vmm, CONTROL_PREFETCH, 0, 0, touched));
	world_done(image_restore(&child.vmm, &image));
	vmm_plain(&child.vmm, CONTROL_RESUME);
	assert_true(vmm_wait_printed(&child.vmm, 0));
	vmm_plain(&child.vmm, CONTROL_STOP);
	assert_int_equal(trace_wait_end(&child), 0);
	trace_end(&parent);
	image_free(&image);
	all_used();
}

/* ---- what kills ---- */

static bool is_listed(enum rules_kind kind, int number)
{
	const struct jail_rule *const *lists = rules_filters[kind].lists;

	for (size_t l = 0; lists[l]; l++)
		for (const struct jail_rule *rule = lists[l]; rule->name; rule++)
			if (rule->call == number)
				return true;
	return false;
}

/* In a process of its own: what a call without sense does behind this filter. Calls that are listed are not made. */
static void every_other_call_kills(void **state)
{
	(void)state;
	for (size_t kind = 0; kind < RULES_COUNT; kind++) {
		for (int number = 0; number < CALLS_MAX; number++) {
			int status = 0;

			if (is_listed((enum rules_kind)kind, number) || number == CALL_URETPROBE ||
			    number == CALL_UPROBE)
				continue;
			pid_t pid = fork();
			if (pid == 0) {
				if (jail_filter_install(&rules_programs[kind], NULL) < 0)
					_exit(1);
				syscall(number, -1, 0, 0, 0, 0, 0);
				_exit(2);
			}
			assert_true(pid > 0);
			assert_int_equal(waitpid(pid, &status, 0), pid);
			if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
				fail_msg("'%s' lets system call %d through (status 0x%x)", rules_filters[kind].name,
					 number, status);
		}
	}
}

/* In the place of a call that a thread of a running machine makes: of another kind's list, or with other arguments. */
static void threads_are_killed(void **state)
{
	const struct {
		enum rules_kind kind;
		struct trace_call call;
	} forbidden[] = {
		{ RULES_MAIN, { SYS_openat, { (uint64_t)AT_FDCWD } } },
		{ RULES_MAIN,
		  { SYS_mmap, { 0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, UINT64_MAX } } },
		{ RULES_MAIN, { SYS_clone, { SIGCHLD } } },
		{ RULES_MAIN, { SYS_ioctl, { 0, KVM_SET_SIGNAL_MASK } } },
		{ RULES_DISK, { SYS_ioctl, { 0, KVM_RUN } } },
		{ RULES_DISK, { SYS_sendmsg, { CONTROL_FD } } },
		{ RULES_VCPU, { SYS_ioctl, { 0, KVM_SET_REGS } } },
		{ RULES_VCPU, { SYS_pwritev, { 0 } } },
		{ RULES_VCPU, { SYS_read, { CONTROL_FD } } },
	};
	struct guest guest;

	(void)state;
	need_world();
	guest_init(&guest);
	use_block(&guest);
	guest_tick(&guest);
	for (size_t i = 0; i < ARRAY_SIZE(forbidden); i++) {
		struct trace trace;

		trace_start(&trace, NULL, NULL);
		vmm_equip(&trace.vmm, MEMORY, NULL, 0);
		trace_plan(&trace, (struct trace_plan){ .action = TRACE_REPLACE,
							.kind = forbidden[i].kind,
							.call = forbidden[i].call });
		/* Every kind of thread has something to do now. */
		const int fds[] = { guest_kernel(&guest, 0), world_file() };
		assert_int_equal(write(fds[1], "none", 4), 4);
		vmm_send(&trace.vmm, CONTROL_BOOT, 0, 0, fds, ARRAY_SIZE(fds));
		int log = dup(trace.vmm.log), status = trace_wait_end(&trace);
		char said[256] = { 0 };
		assert_true(pread(log, said, sizeof(said) - 1, 0) >= 0);
		close(log);
		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
			fail_msg("call %llu passed on '%s' (status 0x%x): %s",
				 (unsigned long long)forbidden[i].call.number, rules_filters[forbidden[i].kind].name,
				 status, said);
		close(fds[0]);
		close(fds[1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_rule_is_used),
		cmocka_unit_test(every_other_call_kills),
		cmocka_unit_test(threads_are_killed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
