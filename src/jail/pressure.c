/*
 * Memory pressure of one control group, as a descriptor to poll. cgroup.c starts it, in the supervisor.
 *
 * The kernel's own notifications are not suitable. v1's usage threshold counts page cache, which a guest's disk layer
 * fills without harm. v2's memory.high slows down the very processes that should free memory. So a small thread checks
 * the usage. The interval depends on the distance to the limit, because memory cannot grow faster than a few GiB per
 * second: an idle sandbox is checked about once a second (one read of a few bytes), one close to its limit every 20 ms.
 * memory.stat is expensive, so it is read only if usage with page cache exceeds the limit.
 *
 * It must never signal for page cache alone, because the listener kills a process of the guest.
 */
#include "jail/pressure.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include "base/thread.h"

#define SAMPLE_MIN_MS 20
#define SAMPLE_MAX_MS 1000
/* Faster than a guest can touch fresh pages on any tested machine. */
#define GROWTH_BYTES_PER_MS (2ull << 20)
/* After a clear: a process that was just killed needs a moment to free its pages. */
#define GRACE_MS 50
/* Tasks alone prove nothing: the listener asks the guest's kernel, which should not be asked too often. */
#define TASKS_AGAIN_MS 1000
#define STACK_SIZE (128u << 10)

struct pressure {
	pthread_t thread;
	pthread_mutex_t lock;
	uint64_t limit;  /* memory limit; under the lock; 0: none */
	uint64_t most;   /* tasks; under the lock; 0: none */
	bool signalled;  /* under the lock: `event` is readable */
	bool cleared;    /* under the lock: cleared since the last look */
	int64_t told_ms; /* used by the thread only: when there were too many tasks last */
	int usage, stat; /* the kernel's files, kept open */
	int tasks;       /* kept open too; -1: not watched */
	int event;       /* what the caller polls */
	int wake;        /* wakes the thread: limit changed, cleared, or `ending` */
	bool ending;     /* under the lock */
	bool v2;
};

uint64_t pressure_keyed(const char *text, const char *key)
{
	size_t length = strlen(key);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, key, length) == 0 && line[length] == ' ')
			return strtoull(line + length, NULL, 10);
	}
	return 0;
}

uint64_t pressure_in_use(const char *memory_stat, bool v2)
{
	if (v2)
		return pressure_keyed(memory_stat, "anon") + pressure_keyed(memory_stat, "shmem");
	return pressure_keyed(memory_stat, "total_rss") + pressure_keyed(memory_stat, "total_shmem");
}

/* Memory in use that counts. If the file cannot be read, the group no longer exists: 0. */
static uint64_t pressure_sample(struct pressure *pressure, uint64_t limit)
{
	char text[8192];
	ssize_t got = pread(pressure->usage, text, sizeof(text) - 1, 0);
	uint64_t usage;

	if (got <= 0)
		return 0;
	text[got] = '\0';
	usage = strtoull(text, NULL, 10);
	if (usage < limit)
		return usage;
	got = pread(pressure->stat, text, sizeof(text) - 1, 0);
	if (got <= 0)
		return 0;
	text[got] = '\0';
	return pressure_in_use(text, pressure->v2);
}

static bool too_many_tasks(struct pressure *pressure, uint64_t most)
{
	char text[32];
	ssize_t got = most && pressure->tasks >= 0 ? pread(pressure->tasks, text, sizeof(text) - 1, 0) : 0;

	if (got <= 0)
		return false;
	text[got] = '\0';
	return strtoull(text, NULL, 10) >= most;
}

/* True if it is time to signal for the tasks. */
static bool tasks_due(struct pressure *pressure, uint64_t most)
{
	int64_t now = time_monotonic_ms();

	if ((pressure->told_ms && now - pressure->told_ms < TASKS_AGAIN_MS) || !too_many_tasks(pressure, most))
		return false;
	pressure->told_ms = now;
	return true;
}

/* Checks once. Returns how long to wait until the next check; -1: until woken. */
static int pressure_look(struct pressure *pressure, uint64_t limit, uint64_t most)
{
	uint64_t used = pressure_sample(pressure, limit), one = 1;

	if (used < limit && !tasks_due(pressure, most))
		return (int)MIN(MAX((limit - used) / GROWTH_BYTES_PER_MS, (uint64_t)SAMPLE_MIN_MS),
				(uint64_t)SAMPLE_MAX_MS);
	pthread_mutex_lock(&pressure->lock);
	if (!pressure->signalled && write(pressure->event, &one, sizeof(one)) == (ssize_t)sizeof(one))
		pressure->signalled = true;
	pthread_mutex_unlock(&pressure->lock);
	return -1;
}

static void *pressure_run(void *data)
{
	struct pressure *pressure = data;

	for (;;) {
		struct pollfd wake = { .fd = pressure->wake, .events = POLLIN };
		uint64_t limit, most, count;
		bool ending, watching, cleared;
		int wait = -1;

		pthread_mutex_lock(&pressure->lock);
		limit = pressure->limit;
		most = pressure->most;
		ending = pressure->ending;
		watching = limit && !pressure->signalled;
		cleared = pressure->cleared;
		pressure->cleared = false;
		pthread_mutex_unlock(&pressure->lock);
		if (ending)
			return NULL;
		if (watching)
			wait = cleared ? GRACE_MS : pressure_look(pressure, limit, most);
		if (poll(&wake, 1, wait) > 0)
			(void)!read(pressure->wake, &count, sizeof(count));
	}
}

static void pressure_poke(struct pressure *pressure)
{
	uint64_t one = 1;

	/* Fails only if the counter is full, and then the thread is awake anyway. */
	(void)!write(pressure->wake, &one, sizeof(one));
}

static int file_open(const char *directory, const char *name, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/%s", directory, name);
	int fd;

	if (!path)
		return husk_fail_memory(err);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd >= 0 ? fd : husk_fail_errno(err, "cannot open %s", path);
}

static void pressure_release(struct pressure *pressure)
{
	fd_close(&pressure->usage);
	fd_close(&pressure->stat);
	fd_close(&pressure->tasks);
	fd_close(&pressure->event);
	fd_close(&pressure->wake);
	pthread_mutex_destroy(&pressure->lock);
	free(pressure);
}

struct pressure *pressure_new(const char *directory, bool v2, const char *tasks, struct husk_error *err)
{
	struct pressure *pressure = calloc(1, sizeof(*pressure));
	int failed = -1;

	if (!pressure) {
		husk_fail_memory(err);
		return NULL;
	}
	pthread_mutex_init(&pressure->lock, NULL);
	pressure->v2 = v2;
	pressure->usage = pressure->stat = pressure->tasks = -1;
	pressure->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pressure->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (pressure->event < 0 || pressure->wake < 0) {
		husk_fail_errno(err, "cannot make an eventfd");
		pressure_release(pressure);
		return NULL;
	}
	pressure->usage = file_open(directory, v2 ? "memory.current" : "memory.usage_in_bytes", err);
	if (pressure->usage >= 0)
		pressure->stat = file_open(directory, "memory.stat", err);
	if (pressure->stat >= 0 && tasks)
		pressure->tasks = file_open(tasks, "pids.current", NULL);
	if (pressure->stat >= 0 && (failed = thread_quiet(&pressure->thread, STACK_SIZE, pressure_run, pressure)) != 0)
		husk_fail(err, HUSK_INTERNAL, "cannot start the memory watch: %s", strerror(failed));
	if (failed != 0) {
		pressure_release(pressure);
		return NULL;
	}
	return pressure;
}

void pressure_free(struct pressure *pressure)
{
	if (!pressure)
		return;
	pthread_mutex_lock(&pressure->lock);
	pressure->ending = true;
	pthread_mutex_unlock(&pressure->lock);
	pressure_poke(pressure);
	pthread_join(pressure->thread, NULL);
	pressure_release(pressure);
}

void pressure_set_limit(struct pressure *pressure, uint64_t bytes, uint64_t tasks)
{
	pthread_mutex_lock(&pressure->lock);
	pressure->limit = bytes;
	pressure->most = tasks;
	pthread_mutex_unlock(&pressure->lock);
	pressure_poke(pressure);
}

int pressure_fd(struct pressure *pressure)
{
	return pressure->event;
}

void pressure_clear(struct pressure *pressure)
{
	uint64_t count;

	pthread_mutex_lock(&pressure->lock);
	if (pressure->signalled && read(pressure->event, &count, sizeof(count)) == (ssize_t)sizeof(count))
		pressure->signalled = false;
	pressure->cleared = true;
	pthread_mutex_unlock(&pressure->lock);
	pressure_poke(pressure);
}
