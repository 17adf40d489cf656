/*
 * Snapshots of a virtual machine at random moments of its boot: each goes on in another machine until its agent answers, and so
 * does the machine it was taken of. A machine that started anew would end instead (its monitor loads no kernel twice), so
 * an answer means that it went on. Needs root and KVM that runs a stock kernel; skips with the reason elsewhere.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "link/link.h"
#include "scratch.h"

#define DISK_SIZE (64u << 20)
#define UID_BASE 0x7e100000u
#define MOMENTS 4
#define PATIENCE_MS 180000

static int64_t boot_ms; /* how long a whole boot takes here */

struct subject {
	struct engine_machine *machine;
	struct link *link;
	char directory[PATH_MAX];
};

static void succeed(int result, const struct husk_error *err)
{
	if (result < 0)
		fail_msg("%s", err->message);
}

static void prepare(struct subject *subject, const char *name)
{
	cleanup_free char *rootfs = strdup(at("root.img"));
	struct engine_spec spec = { .id = name,
				    .directory = subject->directory,
				    .runtime = scratch,
				    .rootfs = rootfs,
				    .agent = "/.husk/agent",
				    .disk_bytes = DISK_SIZE,
				    .uid_base = UID_BASE };
	struct husk_error err = { 0 };

	snprintf(subject->directory, sizeof(subject->directory), "%s", at(name));
	succeed(dir_make(subject->directory, 0711, &err), &err);
	succeed(engine_microvm.prepare(&spec, &subject->machine, &err), &err);
}

static void open_link(struct subject *subject, bool boots)
{
	struct husk_error err = { 0 };
	int to_agent, from_agent;

	engine_microvm.link(subject->machine, &to_agent, &from_agent);
	succeed(link_start(to_agent, from_agent, boots, &subject->link, &err), &err);
}

/* What the guest said last tells more than that it ended. */
static void succeed_in(const struct subject *subject, int result, const struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/console.log", subject->directory);
	cleanup_free char *said = result < 0 && path ? file_read(path, 1u << 20, NULL, NULL) : NULL;

	if (said)
		fprintf(stderr, "%s\n", said); /* whole: cmocka would cut it */
	succeed(result, err);
}

static void assert_answers(struct subject *subject)
{
	struct husk_error err = { 0 };

	succeed_in(subject, link_call(subject->link, METHOD_STATS, NULL, NULL, PATIENCE_MS, &err), &err);
}

static void end(struct subject *subject)
{
	engine_microvm.stop(subject->machine);
	link_free(subject->link);
	engine_microvm.free(subject->machine);
	assert_int_equal(dir_remove(subject->directory, NULL), 0);
}

static void boot(struct subject *subject)
{
	struct husk_error err = { 0 };

	prepare(subject, "parent");
	succeed(engine_microvm.boot(subject->machine, NULL, &err), &err);
	open_link(subject, true);
}

static void measure_a_boot(void **state)
{
	int64_t begin = time_monotonic_ms();
	struct husk_error err = { 0 };
	struct subject subject;

	(void)state;
	boot(&subject);
	succeed_in(&subject, link_wait_hello(subject.link, PATIENCE_MS, &err), &err);
	boot_ms = time_monotonic_ms() - begin;
	assert_answers(&subject);
	end(&subject);
}

static void goes_on_from_any_moment(void **state)
{
	struct husk_error err = { 0 };
	struct subject parent, child;

	(void)state;
	for (int i = 0; i < MOMENTS; i++) {
		uint32_t chance;

		assert_int_equal(random_bytes(&chance, sizeof(chance)), 0);
		/* Each in a part of its own, so that none is left out. */
		int64_t moment = boot_ms * i / MOMENTS + boot_ms / MOMENTS * (chance % 1000) / 1000;
		boot(&parent);
		usleep((useconds_t)moment * 1000);
		succeed(dir_make(at("image"), 0700, &err), &err);
		succeed(engine_microvm.checkpoint(parent.machine, at("image"), &err), &err);
		prepare(&child, "child");
		succeed(engine_microvm.restore(child.machine, at("image"), &err), &err);
		open_link(&child, false);
		assert_answers(&child);
		assert_answers(&parent);
		printf("# went on from %lld ms of about %lld\n", (long long)moment, (long long)boot_ms);
		end(&child);
		end(&parent);
		assert_int_equal(dir_remove(at("image"), NULL), 0);
	}
}

static void make_rootfs(void)
{
	static const char *const directories[] = { "root/proc", "root/sys",        "root/dev",
						   "root/tmp",  "root/.husk/disk", "root/.husk/root" };
	struct husk_error err = { 0 };

	for (size_t i = 0; i < ARRAY_SIZE(directories); i++)
		succeed(dir_make(at(directories[i]), 0755, &err), &err);
	put(at("root/.husk/environment"), "");
	const char *const argv[] = { "mkfs.erofs", "-T0", at("root.img"), at("root"), NULL };
	const struct command command = { COMMAND_INIT, .argv = argv, .timeout_ms = 60000 };
	succeed(command_run(&command, &err), &err);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(measure_a_boot),
					    cmocka_unit_test(goes_on_from_any_moment) };
	struct husk_error why = { 0 };
	int result = 1;

	cmocka_set_message_output(CM_OUTPUT_TAP);
	if (make_scratch(NULL) < 0)
		return 1;
	if (engine_microvm.probe(scratch, &why) < 0) {
		printf("skip moments: %s\n", why.message);
		result = 77;
	} else {
		make_rootfs();
		result = cmocka_run_group_tests(tests, NULL, NULL);
	}
	remove_scratch(NULL);
	return result;
}
