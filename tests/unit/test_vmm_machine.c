/*
 * Tiny guests on /dev/kvm, in the machine that husk-vmm runs: entry by the boot protocol's rules, port and memory exits,
 * the serial log, device registers, pause and resume, and a snapshot that goes on in a second machine with every register
 * it had. Skipped, and said so, where /dev/kvm does not open.
 */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "vmm/serve.h"

#define CODE 0x100000ull
#define MEMORY VMM_MEMORY_MIN
#define COUNTER 0x200000ull
#define PATIENCE_MS 20000

static bool have_kvm(void)
{
	int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);

	if (fd < 0) {
		fprintf(stderr, "SKIP: /dev/kvm does not open here (%s): tiny guests were not run\n", strerror(errno));
		return false;
	}
	close(fd);
	return true;
}

static int file_new(void)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static struct control_reply ask(struct vm *vm, enum control_type type, uint64_t a, uint64_t b, const int *given,
				size_t count)
{
	struct control_request request = { .version = CONTROL_VERSION, .type = type, .value = { a, b } };
	struct control_reply reply = { 0 };
	int fds[CONTROL_FDS_MAX];

	for (size_t i = 0; i < count; i++)
		fds[i] = given[i];
	serve_request(vm, &request, fds, count, &reply);
	return reply;
}

static void done(const struct control_reply reply)
{
	if (reply.code)
		fail_msg("%s", reply.message);
}

/* A machine with a disk and nothing in it. It is never freed: its threads live as long as the test. */
static struct vm *machine_new(int log)
{
	struct vm *vm = calloc(1, sizeof(*vm));
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), base = file_new(), disk = file_new();

	assert_non_null(vm);
	vm->memory.pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	assert_int_equal(vm_create(vm, NULL), 0);
	assert_int_equal(ftruncate(base, 4096), 0);
	done(ask(vm, CONTROL_SHAPE, 1, MEMORY, &kvm, 1));
	if (log >= 0)
		done(ask(vm, CONTROL_CONSOLE, 1000, 0, &log, 1));
	done(ask(vm, CONTROL_BASE, 0, 0, &base, 1));
	done(ask(vm, CONTROL_DISK, 1 << 20, 0, &disk, 1));
	return vm;
}

static void load(struct vm *vm, const void *code, size_t size)
{
	vm_hold(vm);
	assert_int_equal(memory_write(&vm->memory, CODE, code, size), 0);
	assert_int_equal(vcpu_set_boot(&vm->vcpus[0], CODE, 0x1234, NULL), 0);
}

static void wait_end(struct vm *vm, const char *says)
{
	struct pollfd end = { .fd = vm->end_fd, .events = POLLIN };

	assert_int_equal(poll(&end, 1, PATIENCE_MS), 1);
	assert_non_null(strstr(vm->end.message, says));
}

/* ---- guests ---- */

/* mov dx,0x3f8; mov al,'h'; out; mov al,'i'; out; mov al,0xfe; out 0x64 */
static const uint8_t prints[] = { 0x66, 0xba, 0xf8, 0x03, 0xb0, 'h',  0xee, 0xb0,
				  'i',  0xee, 0xb0, 0xfe, 0xe6, 0x64, 0xeb, 0xfe };

static void serial_and_end(void **state)
{
	int log = file_new();
	char text[8] = { 0 };

	(void)state;
	if (!have_kvm())
		skip();
	struct vm *vm = machine_new(dup(log));
	load(vm, prints, sizeof(prints));
	assert_int_equal(vm_resume(vm, NULL), 0);
	wait_end(vm, "switched itself off");
	assert_int_equal(pread(log, text, sizeof(text) - 1, 0), 2);
	assert_string_equal(text, "hi");
	close(log);
}

/* mov ebx,DEVICE_BASE; mov eax,[rbx]; mov [COUNTER],eax; mov eax,[rbx+8]; mov [COUNTER+4],eax; mov eax,[rbx+0x9000];
 * mov [COUNTER+8],eax; mov [COUNTER+12],esi; mov al,0xfe; out 0x64 */
static const uint8_t looks[] = { 0xbb, 0x00, 0x00, 0x00, 0xd0, 0x8b, 0x03, 0x89, 0x04, 0x25, 0x00, 0x00, 0x20,
				 0x00, 0x8b, 0x43, 0x08, 0x89, 0x04, 0x25, 0x04, 0x00, 0x20, 0x00, 0x8b, 0x83,
				 0x00, 0x90, 0x00, 0x00, 0x89, 0x04, 0x25, 0x08, 0x00, 0x20, 0x00, 0x89, 0x34,
				 0x25, 0x0c, 0x00, 0x20, 0x00, 0xb0, 0xfe, 0xe6, 0x64, 0xeb, 0xfe };

static void device_registers(void **state)
{
	uint32_t found[4];

	(void)state;
	if (!have_kvm())
		skip();
	struct vm *vm = machine_new(-1);
	load(vm, looks, sizeof(looks));
	assert_int_equal(vm_resume(vm, NULL), 0);
	wait_end(vm, "switched itself off");
	assert_int_equal(memory_read(&vm->memory, COUNTER, found, sizeof(found)), 0);
	assert_int_equal(found[0], 0x74726976); /* "virt" */
	assert_int_equal(found[1], 2);          /* a block device */
	assert_int_equal(found[2], UINT32_MAX); /* nothing there */
	assert_int_equal(found[3], 0x1234);     /* the boot parameters' address */
}

/* mov r8, 0x1122334455667788; 1: inc qword [COUNTER]; inc r9; jmp 1b */
static const uint8_t counts[] = { 0x49, 0xb8, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x48, 0xff,
				  0x04, 0x25, 0x00, 0x00, 0x20, 0x00, 0x49, 0xff, 0xc1, 0xeb, 0xf3 };
#define XMM3 52 /* its place among the extended registers, in words */

static uint64_t counter(struct vm *vm)
{
	uint64_t value = 0;

	assert_int_equal(memory_read(&vm->memory, COUNTER, &value, sizeof(value)), 0);
	return value;
}

static uint64_t wait_past(struct vm *vm, uint64_t value)
{
	for (int i = 0; i < PATIENCE_MS && counter(vm) <= value; i++)
		usleep(1000);
	if (counter(vm) <= value)
		fail_msg("the guest stands still: %s", vm->end.message);
	return counter(vm);
}

static struct vm *start_counter(void)
{
	struct vm *vm = machine_new(-1);

	load(vm, counts, sizeof(counts));
	/* Set from outside, because not every KVM can run the instruction that would do it. */
	struct kvm_xsave xsave;
	assert_int_equal(vm_ioctl(vm->vcpus[0].fd, KVM_GET_XSAVE, &xsave), 0);
	xsave.region[XMM3] = 0x55667788;
	xsave.region[128] |= 2; /* the vector registers are in use */
	assert_int_equal(vm_ioctl(vm->vcpus[0].fd, KVM_SET_XSAVE, &xsave), 0);
	assert_int_equal(vm_resume(vm, NULL), 0);
	wait_past(vm, 0);
	return vm;
}

static void pause_stands_still(void **state)
{
	(void)state;
	if (!have_kvm())
		skip();
	struct vm *vm = start_counter();
	for (int i = 0; i < 20; i++) {
		done(ask(vm, CONTROL_PAUSE, 0, 0, NULL, 0));
		uint64_t before = counter(vm);
		usleep(2000);
		assert_int_equal(counter(vm), before);
		assert_int_equal(ask(vm, CONTROL_PAUSE, 0, 0, NULL, 0).code, HUSK_CONFLICT);
		done(ask(vm, CONTROL_RESUME, 0, 0, NULL, 0));
		wait_past(vm, before);
	}
	done(ask(vm, CONTROL_PAUSE, 0, 0, NULL, 0));
}

static void get_registers(struct vm *vm, struct kvm_regs *regs, struct kvm_xsave *xsave)
{
	assert_int_equal(vm_ioctl(vm->vcpus[0].fd, KVM_GET_REGS, regs), 0);
	assert_int_equal(vm_ioctl(vm->vcpus[0].fd, KVM_GET_XSAVE, xsave), 0);
}

/* A parent, its child and its grandchild: each has what it had, and goes on alone. */
static void snapshot_goes_on(void **state)
{
	int states[2] = { file_new(), file_new() }, layers[2] = { file_new(), file_new() };
	struct vm *vms[3];
	struct kvm_regs before, after;
	struct kvm_xsave xsave_before, xsave_after;

	(void)state;
	if (!have_kvm())
		skip();
	vms[0] = start_counter();
	for (int i = 0; i < 2; i++) {
		const int files[] = { dup(states[i]), dup(layers[i]), file_new() };

		done(ask(vms[i], CONTROL_PAUSE, 0, 0, NULL, 0));
		get_registers(vms[i], &before, &xsave_before);
		uint64_t value = counter(vms[i]);
		struct control_reply saved = ask(vms[i], CONTROL_SNAPSHOT, 0, 0, files, ARRAY_SIZE(files));
		done(saved);
		assert_true(saved.value[SNAPSHOT_MEMORY_PAGES] > 0 && saved.value[SNAPSHOT_MEMORY_PAGES] < 64);
		assert_int_equal(saved.value[SNAPSHOT_MEMORY_LAYERS], i);

		vms[i + 1] = machine_new(-1);
		for (int layer = 0; layer <= i; layer++) {
			int fd = dup(layers[layer]);
			done(ask(vms[i + 1], CONTROL_MEMORY, 0, 0, &fd, 1));
		}
		int fd = dup(states[i]);
		done(ask(vms[i + 1], CONTROL_RESTORE, 0, 0, &fd, 1));
		get_registers(vms[i + 1], &after, &xsave_after);
		assert_memory_equal(&before, &after, sizeof(before));
		assert_int_equal(after.r8, 0x1122334455667788);
		assert_int_equal(xsave_before.region[XMM3], 0x55667788);
		assert_int_equal(xsave_after.region[XMM3], 0x55667788);
		assert_int_equal(counter(vms[i + 1]), value);
		done(ask(vms[i + 1], CONTROL_RESUME, 0, 0, NULL, 0));
		wait_past(vms[i + 1], value);
		assert_int_equal(counter(vms[i]), value);
		done(ask(vms[i], CONTROL_RESUME, 0, 0, NULL, 0));
		wait_past(vms[i], value);
	}
	for (int i = 0; i < 3; i++)
		done(ask(vms[i], CONTROL_PAUSE, 0, 0, NULL, 0));
}

/* An image that does not fit, or is damaged, is refused with the reason. */
static void refuses_what_does_not_fit(void **state)
{
	int file = file_new(), layer = file_new(), kvm, fd;

	(void)state;
	if (!have_kvm())
		skip();
	struct vm *vm = start_counter(), *other = calloc(1, sizeof(*other));
	const int files[] = { dup(file), dup(layer), file_new() };
	assert_int_equal(ask(vm, CONTROL_SNAPSHOT, 0, 0, files, ARRAY_SIZE(files)).code, HUSK_CONFLICT); /* it runs */
	const int again[] = { dup(file), dup(layer), file_new() };
	done(ask(vm, CONTROL_PAUSE, 0, 0, NULL, 0));
	done(ask(vm, CONTROL_SNAPSHOT, 0, 0, again, ARRAY_SIZE(again)));

	assert_int_equal(vm_create(other, NULL), 0);
	kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	assert_int_equal(ask(other, CONTROL_SHAPE, 99, MEMORY, &kvm, 1).code, HUSK_INVALID);
	fd = file_new();
	assert_int_equal(ask(other, CONTROL_RESTORE, 0, 0, &fd, 1).code, HUSK_CONFLICT); /* no machine yet */
	struct vm *fresh = machine_new(-1);
	fd = dup(file);
	struct control_reply reply = ask(fresh, CONTROL_RESTORE, 0, 0, &fd, 1);
	assert_int_equal(reply.code, HUSK_INVALID); /* its memory layer is missing */
	assert_non_null(strstr(reply.message, "memory"));
}

/* ---- what is needed first ---- */

#define NEEDED 0x400000ull
#define NEEDED_PAGES 200u

static struct vm *restored(int state, int layer, int list)
{
	struct vm *vm = machine_new(-1);
	int fds[] = { dup(layer), dup(state) };

	done(ask(vm, CONTROL_MEMORY, 0, 0, &fds[0], 1));
	if (list >= 0)
		done(ask(vm, CONTROL_PREFETCH, 0, 0, &list, 1));
	done(ask(vm, CONTROL_RESTORE, 0, 0, &fds[1], 1));
	return vm;
}

static int count_needed(void *data, uint64_t page, bool written)
{
	unsigned *numbers = data;

	if (page >= NEEDED / PAGE_BYTES && page < NEEDED / PAGE_BYTES + NEEDED_PAGES)
		numbers[written]++;
	return 0;
}

/* How many of the pages that were needed are there: looked at only, and changed. */
static void there(struct vm *vm, unsigned looked, unsigned changed)
{
	unsigned numbers[2] = { 0 };

	assert_int_equal(memory_visit(&vm->memory, count_needed, numbers, NULL), 0);
	/* The host may bring neighbours along. */
	assert_true(numbers[0] >= looked && (looked || numbers[0] == 0));
	assert_int_equal(numbers[1], changed);
}

/* A first restore is watched, the next ones have ready what it touched; a list that is no good is as if there were none. */
static void what_is_needed_first(void **state)
{
	int file = file_new(), layer = file_new(), list = file_new(), cut = file_new();
	const int files[] = { dup(file), dup(layer), file_new() };
	uint8_t page[PAGE_BYTES];
	struct stat size;

	(void)state;
	if (!have_kvm())
		skip();
	memset(page, 7, sizeof(page));
	struct vm *vm = start_counter();
	done(ask(vm, CONTROL_PAUSE, 0, 0, NULL, 0));
	for (unsigned i = 0; i < NEEDED_PAGES; i++)
		assert_int_equal(memory_write(&vm->memory, NEEDED + i * PAGE_BYTES, page, sizeof(page)), 0);
	done(ask(vm, CONTROL_SNAPSHOT, 0, 0, files, ARRAY_SIZE(files)));

	struct vm *first = restored(file, layer, -1);
	there(first, 0, 0);
	for (unsigned i = 0; i < NEEDED_PAGES / 2; i++)
		assert_int_equal(memory_read(&first->memory, NEEDED + i * PAGE_BYTES, page, 1), 0);
	for (unsigned i = NEEDED_PAGES / 2; i < NEEDED_PAGES; i += 2)
		assert_int_equal(memory_write(&first->memory, NEEDED + i * PAGE_BYTES, "x", 1), 0);
	int fd = dup(list);
	done(ask(first, CONTROL_TOUCHED, 0, 0, &fd, 1));

	struct vm *second = restored(file, layer, dup(list));
	there(second, NEEDED_PAGES / 2, NEEDED_PAGES / 4);
	assert_int_equal(memory_read(&second->memory, NEEDED + NEEDED_PAGES / 2 * PAGE_BYTES, page, 1), 0);
	assert_int_equal(page[0], 7); /* its own copy of what was saved, not what the first one wrote */
	done(ask(second, CONTROL_RESUME, 0, 0, NULL, 0));
	wait_past(second, counter(vm));
	done(ask(second, CONTROL_PAUSE, 0, 0, NULL, 0));

	/* Cut off, and with a bit turned over. */
	assert_int_equal(fstat(list, &size), 0);
	assert_int_equal(sendfile(cut, list, &(off_t){ 0 }, (size_t)size.st_size / 2), size.st_size / 2);
	there(restored(file, layer, cut), 0, 0);
	assert_int_equal(pread(list, page, 1, size.st_size - 1), 1);
	page[0] ^= 1;
	assert_int_equal(pwrite(list, page, 1, size.st_size - 1), 1);
	there(restored(file, layer, list), 0, 0);
}

/* Runs outside of memory, too many pages, of no length: left out, and the others still come. */
static void senseless_runs(void **state)
{
	struct memory memory = { .pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC) };
	const struct memory_touched runs[] = {
		{ .page = UINT64_MAX, .count = 1 },
		{ .page = MEMORY / PAGE_BYTES, .count = 1, .written = 1 },
		{ .page = MEMORY / PAGE_BYTES - 1, .count = 2, .written = 1 },
		{ .page = 0, .count = UINT32_MAX, .written = 1 },
		{ .page = 0, .count = TOUCHED_PAGES_MAX + 1, .written = 1 },
		{ .page = 5, .count = 3, .written = 1 },
	};

	(void)state;
	assert_int_equal(memory_create(&memory, MEMORY, NULL), 0);
	assert_int_equal(memory_prefetch(&memory, runs, ARRAY_SIZE(runs)), 3);
	close(memory.pagemap);
	memory_free(&memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(serial_and_end),
		cmocka_unit_test(device_registers),
		cmocka_unit_test(pause_stands_still),
		cmocka_unit_test(snapshot_goes_on),
		cmocka_unit_test(refuses_what_does_not_fit),
		cmocka_unit_test(what_is_needed_first),
		cmocka_unit_test(senseless_runs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
