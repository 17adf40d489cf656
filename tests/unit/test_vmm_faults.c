/*
 * What husk-vmm does when the host lets it down: no address space, a full disk, a KVM that fails, and, one after the other,
 * every single system call of a snapshot, of what is done ahead of it, and of a restore failing, or being the last before a
 * kill -9. A machine whose snapshot fails goes on; no half snapshot is ever accepted; nothing hangs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "vmm_trace.h"

#define MEMORY VMM_MEMORY_MIN
#define EXTRA (4u << 20) /* of the guest's memory that every first snapshot has to write */
#define CALLS_MAX 2000   /* a loop over the calls of a snapshot ends long before */

static struct guest guest;

static void need_world(void)
{
	const char *lacks = world_lacks();

	if (lacks) {
		print_message("skipped: %s\n", lacks);
		skip();
	}
	guest_init(&guest);
	guest_tick(&guest);
}

/* ---- machines and their images ---- */

static void start(struct vmm *vmm)
{
	vmm_equip(vmm, MEMORY, NULL, 0);
	vmm_boot(vmm, &guest, EXTRA);
	assert_true(vmm_wait_printed(vmm, 0));
}

static void goes_on(struct vmm *vmm)
{
	assert_true(vmm_wait_printed(vmm, vmm_printed(vmm)));
}

/* The layers under a machine, as the engine keeps them. */
struct lineage {
	int layers[VMM_LAYERS_MAX + 1];
	size_t count;
};

static void lineage_free(struct lineage *lineage)
{
	for (size_t i = 0; i < lineage->count; i++)
		close(lineage->layers[i]);
	lineage->count = 0;
}

static void lineage_add(struct lineage *lineage, const struct image *image, const struct control_reply *reply)
{
	size_t keep = reply->value[SNAPSHOT_MEMORY_LAYERS];

	for (; lineage->count > keep; lineage->count--)
		close(lineage->layers[lineage->count - 1]);
	if (reply->value[SNAPSHOT_MEMORY_PAGES])
		lineage->layers[lineage->count++] = dup(image->memory);
}

/* Does a husk-vmm take this for a snapshot? Then the guest must go on in it, with all it had. */
static bool accepted(const struct lineage *below, const struct image *image)
{
	struct control_reply reply = { 0 };
	struct vmm vmm;
	struct stat st;

	assert_int_equal(fstat(image->state, &st), 0);
	if (st.st_size == 0)
		return false;
	vmm_start(&vmm);
	vmm_equip(&vmm, MEMORY, NULL, 0);
	for (size_t i = 0; i < below->count; i++)
		world_done(vmm_give(&vmm, CONTROL_MEMORY, 0, 0, dup(below->layers[i])));
	reply = image_restore(&vmm, image);
	if (reply.code == 0) {
		vmm_plain(&vmm, CONTROL_RESUME);
		goes_on(&vmm);
	}
	vmm_end(&vmm);
	return reply.code == 0;
}

/* The first layer of a machine holds all that it was booted with. */
static bool layer_whole(int layer)
{
	static uint8_t bytes[EXTRA];

	if (pread(layer, bytes, sizeof(bytes), WORLD_LOAD + GUEST_SIZE) != (ssize_t)sizeof(bytes))
		return false;
	for (size_t i = 0; i < sizeof(bytes); i++)
		if (bytes[i] != 0x5a)
			return false;
	return true;
}

/* ---- no address space ---- */

/* The limit is there before the process is: the jail keeps it. */
static void no_room_for_a_machine(void **state)
{
	struct rlimit before, small;
	struct vmm vmm;

	(void)state;
	need_world();
	assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
	small = (struct rlimit){ .rlim_cur = 512u << 20, .rlim_max = before.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_AS, &small), 0);
	vmm_start(&vmm);
	assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
	struct control_reply reply = vmm_shape(&vmm, 1u << 30);
	assert_int_not_equal(reply.code, 0);
	assert_non_null(strstr(reply.message, "cannot reserve 1024 MiB"));
	/* It has said so, and is there. */
	assert_int_equal(vmm_ask(&vmm, CONTROL_STATS, 0, 0, NULL, 0).code, HUSK_CONFLICT);
	vmm_end(&vmm);
}

/* ---- a full disk ---- */

static void full_disk(void **state)
{
	char place[] = "/tmp/husk-test.XXXXXX";
	struct lineage none = { 0 };
	struct vmm vmm;

	(void)state;
	need_world();
	assert_non_null(mkdtemp(place));
	assert_int_equal(unshare(CLONE_NEWNS), 0);
	assert_int_equal(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	assert_int_equal(mount("none", place, "tmpfs", 0, "size=2m"), 0);
	vmm_start(&vmm);
	start(&vmm);
	/* The memory does not fit; then memory does elsewhere, and the state does not. */
	for (int i = 0; i < 3; i++) {
		cleanup_free char *small_path = str_format("%s/%d", place, i),
				  *rest_path = str_format("%s/rest", place);
		struct image image = image_new();
		int small = open(small_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		int rest = open(rest_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

		assert_true(small >= 0 && rest >= 0);
		const int at = i == 0 ? image.memory : i == 1 ? image.state : -1;
		if (at >= 0)
			assert_true(dup2(small, at) == at);
		while (i == 1 && write(rest, &guest, sizeof(guest)) > 0) /* not a byte is left */
			;
		vmm_plain(&vmm, CONTROL_PAUSE);
		struct control_reply reply = image_take(&vmm, &image);
		vmm_plain(&vmm, CONTROL_RESUME);
		assert_int_equal(reply.code != 0, i < 2);
		goes_on(&vmm);
		assert_int_equal(accepted(&none, &image), i == 2);
		close(small);
		close(rest);
		unlink(small_path);
		unlink(rest_path);
		image_free(&image);
	}
	vmm_end(&vmm);
	assert_int_equal(umount(place), 0);
	rmdir(place);
}

/* ---- each call of a snapshot ---- */

static int error_for(unsigned number)
{
	static const int errors[] = { EIO, ENOMEM, ENOSPC };

	return errors[number % ARRAY_SIZE(errors)];
}

/* Fails the `number`-th call of a snapshot. False when there is no such call. */
static bool fail_in_snapshot(struct trace *trace, struct lineage *lineage, unsigned number, bool *ended)
{
	struct image image = image_new();
	struct vmm *vmm = &trace->vmm;

	vmm_plain(vmm, CONTROL_PAUSE);
	trace_plan(trace, (struct trace_plan){
				  .action = TRACE_FAIL, .kind = RULES_MAIN, .at = number, .error = error_for(number) });
	struct control_reply reply = image_take(vmm, &image);
	bool struck = trace_calm(trace);
	*ended = reply.code == HUSK_GONE;
	/* With or without an answer: what is taken for a snapshot is a whole one. */
	if (accepted(lineage, &image)) {
		assert_true(lineage->count > 0 || layer_whole(image.memory));
	} else {
		assert_int_not_equal(reply.code, 0);
	}
	if (reply.code == 0)
		lineage_add(lineage, &image, &reply);
	if (!*ended)
		*ended = vmm_ask(vmm, CONTROL_RESUME, 0, 0, NULL, 0).code == HUSK_GONE;
	image_free(&image);
	return struck;
}

static void every_call_of_a_snapshot_fails(void **state)
{
	struct lineage lineage = { 0 };
	unsigned number = 0, ends = 0;
	bool ended = true, more = true;
	struct trace trace;

	(void)state;
	need_world();
	for (; more && number < CALLS_MAX; number++) {
		if (ended) {
			lineage_free(&lineage);
			trace_start(&trace, NULL, NULL);
			start(&trace.vmm);
		}
		more = fail_in_snapshot(&trace, &lineage, number, &ended);
		if (!ended && vmm_wait_printed(&trace.vmm, vmm_printed(&trace.vmm)))
			continue;
		/* Only where it cannot hear the engine any more, or has lost track of its memory; and never by a signal. */
		int status = trace_wait_end(&trace);
		assert_true(WIFEXITED(status));
		ended = true;
		ends++;
	}
	if (!ended)
		trace_end(&trace);
	lineage_free(&lineage);
	print_message("%u calls of a snapshot, each failed once: %u of them ended the machine\n", number - 1, ends);
	assert_true(number > 20 && number < CALLS_MAX);
	assert_true(ends <= 6);
}

/* ---- ahead of a snapshot ---- */

/* The snapshot that follows, whatever came before, is a whole one. */
static void take_whole(struct vmm *vmm, struct image *image)
{
	struct lineage none = { 0 };

	vmm_plain(vmm, CONTROL_PAUSE);
	world_done(image_take(vmm, image));
	vmm_plain(vmm, CONTROL_RESUME);
	goes_on(vmm);
	assert_true(accepted(&none, image));
	assert_true(layer_whole(image->memory));
}

static bool fail_ahead(unsigned number, unsigned *ends)
{
	struct image image = image_new();
	struct trace trace;

	trace_start(&trace, NULL, NULL);
	start(&trace.vmm);
	trace_plan(&trace,
		   (struct trace_plan){
			   .action = TRACE_FAIL, .kind = RULES_MAIN, .at = number, .error = error_for(number) });
	struct control_reply reply = { 0 };
	for (int i = 0; i < 100 && reply.code == 0 && !reply.value[AHEAD_SWEPT]; i++)
		reply = image_ahead(&trace.vmm, i == 0 ? &image : NULL, 600);
	bool struck = trace_calm(&trace);
	assert_true(struck || reply.code == 0);
	if (reply.code == HUSK_GONE || !vmm_wait_printed(&trace.vmm, vmm_printed(&trace.vmm))) {
		int status = trace_wait_end(&trace);

		assert_true(WIFEXITED(status));
		(*ends)++;
	} else {
		take_whole(&trace.vmm, &image);
		trace_end(&trace);
	}
	image_free(&image);
	return struck;
}

static void every_call_ahead_fails(void **state)
{
	unsigned number = 0, ends = 0;

	(void)state;
	need_world();
	while (number < CALLS_MAX && fail_ahead(number, &ends))
		number++;
	print_message("%u calls ahead of a snapshot, each failed once: %u of them ended the machine\n", number, ends);
	assert_true(number > 20 && number < CALLS_MAX);
	/* Only where it cannot hear the engine any more: a receive and an answer of each request. */
	assert_true(ends * 10 <= number);
}

static void full_disk_ahead(void **state)
{
	char place[] = "/tmp/husk-test.XXXXXX";
	cleanup_free char *path = NULL;
	struct image image = image_new();
	struct vmm vmm;

	(void)state;
	need_world();
	assert_non_null(mkdtemp(place));
	path = str_format("%s/layer", place);
	assert_int_equal(unshare(CLONE_NEWNS), 0);
	assert_int_equal(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	assert_int_equal(mount("none", place, "tmpfs", 0, "size=2m"), 0);
	int small = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(small >= 0 && dup2(small, image.memory) == image.memory);
	close(small);
	vmm_start(&vmm);
	start(&vmm);
	struct control_reply reply = image_ahead(&vmm, &image, 100000);
	assert_int_not_equal(reply.code, 0);
	assert_non_null(strstr(reply.message, "cannot write guest memory"));
	goes_on(&vmm);
	/* A part of memory is in that layer now: nothing but a snapshot closes it. */
	struct image other = image_new();
	assert_int_equal(image_ahead(&vmm, &other, 1).code, HUSK_CONFLICT);
	image_free(&other);
	vmm_plain(&vmm, CONTROL_PAUSE);
	assert_int_not_equal(image_take(&vmm, &image).code, 0);
	vmm_plain(&vmm, CONTROL_RESUME);
	goes_on(&vmm);
	assert_int_equal(mount("none", place, "tmpfs", MS_REMOUNT, "size=64m"), 0);
	image_sweep(&vmm, NULL);
	take_whole(&vmm, &image);
	vmm_end(&vmm);
	image_free(&image);
	unlink(path);
	assert_int_equal(umount(place), 0);
	rmdir(place);
}

#define WRITER_BASE 0x2000000u
#define WRITER_PAGES 2048u

/* Adds one to a word of each page, page after page, and prints; without end. So at any moment the words fall by one at most
 * once: a page that is older or newer than the others is found. */
static void writer_init(struct guest *writer)
{
	static const uint8_t code[] = {
		0xbf, 0,    0,    0,    0x02,
		0xb9, 0,    0x08, 0,    0, /* mov edi,BASE; mov ecx,PAGES */
		0xff, 0x07, 0x81, 0xc7, 0,
		0x10, 0,    0,    0xff, 0xc9, /* 1: inc dword [rdi]; add edi,4096; dec ecx */
		0x75, 0xf4, 0xba, 0xf8, 0x03,
		0,    0,    0xb0, '.',  0xee, /* jnz 1b; mov edx,0x3f8; mov al,'.'; out dx,al */
		0xeb, 0xe0,                   /* from the start */
	};

	guest_init(writer);
	guest_bytes(writer, code, sizeof(code));
}

static void check_moment(int layer)
{
	uint32_t first = 0, last = 0, word;
	unsigned falls = 0;

	for (unsigned i = 0; i < WRITER_PAGES; i++) {
		assert_int_equal(pread(layer, &word, sizeof(word), WRITER_BASE + i * (off_t)PAGE_BYTES), sizeof(word));
		if (i == 0)
			first = word;
		else
			falls += word != last;
		last = word;
	}
	if (falls > 1 || last == 0 || first - last > 1)
		fail_msg("the layer is of no single moment: %u falls, from %u to %u", falls, first, last);
}

static void print_more(struct vmm *vmm, unsigned times)
{
	for (unsigned i = 0; i < times; i++)
		goes_on(vmm);
}

/* Of a guest that never stops writing, ahead and without, in a parent and in a child. */
static void writer_is_saved_whole(void **state)
{
	static struct guest writer;

	(void)state;
	need_world();
	writer_init(&writer);
	for (int round = 0; round < 6; round++) {
		struct image image = image_new(), next = image_new();
		struct vmm parent, child;

		vmm_start(&parent);
		vmm_equip(&parent, MEMORY, NULL, 0);
		vmm_boot(&parent, &writer, 0);
		print_more(&parent, 2);
		/* Half of a sweep, one, more than one. */
		world_done(image_ahead(&parent, &image, 700));
		for (int i = 0; i < round; i++)
			world_done(image_ahead(&parent, NULL, 700));
		vmm_plain(&parent, CONTROL_PAUSE);
		world_done(image_take(&parent, &image));
		vmm_plain(&parent, CONTROL_RESUME);
		check_moment(image.memory);
		print_more(&parent, 2);
		check_moment(image.memory); /* what the parent does now is its own */
		vmm_end(&parent);

		vmm_start(&child);
		vmm_equip(&child, MEMORY, NULL, 0);
		world_done(image_restore(&child, &image));
		vmm_plain(&child, CONTROL_RESUME);
		print_more(&child, 3);
		image_sweep(&child, &next);
		print_more(&child, 3);
		image_sweep(&child, NULL);
		vmm_plain(&child, CONTROL_PAUSE);
		world_done(image_take(&child, &next));
		vmm_plain(&child, CONTROL_RESUME);
		check_moment(next.memory);
		check_moment(image.memory);
		vmm_end(&child);
		image_free(&image);
		image_free(&next);
	}
}

/* A second fork, a pause and the end, each while the first fork is still at it. */
static void others_come_between(void **state)
{
	struct image first = image_new(), second = image_new();
	struct lineage lineage = { 0 };
	struct vmm vmm;

	(void)state;
	need_world();
	vmm_start(&vmm);
	start(&vmm);
	world_done(image_ahead(&vmm, &first, 300));
	assert_int_equal(image_ahead(&vmm, &second, 300).code, HUSK_CONFLICT);
	goes_on(&vmm);
	/* Paused in between: a step then does no harm. */
	vmm_plain(&vmm, CONTROL_PAUSE);
	world_done(image_ahead(&vmm, NULL, 300));
	off_t printed = vmm_printed(&vmm);
	usleep(20000);
	assert_int_equal(vmm_printed(&vmm), printed);
	vmm_plain(&vmm, CONTROL_RESUME);
	take_whole(&vmm, &first);
	lineage.layers[lineage.count++] = dup(first.memory);
	/* Asleep half-way: the image stands, the machine is gone. */
	world_done(image_ahead(&vmm, &second, 1));
	vmm_plain(&vmm, CONTROL_PAUSE);
	world_done(image_take(&vmm, &second));
	vmm_plain(&vmm, CONTROL_STOP);
	vmm_end(&vmm);
	assert_true(accepted(&lineage, &second));
	lineage_free(&lineage);
	image_free(&first);
	image_free(&second);
}

/* ---- each call of a restore ---- */

static void take_one(struct image *image)
{
	struct vmm vmm;

	*image = image_new();
	vmm_start(&vmm);
	start(&vmm);
	vmm_plain(&vmm, CONTROL_PAUSE);
	world_done(image_take(&vmm, image));
	vmm_end(&vmm);
}

static void every_call_of_a_restore_fails(void **state)
{
	struct image image;
	unsigned number = 0;
	bool more = true;

	(void)state;
	need_world();
	take_one(&image);
	for (; more && number < CALLS_MAX; number++) {
		struct trace trace;

		trace_start(&trace, NULL, NULL);
		vmm_equip(&trace.vmm, MEMORY, NULL, 0);
		world_done(vmm_give(&trace.vmm, CONTROL_MEMORY, 0, 0, dup(image.memory)));
		trace_plan(&trace, (struct trace_plan){ .action = TRACE_FAIL,
							.kind = RULES_MAIN,
							.at = number,
							.error = error_for(number) });
		struct control_reply reply = vmm_give(&trace.vmm, CONTROL_RESTORE, 0, 0, dup(image.state));
		more = trace_calm(&trace);
		if (reply.code == 0) {
			/* It may have been the call after the reply that failed. */
			reply = vmm_ask(&trace.vmm, CONTROL_RESUME, 0, 0, NULL, 0);
			assert_true(more || reply.code == 0);
			assert_true(more || vmm_wait_printed(&trace.vmm, vmm_printed(&trace.vmm)));
		}
		int status = reply.code == HUSK_GONE ? trace_wait_end(&trace) : trace_end(&trace);
		if (reply.code == HUSK_GONE && !WIFEXITED(status))
			fail_msg("call %u of a restore ended husk-vmm with status 0x%x", number, status);
	}
	print_message("%u calls of a restore, each failed once\n", number - 1);
	assert_true(number > 20 && number < CALLS_MAX);
	image_free(&image);
}

/* ---- kill -9 ---- */

static bool kill_in_snapshot(unsigned number, bool ahead)
{
	struct lineage none = { 0 };
	struct image image = image_new();
	struct trace trace;

	trace_start(&trace, NULL, NULL);
	start(&trace.vmm);
	if (ahead) /* a part of it */
		world_done(image_ahead(&trace.vmm, &image, 600));
	vmm_plain(&trace.vmm, CONTROL_PAUSE);
	trace_plan(&trace, (struct trace_plan){ .action = TRACE_KILL, .kind = RULES_MAIN, .at = number });
	struct control_reply reply = image_take(&trace.vmm, &image);
	bool struck = trace_calm(&trace);
	assert_true(struck || reply.code == 0);
	if (accepted(&none, &image))
		assert_true(layer_whole(image.memory));
	else
		assert_true(struck);
	trace_end(&trace);
	image_free(&image);
	return struck;
}

static void killed_in_a_snapshot(void **state)
{
	unsigned number = 0;

	(void)state;
	need_world();
	/* Every call counts where files are written, which is at the end: all of those, and some of the others. */
	while (number < CALLS_MAX && kill_in_snapshot(number, false))
		number += number < 20 ? 5 : 1;
	print_message("killed at %u places of a snapshot\n", number);
	assert_true(number > 20 && number < CALLS_MAX);
	for (number = 20; number < CALLS_MAX && kill_in_snapshot(number, true); number++)
		;
	print_message("and at %u, half of it done ahead\n", number);
	assert_true(number > 20 && number < CALLS_MAX);
}

/* Without a tracer, at moments that nobody chose: also in the middle of a call. */
static void killed_at_random(void **state)
{
	unsigned accepted_count = 0, seed = (unsigned)time(NULL);

	(void)state;
	need_world();
	print_message("seed %u\n", seed);
	srandom(seed);
	for (int i = 0; i < 20; i++) {
		struct lineage none = { 0 };
		struct image image = image_new();
		struct vmm vmm;

		vmm_start(&vmm);
		start(&vmm);
		if (i % 2)
			vmm_send(&vmm, CONTROL_AHEAD, 100000, 0, &image.memory, 1);
		vmm_send(&vmm, CONTROL_PAUSE, 0, 0, NULL, 0);
		const int fds[] = { image.state, image.memory, image.disk };
		vmm_send(&vmm, CONTROL_SNAPSHOT, 0, 0, fds, ARRAY_SIZE(fds));
		usleep((useconds_t)(random() % (i % 2 ? 20000 : 6000)));
		vmm_end(&vmm);
		if (accepted(&none, &image)) {
			assert_true(layer_whole(image.memory));
			accepted_count++;
		}
		image_free(&image);
	}
	print_message("%u of 20 were whole\n", accepted_count);
}

/* ---- a KVM that fails ---- */

static bool log_says(const struct vmm *vmm, const char *text)
{
	char log[4096] = { 0 };

	return pread(vmm->log, log, sizeof(log) - 1, 0) > 0 && strstr(log, text);
}

static void running_fails(void **state)
{
	static const struct {
		int error;
		unsigned times;
		bool fatal;
	} faults[] = {
		{ EINTR, 5, false },    { EAGAIN, 5, false }, { ENOMEM, 5, false },
		{ ENOMEM, 1000, true }, { EFAULT, 1, true },  { EINVAL, 1, true },
	};

	(void)state;
	need_world();
	for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
		struct trace trace;

		trace_start(&trace, NULL, NULL);
		start(&trace.vmm);
		trace_plan(&trace, (struct trace_plan){ .action = TRACE_FAIL,
							.kind = RULES_VCPU,
							.filter = true,
							.only = SYS_ioctl,
							.times = faults[i].times,
							.error = faults[i].error });
		if (faults[i].fatal) {
			struct pollfd end = { .fd = trace.vmm.pidfd, .events = POLLIN };

			assert_int_equal(poll(&end, 1, WORLD_PATIENCE_MS), 1);
			assert_true(log_says(&trace.vmm, "cannot run"));
			int status = trace_end(&trace);
			assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
		} else {
			/* Between the one byte and the other the guest is entered again. */
			goes_on(&trace.vmm);
			goes_on(&trace.vmm);
			assert_true(trace_calm(&trace));
			trace_end(&trace);
		}
	}
}

enum damage { DAMAGE_RIP, DAMAGE_CR0, DAMAGE_CR3, DAMAGE_CS, DAMAGE_EFER, DAMAGE_COUNT };

static void damage(struct buf *sections, enum damage what)
{
	size_t size = 0;
	struct kvm_regs *regs = (struct kvm_regs *)state_find(sections, SECTION_REGS, 0, &size);
	struct kvm_sregs *sregs = (struct kvm_sregs *)state_find(sections, SECTION_SREGS, 0, &size);

	assert_true(regs && sregs);
	if (what == DAMAGE_RIP)
		regs->rip = 0x8000000000000000;
	else if (what == DAMAGE_CR0)
		sregs->cr0 = 1ull << 31;
	else if (what == DAMAGE_CR3)
		sregs->cr3 = 0x7ffffffff000;
	else if (what == DAMAGE_CS)
		memset(&sregs->cs, 0xff, sizeof(sregs->cs));
	else
		sregs->efer = UINT64_MAX;
}

/* A state that passes its checksum, of a processor that cannot be. */
static void bad_registers(void **state)
{
	struct image image;

	(void)state;
	need_world();
	take_one(&image);
	for (int what = 0; what < DAMAGE_COUNT; what++) {
		cleanup_buf struct buf sections = { 0 };
		struct image bad = { .state = world_file(), .memory = image.memory };
		siginfo_t ended = { 0 };
		struct vmm vmm;

		assert_int_equal(state_read(image.state, &sections, NULL), 0);
		damage(&sections, (enum damage)what);
		assert_int_equal(state_write(bad.state, &sections, NULL), 0);
		vmm_start(&vmm);
		vmm_equip(&vmm, MEMORY, NULL, 0);
		struct control_reply reply = image_restore(&vmm, &bad);
		assert_true(reply.code == 0 || reply.message[0]);
		/* Whatever such a guest does, the machine ends with the reason or does as it is told. */
		if (reply.code == 0)
			reply = vmm_ask(&vmm, CONTROL_RESUME, 0, 0, NULL, 0);
		if (reply.code == 0)
			reply = vmm_ask(&vmm, CONTROL_PAUSE, 0, 0, NULL, 0);
		if (reply.code == HUSK_GONE)
			while (waitid(P_PIDFD, (id_t)vmm.pidfd, &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR)
				;
		assert_true(reply.code != HUSK_GONE || ended.si_code == CLD_EXITED);
		vmm_end(&vmm);
		close(bad.state);
	}
	image_free(&image);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_room_for_a_machine),
		cmocka_unit_test(full_disk),
		cmocka_unit_test(every_call_of_a_snapshot_fails),
		cmocka_unit_test(every_call_ahead_fails),
		cmocka_unit_test(full_disk_ahead),
		cmocka_unit_test(writer_is_saved_whole),
		cmocka_unit_test(others_come_between),
		cmocka_unit_test(every_call_of_a_restore_fails),
		cmocka_unit_test(killed_in_a_snapshot),
		cmocka_unit_test(killed_at_random),
		cmocka_unit_test(running_fails),
		cmocka_unit_test(bad_registers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
