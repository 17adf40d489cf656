/*
 * Signals sent to husk itself: see interrupt.h. This file uses handlers. Blocked or ignored signals would be inherited
 * by the supervisors and helper programs that libhusk starts; handlers are reset at exec. The handler uses
 * async-signal-safe calls only.
 */
#include "cli/interrupt.h"

#include <fcntl.h>
#include <signal.h>

/* How long the first interrupt waits for running work, such as a create that is then undone. */
#define HOLD_SECONDS 30

enum interrupt_mode { MODE_DEFAULT, MODE_HOLD, MODE_FORWARD };

static const int ending_signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };

/* The handler's data: signal handlers have no other way to get data. */
static volatile sig_atomic_t mode = MODE_DEFAULT;
static volatile sig_atomic_t seen;
static volatile sig_atomic_t overdue; /* the signal that the alarm ends this process for */
static int queue[2] = { -1, -1 };
static char children_path[64];

/* Helper programs run in their own process groups, so a terminal's Ctrl-C does not reach them. */
static void end_children(void)
{
	char text[4096];
	int fd = open(children_path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	ssize_t size = read(fd, text, sizeof(text) - 1);
	fd_close(&fd);
	pid_t pid = 0;
	for (ssize_t i = 0; i < size; i++) {
		if (text[i] >= '0' && text[i] <= '9') {
			pid = pid * 10 + (text[i] - '0');
			continue;
		}
		if (pid > 1 && kill(-pid, SIGTERM) < 0)
			kill(pid, SIGTERM);
		pid = 0;
	}
}

static void on_signal(int signal)
{
	int saved = errno;
	unsigned char byte = (unsigned char)signal;

	if (mode == MODE_FORWARD) {
		/* a full queue loses the signal: by then the reader has enough to act on */
		ssize_t ignored = write(queue[1], &byte, 1);
		(void)ignored;
	} else if (signal != SIGWINCH) {
		if (seen)
			_exit(128 + signal);
		seen = overdue = signal;
		end_children();
		alarm(HOLD_SECONDS);
	}
	errno = saved;
}

static void on_alarm(int signal)
{
	static const char text[] = "husk: interrupted, and what was under way does not end: gave up (husk ls)\n";

	(void)signal;
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(128 + overdue);
}

static void on_broken_pipe(int signal)
{
	(void)signal;
}

static int handle(int signal, void (*handler)(int), struct husk_error *err)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART }, before;

	sigemptyset(&action.sa_mask);
	if (sigaction(signal, NULL, &before) < 0)
		return husk_fail_errno(err, "cannot read the action of signal %d", signal);
	/* nohup and background jobs of a shell: the parent process wants the signal ignored */
	if (before.sa_handler == SIG_IGN && signal != SIGPIPE)
		return 0;
	if (sigaction(signal, &action, NULL) < 0)
		return husk_fail_errno(err, "cannot handle signal %d", signal);
	return 0;
}

int interrupt_setup(struct husk_error *err)
{
	return handle(SIGPIPE, on_broken_pipe, err);
}

int interrupt_hold(struct husk_error *err)
{
	if (mode != MODE_DEFAULT)
		return 0;
	snprintf(children_path, sizeof(children_path), "/proc/self/task/%d/children", (int)getpid());
	mode = MODE_HOLD;
	for (size_t i = 0; i < ARRAY_SIZE(ending_signals); i++)
		if (handle(ending_signals[i], on_signal, err) < 0)
			return -1;
	return handle(SIGALRM, on_alarm, err);
}

void interrupt_deadline(int signal, unsigned seconds)
{
	overdue = signal;
	alarm(seconds);
}

int interrupt_seen(void)
{
	return seen;
}

int interrupt_forward(bool on, struct husk_error *err)
{
	if (!on) {
		mode = MODE_HOLD;
		return 0;
	}
	if (queue[0] < 0 && pipe2(queue, O_CLOEXEC | O_NONBLOCK) < 0)
		return husk_fail_errno(err, "cannot make a pipe for signals");
	if (interrupt_hold(err) < 0 || handle(SIGWINCH, on_signal, err) < 0)
		return -1;
	mode = MODE_FORWARD;
	return 0;
}

int interrupt_fd(void)
{
	return queue[0];
}

int interrupt_take(void)
{
	unsigned char byte;

	return read(queue[0], &byte, 1) == 1 ? byte : 0;
}
