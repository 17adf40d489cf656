/*
 * Daytona's builds of snapshots, which continue after their request was answered: clients ask for the state of the
 * snapshot until the build has ended, and follow its log meanwhile. A build lives in this process. When the server is
 * killed, its clients have to build again, and nothing is left behind (src/build).
 *
 *     POST /snapshots                        "building", with the id of the build
 *     GET /snapshots/<id>/build-logs?follow  its log, until it ends
 *     GET /snapshots/<id>                    "active", with the id of the snapshot; or "build_failed"
 */
#include <stdatomic.h>

#include "server/core.h"
#include "server/dialects/daytona/daytona.h"

#define RUNNING_MAX 8 /* of one tenant */
#define KEPT_MAX 32   /* of one tenant, with those that have ended */
#define LOG_BYTES_MAX (4u << 20)
#define LOG_PIECE 65536u
#define LOOK_MS 200
#define GIB (UINT64_C(1) << 30)

struct job {
	struct job *next;
	char id[24];
	char *name;   /* of the snapshot */
	char *tenant; /* NULL: the instance itself */
	json_t *info; /* buildInfo */
	struct husk_create_options size;
	struct husk *view; /* its own handle; NULL: the server's is used */
	struct husk *owner;
	int64_t created_ms;
	atomic_bool cancelled;

	/* Under the lock: */
	enum { JOB_RUNNING, JOB_READY, JOB_FAILED } state;
	bool removed; /* nobody finds it any more; its last user frees it */
	unsigned users;
	struct buf log;
	char reason[1024];
};

/* All builds of this process, newest first. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct job *jobs;
static size_t running_count;
static atomic_bool ending;

/* ---- the list; everything under the lock ---- */

static void job_free(struct job *job)
{
	if (job->view)
		husk_close(job->view);
	free(job->name);
	free(job->tenant);
	json_decref(job->info);
	buf_free(&job->log);
	free(job);
}

static bool is_owners(const struct job *job, const struct request *request)
{
	if (job->tenant)
		return request->caller == CALLER_TENANT && str_equal(job->tenant, request->tenant);
	return request->caller == CALLER_INSTANCE;
}

/* Takes a job out of the list. It is freed now, or by its last user. */
static void forget(struct job *job)
{
	struct job **at = &jobs;

	while (*at != job)
		at = &(*at)->next;
	*at = job->next;
	job->removed = true;
	atomic_store(&job->cancelled, true);
	if (job->users == 0)
		job_free(job);
}

static void let_go(struct job *job)
{
	if (--job->users == 0 && job->removed)
		job_free(job);
}

/* The caller's newest job of this id or name. */
static struct job *find_job(const struct request *request, const char *word)
{
	for (struct job *job = jobs; job; job = job->next)
		if (is_owners(job, request) && (str_equal(job->id, word) || str_equal(job->name, word)))
			return job;
	return NULL;
}

/* A failed job of the same name and the oldest of too many give way. */
static int make_room(const struct request *request, const char *name, struct husk_error *err)
{
	size_t running = 0, count = 0;
	struct job *same = find_job(request, name), *oldest = NULL;

	if (same && same->state == JOB_RUNNING)
		return husk_fail(err, HUSK_CONFLICT, "Snapshot with name \"%.80s\" already exists", name);
	if (same)
		forget(same);
	for (struct job *job = jobs; job; job = job->next) {
		bool own = is_owners(job, request);
		count += own;
		running += own && job->state == JOB_RUNNING;
		if (own && job->state != JOB_RUNNING)
			oldest = job;
	}
	if (running >= RUNNING_MAX)
		return husk_fail(err, HUSK_LIMIT, "%d builds are under way; wait for one to end", RUNNING_MAX);
	if (count >= KEPT_MAX && oldest)
		forget(oldest);
	return 0;
}

/* ---- the thread ---- */

static void say(void *data, const char *text, size_t size)
{
	struct job *job = data;

	pthread_mutex_lock(&lock);
	if (job->log.size + size <= LOG_BYTES_MAX)
		buf_append(&job->log, text, size); /* a log without this piece is a log too */
	pthread_mutex_unlock(&lock);
}

static bool stops(void *data)
{
	return atomic_load(&ending) || atomic_load(&((struct job *)data)->cancelled);
}

static void *job_main(void *data)
{
	struct job *job = data;
	struct husk_error err = { 0 };
	const struct daytona_order order = { .husk = job->view ? job->view : job->owner,
					     .owner = job->owner,
					     .info = job->info,
					     .size = &job->size,
					     .name = job->name,
					     .say = say,
					     .stops = stops,
					     .data = job };
	int result = daytona_build_run(&order, &err);

	if (job->view)
		husk_close(steal_pointer(job->view));
	if (result < 0) {
		say(job, err.message, strlen(err.message));
		say(job, "\n", 1);
	}
	pthread_mutex_lock(&lock);
	snprintf(job->reason, sizeof(job->reason), "%s", err.message);
	job->state = result < 0 ? JOB_FAILED : JOB_READY;
	running_count--;
	let_go(job);
	pthread_mutex_unlock(&lock);
	return NULL;
}

bool daytona_builds_end(void)
{
	atomic_store(&ending, true);
	for (int64_t end = time_monotonic_ms() + 5000; time_monotonic_ms() < end; usleep(20000)) {
		pthread_mutex_lock(&lock);
		bool quiet = running_count == 0;
		while (quiet && jobs)
			forget(jobs);
		pthread_mutex_unlock(&lock);
		if (quiet)
			return true;
	}
	return false;
}

/* ---- for daytona_snapshots.c ---- */

/* As a snapshot. */
static json_t *job_document(const struct job *job)
{
	static const char *const states[] = {
		[JOB_RUNNING] = "building", [JOB_READY] = "active", [JOB_FAILED] = "build_failed"
	};

	/* clang-format off */
	return json_pack("{s:s, s:s, s:b, s:s, s:s, s:n, s:n, s:I, s:i, s:I, s:I, s:o, s:o, s:o, s:n}",
		"id", job->id,
		"organizationId", job->tenant ? job->tenant : "husk",
		"general", false,
		"name", job->name,
		"state", states[job->state],
		"size",
		"entrypoint",
		"cpu", (json_int_t)MAX(1u, (job->size.cpu_milli + 999) / 1000),
		"gpu", 0,
		"mem", (json_int_t)MAX(1u, (job->size.memory_bytes + GIB - 1) / GIB),
		"disk", (json_int_t)MAX(1u, (job->size.disk_bytes + GIB - 1) / GIB),
		"errorReason", job->state == JOB_FAILED ? json_text0(job->reason) : json_null(),
		"createdAt", json_time(job->created_ms),
		"updatedAt", json_time(job->created_ms),
		"lastUsedAt");
	/* clang-format on */
}

int daytona_build_start(struct request *request, const char *name, json_t *info, const struct husk_create_options *size,
			json_t **document, struct husk_error *err)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return husk_fail_memory(err);
	job->name = strdup(name);
	job->info = json_deep_copy(info);
	job->owner = request_owner(request);
	job->created_ms = time_wall_ms();
	job->size = (struct husk_create_options){ .cpu_milli = size->cpu_milli,
						  .memory_bytes = size->memory_bytes,
						  .disk_bytes = size->disk_bytes };
	bool tenant = request->caller == CALLER_TENANT;
	job->tenant = tenant ? strdup(request->tenant) : NULL;
	if (!job->name || !job->info || (tenant && !job->tenant) || random_id("bd-", 16, job->id) < 0) {
		job_free(job);
		return husk_fail_memory(err);
	}
	int result = auth_view(request, &job->view, err);
	pthread_mutex_lock(&lock);
	if (result == 0)
		result = make_room(request, name, err);
	if (result == 0 && thread_start(NULL, true, job_main, job) < 0)
		result = husk_fail(err, HUSK_UNAVAILABLE, "no thread left for this build; try again later");
	if (result == 0) {
		job->users = 1;
		job->next = jobs;
		jobs = job;
		running_count++;
		*document = job_document(job);
	} else {
		job_free(job);
	}
	pthread_mutex_unlock(&lock);
	return result;
}

int daytona_builds_add(struct request *request, json_t *array)
{
	int failed = 0;

	pthread_mutex_lock(&lock);
	for (struct job *job = jobs; job; job = job->next)
		if (is_owners(job, request) && job->state == JOB_RUNNING)
			failed |= json_array_append_new(array, job_document(job));
	pthread_mutex_unlock(&lock);
	return failed;
}

json_t *daytona_build_find(struct request *request, const char *word, char **name)
{
	json_t *document = NULL;

	*name = NULL;
	pthread_mutex_lock(&lock);
	struct job *job = find_job(request, word);
	if (job && job->state == JOB_READY)
		*name = strdup(job->name);
	else if (job)
		document = job_document(job);
	pthread_mutex_unlock(&lock);
	return document;
}

bool daytona_build_remove(struct request *request, const char *word)
{
	pthread_mutex_lock(&lock);
	struct job *job = find_job(request, word);
	bool found = job && job->state != JOB_READY;
	if (found)
		forget(job);
	pthread_mutex_unlock(&lock);
	return found;
}

/* ---- the log ---- */

/* Takes the next piece of the log; *over: there is none, and there will be none. */
static int next_piece(struct job *job, size_t *at, struct buf *out, bool *over)
{
	buf_consume(out, out->size);
	pthread_mutex_lock(&lock);
	size_t size = MIN(job->log.size - *at, (size_t)LOG_PIECE);
	int failed = size ? buf_append(out, job->log.data + *at, size) : 0;
	*at += size;
	*over = !size && job->state != JOB_RUNNING;
	pthread_mutex_unlock(&lock);
	return failed;
}

static int send_log(struct request *request, struct job *job, bool follow, struct husk_error *err)
{
	cleanup_buf struct buf piece = { 0 };
	bool over = false;
	size_t at = 0;

	if (stream_begin(request, 200, "text/plain; charset=utf-8", -1, err) < 0)
		return -1;
	while (!over) {
		if (next_piece(job, &at, &piece, &over) < 0)
			return husk_fail_memory(err);
		if (piece.size && stream_write(request, piece.data, piece.size, err) < 0)
			return -1;
		if (request_over(request))
			return husk_fail(err, HUSK_GONE, "the client has gone");
		if (!piece.size && !follow)
			break;
		if (!piece.size && !over)
			usleep(LOOK_MS * 1000);
	}
	return 0;
}

/* A snapshot without a build of this process has no log. */
int daytona_build_log(struct request *request, struct husk_error *err)
{
	const char *follow = request_query(request, "follow");

	pthread_mutex_lock(&lock);
	struct job *job = find_job(request, request_path(request, "snapshot"));
	if (job)
		job->users++;
	pthread_mutex_unlock(&lock);
	if (!job)
		return respond_text(request, 200, "text/plain", "", 0, err);
	int result = send_log(request, job, str_equal(follow, "true"), err);
	pthread_mutex_lock(&lock);
	let_go(job);
	pthread_mutex_unlock(&lock);
	return result;
}
