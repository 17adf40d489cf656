/*
 * Control groups on whatever this host has: limits arrive, children are born inside and die with it, memory that counts
 * is told from page cache. Needs root; skips without.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "jail/cgroup.h"
#include "jail/pressure.h"

#define SCOPE "test-cgroup"
#define MIB (1024u * 1024u)

static void need_root(void)
{
	if (geteuid() != 0) {
		print_message("skipped: not root\n");
		skip();
	}
}

static struct cgroup *make(const char *id, const struct cgroup_limits *limits)
{
	struct cgroup *group = NULL;
	struct husk_error err = { 0 };

	if (cgroup_create(SCOPE, id, &group, &err) < 0 || cgroup_set_limits(group, limits, &err) < 0)
		fail_msg("%s", err.message);
	return group;
}

/* A child inside the group that does `work` and then says so. */
struct child {
	pid_t pid;
	int done;
};

static struct child start(struct cgroup *group, void (*work)(size_t), size_t amount)
{
	struct child child;
	int ends[2];
	char byte;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	child.pid = fork();
	if (child.pid == 0) {
		if (cgroup_enter(group) < 0)
			_exit(1);
		(void)!write(ends[1], "i", 1);
		work(amount);
		(void)!write(ends[1], "d", 1);
		for (;;)
			pause();
	}
	close(ends[1]);
	child.done = ends[0];
	assert_int_equal(read(child.done, &byte, 1), 1);
	return child;
}

static bool wait_done(struct child *child)
{
	char byte;
	bool done = read(child->done, &byte, 1) == 1;

	close(child->done);
	return done;
}

static void work_nothing(size_t amount)
{
	(void)amount;
}

/* As a sentry keeps a guest's memory: shared, in a memfd. In steps, so that it could be stopped on the way. */
static void work_memory(size_t amount)
{
	int fd = memfd_create("test", MFD_CLOEXEC);
	char *bytes;

	if (ftruncate(fd, (off_t)amount) < 0)
		_exit(1);
	bytes = mmap(NULL, amount, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	for (size_t at = 0; at < amount; at += MIB) {
		memset(bytes + at, 1, MIB);
		usleep(1000);
	}
}

static void work_file(size_t amount)
{
	char path[] = "/var/tmp/husk-cgroup-XXXXXX";
	static char block[MIB];
	int fd = mkostemp(path, O_CLOEXEC);

	unlink(path);
	for (size_t at = 0; at < amount; at += MIB)
		if (write(fd, block, MIB) != MIB)
			_exit(1);
}

/* Milliseconds of its own CPU time: on a busy host they take longer by the clock. */
static void work_spin(size_t amount)
{
	struct timespec used;

	do
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	while ((size_t)used.tv_sec * 1000 + (size_t)used.tv_nsec / 1000000 < amount);
}

static bool has(const char *controller)
{
	cleanup_free char *text = cgroup_describe();
	char *missing = strstr(text, "missing:");

	if (missing)
		*missing = '\0';
	return strstr(text, controller) != NULL;
}

static void test_life(void **state)
{
	struct cgroup_limits limits = { .memory_bytes = 64 * MIB, .cpu_milli = 1500, .pids = 10 };
	cleanup_free char *text = cgroup_describe();
	cleanup_strv char **names = NULL, **after = NULL;
	struct cgroup *group;
	struct child child;
	int status;

	(void)state;
	need_root();
	print_message("%s\n", text);
	group = make("life", &limits);
	/* Again, and other limits up and down: it is found, and no order of writes is refused. */
	cgroup_free(group);
	limits.memory_bytes = 512 * MIB;
	group = make("life", &limits);
	limits.memory_bytes = 128 * MIB;
	assert_int_equal(cgroup_set_limits(group, &limits, NULL), 0);
	child = start(group, work_nothing, 0);
	assert_true(wait_done(&child));
	names = cgroup_list(SCOPE);
	assert_int_equal(strv_length(names), 1);
	assert_string_equal(names[0], "life");
	cgroup_free(group);
	assert_int_equal(cgroup_destroy(SCOPE, "life", NULL), 0);
	assert_int_equal(waitpid(child.pid, &status, WNOHANG), child.pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	assert_int_equal(cgroup_destroy(SCOPE, "life", NULL), 0);
	after = cgroup_list(SCOPE);
	assert_int_equal(strv_length(after), 0);
}

static void test_names(void **state)
{
	struct cgroup *group;
	struct husk_error err = { 0 };

	(void)state;
	need_root();
	assert_int_equal(cgroup_create(SCOPE, "../up", &group, &err), -1);
	assert_int_equal(err.code, HUSK_INVALID);
	assert_int_equal(cgroup_create("", "x", &group, &err), -1);
	assert_int_equal(cgroup_destroy(SCOPE, "a/b", &err), -1);
}

static void test_use(void **state)
{
	struct cgroup_limits limits = { .memory_bytes = 512 * MIB };
	struct cgroup_use use;
	struct cgroup *group;
	struct child memory, file, spin;

	(void)state;
	need_root();
	group = make("use", &limits);
	memory = start(group, work_memory, 50 * MIB);
	file = start(group, work_file, 50 * MIB);
	spin = start(group, work_spin, 100);
	assert_true(wait_done(&memory) && wait_done(&file) && wait_done(&spin));
	assert_int_equal(cgroup_read(group, &use, NULL), 0);
	if (has("memory"))
		assert_in_range(use.memory_bytes, 50 * MIB, 60 * MIB);
	assert_in_range(use.cpu_us, 80000, 60000000); /* the rest is what 100 MiB take to fill */
	assert_int_equal(use.oom_kills, 0);
	cgroup_free(group);
	assert_int_equal(cgroup_destroy(SCOPE, "use", NULL), 0);
}

/* 40 MiB and the engine's 32: a file of 100 MiB is no reason, memory of 100 MiB is, and is told in time. */
static void test_pressure(void **state)
{
	struct cgroup_limits limits = { .memory_bytes = 40 * MIB };
	struct pollfd wait = { .events = POLLIN };
	struct child file, memory;
	struct cgroup *group;
	struct cgroup_use use;

	(void)state;
	need_root();
	if (!has("memory"))
		skip();
	group = make("pressure", &limits);
	wait.fd = cgroup_pressure_fd(group);
	assert_true(wait.fd >= 0);
	file = start(group, work_file, 100 * MIB);
	assert_true(wait_done(&file));
	assert_int_equal(poll(&wait, 1, 1500), 0);
	memory = start(group, work_memory, 100 * MIB);
	assert_int_equal(poll(&wait, 1, 5000), 1);
	assert_int_equal(cgroup_read(group, &use, NULL), 0);
	print_message("told at %u MiB of 72\n", (unsigned)(use.memory_bytes / MIB));
	assert_true(wait_done(&memory));
	cgroup_pressure_clear(group);
	assert_int_equal(poll(&wait, 1, 2000), 1);
	kill(memory.pid, SIGKILL);
	waitpid(memory.pid, NULL, 0);
	cgroup_pressure_clear(group);
	assert_int_equal(poll(&wait, 1, 300), 0);
	cgroup_free(group);
	assert_int_equal(cgroup_destroy(SCOPE, "pressure", NULL), 0);
}

static void test_hard_limit(void **state)
{
	struct cgroup_limits limits = { .memory_bytes = 8 * MIB };
	struct cgroup_use use;
	struct cgroup *group;
	struct child hog;

	(void)state;
	need_root();
	if (!has("memory"))
		skip();
	group = make("hog", &limits);
	hog = start(group, work_memory, 700 * MIB);
	assert_false(wait_done(&hog));
	assert_int_equal(waitpid(hog.pid, NULL, 0), hog.pid);
	assert_int_equal(cgroup_read(group, &use, NULL), 0);
	assert_true(use.oom_kills >= 1); /* kernels count the one more than once */
	cgroup_free(group);
	assert_int_equal(cgroup_destroy(SCOPE, "hog", NULL), 0);
}

/* The text of both kinds of memory.stat, whatever the host has. */
static void test_stat_text(void **state)
{
	(void)state;
	assert_int_equal(pressure_in_use("anon 10\nfile 99\nkernel 5\nshmem 7\nanon_thp 1000\n", true), 17);
	assert_int_equal(pressure_in_use("cache 1\nrss 2\nshmem 3\ntotal_cache 4\ntotal_rss 5\ntotal_rss_huge 50\n"
					 "total_shmem 6\n",
					 false),
			 11);
	assert_int_equal(pressure_keyed("low 0\noom 1\noom_kill 3\n", "oom_kill"), 3);
	assert_int_equal(pressure_keyed("", "oom_kill"), 0);
}

/* A test that failed leaves its groups, and what runs in them, to nobody. */
static int end_all(void **state)
{
	cleanup_strv char **names = cgroup_list(SCOPE);

	(void)state;
	for (size_t i = 0; i < strv_length(names); i++)
		cgroup_destroy(SCOPE, names[i], NULL);
	while (waitpid(-1, NULL, 0) > 0)
		;
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_life, end_all),       cmocka_unit_test_teardown(test_names, end_all),
		cmocka_unit_test_teardown(test_use, end_all),        cmocka_unit_test_teardown(test_pressure, end_all),
		cmocka_unit_test_teardown(test_hard_limit, end_all), cmocka_unit_test_teardown(test_stat_text, end_all),
	};

	end_all(NULL); /* of an earlier run */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
