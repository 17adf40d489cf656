/*
 * Child processes: start one, or run one to its end with its output collected and its time bounded. Used for the tools
 * that Husk runs (runsc, mkfs.erofs, mmdebstrap) and to start supervisors. A child gets its own process group, default
 * signals, and only the three descriptors that the caller names. Its environment is clean unless the caller gives one.
 */
#include "base/base.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define OUTPUT_MAX (16u << 20)
#define TAIL_MAX 4096  /* bytes of stderr, kept while the command runs */
#define TAIL_SHOWN 700 /* of these, shown in the message */
#define UNPRIVILEGED_MEMORY (512u << 20)
#define TICK_MS 20 /* how often to check for the end if the kernel has no pidfd */
#define PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1u << 2)
#endif

/* ---- the child's side: after fork only async-signal-safe calls, since the parent may have threads ---- */

/* Prepared before the fork, for the child. */
struct launch {
	const struct command *command;
	const char *const *environment;
	int in, out, errors; /* all above 2, close-on-exec */
	int report;          /* receives errno if exec failed or was not reached */
	bool tied;           /* ends together with its parent */
};

static void mark_descriptors(void)
{
	long last;

	if (syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC) == 0)
		return;
	last = sysconf(_SC_OPEN_MAX);
	for (int fd = 3; fd < (int)MIN(last, 65536L); fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void signals_default(void)
{
	struct sigaction standard = { .sa_handler = SIG_DFL };

	/* exec resets handlers, but ignored signals would stay ignored. KILL, STOP and the C library's own signals
	 * cannot be changed. */
	for (int number = 1; number < NSIG; number++)
		sigaction(number, &standard, NULL);
}

void signals_reset(void)
{
	sigset_t none;

	signals_default();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static _Noreturn void launch_report(const struct launch *launch)
{
	int number = errno;

	(void)!write(launch->report, &number, sizeof(number));
	_exit(127);
}

static _Noreturn void launch_child(const struct launch *launch)
{
	const struct command *command = launch->command;

	signals_reset();
	if (launch->tied)
		prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (dup2(launch->in, 0) < 0 || dup2(launch->out, 1) < 0 || dup2(launch->errors, 2) < 0)
		launch_report(launch);
	mark_descriptors();
	if (chdir(command->directory ? command->directory : "/") < 0)
		launch_report(launch);
	/* After the descriptors are marked, so that the callback may pass one on; before the group is set, so that it
	 * may call setsid. */
	if (command->before_exec) {
		int status = command->before_exec(command->data);

		if (status != 0)
			_exit(status & 0xff);
	}
	if (getpgrp() != getpid() && setpgid(0, 0) < 0)
		launch_report(launch);
	/* execvpe takes no const for historical reasons; it changes neither array. */
	execvpe(command->argv[0], (char *const *)command->argv, (char *const *)launch->environment);
	launch_report(launch);
}

/* ---- starting ---- */

/* Copies a descriptor above 2, so that setting up stdio cannot overwrite it; -1 means /dev/null. */
static int copy_above(int fd, int flags)
{
	cleanup_close int null = -1;

	if (fd < 0) {
		null = open("/dev/null", flags | O_CLOEXEC);
		if (null < 0)
			return -1;
		fd = null;
	}
	return fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

/* Returns 0 once the child runs the program; otherwise its errno, with the child reaped. */
static int await_exec(int report, pid_t pid)
{
	int number;

	if (read_full(report, &number, sizeof(number)) != (ssize_t)sizeof(number))
		return 0;
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	return number;
}

static int fail_exec(const struct command *command, int number, struct husk_error *err)
{
	if (number == ENOENT && command->directory && access(command->directory, X_OK) < 0)
		return husk_fail_errno(err, "cannot run %s in '%s'", command->argv[0], command->directory);
	if (number == ENOENT)
		return husk_fail(err, HUSK_UNAVAILABLE, "cannot run %s: no such program; is it installed and in PATH?",
				 command->argv[0]);
	errno = number;
	return husk_fail_errno(err, "cannot run %s", command->argv[0]);
}

/* Forks with every signal blocked: no handler of the parent may run in the child before the child has reset them. */
static pid_t launch_fork(const struct launch *launch)
{
	sigset_t all, old;
	pid_t pid;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pid = fork();
	if (pid == 0)
		launch_child(launch);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return pid;
}

static pid_t launch_start(const struct command *command, bool tied, int out, int errors, struct husk_error *err)
{
	static const char *const default_path = "PATH=" PATH_DEFAULT;
	cleanup_free char *path = getenv("PATH") ? str_format("PATH=%s", getenv("PATH")) : NULL;
	const char *const clean[] = { path ? path : default_path, "HOME=/", "LANG=C.UTF-8",
				      getenv("HUSK_STRICT") ? "HUSK_STRICT=1" : NULL, NULL };
	struct launch launch = { .command = command,
				 .environment = command->environment ? command->environment : clean,
				 .tied = tied };
	cleanup_close int in_copy = copy_above(command->stdin_fd, O_RDONLY);
	cleanup_close int out_copy = copy_above(out, O_WRONLY);
	cleanup_close int errors_copy = copy_above(errors, O_WRONLY);
	cleanup_close int report = -1, report_end = -1;
	int ends[2], number;
	pid_t pid;

	if (in_copy < 0 || out_copy < 0 || errors_copy < 0 || pipe2(ends, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot set up descriptors for %s", command->argv[0]);
	report = ends[0];
	/* Above 2 too, because the caller may have closed its own stdio. */
	report_end = copy_above(ends[1], 0);
	fd_close(&ends[1]);
	if (report_end < 0)
		return husk_fail_errno(err, "cannot set up descriptors for %s", command->argv[0]);
	launch.in = in_copy;
	launch.out = out_copy;
	launch.errors = errors_copy;
	launch.report = report_end;
	pid = launch_fork(&launch);
	if (pid < 0)
		return husk_fail_errno(err, "cannot fork for %s", command->argv[0]);
	fd_close(&report_end);
	number = await_exec(report, pid);
	return number ? fail_exec(command, number, err) : pid;
}

pid_t command_start(const struct command *command, struct husk_error *err)
{
	return launch_start(command, false, command->stdout_fd, command->stderr_fd, err);
}

int command_unprivileged(void *data)
{
	const struct rlimit memory = { UNPRIVILEGED_MEMORY, UNPRIVILEGED_MEMORY }, none = { 0, 0 };

	(void)data;
	if (setrlimit(RLIMIT_AS, &memory) < 0 || setrlimit(RLIMIT_FSIZE, &none) < 0 ||
	    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return 2;
	if (geteuid() == 0 &&
	    (setgroups(0, NULL) < 0 || setresgid(COMMAND_NOBODY, COMMAND_NOBODY, COMMAND_NOBODY) < 0 ||
	     setresuid(COMMAND_NOBODY, COMMAND_NOBODY, COMMAND_NOBODY) < 0))
		return 2;
	return 0;
}

/* ---- running to the end ---- */

/* A running command: its open pipes, and the output so far. */
struct run {
	const struct command *command;
	pid_t pid;
	int process; /* pidfd, or -1 */
	int out, errors;
	struct buf tail;
	int64_t deadline; /* monotonic ms; 0: none */
	int status;
};

static void run_release(struct run *run)
{
	fd_close(&run->process);
	fd_close(&run->out);
	fd_close(&run->errors);
	buf_free(&run->tail);
}

/* Waits for the child; `options` as for waitpid. 1: it has ended, 0: not yet, -1: it cannot be waited for. */
static int run_reap(struct run *run, int options)
{
	pid_t got;

	do
		got = waitpid(run->pid, &run->status, options);
	while (got < 0 && errno == EINTR);
	return got < 0 ? -1 : got == run->pid;
}

static void run_kill(struct run *run)
{
	/* The group first: once the leader is reaped, the number may belong to another group. */
	kill(-run->pid, SIGKILL);
	kill(run->pid, SIGKILL);
	run_reap(run, 0);
}

/* Reads the available bytes of one pipe into `into`; closes the pipe at its end. 0, or -1 without memory. */
static int run_take(int *fd, struct buf *into)
{
	char chunk[16384];
	ssize_t got = read(*fd, chunk, sizeof(chunk));

	if (got > 0)
		return buf_append(into, chunk, (size_t)got);
	if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
		close(*fd);
		*fd = -1;
	}
	return 0;
}

static int run_collect(struct run *run, const struct pollfd *out, const struct pollfd *errors, struct husk_error *err)
{
	if (out->revents) {
		if (run_take(&run->out, run->command->output) < 0)
			return husk_fail_memory(err);
		if (run->command->output->size > OUTPUT_MAX)
			return husk_fail(err, HUSK_LIMIT, "%s printed more than %u MiB", run->command->argv[0],
					 OUTPUT_MAX >> 20);
	}
	if (errors->revents) {
		if (run_take(&run->errors, &run->tail) < 0)
			return husk_fail_memory(err);
		if (run->tail.size > TAIL_MAX)
			buf_consume(&run->tail, run->tail.size - TAIL_MAX);
	}
	return 0;
}

/* How long to wait: until the deadline at most, and only a tick without a pidfd. Negative: no limit. */
static int run_wait_ms(const struct run *run)
{
	int wait = run->process < 0 ? TICK_MS : -1;
	int64_t left;

	if (!run->deadline)
		return wait;
	left = MAX(run->deadline - time_monotonic_ms(), (int64_t)0);
	return wait < 0 ? (int)left : (int)MIN(left, (int64_t)wait);
}

/*
 * Collects output until the child itself has ended. A background process of the child may keep the pipes open longer.
 * So the end of the child decides, and only the bytes that are in the pipes by then count.
 */
static int run_follow(struct run *run, struct husk_error *err)
{
	bool ended = false;

	for (;;) {
		struct pollfd watched[3] = { { .fd = run->process, .events = POLLIN },
					     { .fd = run->out, .events = POLLIN },
					     { .fd = run->errors, .events = POLLIN } };
		int ready = poll(watched, ARRAY_SIZE(watched), ended ? 0 : run_wait_ms(run));

		if (ready < 0 && errno != EINTR)
			return husk_fail_errno(err, "cannot wait for %s", run->command->argv[0]);
		if (ready > 0 && run_collect(run, &watched[1], &watched[2], err) < 0)
			return -1;
		if (ended && (ready == 0 || (!watched[1].revents && !watched[2].revents)))
			return 0;
		if (ended || ready < 0)
			continue;
		if (run->deadline && time_monotonic_ms() >= run->deadline)
			return husk_fail(err, HUSK_TIMEOUT, "%s did not finish within %d ms", run->command->argv[0],
					 run->command->timeout_ms);
		if (run->process < 0 || watched[0].revents) {
			int reaped = run_reap(run, WNOHANG);

			if (reaped < 0)
				return husk_fail_errno(err, "cannot wait for %s", run->command->argv[0]);
			if (reaped > 0) {
				ended = true;
				run->pid = -1;
			}
		}
	}
}

/* The end of stderr as one line for the message: whole lines if possible, and only printable characters. */
static const char *run_tail(struct run *run)
{
	char *text = run->tail.data;
	size_t size = run->tail.size, start = 0;

	while (size > 0 && (unsigned char)text[size - 1] <= ' ')
		size--;
	if (size == 0)
		return "";
	text[size] = '\0';
	if (size > TAIL_SHOWN) {
		char *line = memchr(text + size - TAIL_SHOWN, '\n', TAIL_SHOWN);

		start = line ? (size_t)(line + 1 - text) : size - TAIL_SHOWN;
	}
	for (size_t i = start; i < size; i++) {
		if (text[i] == '\n')
			text[i] = ';';
		else if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
			text[i] = ' ';
	}
	return text + start;
}

static int run_verdict(struct run *run, struct husk_error *err)
{
	const char *name = run->command->argv[0], *tail;

	if (WIFEXITED(run->status) && WEXITSTATUS(run->status) == 0)
		return 0;
	tail = run_tail(run);
	if (WIFSIGNALED(run->status))
		return husk_fail(err, HUSK_INTERNAL, "%s was killed by signal %d (%s)%s%s", name, WTERMSIG(run->status),
				 strsignal(WTERMSIG(run->status)), *tail ? ": " : "", tail);
	return husk_fail(err, HUSK_INTERNAL, "%s failed with exit status %d%s%s", name, WEXITSTATUS(run->status),
			 *tail ? ": " : "", tail);
}

/* A pipe whose reading end does not block; the writing end is the child's. */
static int run_pipe(int *reading, int *writing)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -1;
	*reading = ends[0];
	*writing = ends[1];
	return fd_set_nonblocking(ends[0], true);
}

static int run_start(struct run *run, struct husk_error *err)
{
	const struct command *command = run->command;
	cleanup_close int out_end = -1, errors_end = -1;

	if ((command->stdout_fd < 0 && command->output && run_pipe(&run->out, &out_end) < 0) ||
	    (command->stderr_fd < 0 && run_pipe(&run->errors, &errors_end) < 0))
		return husk_fail_errno(err, "cannot make pipes for %s", command->argv[0]);
	run->pid = launch_start(command, true, out_end >= 0 ? out_end : command->stdout_fd,
				errors_end >= 0 ? errors_end : command->stderr_fd, err);
	if (run->pid < 0)
		return -1;
	run->process = (int)syscall(SYS_pidfd_open, run->pid, 0);
	if (command->timeout_ms > 0)
		run->deadline = time_monotonic_ms() + command->timeout_ms;
	return 0;
}

int command_run(const struct command *command, struct husk_error *err)
{
	cleanup(run_release) struct run run = { .command = command, .pid = -1, .process = -1, .out = -1, .errors = -1 };

	if (run_start(&run, err) < 0)
		return -1;
	if (run_follow(&run, err) < 0) {
		if (run.pid > 0)
			run_kill(&run);
		return -1;
	}
	return run_verdict(&run, err);
}
