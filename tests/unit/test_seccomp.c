/*
 * Seccomp filters from tables: what is listed passes, everything else kills the process, and each thread has its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "jail/seccomp.h"

static const struct jail_rule device_rules[] = {
	JAIL_ALLOW(write), JAIL_IOCTL(FIONREAD), JAIL_SOCKET_UNIX, JAIL_ALLOW(close), JAIL_END,
};
static const struct jail_rule more_rules[] = { JAIL_IOCTL(FIONBIO), JAIL_ALLOW(write), JAIL_ALLOW(getuid), JAIL_END };
static const struct jail_rule *const lists[] = { jail_libc_rules, device_rules, more_rules, NULL };
static const struct jail_filter filter = { .name = "device", .lists = lists };

/* Each makes one call; non-zero when the kernel let it through but it failed. */
static long call_write(void)
{
	return write(2, "", 0);
}
static long call_getuid(void)
{
	return syscall(SYS_getuid) < 0;
}
static long call_ioctl_first(void)
{
	int ends[2] = { 0 }, count;

	return ioctl(ends[0], FIONREAD, &count) < 0 && errno == EBADF;
}
static long call_ioctl_second(void)
{
	int off = 0;

	return ioctl(-1, FIONBIO, &off) == 0;
}
static long call_socket_unix(void)
{
	return close(socket(AF_UNIX, SOCK_STREAM, 0));
}
static long call_mmap(void)
{
	return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
}
static long call_malloc(void)
{
	void *large = malloc(64u << 20);

	if (large)
		memset(large, 1, 4096);
	free(large);
	return !large;
}
static long call_mmap_exec(void)
{
	return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != NULL;
}
static long call_mprotect_exec(void)
{
	static _Alignas(4096) char page[4096];

	return mprotect(page, sizeof(page), PROT_READ | PROT_EXEC);
}
static long call_ioctl_other(void)
{
	return ioctl(0, TIOCSTI, "x");
}
/* The upper half of the request is not looked at by the kernel: it must be no way around. */
static long call_ioctl_wide(void)
{
	return syscall(SYS_ioctl, 0, (uint64_t)FIONREAD << 32 | TIOCSTI, "x");
}
static long call_socket_inet(void)
{
	return socket(AF_INET, SOCK_STREAM, 0);
}
static long call_socket_netlink(void)
{
	return socket(AF_NETLINK, SOCK_RAW, 0);
}
static long call_open(void)
{
	return open("/", O_RDONLY);
}
static long call_execve(void)
{
	return execl("/bin/true", "true", NULL);
}
static long call_fork(void)
{
	return syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}
static long call_ptrace(void)
{
	return syscall(SYS_ptrace, 0, 0, 0, 0);
}
static long call_unshare(void)
{
	return unshare(CLONE_NEWUSER);
}
#if !defined(__SANITIZE_ADDRESS__) /* whose run-time needs that itself */
static long call_madvise_other(void)
{
	static _Alignas(4096) char page[4096];

	return madvise(page, sizeof(page), MADV_HUGEPAGE);
}
#endif
static long call_unknown(void)
{
	return syscall(0x7fffff);
}
#if defined(__x86_64__)
/* The numbers of 32-bit programs mean other calls. */
static long call_32bit(void)
{
	long result;

	__asm__ volatile("int $0x80" : "=a"(result) : "a"(20) : "memory");
	return result;
}
#endif

static const struct {
	const char *name;
	long (*call)(void);
	bool allowed;
} calls[] = {
	{ "write", call_write, true },
	{ "getuid", call_getuid, true },
	{ "ioctl of the first list", call_ioctl_first, true },
	{ "ioctl of the second list", call_ioctl_second, true },
	{ "unix socket", call_socket_unix, true },
	{ "mmap", call_mmap, true },
	{ "malloc", call_malloc, true },
	{ "mmap, executable", call_mmap_exec, false },
	{ "mprotect, executable", call_mprotect_exec, false },
	{ "another ioctl", call_ioctl_other, false },
	{ "another ioctl in disguise", call_ioctl_wide, false },
	{ "internet socket", call_socket_inet, false },
	{ "netlink socket", call_socket_netlink, false },
	{ "open", call_open, false },
	{ "execve", call_execve, false },
	{ "fork", call_fork, false },
	{ "ptrace", call_ptrace, false },
	{ "unshare", call_unshare, false },
#if !defined(__SANITIZE_ADDRESS__)
	{ "another madvise", call_madvise_other, false },
#endif
	{ "a call that does not exist", call_unknown, false },
#if defined(__x86_64__)
	{ "a 32-bit call", call_32bit, false },
#endif
};

static struct jail_program *compile(const struct jail_filter *wanted)
{
	struct jail_program *program = NULL;
	struct husk_error err = { 0 };

	if (jail_filter_compile(wanted, &program, &err) < 0)
		fail_msg("%s", err.message);
	return program;
}

/* The wait status of a child that installs the filter and makes the call. */
static int try_call(const struct jail_program *program, long (*call)(void))
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		if (jail_filter_install(program, NULL) < 0)
			_exit(99);
		_exit(call() == 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void test_filter(void **state)
{
	struct jail_program *program = compile(&filter);

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		int status = try_call(program, calls[i].call);
		bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS;
#if defined(__x86_64__)
		/* a kernel without 32-bit calls gets there first */
		killed |= calls[i].call == call_32bit && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
#endif

		if (calls[i].allowed ? status != 0 : !killed)
			fail_msg("%s: wait status %x", calls[i].name, status);
	}
	jail_program_free(program);
}

static const struct jail_rule open_rules[] = {
	JAIL_ALLOW(openat),          JAIL_ALLOW(close),        JAIL_CLONE_THREAD,
	JAIL_ALLOW(set_robust_list), JAIL_ALLOW(rseq),         JAIL_ALLOW(sched_getaffinity),
	JAIL_ALLOW(prlimit64),       JAIL_ALLOW(rt_sigaction), JAIL_ALLOW(sigaltstack),
	JAIL_ALLOW(gettid),          JAIL_ALLOW(sched_yield),  JAIL_END,
};
static const struct jail_rule *const open_lists[] = { jail_libc_rules, open_rules, NULL };
static const struct jail_filter open_filter = { .name = "control", .lists = open_lists };

static void *thread_that_ends(void *data)
{
	return data;
}

static void *thread_with_filter(void *data)
{
	return jail_filter_install(data, NULL) < 0 ? data : NULL;
}

/* One kind of thread may do what another may not; and the one that breaks its rules takes the process along. */
static void test_threads(void **state)
{
	struct jail_program *device = compile(&filter), *control = compile(&open_filter);
	int status;
	pid_t pid;

	(void)state;
	for (int breaking = 0; breaking < 2; breaking++) {
		pid = fork();
		if (pid == 0) {
			pthread_t thread;
			void *result;

			if (pthread_create(&thread, NULL, thread_with_filter, device) ||
			    pthread_join(thread, &result) || result)
				_exit(90);
			if (jail_filter_install(control, NULL) < 0)
				_exit(91);
			/* on this thread open is allowed, and a socket is not */
			if (close((int)syscall(SYS_openat, AT_FDCWD, "/", O_RDONLY, 0)) < 0)
				_exit(92);
			if (breaking)
				call_socket_unix();
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (breaking)
			assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
		else
			assert_int_equal(status, 0);
	}
	jail_program_free(device);
	jail_program_free(control);
}

static long call_thread(void)
{
	pthread_t thread;
	void *result = &thread;

	if (pthread_create(&thread, NULL, thread_that_ends, NULL) || pthread_join(thread, &result))
		return 1;
	return result != NULL;
}
static long call_clone_user(void)
{
	return syscall(SYS_clone, CLONE_THREAD | CLONE_SIGHAND | CLONE_VM | CLONE_NEWUSER, NULL, NULL, NULL, NULL);
}
static long call_clone3(void)
{
	return syscall(SYS_clone3, NULL, 0) == 0 || errno != ENOSYS;
}

/* Threads can be started; processes and namespaces cannot. */
static void test_clone(void **state)
{
	struct jail_program *program = compile(&open_filter);
	int status;

	(void)state;
	status = try_call(program, call_thread);
	if (status != 0)
		fail_msg("starting a thread: wait status %x", status);
	assert_int_equal(try_call(program, call_clone3), 0);
	status = try_call(program, call_fork);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
	status = try_call(program, call_clone_user);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
	jail_program_free(program);
}

static void test_bad_filter(void **state)
{
	static const struct jail_rule wrong[] = { { .name = "frobnicate", .call = __NR_SCMP_ERROR }, JAIL_END };
	static const struct jail_rule *const wrong_lists[] = { wrong, NULL };
	struct jail_filter bad = { .name = "bad", .lists = wrong_lists };
	struct jail_program *program = NULL;
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(jail_filter_compile(&bad, &program, &err), -1);
	assert_null(program);
	assert_non_null(strstr(err.message, "cannot build the system call filter 'bad' at frobnicate"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_filter),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_clone),
		cmocka_unit_test(test_bad_filter),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
