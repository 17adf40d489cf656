/*
 * The host-side pid 1 of a machine. Every process of a sandbox on the host (runsc's sandbox process and the stubs it
 * runs guest code in) lives in a pid namespace of its own, and this file is its init: it starts `runsc create`, reaps
 * what is orphaned, keeps the bounded console log, and ends when the sandbox process does or when the supervisor is
 * gone. So the kernel itself guarantees that nothing of a machine outlives it, and a broken-out guest sees no process
 * of the host.
 *
 * It runs as a fork of the supervisor without exec, and that one may have threads: below "the init's own side" only
 * async-signal-safe calls are allowed, and no allocation.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "engine/gvisor/gvisor.h"
#include "jail/cgroup.h"
#include "jail/jail.h"

#define CREATE_TIMEOUT_MS 60000
/* The guest's pid 1 writes there, and a hostile one never stops. At this limit, all bytes except the newest are
 * removed. */
#define CONSOLE_MAX (512u << 10)
#define CONSOLE_KEPT (64u << 10)
#define EXPIRY_GRACE_MS 500 /* time for the supervisor, which can end a sandbox properly */

/* The report to the supervisor, sent once. */
struct report {
	enum { REPORT_CREATED, REPORT_SETUP, REPORT_CREATE } step; /* done, or what failed */
	int number;                                                /* errno, or a wait status */
};

/* The init's data; keep_only changes the numbers of the descriptors. */
struct launch {
	const struct gvisor_init *init;
	int report, lifeline, console_in, console_out;
	int console_log, input, output, disk;
	size_t console_written;
	pid_t creating, sandbox; /* `runsc create` while it runs, then the sandbox process; otherwise -1 */
	struct quiet quiet;
	int64_t next_look; /* at how quiet it is */
	const _Atomic int64_t *expires;
};

/* ---- the init's own side ---- */

static _Noreturn void give_up(const struct launch *launch, int step, int number)
{
	struct report report = { .step = step, .number = number };

	(void)!write(launch->report, &report, sizeof(report));
	_exit(1);
}

/* Closes every descriptor of the supervisor except ours, which move to 10 and up; 0 to 2 become /dev/null. */
static int keep_only(struct launch *launch)
{
	int *const kept[] = { &launch->report,      &launch->lifeline, &launch->console_in, &launch->console_out,
			      &launch->console_log, &launch->input,    &launch->output,     &launch->disk };
	/* The last one is optional. */
	const size_t count = ARRAY_SIZE(kept) - (launch->disk < 0);
	const int first = 10, last = first + (int)count;
	int copies[ARRAY_SIZE(kept)];

	/* First moved above their final numbers, so that none is overwritten. */
	for (size_t i = 0; i < count; i++)
		if ((copies[i] = fcntl(*kept[i], F_DUPFD_CLOEXEC, last)) < 0)
			return -1;
	for (size_t i = 0; i < count; i++) {
		if (dup3(copies[i], first + (int)i, O_CLOEXEC) < 0)
			return -1;
		*kept[i] = first + (int)i;
	}
	if (syscall(SYS_close_range, 0u, (unsigned)first - 1, 0u) < 0 ||
	    syscall(SYS_close_range, (unsigned)last, ~0u, 0u) < 0)
		return -1;
	/* The lowest free ones: 0, 1 and 2. */
	for (int i = 0; i < 3; i++)
		if (open("/dev/null", O_RDWR) != i)
			return -1;
	return 0;
}

/* In the machine's own mount namespace, so that the mount ends with the machine. */
static int mount_disk(struct launch *launch)
{
	if (launch->disk < 0)
		return 0;
	long result =
		syscall(SYS_move_mount, launch->disk, "", AT_FDCWD, launch->init->disk_path, MOVE_MOUNT_F_EMPTY_PATH);
	fd_close(&launch->disk);
	return result < 0 ? -1 : 0;
}

static int place_shares(const struct launch *launch)
{
	return launch->init->shares_path ? shares_place(launch->init->shares_path) : 0;
}

static _Noreturn void exec_create(const struct launch *launch)
{
	static const char *const environment[] = { "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", NULL };
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (dup2(launch->input, 0) == 0 && dup2(launch->output, 1) == 1 && dup2(launch->console_out, 2) == 2)
		execve(launch->init->argv[0], (char *const *)launch->init->argv, (char *const *)environment);
	_exit(127);
}

static void console_shorten(struct launch *launch)
{
	static char newest[CONSOLE_KEPT]; /* too large for the stack */
	ssize_t got =
		pread(launch->console_log, newest, sizeof(newest), (off_t)(launch->console_written - sizeof(newest)));

	if (ftruncate(launch->console_log, 0) < 0)
		return;
	ssize_t put = got > 0 ? write(launch->console_log, newest, (size_t)got) : 0;
	launch->console_written = put > 0 ? (size_t)put : 0;
}

static void console_write(struct launch *launch, const char *bytes, size_t size)
{
	if (launch->console_written + size > CONSOLE_MAX)
		console_shorten(launch);
	size_t room = CONSOLE_MAX - launch->console_written;
	ssize_t put = write(launch->console_log, bytes, MIN(size, room));
	launch->console_written += put > 0 ? (size_t)put : 0;
}

static void console_copy(struct launch *launch)
{
	char chunk[4096];
	ssize_t got = read(launch->console_in, chunk, sizeof(chunk));

	if (got <= 0) {
		if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
			fd_close(&launch->console_in);
		}
		return;
	}
	console_write(launch, chunk, (size_t)got);
}

/* What is on its way. */
static void console_drain(struct launch *launch)
{
	struct pollfd rest = { .fd = launch->console_in, .events = POLLIN };

	/* Limited, because the guest may still be writing: a pipe holds no more. */
	for (int i = 0; launch->console_in >= 0 && i < 256 && poll(&rest, 1, 0) > 0; i++)
		console_copy(launch);
}

/* The last line of a console says how the process of the machine ended: 128 plus a signal if the guest's pid 1 was
 * killed. */
static void console_end(struct launch *launch, int status)
{
	static const char killed[] = "husk: the machine's process was killed by signal ",
			  ended[] = "husk: the machine's process ended with exit status ";
	unsigned number = (unsigned)(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	char digits[] = "000\n";
	size_t first = number > 99 ? 0 : number > 9 ? 1 : 2;

	for (int i = 2; i >= 0; i--, number /= 10)
		digits[i] = (char)('0' + number % 10);
	console_write(launch, WIFSIGNALED(status) ? killed : ended,
		      WIFSIGNALED(status) ? sizeof(killed) - 1 : sizeof(ended) - 1);
	console_write(launch, digits + first, 4 - first);
}

/* The number in the file that runsc wrote; -1: none. */
static pid_t sandbox_pid(const char *path)
{
	char text[16];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof(text));
	long value = 0;

	fd_close(&fd);
	for (ssize_t i = 0; i < got && text[i] >= '0' && text[i] <= '9' && value < 100000000; i++)
		value = value * 10 + (text[i] - '0');
	return value > 1 ? (pid_t)value : -1;
}

/* Reaps ended processes. Reports the result of `create` to the supervisor; true when the machine is over. */
static bool reap(struct launch *launch)
{
	struct report created = { .step = REPORT_CREATED };
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid == launch->sandbox) {
			console_drain(launch);
			console_end(launch, status);
			return true;
		}
		if (pid != launch->creating)
			continue;
		launch->creating = -1;
		if (status != 0)
			console_drain(launch);
		launch->sandbox = launch->quiet.sandbox = sandbox_pid(launch->init->pid_file);
		if (status != 0 || launch->sandbox < 0)
			give_up(launch, REPORT_CREATE, status);
		if (write(launch->report, &created, sizeof(created)) != (ssize_t)sizeof(created))
			return true;
		fd_close(&launch->report);
	}
	/* No process is left: the sandbox process ended before its number was known. */
	return pid < 0 && errno == ECHILD;
}

/* By the clock, not by poll's timeout: a guest that prints all the time must be checked too. */
static void look(struct launch *launch)
{
	int64_t now = time_monotonic_ms();

	if (launch->sandbox < 0 || now < launch->next_look)
		return;
	quiet_look(&launch->quiet);
	launch->next_look = now + quiet_period(&launch->quiet);
}

/* The supervisor is about to send work. */
static void wake(struct launch *launch)
{
	char ignored[64];

	(void)!read(launch->lifeline, ignored, sizeof(ignored));
	if (launch->sandbox < 0)
		return;
	quiet_wake(&launch->quiet);
	launch->next_look = time_monotonic_ms() + QUIET_HOLD_MS;
}

/* How long to wait for an event. Does not return when the machine's time is over: a supervisor that hangs must not keep
 * the machine alive. */
static int next_wait(const struct launch *launch)
{
	int64_t expires = *launch->expires, left = expires + EXPIRY_GRACE_MS - time_boot_ms();

	if (launch->sandbox < 0)
		return -1;
	if (expires && left <= 0)
		_exit(0);
	return expires ? (int)MIN(left, quiet_period(&launch->quiet)) : quiet_period(&launch->quiet);
}

static _Noreturn void init_loop(struct launch *launch, int signals)
{
	for (;;) {
		struct pollfd watched[] = { { .fd = signals, .events = POLLIN },
					    { .fd = launch->lifeline, .events = POLLIN },
					    { .fd = launch->console_in, .events = POLLIN } };
		struct signalfd_siginfo ignored[8];

		if (poll(watched, ARRAY_SIZE(watched), next_wait(launch)) < 0)
			continue;
		/* When this process ends, the kernel ends everything else in the namespace. */
		if (watched[1].revents & (POLLHUP | POLLERR))
			_exit(0);
		if (watched[1].revents)
			wake(launch);
		look(launch);
		if (watched[2].revents)
			console_copy(launch);
		if (watched[0].revents) {
			(void)!read(signals, ignored, sizeof(ignored));
			if (reap(launch))
				_exit(0);
		}
	}
}

static _Noreturn void init_run(void *data)
{
	struct launch *launch = data;
	sigset_t children;
	int signals;

	signals_default();
	setsid();
	prctl(PR_SET_NAME, "husk-machine");
	if (keep_only(launch) < 0 || (launch->init->cgroup && cgroup_enter(launch->init->cgroup) < 0) ||
	    gvisor_own_mounts() < 0 || mount_disk(launch) < 0 || place_shares(launch) < 0)
		give_up(launch, REPORT_SETUP, errno);
	sigemptyset(&children);
	sigaddset(&children, SIGCHLD);
	signals = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
	/* For all child processes; quiet.c explains why. */
	(void)!sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 });
	launch->creating = signals < 0 ? -1 : _Fork();
	if (launch->creating < 0)
		give_up(launch, REPORT_SETUP, errno);
	if (launch->creating == 0)
		exec_create(launch);
	fd_close(&launch->input);
	fd_close(&launch->output);
	fd_close(&launch->console_out);
	/* Only now, because children inherit it: timers of this process need not be exact. */
	prctl(PR_SET_TIMERSLACK, 50000000ul);
	init_loop(launch, signals);
}

/* ---- the supervisor's side ---- */

static int report_read(int fd, struct husk_error *err)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	struct report report;
	int ready;

	do
		ready = poll(&wait, 1, CREATE_TIMEOUT_MS);
	while (ready < 0 && errno == EINTR);
	if (ready == 0)
		return husk_fail(err, HUSK_TIMEOUT, "runsc create did not finish within %d s",
				 CREATE_TIMEOUT_MS / 1000);
	if (read_full(fd, &report, sizeof(report)) != (ssize_t)sizeof(report))
		return husk_fail(err, HUSK_INTERNAL, "the machine's first process ended before it was set up");
	if (report.step == REPORT_CREATED)
		return 0;
	if (report.step == REPORT_SETUP) {
		errno = report.number;
		return husk_fail_errno(err, "cannot set up the machine's namespaces and control group");
	}
	return husk_fail(err, HUSK_INTERNAL, "runsc create failed with %s %d",
			 WIFSIGNALED(report.number) ? "signal" : "exit status",
			 WIFSIGNALED(report.number) ? WTERMSIG(report.number) : WEXITSTATUS(report.number));
}

static int pipe_make(int *reading, int *writing, struct husk_error *err)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot make a pipe");
	*reading = ends[0];
	*writing = ends[1];
	return 0;
}

int gvisor_init_start(const struct gvisor_init *init, struct gvisor_process *out, struct husk_error *err)
{
	cleanup_close int report_in = -1, report_out = -1, life_in = -1, life_out = -1, console_in = -1,
			  console_out = -1;
	void *page = mmap(NULL, sizeof(*out->expires), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct launch launch = { .init = init,
				 .creating = -1,
				 .sandbox = -1,
				 .console_log = init->console,
				 .input = init->input,
				 .output = init->output,
				 .disk = init->disk };

	if (page == MAP_FAILED)
		return husk_fail_memory(err);
	launch.expires = out->expires = page;
	if (pipe_make(&report_in, &report_out, err) < 0 || pipe_make(&life_in, &life_out, err) < 0 ||
	    pipe_make(&console_in, &console_out, err) < 0)
		return -1;
	if (fd_set_nonblocking(console_in, true) < 0)
		return husk_fail_errno(err, "cannot set up the console");
	launch.report = report_out;
	launch.lifeline = life_in;
	launch.console_in = console_in;
	launch.console_out = console_out;
	out->pid = jail_clone(CLONE_NEWPID | CLONE_NEWNS, init_run, &launch, &out->pidfd);
	if (out->pid < 0)
		return husk_fail_errno(err, "cannot start the machine's first process (are we root?)");
	out->lifeline = steal_fd(&life_out);
	fd_set_nonblocking(out->lifeline, true);
	fd_close(&report_out);
	return report_read(report_in, err);
}

void gvisor_init_wake(struct gvisor_process *process)
{
	/* Only a hint: if the machine is gone, the next call reports it. */
	(void)!write(process->lifeline, "w", 1);
}

void gvisor_init_expire(struct gvisor_process *process, int64_t expires_ms)
{
	*process->expires = expires_ms ? MAX(time_boot_ms() + expires_ms - time_wall_ms(), 1) : 0;
	gvisor_init_wake(process);
}

void gvisor_init_kill(struct gvisor_process *process)
{
	process->stopped = true;
	if (process->pidfd >= 0)
		syscall(SYS_pidfd_send_signal, process->pidfd, SIGKILL, NULL, 0);
}

void gvisor_init_stop(struct gvisor_process *process)
{
	siginfo_t ended;

	gvisor_init_kill(process);
	if (process->pidfd < 0)
		return;
	/* The kernel lets pid 1 be reaped only after every other process of its namespace is gone. */
	while (waitid(P_PIDFD, (id_t)process->pidfd, &ended, WEXITED) < 0 && errno == EINTR)
		;
}

void gvisor_init_free(struct gvisor_process *process)
{
	gvisor_init_stop(process);
	fd_close(&process->pidfd);
	fd_close(&process->lifeline);
	if (process->expires)
		munmap((void *)process->expires, sizeof(*process->expires));
	process->expires = NULL;
}
