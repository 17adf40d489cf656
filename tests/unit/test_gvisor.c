/*
 * The gVisor engine against a real runsc: every op through the ops table, with a tiny guest. Needs root, runsc,
 * mkfs.erofs and a C compiler; skips with the reason where one is missing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "engine/engine.h"
#include "engine/gvisor/gvisor.h"
#include "jail/cgroup.h"

#define DISK_SIZE (64u << 20)
#define UID_BASE 0x7e000000u

struct world {
	char *base, *runtime, *rootfs;
	const char *missing; /* why the tests cannot run */
	unsigned machines;
};

static char *in_base(const struct world *world, const char *name)
{
	char *path = str_format("%s/%s", world->base, name);

	assert_non_null(path);
	return path;
}

static void run(const char *const *argv)
{
	struct command command = { COMMAND_INIT, .argv = argv, .timeout_ms = 60000 };
	struct husk_error err = { 0 };

	if (command_run(&command, &err) < 0)
		fail_msg("%s", err.message);
}

static void make_dir(const char *path)
{
	struct husk_error err = { 0 };

	if (dir_make(path, 0755, &err) < 0)
		fail_msg("%s", err.message);
}

/* ---- the world ---- */

static void build_rootfs(struct world *world)
{
	static const char *const directories[] = { "root/proc", "root/sys",        "root/dev",
						   "root/tmp",  "root/.husk/disk", "root/.husk/root" };
	cleanup_free char *program = in_base(world, "root/.husk/agent");
	cleanup_free char *tree = in_base(world, "root");
	/* Tests run from the top of the source; commands do not. */
	cleanup_free char *guest = realpath("tests/unit/gvisor_guest.c", NULL);

	if (!guest)
		fail_msg("run this from the top of the source: tests/unit/gvisor_guest.c is needed");
	for (size_t i = 0; i < ARRAY_SIZE(directories); i++) {
		cleanup_free char *path = in_base(world, directories[i]);

		make_dir(path);
	}
	run((const char *const[]){ "cc", "-static", "-O1", "-D_GNU_SOURCE", guest, "-o", program, NULL });
	world->rootfs = in_base(world, "root.img");
	run((const char *const[]){ "mkfs.erofs", "-T0", "-Enoinline_data", world->rootfs, tree, NULL });
}

static bool installed(const char *program)
{
	const char *const argv[] = { "sh", "-c", "command -v \"$0\"", program, NULL };
	struct command command = { COMMAND_INIT, .argv = argv };

	return command_run(&command, NULL) == 0;
}

static int world_open(void **state)
{
	static struct world world;
	const char *place = getenv("TMPDIR"); /* on a btrfs with quotas the disks of machines are clones */
	cleanup_free char *base = str_format("%s/husk-gvisor-XXXXXX", place ? place : "/tmp");
	struct gvisor_program program;

	*state = &world;
	if (geteuid() != 0)
		world.missing = "not root";
	else if (gvisor_program_find(NULL, NULL, &program, NULL) < 0 || !installed("mkfs.erofs") || !installed("cc"))
		world.missing = "runsc, mkfs.erofs or cc is not installed";
	if (world.missing)
		return 0;
	if (!mkdtemp(base) || !(world.base = strdup(base)))
		return -1;
	world.runtime = in_base(&world, "run");
	make_dir(world.runtime);
	build_rootfs(&world);
	return 0;
}

static int world_close(void **state)
{
	struct world *world = *state;
	struct husk_error err = { 0 };

	if (!world->base)
		return 0;
	if (dir_remove(world->base, &err) < 0)
		print_error("%s\n", err.message);
	free(world->base);
	free(world->runtime);
	free(world->rootfs);
	return err.code ? -1 : 0;
}

static struct world *need(void **state)
{
	struct world *world = *state;

	if (world->missing) {
		print_message("skipped: %s\n", world->missing);
		skip();
	}
	return world;
}

/* ---- a machine under test ---- */

struct subject {
	struct engine_machine *machine;
	char id[32];
	char *directory;
};

static void subject_prepare(struct world *world, struct subject *subject, uint64_t disk, struct cgroup *cgroup)
{
	struct engine_spec spec = { .runtime = world->runtime,
				    .rootfs = world->rootfs,
				    .agent = "/.husk/agent",
				    .disk_bytes = disk,
				    .uid_base = UID_BASE,
				    .cgroup = cgroup };
	struct husk_error err = { 0 };

	snprintf(subject->id, sizeof(subject->id), "m%u", ++world->machines);
	subject->directory = in_base(world, subject->id);
	make_dir(subject->directory);
	spec.id = subject->id;
	spec.directory = subject->directory;
	if (engine_gvisor.prepare(&spec, &subject->machine, &err) < 0)
		fail_msg("%s", err.message);
}

static void subject_boot(struct world *world, struct subject *subject)
{
	struct husk_error err = { 0 };

	subject_prepare(world, subject, DISK_SIZE, NULL);
	if (engine_gvisor.boot(subject->machine, NULL, &err) < 0)
		fail_msg("%s", err.message);
}

static void subject_restore(struct world *world, struct subject *subject, const char *image)
{
	struct husk_error err = { 0 };

	subject_prepare(world, subject, DISK_SIZE, NULL);
	if (engine_gvisor.restore(subject->machine, image, &err) < 0)
		fail_msg("%s", err.message);
}

static void subject_end(struct subject *subject)
{
	struct husk_error err = { 0 };

	engine_gvisor.stop(subject->machine);
	engine_gvisor.stop(subject->machine);
	engine_gvisor.free(subject->machine);
	if (dir_remove(subject->directory, &err) < 0)
		fail_msg("%s", err.message);
	free(subject->directory);
}

/* True when a line came within the time. */
static bool receive(struct subject *subject, char *line, size_t size, int timeout_ms)
{
	size_t length = 0;
	int to_agent, from_agent;

	engine_gvisor.link(subject->machine, &to_agent, &from_agent);
	while (length + 1 < size) {
		struct pollfd wait = { .fd = from_agent, .events = POLLIN };

		if (poll(&wait, 1, timeout_ms) <= 0 || read(from_agent, line + length, 1) != 1)
			return false;
		if (line[length] == '\n')
			break;
		length++;
	}
	line[length] = '\0';
	return true;
}

static void send_line(struct subject *subject, const char *text)
{
	int to_agent, from_agent;

	engine_gvisor.link(subject->machine, &to_agent, &from_agent);
	assert_int_equal(write_full(to_agent, text, strlen(text)), 0);
	assert_int_equal(write_full(to_agent, "\n", 1), 0);
}

static void expect_answer(struct subject *subject, const char *text, const char *answer)
{
	char line[256];

	send_line(subject, text);
	assert_true(receive(subject, line, sizeof(line), 20000));
	assert_string_equal(line, answer);
}

static char *save(struct world *world, struct subject *subject, const char *name)
{
	char *image = in_base(world, name);
	struct husk_error err = { 0 };

	make_dir(image);
	if (engine_gvisor.checkpoint(subject->machine, image, &err) < 0)
		fail_msg("%s", err.message);
	return image;
}

static size_t count_entries(const char *path)
{
	cleanup_dir DIR *dir = opendir(path);
	size_t count = 0;

	assert_non_null(dir);
	while (readdir(dir))
		count++;
	return count;
}

/* ---- tests ---- */

static void test_probe(void **state)
{
	struct world *world = need(state);
	struct husk_error err = { 0 };
	const struct engine *chosen;

	if (engine_gvisor.probe(world->runtime, &err) < 0)
		fail_msg("%s", err.message);
	chosen = engine_choose(world->runtime, &err); /* a stronger one, where that works */
	assert_non_null(chosen);
	assert_ptr_equal(engine_choose(world->runtime, &err), chosen);
	assert_ptr_equal(engine_find("gvisor"), &engine_gvisor);
	assert_null(engine_find("gvisr"));
}

static void test_boot_and_disk_limit(void **state)
{
	struct world *world = need(state);
	struct subject one = { 0 };
	char line[128];
	unsigned fitted;

	subject_boot(world, &one);
	expect_answer(&one, "hello", "1 hello");
	expect_answer(&one, "host", "2 none");
	send_line(&one, "file 100");
	assert_true(receive(&one, line, sizeof(line), 20000));
	assert_int_equal(sscanf(line, "3 %u No space left on device", &fitted), 1);
	assert_in_range(fitted, 60, 64);
	subject_end(&one);
}

static void test_restore_twice(void **state)
{
	struct world *world = need(state);
	struct subject parent = { 0 }, first = { 0 }, second = { 0 }, grandchild = { 0 };
	cleanup_free char *image = NULL, *next = NULL;

	subject_boot(world, &parent);
	expect_answer(&parent, "file 5", "1 5 ok");
	expect_answer(&parent, "memory 20", "2 ok");
	image = save(world, &parent, "twice");
	expect_answer(&parent, "on", "3 on");
	subject_restore(world, &first, image);
	subject_restore(world, &second, image);
	expect_answer(&first, "file 3", "3 3 ok");
	expect_answer(&first, "size", "4 8388608");
	expect_answer(&second, "size", "3 5242880");
	expect_answer(&parent, "size", "4 5242880");
	next = save(world, &first, "next");
	subject_end(&first);
	subject_restore(world, &grandchild, next);
	expect_answer(&grandchild, "size", "5 8388608");
	subject_end(&grandchild);
	subject_end(&parent);
	expect_answer(&second, "alone", "4 alone");
	subject_end(&second);
}

static void test_pause(void **state)
{
	struct world *world = need(state);
	struct subject one = { 0 };
	char line[64];

	subject_boot(world, &one);
	expect_answer(&one, "a", "1 a");
	assert_int_equal(engine_gvisor.pause(one.machine, NULL), 0);
	send_line(&one, "b");
	assert_false(receive(&one, line, sizeof(line), 300));
	assert_int_equal(engine_gvisor.resume(one.machine, NULL), 0);
	assert_true(receive(&one, line, sizeof(line), 20000));
	assert_string_equal(line, "2 b");
	subject_end(&one);
}

static void expect_refusal(struct world *world, const char *image, uint64_t disk, const char *words)
{
	struct subject other = { 0 };
	struct husk_error err = { 0 };

	subject_prepare(world, &other, disk, NULL);
	assert_int_equal(engine_gvisor.restore(other.machine, image, &err), -1);
	if (!strstr(err.message, words))
		fail_msg("'%s' does not say '%s'", err.message, words);
	subject_end(&other);
}

/* The image directory is too small: at first for the pages, then for the state as well. */
static void test_full_disk(void **state)
{
	static const char *const sizes[] = { "size=4m", "size=64k" };
	struct world *world = need(state);
	cleanup_free char *image = in_base(world, "tiny");
	cleanup_free char *good = NULL;
	struct subject one = { 0 };

	subject_boot(world, &one);
	expect_answer(&one, "memory 30", "1 ok");
	make_dir(image);
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		struct husk_error err = { 0 };

		assert_int_equal(mount("tmpfs", image, "tmpfs", 0, sizes[i]), 0);
		assert_int_equal(engine_gvisor.checkpoint(one.machine, image, &err), -1);
		assert_int_equal(err.code, HUSK_LIMIT);
		assert_non_null(strstr(err.message, "no space left"));
		assert_int_equal(count_entries(image), 2);
		expect_refusal(world, image, DISK_SIZE, "no complete image");
		/* runsc lets go of the files it could not write only when its memory is next swept. */
		assert_int_equal(umount2(image, MNT_DETACH), 0);
		expect_answer(&one, "on", i == 0 ? "2 on" : "3 on");
	}
	good = save(world, &one, "after-full");
	subject_end(&one);
	subject_restore(world, &one, good);
	expect_answer(&one, "on", "4 on");
	subject_end(&one);
}

static void truncate_by_one(const char *image, const char *name, bool undo)
{
	cleanup_free char *path = str_format("%s/%s", image, name);
	struct stat found;

	assert_int_equal(stat(path, &found), 0);
	assert_int_equal(truncate(path, found.st_size + (undo ? 1 : -1)), 0);
}

static void flip_byte(const char *image, const char *name)
{
	cleanup_free char *path = str_format("%s/%s", image, name);
	cleanup_close int fd = open(path, O_RDWR | O_CLOEXEC);
	char byte;

	assert_int_equal(pread(fd, &byte, 1, 1000), 1);
	byte = (char)~byte;
	assert_int_equal(pwrite(fd, &byte, 1, 1000), 1);
}

static void test_wrong_images(void **state)
{
	struct world *world = need(state);
	cleanup_free char *image = NULL, *marker = NULL, *moved = NULL;
	struct subject one = { 0 };
	struct husk_error err = { 0 };

	subject_boot(world, &one);
	expect_answer(&one, "x", "1 x");
	image = save(world, &one, "wrong");
	assert_int_equal(engine_gvisor.checkpoint(one.machine, image, &err), -1);
	assert_int_equal(err.code, HUSK_CONFLICT);
	subject_end(&one);
	expect_refusal(world, image, DISK_SIZE * 2, "has a disk of");
	truncate_by_one(image, "pages.img", false);
	expect_refusal(world, image, DISK_SIZE, "pages.img has another size");
	truncate_by_one(image, "pages.img", true);
	flip_byte(image, "checkpoint.img");
	expect_refusal(world, image, DISK_SIZE, "checkpoint.img was changed");
	marker = str_format("%s/ok", image);
	moved = str_format("%s/ko", image);
	assert_int_equal(rename(marker, moved), 0);
	expect_refusal(world, image, DISK_SIZE, "no complete image");
	assert_int_equal(rename(moved, marker), 0);
	assert_int_equal(engine_image_sync(image, &err), 0);
}

static void test_end_by_itself(void **state)
{
	struct world *world = need(state);
	struct subject one = { 0 };
	struct pollfd ended = { .events = POLLIN };
	struct husk_error err = { 0 };

	subject_boot(world, &one);
	ended.fd = engine_gvisor.end_fd(one.machine);
	expect_answer(&one, "x", "1 x");
	assert_int_equal(poll(&ended, 1, 0), 0);
	send_line(&one, "exit");
	assert_int_equal(poll(&ended, 1, 10000), 1);
	assert_int_equal(engine_gvisor.pause(one.machine, &err), -1);
	assert_int_equal(err.code, HUSK_GONE);
	subject_end(&one);
}

static void test_console_is_bounded(void **state)
{
	struct world *world = need(state);
	cleanup_free char *console = NULL;
	struct subject one = { 0 };
	struct stat found;

	subject_boot(world, &one);
	expect_answer(&one, "noise", "1 ok");
	console = str_format("%s/console.log", one.directory);
	assert_int_equal(stat(console, &found), 0);
	assert_true(found.st_size >= 64 << 10 && found.st_size <= 512 << 10);
	/* How it ended comes last, whatever was printed before. */
	struct pollfd ended = { .fd = engine_gvisor.end_fd(one.machine), .events = POLLIN };
	send_line(&one, "exit");
	assert_int_equal(poll(&ended, 1, 10000), 1);
	cleanup_free char *text = file_read(console, 512 << 10, NULL, NULL);
	assert_true(text && str_ends(text, "ended with exit status 3\n"));
	subject_end(&one);
}

/* Processes of the host whose command line names the runtime directory of this world. */
static size_t count_processes(const struct world *world)
{
	cleanup_dir DIR *dir = opendir("/proc");
	struct dirent *entry;
	size_t count = 0;

	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		cleanup_free char *path = str_format("/proc/%s/cmdline", entry->d_name);
		cleanup_free char *text = NULL;
		size_t size;

		if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
			continue;
		text = file_read(path, 1u << 20, &size, NULL);
		count += text && memmem(text, size, world->runtime, strlen(world->runtime)) != NULL;
	}
	return count;
}

static void test_killed_supervisor(void **state)
{
	struct world *world = need(state);
	struct subject one = { 0 };
	int ready[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		subject_boot(world, &one);
		_exit(write(ready[1], "x", 1) != 1 || pause());
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	assert_true(count_processes(world) > 0);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	for (int i = 0; i < 100 && count_processes(world) > 0; i++)
		usleep(20000);
	assert_int_equal(count_processes(world), 0);
	snprintf(one.id, sizeof(one.id), "m%u", ++world->machines);
	engine_sweep(world->runtime, one.id);
}

static void test_cgroup_holds_everything(void **state)
{
	struct world *world = need(state);
	struct cgroup_limits limits = { .memory_bytes = 256u << 20, .cpu_milli = 2000, .pids = 100 };
	struct cgroup *group = NULL;
	struct subject one = { 0 };
	struct cgroup_use before, after;
	struct husk_error err = { 0 };

	if (cgroup_create("test-gvisor", "one", &group, &err) < 0 || cgroup_set_limits(group, &limits, &err) < 0)
		fail_msg("%s", err.message);
	subject_prepare(world, &one, DISK_SIZE, group);
	assert_int_equal(engine_gvisor.boot(one.machine, NULL, NULL), 0);
	expect_answer(&one, "x", "1 x");
	assert_int_equal(cgroup_read(group, &before, NULL), 0);
	expect_answer(&one, "memory 100", "2 ok");
	assert_int_equal(cgroup_read(group, &after, NULL), 0);
	print_message("memory of an idle guest: %llu KiB, with 100 MiB: %llu KiB\n",
		      (unsigned long long)before.memory_bytes >> 10, (unsigned long long)after.memory_bytes >> 10);
	if (cgroup_pressure_fd(group) >= 0)
		assert_in_range(after.memory_bytes - before.memory_bytes, 95u << 20, 120u << 20);
	subject_end(&one);
	cgroup_free(group);
	assert_int_equal(cgroup_destroy("test-gvisor", "one", NULL), 0);
}

/* Last: everything above must have left nothing. */
static void test_no_leaks(void **state)
{
	struct world *world = need(state);
	cleanup_free char *runsc = str_format("%s/runsc", world->runtime);
	size_t before = count_entries("/proc/self/fd");
	struct subject one = { 0 };

	subject_boot(world, &one);
	expect_answer(&one, "x", "1 x");
	subject_end(&one);
	assert_int_equal(count_entries("/proc/self/fd"), before);
	assert_int_equal(count_entries(runsc), 2);
	assert_int_equal(count_processes(world), 0);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_probe),
		cmocka_unit_test(test_boot_and_disk_limit),
		cmocka_unit_test(test_restore_twice),
		cmocka_unit_test(test_pause),
		cmocka_unit_test(test_full_disk),
		cmocka_unit_test(test_wrong_images),
		cmocka_unit_test(test_end_by_itself),
		cmocka_unit_test(test_console_is_bounded),
		cmocka_unit_test(test_killed_supervisor),
		cmocka_unit_test(test_cgroup_holds_everything),
		cmocka_unit_test(test_no_leaks),
	};

	return cmocka_run_group_tests(tests, world_open, world_close);
}
