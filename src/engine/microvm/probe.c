/*
 * Can this host's KVM run a stock Linux kernel? Called by the microvm engine's probe, and so by `husk doctor` and
 * --isolation auto. An open /dev/kvm is no proof: some are emulations that run ordinary code but fail at what only a
 * kernel does, or need a microsecond for each instruction. So a tiny guest (probe_guest.c) does in ring 0 what a kernel
 * needs, step by step, and its loop is compared with the same loop on the host.
 *
 * The guest runs in a child process: if KVM hangs, the child is killed, and its descriptors are closed in any case.
 * Below "the child's side" only async-signal-safe calls are allowed, because the caller may have threads.
 */
#include "engine/microvm/microvm.h"

#if defined(__x86_64__)

#include <fcntl.h>
#include <linux/kvm.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "engine/microvm/probe.h"
#include "jail/jail.h"

#define MEMORY_NAME "probe-microvm"
#define WORKS "works"
#define ANSWER_MS 20000
#define EXITS_MAX 64 /* a step makes a handful */
#define CPUID_MAX 256
/* If the guest is slower than the host by this factor, and by more than the noise of a busy host, the CPU does not run
 * the loop directly. */
#define SLOW_FACTOR 20
#define SLOW_MIN_NS 2000000
#define ROUNDS 8
#define FIX "use a host with VT-x or SVM (in a cloud: nested virtualization switched on), or --isolation gvisor"

enum setup { SETUP_DONE, SETUP_OPEN, SETUP_VERSION, SETUP_VM, SETUP_MEMORY, SETUP_VCPU, SETUP_CPUID, SETUP_STATE };
static const char *const setup_names[] = {
	[SETUP_OPEN] = "open it",
	[SETUP_VERSION] = "agree on version 12 of its interface",
	[SETUP_VM] = "make a machine",
	[SETUP_MEMORY] = "give it memory",
	[SETUP_VCPU] = "give it a CPU",
	[SETUP_CPUID] = "tell the CPU what it is",
	[SETUP_STATE] = "set its registers",
};

/* How a step ended, as seen by the host; the guest reports the first three itself. */
enum outcome {
	PASSED = PROBE_PASSED,
	WRONG = PROBE_WRONG,
	EXCEPTION = PROBE_EXCEPTION,
	EMULATION, /* KVM had to emulate an instruction and could not */
	SHUTDOWN,  /* triple fault */
	ENTRY,     /* the CPU refused to enter the guest */
	REFUSED,   /* KVM_RUN itself failed */
	STRAYED,   /* an exit that no step makes */
};

struct result {
	uint32_t outcome;
	uint32_t number; /* exception vector, errno, exit reason */
	uint32_t detail; /* of the guest: the MSR it was at */
};

/* The report of the child, sent once. */
struct report {
	uint32_t setup;   /* enum setup: SETUP_DONE, or what failed */
	int32_t number;   /* errno then */
	uint32_t lacking; /* bit for each capability that is not there */
	struct result steps[PROBE_STEPS_MAX];
	int64_t here_ns, there_ns; /* the loop; 0: not got to */
};

/* Capabilities that the VMM requires. */
static const struct {
	uint32_t number;
	const char *name;
} capabilities[] = {
	{ KVM_CAP_USER_MEMORY, "user memory" },
	{ KVM_CAP_IRQCHIP, "irqchip" },
	{ KVM_CAP_IRQFD, "irqfd" },
	{ KVM_CAP_IOEVENTFD, "ioeventfd" },
	{ KVM_CAP_SET_TSS_ADDR, "tss address" },
	{ KVM_CAP_EXT_CPUID, "cpuid" },
	{ KVM_CAP_MP_STATE, "mp state" },
	{ KVM_CAP_VCPU_EVENTS, "vcpu events" },
	{ KVM_CAP_DEBUGREGS, "debug registers" },
	{ KVM_CAP_XSAVE, "xsave" },
	{ KVM_CAP_XCRS, "xcrs" },
	{ KVM_CAP_ADJUST_CLOCK, "clock" },
	{ KVM_CAP_IMMEDIATE_EXIT, "immediate exit" },
};

/* ---- the child's side ---- */

struct machine {
	int kvm, vm, vcpu;
	uint8_t *memory;
	struct kvm_run *run;
	size_t run_size;
	struct report *report;
};

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int setup_failed(struct machine *machine, enum setup at)
{
	machine->report->setup = at;
	machine->report->number = errno;
	return -1;
}

static uint64_t guest_address(const char *symbol)
{
	return PROBE_CODE + (uint64_t)(symbol - probe_guest_begin);
}

/* Page tables that map the first 2 MiB one to one for rings 0 and 3. */
static void write_pages(uint8_t *memory)
{
	const uint64_t flags = 7; /* present, writable, user */

	*(uint64_t *)(memory + PROBE_PML4) = PROBE_PDPT | flags;
	*(uint64_t *)(memory + PROBE_PDPT) = PROBE_PD | flags;
	*(uint64_t *)(memory + PROBE_PD) = PROBE_PT | flags;
	for (uint64_t page = 0; page < 512; page++)
		((uint64_t *)(memory + PROBE_PT))[page] = page * 4096 | flags;
	*(uint64_t *)(memory + PROBE_PAGE_A) = PROBE_PAGE_A;
	*(uint64_t *)(memory + PROBE_PAGE_B) = PROBE_PAGE_B;
}

static void write_pointer(uint8_t *at, uint16_t limit, uint64_t base)
{
	memcpy(at, &limit, sizeof(limit));
	memcpy(at + sizeof(limit), &base, sizeof(base));
}

/* Descriptors and gates in the layout of the processor's manual. */
static void write_tables(uint8_t *memory)
{
	uint64_t *gdt = (uint64_t *)(memory + PROBE_GDT), *idt = (uint64_t *)(memory + PROBE_IDT);
	const uint64_t stack = PROBE_STACK; /* for entries from ring 3 */

	gdt[PROBE_CS / 8] = 0x00af9b000000ffff;
	gdt[PROBE_DS / 8] = 0x00cf93000000ffff;
	gdt[PROBE_USER32 / 8] = 0x00cffb000000ffff;
	gdt[PROBE_USER_DS / 8] = 0x00cff3000000ffff;
	gdt[PROBE_USER_CS / 8] = 0x00affb000000ffff;
	gdt[PROBE_TR / 8] = 0x0000890000000067 | (uint64_t)PROBE_TSS << 16;
	memcpy(memory + PROBE_TSS + 4, &stack, sizeof(stack)); /* the TSS has this number at an unaligned offset */
	for (uint64_t vector = 0; vector < PROBE_VECTORS; vector++) {
		uint64_t address = guest_address(probe_guest_vectors) + vector * PROBE_VECTOR_SIZE;

		idt[vector * 2] = (address & 0xffff) | (uint64_t)PROBE_CS << 16 | 0xee00ull << 32 |
				  (address >> 16 & 0xffff) << 48;
		idt[vector * 2 + 1] = address >> 32;
	}
	write_pointer(memory + PROBE_GDT_POINTER, PROBE_TR + 15, PROBE_GDT);
	write_pointer(memory + PROBE_IDT_POINTER, PROBE_VECTORS * 16 - 1, PROBE_IDT);
}

static int set_cpuid(struct machine *machine)
{
	const size_t size = sizeof(struct kvm_cpuid2) + CPUID_MAX * sizeof(struct kvm_cpuid_entry2);
	struct kvm_cpuid2 *cpuid = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int result;

	if (cpuid == MAP_FAILED)
		return -1;
	cpuid->nent = CPUID_MAX;
	result = ioctl(machine->kvm, KVM_GET_SUPPORTED_CPUID, cpuid);
	if (result == 0)
		result = ioctl(machine->vcpu, KVM_SET_CPUID2, cpuid);
	munmap(cpuid, size);
	return result;
}

/* The kernel sometimes returns EINTR here without a signal. */
static int create_vm(int kvm)
{
	int vm = -1;

	for (int attempt = 0; attempt < 5 && vm < 0 && (attempt == 0 || errno == EINTR); attempt++)
		vm = ioctl(kvm, KVM_CREATE_VM, 0);
	return vm;
}

/* A machine with memory and one CPU. */
static int machine_make(struct machine *machine)
{
	struct kvm_userspace_memory_region region = { .memory_size = PROBE_MEMORY,
						      .userspace_addr = (uintptr_t)machine->memory };

	machine->vm = create_vm(machine->kvm);
	if (machine->vm < 0)
		return setup_failed(machine, SETUP_VM);
	/* Three pages that Intel's processors need in the guest's address space, away from everything else. */
	if (ioctl(machine->vm, KVM_SET_TSS_ADDR, 0xfffbd000ul) < 0 ||
	    ioctl(machine->vm, KVM_SET_USER_MEMORY_REGION, &region) < 0)
		return setup_failed(machine, SETUP_MEMORY);
	machine->vcpu = ioctl(machine->vm, KVM_CREATE_VCPU, 0);
	if (machine->vcpu < 0)
		return setup_failed(machine, SETUP_VCPU);
	machine->run = mmap(NULL, machine->run_size, PROT_READ | PROT_WRITE, MAP_SHARED, machine->vcpu, 0);
	if (machine->run == MAP_FAILED)
		return setup_failed(machine, SETUP_VCPU);
	if (set_cpuid(machine) < 0)
		return setup_failed(machine, SETUP_CPUID);
	return 0;
}

static void machine_end(struct machine *machine)
{
	munmap(machine->run, machine->run_size);
	fd_close(&machine->vcpu);
	fd_close(&machine->vm);
}

static struct kvm_segment segment(uint16_t selector, uint8_t type, bool code)
{
	return (struct kvm_segment){ .limit = 0xffffffff,
				     .selector = selector,
				     .type = type,
				     .present = 1,
				     .s = 1,
				     .l = code,
				     .db = !code,
				     .g = 1 };
}

/* Ring 0 of long mode, at the step's first instruction. */
static int set_state(struct machine *machine, uint64_t address, uint64_t argument)
{
	struct kvm_regs regs = { .rip = address, .rsp = PROBE_STACK, .rflags = 2, .rdi = argument };
	struct kvm_sregs sregs;

	if (ioctl(machine->vcpu, KVM_GET_SREGS, &sregs) < 0)
		return -1;
	sregs.cs = segment(PROBE_CS, 11, true);
	sregs.ds = sregs.es = sregs.ss = sregs.fs = sregs.gs = segment(PROBE_DS, 3, false);
	sregs.tr = (struct kvm_segment){
		.base = PROBE_TSS, .limit = 0x67, .selector = PROBE_TR, .type = 11, .present = 1
	};
	sregs.gdt = (struct kvm_dtable){ .base = PROBE_GDT, .limit = PROBE_TR + 15 };
	sregs.idt = (struct kvm_dtable){ .base = PROBE_IDT, .limit = PROBE_VECTORS * 16 - 1 };
	sregs.cr0 = 0x80000033; /* PG, NE, ET, MP, PE */
	sregs.cr3 = PROBE_PML4;
	sregs.cr4 = 0x20;   /* PAE */
	sregs.efer = 0x500; /* LME, LMA */
	if (ioctl(machine->vcpu, KVM_SET_SREGS, &sregs) < 0)
		return -1;
	return ioctl(machine->vcpu, KVM_SET_REGS, &regs);
}

/* Answers a port or memory-mapped access. */
static void answer(struct kvm_run *run)
{
	if (run->exit_reason == KVM_EXIT_IO && run->io.direction == KVM_EXIT_IO_IN)
		((uint8_t *)run)[run->io.data_offset] = PROBE_ANSWER;
	if (run->exit_reason == KVM_EXIT_MMIO && !run->mmio.is_write) {
		memset(run->mmio.data, 0, sizeof(run->mmio.data));
		run->mmio.data[0] = PROBE_ANSWER;
	}
}

/* The meaning of an exit that is not a device access. */
static struct result judge(const struct machine *machine)
{
	const struct probe_mailbox *mailbox = (const void *)(machine->memory + PROBE_MAILBOX);
	const struct kvm_run *run = machine->run;
	struct result result = { .outcome = STRAYED, .number = run->exit_reason, .detail = mailbox->detail };

	switch (run->exit_reason) {
	case KVM_EXIT_HLT:
		result.outcome = mailbox->said ? mailbox->said : STRAYED;
		result.number = mailbox->vector;
		break;
	case KVM_EXIT_INTERNAL_ERROR:
		result.outcome = EMULATION;
		result.number = run->internal.suberror;
		break;
	case KVM_EXIT_SHUTDOWN:
		result.outcome = SHUTDOWN;
		break;
	case KVM_EXIT_FAIL_ENTRY:
		result.outcome = ENTRY;
		result.number = (uint32_t)run->fail_entry.hardware_entry_failure_reason;
		break;
	}
	return result;
}

static struct result run_guest(struct machine *machine)
{
	for (int exits = 0, retries = 0; exits < EXITS_MAX; exits++) {
		if (ioctl(machine->vcpu, KVM_RUN, 0) < 0) {
			/* Some kernels return these errors for the first run without a reason. */
			if ((errno == EINTR || errno == EAGAIN || errno == ENOMEM) && retries++ < 5)
				continue;
			return (struct result){ .outcome = REFUSED, .number = (uint32_t)errno };
		}
		if (machine->run->exit_reason != KVM_EXIT_IO && machine->run->exit_reason != KVM_EXIT_MMIO)
			return judge(machine);
		answer(machine->run);
	}
	return (struct result){ .outcome = STRAYED };
}

static int run_step(struct machine *machine, const char *code, uint64_t argument, struct result *out)
{
	memset(machine->memory, 0, PROBE_CODE);
	memset(machine->memory + PROBE_XSAVE, 0, PROBE_MEMORY - PROBE_XSAVE);
	write_pages(machine->memory);
	write_tables(machine->memory);
	if (set_state(machine, guest_address(code), argument) < 0)
		return setup_failed(machine, SETUP_STATE);
	*out = run_guest(machine);
	return 0;
}

/* After a failed step the state of the CPU is unknown, so the next step gets a new machine. Returns how many steps
 * failed. */
static int run_steps(struct machine *machine)
{
	int failed = 0;

	for (size_t i = 0; probe_steps[i].name; i++) {
		struct result *result = &machine->report->steps[i];

		if (run_step(machine, probe_steps[i].code, 0, result) < 0)
			return -1;
		if (result->outcome == PASSED)
			continue;
		failed++;
		machine_end(machine);
		if (machine_make(machine) < 0)
			return -1;
	}
	return failed;
}

static bool too_slow(const struct report *report)
{
	return report->there_ns > SLOW_MIN_NS && report->there_ns / SLOW_FACTOR > report->here_ns;
}

/* The time that the guest needs for a loop of this length; -1: the guest cannot run it. */
static int64_t time_guest(struct machine *machine, uint64_t length)
{
	int64_t start = now_ns();
	struct result result;

	if (run_step(machine, probe_guest_loop, length, &result) < 0 || result.outcome != PASSED)
		return -1;
	return now_ns() - start;
}

/* The cost of one round of the loop, without entering and leaving the guest. The best of a few tries, because other
 * programs use the CPU too. */
static void time_loop(struct machine *machine, int rounds)
{
	struct report *report = machine->report;
	int64_t here = INT64_MAX, empty = INT64_MAX, full = INT64_MAX;

	for (int round = 0; round < rounds && (round == 0 || too_slow(report)); round++) {
		int64_t start = now_ns(), one, all;

		probe_loop_here();
		here = MIN(here, now_ns() - start);
		one = time_guest(machine, 1);
		all = time_guest(machine, PROBE_LOOPS);
		if (one < 0 || all < 0)
			return;
		empty = MIN(empty, one);
		full = MIN(full, all);
		report->here_ns = here;
		report->there_ns = full - empty;
	}
}

static int look(struct machine *machine)
{
	int size, failed;

	machine->kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (machine->kvm < 0)
		return setup_failed(machine, SETUP_OPEN);
	errno = EPROTO;
	if (ioctl(machine->kvm, KVM_GET_API_VERSION, 0) != KVM_API_VERSION)
		return setup_failed(machine, SETUP_VERSION);
	for (size_t i = 0; i < ARRAY_SIZE(capabilities); i++)
		if (ioctl(machine->kvm, KVM_CHECK_EXTENSION, (unsigned long)capabilities[i].number) <= 0)
			machine->report->lacking |= 1u << i;
	size = ioctl(machine->kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (size < (int)sizeof(*machine->run))
		return setup_failed(machine, SETUP_VCPU);
	machine->run_size = (size_t)size;
	machine->memory = mmap(NULL, PROBE_MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (machine->memory == MAP_FAILED)
		return setup_failed(machine, SETUP_MEMORY);
	memcpy(machine->memory + PROBE_CODE, probe_guest_begin, (size_t)(probe_guest_end - probe_guest_begin));
	failed = machine_make(machine) < 0 ? -1 : run_steps(machine);
	/* If the answer is already no, the time is only for the message. */
	if (failed >= 0)
		time_loop(machine, failed ? ROUNDS / 4 : ROUNDS);
	return failed < 0 ? -1 : 0;
}

static void child_main(void *data)
{
	struct report report = { 0 };
	struct machine machine = { .report = &report };
	int out = *(int *)data;

	look(&machine);
	_exit(write(out, &report, sizeof(report)) == (ssize_t)sizeof(report) ? 0 : 1);
}

/* ---- the caller's side ---- */

static int child_run(struct report *report, struct husk_error *err)
{
	cleanup_close int in = -1, out = -1, pidfd = -1;
	struct pollfd wait = { .events = POLLIN };
	siginfo_t ended;
	int ends[2], ready;
	ssize_t got = -1;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot make a pipe");
	in = wait.fd = ends[0];
	out = ends[1];
	if (jail_clone(0, child_main, &out, &pidfd) < 0)
		return husk_fail_errno(err, "cannot start a process to try /dev/kvm in");
	fd_close(&out);
	do
		ready = poll(&wait, 1, ANSWER_MS);
	while (ready < 0 && errno == EINTR);
	if (ready > 0)
		got = read_full(in, report, sizeof(*report));
	syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
	while (waitid(P_PIDFD, (id_t)pidfd, &ended, WEXITED) < 0 && errno == EINTR)
		;
	if (ready == 0)
		return husk_fail(err, HUSK_UNAVAILABLE, "/dev/kvm did not finish a tiny guest within %d s; " FIX,
				 ANSWER_MS / 1000);
	if (got != (ssize_t)sizeof(*report))
		return husk_fail(err, HUSK_UNAVAILABLE, "the process that tried /dev/kvm was killed; " FIX);
	return 0;
}

static int fail_setup(const struct report *report, struct husk_error *err)
{
	const char *step = report->setup < ARRAY_SIZE(setup_names) ? setup_names[report->setup] : "use it";

	if (report->setup == SETUP_OPEN &&
	    (report->number == ENOENT || report->number == ENXIO || report->number == ENODEV))
		return husk_fail(
			err, HUSK_UNAVAILABLE,
			"no /dev/kvm: modprobe kvm_intel or kvm_amd; if that fails, virtualization is off in the "
			"firmware or not offered by the cloud");
	if (report->setup == SETUP_OPEN && (report->number == EACCES || report->number == EPERM))
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "/dev/kvm is closed to us: run as root, or as a member of group kvm");
	errno = report->number;
	husk_fail_errno(err, "/dev/kvm exists, but Husk cannot %s", step);
	err->code = HUSK_UNAVAILABLE;
	return -1;
}

static int describe(struct buf *text, const char *name, const struct result *result)
{
	const char *before = text->size ? ", " : "";

	switch (result->outcome) {
	case WRONG:
		return buf_printf(text, "%s%s (wrong result)", before, name);
	case EXCEPTION:
		if (result->detail)
			return buf_printf(text, "%s%s (exception %u at msr 0x%x)", before, name, result->number,
					  result->detail);
		return buf_printf(text, "%s%s (exception %u)", before, name, result->number);
	case EMULATION:
		return buf_printf(text, "%s%s (KVM cannot emulate it)", before, name);
	case SHUTDOWN:
		return buf_printf(text, "%s%s (triple fault)", before, name);
	case ENTRY:
		return buf_printf(text, "%s%s (the CPU refused, reason 0x%x)", before, name, result->number);
	case REFUSED:
		return buf_printf(text, "%s%s (KVM_RUN: %s)", before, name, strerror((int)result->number));
	default:
		return buf_printf(text, "%s%s (unexpected exit %u)", before, name, result->number);
	}
}

static int collect(const struct report *report, struct buf *steps, struct buf *lacking)
{
	for (size_t i = 0; probe_steps[i].name; i++)
		if (report->steps[i].outcome != PASSED && describe(steps, probe_steps[i].name, &report->steps[i]) < 0)
			return -1;
	for (size_t i = 0; i < ARRAY_SIZE(capabilities); i++)
		if (report->lacking & 1u << i &&
		    buf_printf(lacking, "%s%s", lacking->size ? ", " : "", capabilities[i].name) < 0)
			return -1;
	return 0;
}

/* Runs the probe. 0, or -1 with the reasons; `final`: another run would give the same reasons. */
static int probe_now(bool *final, struct husk_error *err)
{
	cleanup_buf struct buf steps = { 0 }, lacking = { 0 }, slow = { 0 };
	struct report report;

	*final = false;
	if (child_run(&report, err) < 0)
		return -1;
	if (report.setup != SETUP_DONE)
		return fail_setup(&report, err);
	if (collect(&report, &steps, &lacking) < 0)
		return husk_fail_memory(err);
	if (too_slow(&report) &&
	    buf_printf(&slow,
		       "ring 0 runs %lld times slower than the host, so it is emulated one instruction at a time",
		       (long long)(report.there_ns / MAX(report.here_ns, 1))) < 0)
		return husk_fail_memory(err);
	/* A host may be too busy for a measurement. */
	*final = steps.size || lacking.size || !slow.size;
	if (!steps.size && !lacking.size && !slow.size)
		return 0;
	return husk_fail(err, HUSK_UNAVAILABLE, "/dev/kvm exists but cannot run a Linux kernel: %s%s%s%s%s%s; " FIX,
			 steps.size ? "it fails at " : "", steps.size ? steps.data : "",
			 steps.size && (slow.size || lacking.size) ? "; " : "", slow.size ? slow.data : "",
			 lacking.size ? (slow.size ? "; it lacks " : "it lacks ") : "",
			 lacking.size ? lacking.data : "");
}

/* What the result depends on: this boot, this device (a new one when the module is loaded again), these steps. */
static int memory_key(char *out, size_t size)
{
	cleanup_free char *boot = file_read("/proc/sys/kernel/random/boot_id", 128, NULL, NULL);
	struct stat device;

	if (!boot || stat("/dev/kvm", &device) < 0 || access("/dev/kvm", R_OK | W_OK) < 0)
		return -1;
	snprintf(out, size, "%.*s %llu %lld.%09ld %td", (int)strcspn(boot, "\n"), boot,
		 (unsigned long long)device.st_ino, (long long)device.st_ctim.tv_sec, device.st_ctim.tv_nsec,
		 probe_guest_end - probe_guest_begin);
	return 0;
}

int microvm_probe(const char *runtime, struct husk_error *err)
{
	cleanup_free char *known = NULL;
	struct husk_error why = { 0 };
	char key[256];
	bool final;
	int result, has_key = memory_key(key, sizeof(key));

	if (has_key == 0 && engine_remembered(runtime, MEMORY_NAME, key, &known) == 0)
		return str_equal(known, WORKS) ? 0 : husk_fail(err, HUSK_UNAVAILABLE, "%s", known);
	result = probe_now(&final, &why);
	if (has_key == 0 && final)
		engine_remember(runtime, MEMORY_NAME, key, result == 0 ? WORKS : why.message);
	return result == 0 ? 0 : husk_fail(err, why.code, "%s", why.message);
}

#else

int microvm_probe(const char *runtime, struct husk_error *err)
{
	(void)runtime;
	return husk_fail(err, HUSK_UNAVAILABLE, "the microvm engine is for x86-64 only; use --isolation gvisor");
}

#endif
