/*
 * Reduces the CPU use of an idle sandbox to almost nothing, and speeds up a busy one. Called by a machine's init
 * (init.c), at most twice a second.
 *
 * runsc's systrap platform wakes up every 400 microseconds for as long as it lives, to measure latencies that matter
 * only while the guest runs (releases from mid-2026 on do not). That is 3 to 8 % of a CPU for each idle sandbox. The
 * kernel merges timers that may fire late. So while the guest is quiet, the threads of the sandbox process get a large
 * timer slack; when the guest works, they get a small one again. A timer of a quiet guest may be late by the slack.
 *
 * One thread delays work if it is late: the Go runtime's monitor, which reassigns processors that are blocked in a
 * system call. It gets slack only after ten seconds without activity, and more after a minute, because 100 wake-ups a
 * second in each of hundreds of sandboxes slow down the others. Work that the supervisor announces interrupts its sleep
 * at once. The answer to a network packet may be late by the slack, once.
 *
 * A busy sandbox passes all work between threads: the guest's threads pass system calls and page faults to runsc's, and
 * runsc passes its own calls to a thread in the guest's address space. When that thread is done, it wakes the other one
 * again and again until it really waits. On one CPU the woken thread mostly replaces the thread that woke it, just
 * before that one would have waited, and then spins for the rest of its time slice: 8 of the 20 ms of starting a
 * process. So the threads of a sandbox are SCHED_BATCH: they preempt nobody when they wake. But if all CPUs are busy,
 * preemption is the only way to run soon; then the threads are ordinary ones.
 *
 * Everything here runs in a fork of a process that may have had threads: async-signal-safe calls only, no allocation.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

#include "engine/gvisor/gvisor.h"

/* The CPU time that the guest's processes may use in one period and still count as quiet, and as idle. */
#define BUSY_NS 1000000
#define STIR_NS 20000
#define STILL_PERIODS (10000 / QUIET_PERIOD_MS)
#define ASLEEP_PERIODS (60000 / QUIET_PERIOD_MS)

static const char *const slack_ns[] = {
	[QUIET_BUSY] = "50000", [QUIET_LIGHT] = "16000000", [QUIET_DEEP] = "200000000", [QUIET_ASLEEP] = "1000000000"
};

static const char *const monitor_slack_ns[] = {
	[QUIET_BUSY] = "50000", [QUIET_LIGHT] = "50000", [QUIET_DEEP] = "100000000", [QUIET_ASLEEP] = "400000000"
};

struct entry { /* of getdents64 */
	uint64_t inode;
	int64_t offset;
	unsigned short size;
	unsigned char type;
	char name[];
};

/* A decimal name as a number; -1: not a number. */
static pid_t number_of(const char *name)
{
	long value = 0;

	for (; *name >= '0' && *name <= '9' && value < 100000000; name++)
		value = value * 10 + (*name - '0');
	return *name == '\0' && value > 0 ? (pid_t)value : -1;
}

/* "/proc/<number><rest>" into out. */
static void proc_path(char out[static 64], pid_t number, const char *rest)
{
	static const char start[] = "/proc/";
	char digits[16];
	size_t count = 0, at = sizeof(start) - 1;

	memcpy(out, start, sizeof(start));
	for (long left = number; left > 0; left /= 10)
		digits[count++] = (char)('0' + left % 10);
	while (count > 0)
		out[at++] = digits[--count];
	memcpy(out + at, rest, strlen(rest) + 1);
}

/* Calls back for each numbered entry of a directory of /proc, in ascending order. */
static void each_number(const char *path, void (*callback)(struct quiet *quiet, pid_t number), struct quiet *quiet)
{
	_Alignas(struct entry) char chunk[4096];
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long got;

	if (fd < 0)
		return;
	while ((got = syscall(SYS_getdents64, fd, chunk, sizeof(chunk))) > 0) {
		for (long at = 0; at < got;) {
			struct entry *entry = (struct entry *)(void *)(chunk + at);
			pid_t number = number_of(entry->name);

			if (number > 0)
				callback(quiet, number);
			at += entry->size;
		}
	}
	fd_close(&fd);
}

/* CPU time of the guest: of every process in our namespace except the init and the sandbox process itself. */
static void add_time(struct quiet *quiet, pid_t pid)
{
	struct timespec spent;

	/* The clock of another process, as clock_getcpuclockid makes it. */
	if (pid == 1 || pid == quiet->sandbox || clock_gettime((clockid_t)((~(unsigned)pid) << 3 | 2), &spent) < 0)
		return;
	quiet->sum += (uint64_t)spent.tv_sec * 1000000000u + (uint64_t)spent.tv_nsec;
}

static void count_thread(struct quiet *quiet, pid_t thread)
{
	/* The monitor is the first thread that the Go runtime starts. */
	if (quiet->monitor == 0 && thread != quiet->sandbox)
		quiet->monitor = thread;
	quiet->found++;
}

static void set_slack(struct quiet *quiet, pid_t thread)
{
	const char *value = (thread == quiet->monitor ? monitor_slack_ns : slack_ns)[quiet->level];
	char path[64];
	int fd;

	proc_path(path, thread, "/timerslack_ns");
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	(void)!write(fd, value, strlen(value));
	fd_close(&fd);
}

/* A number with two digits after its point, in hundredths; moves *at behind it. */
static int64_t hundredths(const char **at)
{
	int64_t value = 0;

	for (; **at && **at != ' ' && **at != '\n'; (*at)++)
		if (**at >= '0' && **at <= '9')
			value = value * 10 + (**at - '0');
	*at += **at == ' ';
	return value;
}

/* Were all CPUs busy recently? Together they were idle for less than a quarter of the time. */
static bool crowded(struct quiet *quiet)
{
	char text[64];
	const char *at = text;
	int fd = open("/proc/uptime", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	fd_close(&fd);
	if (got <= 0)
		return quiet->crowded;
	text[got] = '\0';
	int64_t up = hundredths(&at), idle = hundredths(&at), passed = up - quiet->up;
	if (passed < QUIET_PERIOD_MS / 20) /* too short a time to tell */
		return quiet->crowded;
	bool busy = quiet->up && (idle - quiet->idle) * 4 < passed;
	quiet->up = up;
	quiet->idle = idle;
	return busy;
}

static void set_policy(struct quiet *quiet, pid_t thread)
{
	const struct sched_param none = { 0 };

	(void)!sched_setscheduler(thread, quiet->crowded ? SCHED_OTHER : SCHED_BATCH, &none);
}

static void set_policies(struct quiet *quiet, pid_t pid)
{
	char tasks[64];

	if (pid == 1)
		return;
	proc_path(tasks, pid, "/task");
	each_number(tasks, set_policy, quiet);
}

static void take_turns(struct quiet *quiet)
{
	bool now = crowded(quiet);

	if (now == quiet->crowded)
		return;
	quiet->crowded = now;
	each_number("/proc", set_policies, quiet);
}

static enum quiet_level judge(struct quiet *quiet)
{
	/* When a process ends, its time leaves the sum: a change in either direction is activity. */
	uint64_t change = quiet->sum > quiet->last ? quiet->sum - quiet->last : quiet->last - quiet->sum;

	quiet->last = quiet->sum;
	quiet->still = change > STIR_NS ? 0 : MIN(quiet->still + 1, ASLEEP_PERIODS);
	if (change > BUSY_NS)
		return QUIET_BUSY;
	if (quiet->still >= ASLEEP_PERIODS)
		return QUIET_ASLEEP;
	return quiet->still >= STILL_PERIODS ? QUIET_DEEP : QUIET_LIGHT;
}

static void apply(struct quiet *quiet, enum quiet_level level)
{
	char tasks[64];

	quiet->found = 0;
	proc_path(tasks, quiet->sandbox, "/task");
	each_number(tasks, count_thread, quiet);
	/* New threads inherit the slack of the thread that started them, which may have been the exact one. */
	if (level == quiet->level && quiet->found == quiet->threads)
		return;
	quiet->level = level;
	quiet->threads = quiet->found;
	each_number(tasks, set_slack, quiet);
}

void quiet_look(struct quiet *quiet)
{
	quiet->sum = 0;
	each_number("/proc", add_time, quiet);
	apply(quiet, judge(quiet));
	take_turns(quiet);
}

int quiet_period(const struct quiet *quiet)
{
	return quiet->level == QUIET_ASLEEP ? QUIET_SLEEP_MS : QUIET_PERIOD_MS;
}

void quiet_wake(struct quiet *quiet)
{
	bool deep = quiet->level >= QUIET_DEEP;

	quiet->still = 0;
	apply(quiet, QUIET_BUSY);
	take_turns(quiet);
	/* A sleep that has begun keeps its old slack. This signal interrupts it; the Go runtime uses the same signal
	 * for itself. */
	if (deep && quiet->monitor > 0)
		syscall(SYS_tgkill, quiet->sandbox, quiet->monitor, SIGURG);
}
