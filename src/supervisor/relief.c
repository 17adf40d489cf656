/*
 * Relief of memory and processes. A thread waits until the cgroup reports that the guest is over a limit. It then asks the
 * agent to kill the guest's largest process, or kills a flood of processes from outside, and records what was killed. The
 * thread is separate because it asks the guest, which may never answer. It also records that the disk is full: the agent
 * reports it, or, if the guest cannot know, the thread looks from time to time.
 */
#include "supervisor/relief.h"

#include <jansson.h>
#include <poll.h>
#include <sys/eventfd.h>

#include "supervisor/machine.h"
#include "supervisor/supervisor.h"

#define AGENT_MS 5000
#define PAUSE_MS 200  /* after a kill for memory: time for the kill to be reported */
#define TELL_BURST 50 /* events that the guest can cause; then one in a while */
#define TELL_PAUSE_MS 10000
#define DISK_LOOK_MS 5000
#define KILLS 16 /* reported and not yet recorded kills; more at once are treated as a flood */

struct relief {
	struct supervisor *supervisor;
	pthread_t thread;
	int wake_fd;
	struct cgroup *cgroup;

	/* When memory was last short, and how much was in use after a process had been killed. */
	int64_t at_ms;
	uint64_t used;
	/* How many reports of the guest may still become events. */
	size_t budget;
	int64_t told_ms;
	/* For the thread's own looks at the disk. */
	int64_t looked_ms;
	bool disk_full; /* and recorded */

	pthread_mutex_t lock; /* what is below */
	bool stopping;
	bool looks;    /* at the disk, because the guest cannot know */
	uint64_t disk; /* in use, of a full disk that was reported and not yet recorded; 0: none */
	size_t count;
	struct {
		int64_t pid;
		char name[32];
	} kills[KILLS];
};

static void wake(struct relief *relief)
{
	uint64_t one = 1;

	(void)!write(relief->wake_fd, &one, sizeof(one));
}

static void oom_event(struct supervisor *s, int64_t pid, const char *name)
{
	json_t *detail = json_pack("{s:I, s:s?, s:I}", "pid", (json_int_t)pid, "process", name, "memory_limit",
				   (json_int_t)s->memory_limit);
	cleanup_free char *text = detail ? json_dumps(detail, JSON_COMPACT) : NULL;

	json_decref(detail);
	catalog_event(s->husk.catalog, life_id(&s->life), "oom", text ? text : "{}", NULL);
}

static void disk_event(struct supervisor *s, uint64_t used)
{
	cleanup_free char *text = str_format("{\"disk\":%llu,\"disk_limit\":%llu}", (unsigned long long)used,
					     (unsigned long long)s->disk_limit);

	catalog_event(s->husk.catalog, life_id(&s->life), "disk", text ? text : "{}", NULL);
}

/* ---- reports of the guest ---- */

/* With the lock held. */
static void note_kill(struct relief *relief, const char *payload, size_t size)
{
	cleanup_free char *name = wire_get_string(payload, size, TAG_NAME);

	if (relief->count == KILLS)
		return;
	relief->kills[relief->count].pid = wire_get_int(payload, size, TAG_PID, 0);
	snprintf(relief->kills[relief->count].name, sizeof(relief->kills[0].name), "%s", name ? name : "");
	relief->count++;
}

/* On the link's thread, which must not wait for the catalog. */
static void on_notice(void *data, const struct wire_header *header, const char *payload)
{
	struct relief *relief = data;

	if (header->type != WIRE_MSG)
		return;
	int64_t disk = wire_get_int(payload, header->size, TAG_DISK, -1);
	pthread_mutex_lock(&relief->lock);
	if (disk < 0)
		note_kill(relief, payload, header->size);
	else if (!relief->looks)
		relief->disk = (uint64_t)MAX(disk, 1);
	pthread_mutex_unlock(&relief->lock);
	wake(relief);
}

int relief_watch(struct supervisor *s, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	uint64_t used, limit;
	uint32_t channel;

	bool looks = machine_disk(s, &used, &limit) == 0;
	pthread_mutex_lock(&s->relief->lock);
	s->relief->looks = looks;
	pthread_mutex_unlock(&s->relief->lock);
	wake(s->relief);
	if (looks && !s->engine->own_kernel)
		return 0; /* nothing that the guest could report */
	if (wire_put_int(&message, TAG_METHOD, METHOD_LIMITS_WATCH) < 0)
		return husk_fail_memory(err);
	return link_open(s->link, message.data, message.size, on_notice, s->relief, &channel, err);
}

/* A guest that invents a million kills must not fill the host's disk. */
static bool may_tell(struct relief *relief)
{
	int64_t gained = (time_monotonic_ms() - relief->told_ms) / TELL_PAUSE_MS;

	if (gained > 0) {
		relief->budget = (size_t)MIN((int64_t)relief->budget + gained, TELL_BURST);
		relief->told_ms = time_monotonic_ms();
	}
	if (relief->budget == 0)
		return false;
	relief->budget--;
	return true;
}

/* What the guest has reported. False: the thread has to stop. */
static bool tell_notices(struct relief *relief)
{
	__typeof__(relief->kills[0]) kills[KILLS];

	pthread_mutex_lock(&relief->lock);
	size_t count = relief->count;
	memcpy(kills, relief->kills, sizeof(kills));
	relief->count = 0;
	uint64_t disk = relief->disk;
	relief->disk = 0;
	bool stopping = relief->stopping;
	pthread_mutex_unlock(&relief->lock);
	if (disk && may_tell(relief))
		disk_event(relief->supervisor, disk);
	for (size_t i = 0; i < count && may_tell(relief); i++)
		oom_event(relief->supervisor, kills[i].pid, kills[i].name);
	return !stopping;
}

/* ---- a disk whose size the guest cannot know ---- */

static void look_at_disk(struct relief *relief)
{
	uint64_t used, limit;

	relief->looked_ms = time_monotonic_ms();
	if (machine_disk(relief->supervisor, &used, &limit) < 0)
		return;
	uint64_t left = limit - MIN(used, limit);
	bool full = left < WIRE_DISK_SPARE(limit);
	if (full && !relief->disk_full && may_tell(relief))
		disk_event(relief->supervisor, used);
	if (full || left >= 2 * WIRE_DISK_SPARE(limit))
		relief->disk_full = full;
}

/* How long to wait until the next look; -1: for ever. */
static int look_pause(struct relief *relief)
{
	pthread_mutex_lock(&relief->lock);
	bool looks = relief->looks;
	pthread_mutex_unlock(&relief->lock);
	return looks ? (int)MAX(relief->looked_ms + DISK_LOOK_MS - time_monotonic_ms(), 0) : -1;
}

/* ---- reports of the cgroup ---- */

/* The guest has more processes than its limit allows. If a guest forks without end, its agent gets no CPU time to stop
 * it. */
static void end_flood(struct relief *relief, uint64_t most)
{
	struct supervisor *s = relief->supervisor;
	struct husk_error err = { 0 };

	if (life_begin(&s->life, LIFE_RELIEVE, NULL) < 0)
		return; /* it stands still, or ends */
	int killed = s->engine->kill_processes(s->machine, most, &err);
	life_finish(&s->life, true);
	if (killed < 0)
		log_line(LOG_WARN, "cannot stop a flood of processes: %s", err.message);
	if (killed <= 0)
		return;
	cleanup_free char *detail = str_format("{\"killed\":%d}", killed);
	catalog_event(s->husk.catalog, life_id(&s->life), "pids", detail, NULL);
}

static void end_largest(struct supervisor *s)
{
	cleanup_buf struct buf results = { 0 };
	struct husk_error err = { 0 };

	if (!s->link || life_look(&s->life).state != CATALOG_RUNNING)
		return;
	if (link_call(s->link, METHOD_OOM, NULL, &results, AGENT_MS, &err) < 0) {
		log_line(LOG_WARN, "memory is short and the agent did not help: %s", err.message);
		return;
	}
	int64_t pid = wire_get_int(results.data, results.size, TAG_PID, 0);
	cleanup_free char *name = wire_get_string(results.data, results.size, TAG_NAME);
	if (pid > 0)
		oom_event(s, pid, name);
}

/* Memory is short. Killed processes need a moment to free their memory, but use no more of it. If memory still grows,
 * other processes use it. */
static void relieve(struct relief *relief)
{
	struct supervisor *s = relief->supervisor;

	uint64_t most = cgroup_crowd(relief->cgroup);
	if (most)
		end_flood(relief, most);
	if (!cgroup_memory_over(relief->cgroup))
		return;
	if (time_monotonic_ms() - relief->at_ms < PAUSE_MS && machine_use(s).memory_bytes <= relief->used)
		return;
	end_largest(s);
	relief->at_ms = time_monotonic_ms();
	relief->used = machine_use(s).memory_bytes;
}

static void *run_relief(void *argument)
{
	struct relief *relief = argument;
	uint64_t ignored;

	for (;;) {
		struct pollfd wait[2] = { { relief->wake_fd, POLLIN, 0 },
					  { cgroup_pressure_fd(relief->cgroup), POLLIN, 0 } };
		if (poll(wait, 2, look_pause(relief)) < 0 && errno != EINTR)
			return NULL;
		if (wait[0].revents)
			(void)!read(relief->wake_fd, &ignored, sizeof(ignored));
		if (!tell_notices(relief))
			return NULL;
		if (look_pause(relief) == 0)
			look_at_disk(relief);
		if (wait[1].revents & POLLIN) {
			cgroup_pressure_clear(relief->cgroup);
			relieve(relief);
		}
	}
}

int relief_start(struct supervisor *s, struct husk_error *err)
{
	struct relief *relief = calloc(1, sizeof(*relief));

	if (!relief)
		return husk_fail_memory(err);
	*relief = (struct relief){ .supervisor = s,
				   .cgroup = s->cgroup,
				   .budget = TELL_BURST,
				   .wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
	pthread_mutex_init(&relief->lock, NULL);
	if (relief->wake_fd < 0 || pthread_create(&relief->thread, NULL, run_relief, relief) != 0) {
		fd_close(&relief->wake_fd);
		free(relief);
		return husk_fail(err, HUSK_INTERNAL, "cannot start the thread that watches the limits");
	}
	s->relief = relief;
	return 0;
}

void relief_stop(struct supervisor *s)
{
	struct relief *relief = steal_pointer(s->relief);

	if (!relief)
		return;
	pthread_mutex_lock(&relief->lock);
	relief->stopping = true;
	pthread_mutex_unlock(&relief->lock);
	wake(relief);
	pthread_join(relief->thread, NULL);
	fd_close(&relief->wake_fd);
	pthread_mutex_destroy(&relief->lock);
	free(relief);
}
