/*
 * Reads /proc: lists the guest's processes, reports what the machine uses (STATS), and kills the largest process when
 * memory is short (OOM). A process chooses part of its own /proc text, such as its name, so that text is parsed as hostile.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include "agent/agent.h"
#include "agent/guest.h"
#include "agent/process.h"

#define FLAG_KERNEL 0x00200000 /* PF_KTHREAD: a kernel thread, which has no program and ignores signals */
#define ENTRY_SIZE_MIN 24      /* minimum size of the kernel's directory entry */

/* The fields of /proc/<pid>/stat after the name, counted from the state. */
enum {
	STAT_PARENT = 1,
	STAT_GROUP,
	STAT_SESSION,
	STAT_FLAGS = 6,
	STAT_UTIME = 11,
	STAT_STIME,
	STAT_CUTIME,
	STAT_CSTIME,
	STAT_RSS = 21,
	STAT_FIELDS = 22
};

/* -1: malformed, or not a process of the guest. */
static int stat_parse(char *text, struct guest_process *out)
{
	char *open = strchr(text, '('),
	     *close = strrchr(text, ')'); /* a name may contain any character, brackets too */
	long long field[STAT_FIELDS] = { 0 };
	char *rest;

	if (!open || !close || close < open || close[1] != ' ' || close[2] == '\0')
		return -1;
	snprintf(out->name, sizeof(out->name), "%.*s", (int)(close - open - 1), open + 1);
	out->state = close[2];
	rest = close + 3;
	for (int i = 1; i < STAT_FIELDS; i++)
		field[i] = strtoll(rest, &rest, 10);
	if (field[STAT_FLAGS] & FLAG_KERNEL)
		return -1;
	out->parent = (pid_t)field[STAT_PARENT];
	out->group = (pid_t)field[STAT_GROUP];
	out->session = (pid_t)field[STAT_SESSION];
	out->ticks = field[STAT_UTIME] + field[STAT_STIME] + field[STAT_CUTIME] + field[STAT_CSTIME];
	out->rss_bytes = field[STAT_RSS] * sysconf(_SC_PAGESIZE);
	return 0;
}

/* False: the process has ended, or is a kernel thread. */
bool guest_find(pid_t pid, struct guest_process *out)
{
	char path[32], text[1024];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (size <= 0)
		return false;
	text[size] = '\0';
	*out = (struct guest_process){ .pid = pid };
	return stat_parse(text, out) == 0;
}

static const struct guest_process *find_pid(const struct guest_process *list, size_t count, pid_t pid)
{
	for (size_t i = 0; i < count; i++) {
		if (list[i].pid == pid)
			return &list[i];
	}
	return NULL;
}

/* Number of steps up to the agent; -1 if the parents do not lead to it. Bounded, because the list is not a consistent
 * snapshot. */
static int depth_below(const struct guest_process *list, size_t count, const struct guest_process *at, pid_t self)
{
	for (int depth = 1; at && depth <= (int)count + 1; depth++) {
		if (at->parent == self)
			return depth;
		at = find_pid(list, count, at->parent);
	}
	return -1;
}

static int by_depth(const void *a, const void *b)
{
	const struct guest_process *left = a, *right = b;
	return left->depth != right->depth ? left->depth - right->depth : left->pid - right->pid;
}

/* Keeps the guest's processes and sets their depths. A process without a known parent counts as a child of the
 * agent. */
static size_t guest_filter(struct guest_process *list, size_t count)
{
	pid_t self = getpid();
	size_t kept = 0;

	for (size_t i = 0; i < count; i++)
		list[i].depth = depth_below(list, count, &list[i], self);
	for (size_t i = 0; i < count; i++) {
		if (list[i].depth < 0 && self != 1)
			continue;
		list[kept] = list[i];
		list[kept].depth = MAX(list[kept].depth, 1);
		kept++;
	}
	qsort(list, kept, sizeof(*list), by_depth);
	return kept;
}

static int by_pid(const void *a, const void *b)
{
	return *(const pid_t *)a - *(const pid_t *)b;
}

/*
 * The pids in /proc, each once. gVisor lists /proc correctly only if one call reads all of it: a listing in small
 * pieces, as by readdir, returns some pids twice. So the buffer is large, and duplicates are removed.
 */
static ssize_t guest_pids(pid_t **out, struct husk_error *err)
{
	static char entries[64 * 1024] __attribute__((aligned(8)));
	cleanup_close int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_free pid_t *list = NULL;
	size_t count = 0, unique = 0;
	int64_t pid;
	long size;

	if (proc < 0)
		return husk_fail_errno(err, "cannot list '/proc'");
	while ((size = syscall(SYS_getdents64, proc, entries, sizeof(entries))) > 0) {
		pid_t *bigger = reallocarray(list, count + (size_t)size / ENTRY_SIZE_MIN, sizeof(*list));
		if (!bigger)
			return husk_fail_memory(err);
		list = bigger;
		for (long at = 0; at < size;) {
			const struct dirent *entry = (const struct dirent *)(entries + at);
			if (str_to_int64(entry->d_name, 1, INT32_MAX, &pid) == 0 && pid != getpid())
				list[count++] = (pid_t)pid;
			at += entry->d_reclen;
		}
	}
	if (size < 0)
		return husk_fail_errno(err, "cannot list '/proc'");
	if (count > 0)
		qsort(list, count, sizeof(*list), by_pid);
	for (size_t i = 0; i < count; i++) {
		if (i == 0 || list[i] != list[i - 1])
			list[unique++] = list[i];
	}
	*out = steal_pointer(list);
	return (ssize_t)unique;
}

ssize_t guest_scan(struct guest_process **out, struct husk_error *err)
{
	cleanup_free pid_t *pids = NULL;
	ssize_t listed = guest_pids(&pids, err);
	size_t count = 0;

	*out = NULL;
	if (listed < 0)
		return -1;
	cleanup_free struct guest_process *list = calloc((size_t)listed + 1, sizeof(*list));
	if (!list)
		return husk_fail_memory(err);
	for (ssize_t i = 0; i < listed; i++)
		count += (size_t)guest_find(pids[i], &list[count]);
	count = guest_filter(list, count);
	*out = steal_pointer(list);
	return (ssize_t)count;
}

/* The agent's own line. */
static int guest_self(struct guest_process *out, struct husk_error *err)
{
	return guest_find(getpid(), out) ? 0
					 : husk_fail(err, HUSK_INTERNAL, "cannot read the agent's own '/proc' entry");
}

/* ---- stats ---- */

int stats_answer(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err)
{
	cleanup_free struct guest_process *list = NULL;
	struct guest_process self;
	struct statvfs disk;
	ssize_t count = guest_scan(&list, err);

	(void)request;
	if (count < 0 || guest_self(&self, err) < 0)
		return -1;
	cleanup_free char *meminfo = limits_meminfo(&agent->limits, err);
	if (!meminfo)
		return -1;
	if (statvfs("/", &disk) < 0)
		return husk_fail_errno(err, "cannot ask for the size of '/'");
	int64_t ticks = self.ticks, total = limits_meminfo_bytes(meminfo, "MemTotal:");
	for (ssize_t i = 0; i < count; i++)
		ticks += list[i].ticks;
	int64_t used = total - limits_meminfo_bytes(meminfo, "MemAvailable:");
	int64_t unit = (int64_t)disk.f_frsize;
	if (wire_put_int(results, TAG_CPU_US, ticks * (1000000 / sysconf(_SC_CLK_TCK))) < 0 ||
	    wire_put_int(results, TAG_MEMORY, used) < 0 ||
	    wire_put_int(results, TAG_MEMORY_TOTAL, agent->memory_limit ? agent->memory_limit : total) < 0 ||
	    wire_put_int(results, TAG_DISK, (int64_t)(disk.f_blocks - disk.f_bfree) * unit) < 0 ||
	    wire_put_int(results, TAG_DISK_TOTAL, (int64_t)disk.f_blocks * unit) < 0 ||
	    wire_put_int(results, TAG_COUNT, count) < 0)
		return husk_fail_memory(err);
	return 0;
}

/* ---- out of memory ---- */

int oom_answer(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err)
{
	cleanup_free struct guest_process *list = NULL;
	const struct guest_process *largest = NULL;
	ssize_t count;

	(void)request;
	/* The guest's own kernel enforces the workload's memory limit, so no process is killed here. The host's
	 * shortage comes from the rest of the machine, such as caches. */
	if (agent->group_memory >= 0) {
		memory_give_back();
		return 0;
	}
	count = guest_scan(&list, err);
	if (count < 0)
		return -1;
	for (ssize_t i = 0; i < count; i++) {
		if (list[i].state != 'Z' && (!largest || list[i].rss_bytes > largest->rss_bytes))
			largest = &list[i];
	}
	if (!largest) /* no process runs: an answer without a PID */
		return 0;
	/* Marked before the kill, so that the end of the process cannot be handled unmarked. */
	process_mark_oom(agent, largest->pid, largest->group, largest->session);
	if (kill(largest->pid, SIGKILL) < 0 && errno != ESRCH)
		return husk_fail_errno(err, "cannot kill process %d", largest->pid);
	log_line(LOG_WARN, "memory is short: killed process %d (%s), %lld bytes", largest->pid, largest->name,
		 (long long)largest->rss_bytes);
	if (wire_put_int(results, TAG_PID, largest->pid) < 0 || wire_put_string(results, TAG_NAME, largest->name) < 0)
		return husk_fail_memory(err);
	return 0;
}
