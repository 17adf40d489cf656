/*
 * Shows the guest its limits. The guest's kernel reports the size of the host or virtual machine, not what the sandbox may
 * use. So the agent mounts files of its own over the files that programs read, once, at start; each IDENTITY writes the
 * sandbox's numbers into them. CPU affinity is set as well, because most programs count CPUs that way. Called by main,
 * identity.c and the event loop. This file enforces nothing: where one of these steps is not possible, the guest only sees
 * larger numbers.
 */
#include "agent/limits.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "agent/agent.h"
#include "agent/guest.h"

#define MEMINFO "/proc/meminfo"
#define CPUINFO "/proc/cpuinfo"
#define STAT "/proc/stat"
#define CPUS_ONLINE "/sys/devices/system/cpu/online"
#define SHM "/dev/shm"
#define GROUPS "/sys/fs/cgroup"
#define FILE_MAX (1u << 20)
#define FILE_USUAL (8u << 10)
#define REFRESH_MS 1000      /* while memory use changes … */
#define REFRESH_MAX_MS 16000 /* … and while it does not: each look wakes an idle machine */
#define NOISE (1 << 20)      /* a smaller change is none: the clock of an idle desktop makes some each minute */

static void cannot(const char *what)
{
	log_line(LOG_WARN, "cannot show the guest its limits: %s: %s", what, strerror(errno));
}

/* ---- once ---- */

/* Mounts a file of the agent over a file of the kernel, at first with the same content. The file has a name only for a
 * moment, in /dev, which is in memory. */
static int lay_over(const char *target)
{
	static const char path[] = "/dev/.husk-limits";
	cleanup_free char *text = file_read(target, FILE_MAX, NULL, NULL);
	cleanup_close int fd = text ? open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0444) : -1;
	bool done = fd >= 0 && write_full(fd, text, strlen(text)) == 0 && mount(path, target, NULL, MS_BIND, NULL) == 0;

	if (!done)
		cannot(target);
	if (fd >= 0)
		unlink(path);
	return done ? steal_fd(&fd) : -1;
}

static int mount_group(const char *name, const char *controllers, unsigned long flags)
{
	cleanup_free char *path = str_format(GROUPS "/%s", name);

	if (path && mkdir(path, 0755) == 0 &&
	    mount("cgroup", path, "cgroup", MS_NOSUID | MS_NODEV | MS_NOEXEC | flags, controllers) == 0)
		return 0;
	cannot(name);
	return -1;
}

/* cgroup v2, if gVisor supports it: the workload's own group shows the limits. */
static bool show_tree(struct limits *limits)
{
	if (mount("cgroup", GROUPS, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
		return false;
	limits->unified = true;
	limits->group_memory = open(GROUPS "/workload/memory.max", O_WRONLY | O_CLOEXEC);
	limits->group_cpu = open(GROUPS "/workload/cpu.max", O_WRONLY | O_CLOEXEC);
	limits->group_usage = open(GROUPS "/cpu.stat", O_RDONLY | O_CLOEXEC);
	return true;
}

/* The control groups that the guest sees. With the guest's own kernel: the group that enforces the limit. gVisor
 * enforces only the number of processes, and leaves its groups to the guest: container runtimes do not start without
 * them. */
static void show_groups(struct limits *limits, bool machine)
{
	static const char *const names[] = { "memory", "cpu", "cpuacct", "cpuset", "devices" };

	if (!machine && show_tree(limits))
		return;
	if (mount("cgroup", GROUPS, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755,size=64k") < 0) {
		cannot(GROUPS);
		return;
	}
	if (machine) {
		mount_group("memory", "pids,memory", MS_RDONLY);
		return;
	}
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		mount_group(names[i], names[i], 0);
	limits->group_memory = open(GROUPS "/memory/memory.limit_in_bytes", O_WRONLY | O_CLOEXEC);
	limits->group_cpu = open(GROUPS "/cpu/cpu.cfs_quota_us", O_WRONLY | O_CLOEXEC);
	limits->group_usage = open(GROUPS "/cpuacct/cpuacct.stat", O_RDONLY | O_CLOEXEC);
}

/* ---- memory ---- */

/* In one read each time: the kernel makes the text anew for every read. Most files are short, and memory for long ones would be
 * mapped and unmapped in every look. */
static char *read_all(int fd)
{
	for (size_t room = FILE_USUAL; fd >= 0 && room <= FILE_MAX; room *= 4) {
		cleanup_free char *text = malloc(room);
		ssize_t size = text ? pread(fd, text, room - 1, 0) : -1;

		if (size < 0)
			return NULL;
		text[size] = '\0';
		if ((size_t)size < room - 1 || room * 4 > FILE_MAX)
			return steal_pointer(text);
	}
	return NULL;
}

char *limits_meminfo(const struct limits *limits, struct husk_error *err)
{
	char *text = read_all(limits->real_meminfo);

	return text ? text : file_read(MEMINFO, FILE_MAX, NULL, err);
}

int64_t limits_meminfo_bytes(const char *text, const char *name)
{
	const char *line = strstr(text, name);

	return line ? strtoll(line + strlen(name), NULL, 10) * 1024 : 0;
}

static void replace(int fd, const char *text, size_t size)
{
	/* Content first, then the size: a concurrent reader may see an old end, but never an empty file. */
	if (fd >= 0 && (pwrite(fd, text, size, 0) != (ssize_t)size || ftruncate(fd, (off_t)size) < 0))
		cannot("a file of the agent's");
}

/* One line of the kernel's meminfo, for a machine with this much memory: the memory in use stays the same. */
static int put_memory_line(struct buf *out, const char *line, size_t size, int64_t total, int64_t limit)
{
	static const char *const names[] = { "MemTotal:", "MemFree:", "MemAvailable:" };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		if (strncmp(line, names[i], strlen(names[i])) != 0)
			continue;
		int64_t used = total - strtoll(line + strlen(names[i]), NULL, 10) * 1024;

		return buf_printf(out, "%-15s %8lld kB\n", names[i], (long long)MAX(limit - used, 0) / 1024);
	}
	return buf_append(out, line, size);
}

static void refresh_memory(struct limits *limits, int64_t memory)
{
	cleanup_free char *text = read_all(limits->real_meminfo);
	cleanup_buf struct buf shown = { 0 };
	int64_t total = text ? limits_meminfo_bytes(text, "MemTotal:") : 0;

	for (const char *line = text; line && *line;) {
		const char *end = strchrnul(line, '\n');
		size_t size = (size_t)(end - line) + (*end != '\0');

		if (put_memory_line(&shown, line, size, total, MIN(memory, total)) < 0)
			return;
		line += size;
	}
	int64_t available = text ? limits_meminfo_bytes(text, "MemAvailable:") : 0;
	bool still = llabs(available - limits->available) < NOISE;
	limits->pause_ms = still ? MIN(MAX(2 * limits->pause_ms, REFRESH_MS), REFRESH_MAX_MS) : REFRESH_MS;
	if (!still)
		limits->available = available;
	if (shown.size > 0)
		replace(limits->meminfo, shown.data, shown.size);
}

/* CPU time of the guest in hundredths of a second, from either version of control groups. */
static bool read_usage(const struct limits *limits, long long *user, long long *system)
{
	cleanup_free char *text = read_all(limits->group_usage);

	if (!text)
		return false;
	if (!limits->unified)
		return sscanf(text, "user %lld system %lld", user, system) == 2;
	if (sscanf(text, "usage_usec %*d user_usec %lld system_usec %lld", user, system) != 2)
		return false;
	*user /= 10000;
	*system /= 10000;
	return true;
}

/* gVisor's /proc/stat shows no busy and no idle time, and programs divide by their sum. So the guest's time is shown,
 * spread evenly over the processors. */
static void refresh_stat(struct limits *limits)
{
	cleanup_free char *text = limits->stat < 0 ? NULL : read_all(limits->real_stat);
	cleanup_buf struct buf shown = { 0 };
	long long user, system, cpus = MAX(limits->cpus, 1);
	const char *rest = text ? strstr(text, "\nintr") : NULL;

	if (!rest || !read_usage(limits, &user, &system))
		return;
	long long idle = MAX(time_boot_ms() / 10 * cpus - user - system, 1);
	bool failed = buf_printf(&shown, "cpu  %lld 0 %lld %lld 0 0 0 0 0 0\n", user, system, idle) < 0;
	for (int i = 0; i < cpus && !failed; i++)
		failed = buf_printf(&shown, "cpu%d %lld 0 %lld %lld 0 0 0 0 0 0\n", i, user / cpus, system / cpus,
				    idle / cpus) < 0;
	if (!failed && buf_append(&shown, rest + 1, strlen(rest + 1)) == 0)
		replace(limits->stat, shown.data, shown.size);
}

bool limits_refresh(struct limits *limits, int64_t memory)
{
	int64_t now = time_monotonic_ms();

	if (limits->meminfo < 0 || memory <= 0 || (limits->refreshed_ms && now - limits->refreshed_ms < REFRESH_MS))
		return false;
	limits->refreshed_ms = now;
	refresh_memory(limits, memory);
	refresh_stat(limits);
	return true;
}

int64_t limits_next_ms(const struct limits *limits)
{
	return limits->meminfo < 0 || !limits->refreshed_ms ? 0 : limits->refreshed_ms + limits->pause_ms;
}

static bool is_empty(const char *path)
{
	DIR *directory = opendir(path);
	size_t entries = 0;

	while (directory && readdir(directory))
		entries++;
	if (directory)
		closedir(directory);
	return directory && entries <= 2;
}

/* Half of memory, as the kernel's default. gVisor's tmpfs keeps its size, so an empty one is mounted again. */
static void size_shm(int64_t memory)
{
	char options[64];
	struct statvfs found;

	snprintf(options, sizeof(options), "mode=1777,size=%lld", (long long)memory / 2);
	if (mount("shm", SHM, "tmpfs", MS_REMOUNT | MS_NOSUID | MS_NODEV, options) == 0 && statvfs(SHM, &found) == 0 &&
	    (int64_t)(found.f_blocks * found.f_frsize) <= memory / 2)
		return;
	if (!is_empty(SHM) || umount2(SHM, 0) < 0)
		return;
	if (mount("shm", SHM, "tmpfs", MS_NOSUID | MS_NODEV, options) < 0)
		cannot(SHM);
}

/* ---- processors ---- */

/* The first `count` of the machine's processors. */
static cpu_set_t first_cpus(const struct limits *limits, int count)
{
	cpu_set_t out;

	CPU_ZERO(&out);
	for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&out) < count; cpu++)
		if (CPU_ISSET(cpu, &limits->all))
			CPU_SET(cpu, &out);
	return out;
}

/* The agent too, because its children inherit the affinity. */
static void bind_all(const cpu_set_t *cpus)
{
	cleanup_free struct guest_process *list = NULL;
	ssize_t count = guest_scan(&list, NULL);

	if (sched_setaffinity(0, sizeof(*cpus), cpus) < 0)
		cannot("affinity");
	for (ssize_t i = 0; i < count; i++)
		(void)!sched_setaffinity(list[i].pid, sizeof(*cpus), cpus); /* the process may be gone */
}

static void show_cpus(const struct limits *limits, int count)
{
	char range[32];
	cleanup_free char *text = read_all(limits->real_cpuinfo);
	const char *end = text;
	int size =
		count > 1 ? snprintf(range, sizeof(range), "0-%d\n", count - 1) : snprintf(range, sizeof(range), "0\n");

	replace(limits->online, range, (size_t)size);
	/* One paragraph per processor. */
	for (int i = 0; i < count && end && *end; i++) {
		const char *next = strstr(end, "\n\n");

		end = next ? next + 2 : end + strlen(end);
	}
	if (text)
		replace(limits->cpuinfo, text, (size_t)(end - text));
}

/* ---- from the start ---- */

void limits_boot(struct limits *limits, bool machine)
{
	limits->real_meminfo = open(MEMINFO, O_RDONLY | O_CLOEXEC);
	limits->real_cpuinfo = open(CPUINFO, O_RDONLY | O_CLOEXEC);
	limits->real_stat = open(STAT, O_RDONLY | O_CLOEXEC);
	if (sched_getaffinity(0, sizeof(limits->all), &limits->all) < 0)
		CPU_ZERO(&limits->all);
	show_groups(limits, machine);
	limits->meminfo = lay_over(MEMINFO);
	limits->cpuinfo = lay_over(CPUINFO);
	limits->online = lay_over(CPUS_ONLINE);
	if (limits->group_usage >= 0)
		limits->stat = lay_over(STAT);
	limits->cpus = CPU_COUNT(&limits->all);
	refresh_stat(limits);
}

/* ---- a sandbox's ---- */

/* Writes a limit into a file of the guest's control groups. */
static void show_in_group(int fd, long long value, const char *rest)
{
	char text[48];
	int size = snprintf(text, sizeof(text), "%lld%s\n", value, rest);

	if (fd >= 0 && pwrite(fd, text, (size_t)size, 0) != size)
		cannot(GROUPS);
}

void limits_show(struct limits *limits, int64_t memory, int64_t cpu_milli)
{
	int cpus = (int)MIN((cpu_milli + 999) / 1000, CPU_COUNT(&limits->all));

	if (limits->real_meminfo < 0)
		return; /* not PID 1 */
	if (cpus > 0) {
		const cpu_set_t set = first_cpus(limits, cpus);

		limits->cpus = cpus;
		bind_all(&set);
		show_cpus(limits, cpus);
		show_in_group(limits->group_cpu, cpu_milli * 100, limits->unified ? " 100000" : ""); /* of 100,000 us */
	}
	if (memory > 0) {
		show_in_group(limits->group_memory, memory, "");
		limits->refreshed_ms = 0;
		limits_refresh(limits, memory);
		size_shm(memory);
	}
}
