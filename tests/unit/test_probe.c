/*
 * The KVM probe: its answer is the same every time, names what is missing and the way out, and leaves nothing behind,
 * with /dev/kvm there, gone or closed. Which answer is right depends on the host; in the lab it must be yes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "engine/microvm/microvm.h"
#include "engine/microvm/probe.h"

static const char nowhere[] = "/nonexistent"; /* so that nothing is remembered */

static size_t open_files(void)
{
	cleanup_dir DIR *dir = opendir("/proc/self/fd");
	size_t count = 0;

	assert_non_null(dir);
	while (readdir(dir))
		count++;
	return count;
}

static void test_answer(void **state)
{
	struct husk_error first = { 0 }, second = { 0 };
	size_t before = open_files();
	int works = microvm_probe(nowhere, &first);

	(void)state;
	print_message("# %s\n", works == 0 ? "works" : first.message);
	assert_int_equal(microvm_probe(nowhere, &second), works);
	assert_int_equal(second.code, works == 0 ? HUSK_OK : HUSK_UNAVAILABLE);
	assert_int_equal(open_files(), before);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
	if (getenv("LAB"))
		assert_int_equal(works, 0);
	if (works < 0) {
		assert_non_null(strstr(first.message, "/dev/kvm"));
		assert_true(strstr(first.message, "use a host with") || strstr(first.message, "modprobe") ||
			    strstr(first.message, "run as root"));
	}
}

/* The second answer comes from memory, and is the same; for another device it does not count. */
static void test_memory(void **state)
{
	struct husk_error first = { 0 }, second = { 0 };
	char directory[] = "/var/tmp/husk-probe.XXXXXX";
	cleanup_free char *path = NULL, *kept = NULL, *other = NULL;
	size_t size;
	int works;

	(void)state;
	if (access("/dev/kvm", R_OK | W_OK) < 0)
		skip();
	assert_non_null(mkdtemp(directory));
	path = str_format("%s/probe-microvm", directory);
	works = microvm_probe(directory, &first);
	kept = file_read(path, 4096, &size, NULL);
	if (kept) { /* else it was too busy to be sure */
		assert_int_equal(microvm_probe(directory, &second), works);
		assert_string_equal(first.message, second.message);
		other = str_format("x%s", kept);
		assert_int_equal(file_write_atomic(path, other, size + 1, 0600, NULL), 0);
		assert_int_equal(microvm_probe(directory, NULL), works);
	}
	assert_int_equal(dir_remove(directory, NULL), 0);
}

/* In a child that `hide`s the device in its own way first: what the probe says. */
static void ask_without(int (*hide)(void), const char *wanted)
{
	int ends[2], status;
	struct husk_error err = { 0 };
	pid_t pid;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		if (hide() < 0)
			_exit(77);
		_exit(microvm_probe(nowhere, &err) == 0 || write(ends[1], err.message, strlen(err.message)) < 0);
	}
	close(ends[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (status == 77 << 8)
		skip();
	assert_int_equal(status, 0);
	assert_true(read(ends[0], err.message, sizeof(err.message) - 1) > 0);
	close(ends[0]);
	if (!strstr(err.message, wanted))
		fail_msg("'%s' does not say '%s'", err.message, wanted);
}

static int hide_gone(void)
{
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return -1;
	return mount("none", "/dev", "tmpfs", 0, NULL);
}

static void test_gone(void **state)
{
	(void)state;
	ask_without(hide_gone, "no /dev/kvm: modprobe kvm_intel or kvm_amd");
}

static int hide_closed(void)
{
	struct stat st;

	if (stat("/dev/kvm", &st) < 0 || st.st_mode & 06)
		return -1;
	return setgid(65534) < 0 || setuid(65534) < 0 ? -1 : 0;
}

static void test_closed(void **state)
{
	(void)state;
	ask_without(hide_closed, "/dev/kvm is closed to us");
}

static int hide_other(void)
{
	if (hide_gone() < 0 || mknod("/dev/kvm", S_IFCHR | 0600, 0x103 /* /dev/null */) < 0)
		return -1;
	return 0;
}

/* Something else under its name. */
static void test_other(void **state)
{
	(void)state;
	ask_without(hide_other, "/dev/kvm exists, but Husk cannot agree on version 12");
}

static void test_steps(void **state)
{
	size_t count = 0;

	(void)state;
	for (; probe_steps[count].name; count++) {
		assert_true(probe_steps[count].code >= probe_guest_begin);
		assert_true(probe_steps[count].code < probe_guest_end);
	}
	assert_true(count > 10);
	assert_true(probe_guest_end - probe_guest_begin <= PROBE_XSAVE - PROBE_CODE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answer), cmocka_unit_test(test_memory), cmocka_unit_test(test_gone),
		cmocka_unit_test(test_closed), cmocka_unit_test(test_other),  cmocka_unit_test(test_steps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
