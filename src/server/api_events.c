/*
 * Events (one page, or a stream), logs and stats over HTTP. Followers do not each poll the catalog: one watcher polls
 * while there are followers, and wakes them when there is something to read. Each follower then reads through its own
 * handle, so that a tenant never sees events of another tenant.
 */
#include <pthread.h>
#include <sys/eventfd.h>

#include "server/core.h"

#define PAGE_DEFAULT 100
#define PAGE_MAX 1000
#define WAIT_MAX_MS 30000
#define WATCH_MS 250 /* also how long a server that stops may wait for the watcher */

/* ---- the watcher ---- */

struct follower {
	int fd; /* an eventfd: readable when there may be something new */
	struct follower *previous, *next;
};

/* One per process: it serves every follower of every tenant, and sleeps without followers. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct follower *followers;
	bool started, ending;
	pthread_t thread;
	struct husk *husk;
} watcher = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

void events_wake(void)
{
	uint64_t one = 1;

	pthread_mutex_lock(&watcher.lock);
	for (struct follower *follower = watcher.followers; follower; follower = follower->next)
		(void)!write(follower->fd, &one, sizeof(one)); /* a full counter is readable already */
	pthread_mutex_unlock(&watcher.lock);
}

/* False: the server ends. */
static bool await_followers(void)
{
	pthread_mutex_lock(&watcher.lock);
	while (!watcher.followers && !watcher.ending)
		pthread_cond_wait(&watcher.changed, &watcher.lock);
	bool go_on = !watcher.ending;
	pthread_mutex_unlock(&watcher.lock);
	return go_on;
}

static void *watcher_main(void *data)
{
	int64_t last = 0;

	(void)data;
	while (await_followers()) {
		struct husk_event *list = NULL;
		size_t count = 0;

		if (husk_events(watcher.husk, NULL, last, PAGE_MAX, WATCH_MS, &list, &count, NULL) < 0) {
			usleep(WATCH_MS * 1000);
			events_wake(); /* they notice the end themselves and inform their clients */
			continue;
		}
		if (count) {
			last = list[count - 1].sequence;
			events_wake();
		}
		husk_event_list_free(list, count);
	}
	return NULL;
}

void events_end(void)
{
	pthread_mutex_lock(&watcher.lock);
	watcher.ending = true;
	bool started = watcher.started;
	pthread_cond_broadcast(&watcher.changed);
	pthread_mutex_unlock(&watcher.lock);
	if (started)
		pthread_join(watcher.thread, NULL);
}

static int follow_begin(struct request *request, struct follower *follower, struct husk_error *err)
{
	follower->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (follower->fd < 0)
		return husk_fail_errno(err, "cannot make an eventfd");
	pthread_mutex_lock(&watcher.lock);
	watcher.husk = request_owner(request);
	if (!watcher.started)
		watcher.started = thread_start(&watcher.thread, false, watcher_main, NULL) == 0;
	bool started = watcher.started;
	if (started) {
		follower->next = watcher.followers;
		if (follower->next)
			follower->next->previous = follower;
		watcher.followers = follower;
		pthread_cond_broadcast(&watcher.changed);
	}
	pthread_mutex_unlock(&watcher.lock);
	if (started)
		return 0;
	fd_close(&follower->fd);
	return husk_fail(err, HUSK_UNAVAILABLE, "no thread left to watch events; try again later");
}

static void follow_end(struct follower *follower)
{
	pthread_mutex_lock(&watcher.lock);
	if (follower->previous)
		follower->previous->next = follower->next;
	else
		watcher.followers = follower->next;
	if (follower->next)
		follower->next->previous = follower->previous;
	pthread_mutex_unlock(&watcher.lock);
	fd_close(&follower->fd);
}

/* ---- events ---- */

static json_t *event_json(const struct husk_event *event)
{
	json_t *detail = event->detail ? json_loads(event->detail, 0, NULL) : NULL;

	return json_pack("{s:I, s:o, s:o, s:o, s:o}", "sequence", (json_int_t)event->sequence, "at",
			 json_time(event->at_ms), "sandbox", json_text0(event->sandbox), "kind",
			 json_text0(event->kind), "detail", detail ? detail : json_null());
}

struct events_query {
	const char *sandbox; /* NULL: of all */
	int64_t after, limit, wait_ms;
	bool follow;
};

/* 1: more events may be available at once; 0: that was all; 2: the sandbox's last event was among them. */
static int send_page(struct request *request, struct events_query *query, struct husk_error *err)
{
	struct husk_event *list = NULL;
	size_t count = 0;
	char id[24];

	if (husk_events(request_husk(request), query->sandbox, query->after, PAGE_MAX, 0, &list, &count, err) < 0)
		return -1;
	int result = count == PAGE_MAX;
	for (size_t i = 0; i < count && result >= 0; i++) {
		snprintf(id, sizeof(id), "%lld", (long long)list[i].sequence);
		query->after = list[i].sequence;
		if (sse_send(request, list[i].kind, id, event_json(&list[i]), err) < 0)
			result = -1;
		else if (query->sandbox && str_equal(list[i].kind, "ended"))
			result = 2;
	}
	husk_event_list_free(list, count);
	return result;
}

static int follow(struct request *request, struct events_query *query, const struct follower *follower,
		  struct husk_error *err)
{
	uint64_t ignored;

	for (;;) {
		int more = send_page(request, query, err);
		if (more == 1)
			continue;
		/* Ending at the first sign of a stop loses nothing: the client resumes from its last event. */
		if (more != 0 || atomic_load(&request->server->stopping))
			return more < 0 ? -1 : 0;
		int ready = request_wait(request, follower->fd, SSE_PING_MS);
		if (ready < 0)
			return 0;
		if (ready == 0 && sse_ping(request, err) < 0)
			return -1;
		if (ready > 0)
			(void)!read(follower->fd, &ignored, sizeof(ignored));
	}
}

static int stream_events(struct request *request, struct events_query *query, struct husk_error *err)
{
	struct follower follower = { 0 };
	struct husk_event *list = NULL;
	size_t count = 0;

	/* An unknown sandbox is reported before the stream begins. */
	if (husk_events(request_husk(request), query->sandbox, INT64_MAX - 1, 1, 0, &list, &count, err) < 0)
		return -1;
	husk_event_list_free(list, count);
	if (follow_begin(request, &follower, err) < 0)
		return -1;
	int result = sse_begin(request, err);
	if (result == 0 && follow(request, query, &follower, err) < 0 && err->code != HUSK_GONE) {
		struct husk_error failure = *err;
		result = sse_error(request, &failure, err);
	}
	follow_end(&follower);
	return result;
}

/* Sends a page when it has an event or the time is over. */
static int await_events(struct request *request, const struct events_query *query, struct husk_event **list,
			size_t *count, struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + query->wait_ms, left;
	struct follower follower = { 0 };
	uint64_t ignored;
	int result;

	if (query->wait_ms && follow_begin(request, &follower, err) < 0)
		return -1;
	for (;;) {
		result = husk_events(request_husk(request), query->sandbox, query->after, (size_t)query->limit, 0, list,
				     count, err);
		left = deadline - time_monotonic_ms();
		if (result < 0 || *count || left <= 0 || atomic_load(&request->server->stopping) ||
		    request_wait(request, follower.fd, (int)left) <= 0)
			break;
		(void)!read(follower.fd, &ignored, sizeof(ignored));
		husk_event_list_free(*list, *count);
		*list = NULL;
	}
	if (query->wait_ms)
		follow_end(&follower);
	return result;
}

static int list_events(struct request *request, const struct events_query *query, struct husk_error *err)
{
	cleanup_json json_t *array = json_array();
	struct husk_event *list = NULL;
	size_t count = 0;
	int result = array ? 0 : -1;

	if (await_events(request, query, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count && result == 0; i++)
		result = json_array_append_new(array, event_json(&list[i]));
	husk_event_list_free(list, count);
	return respond_json(request, 200, result == 0 ? json_pack("{s:O}", "events", array) : NULL, err);
}

static int answer_events(struct request *request, const char *sandbox, struct husk_error *err)
{
	static const char *const known[] = { "after", "limit", "follow", "wait_ms", NULL };
	const char *accept = request_header(request, "Accept");
	const char *last = request_header(request, "Last-Event-ID");
	struct events_query query = { .sandbox = sandbox };

	if (request_query_known(request, known, err) < 0 ||
	    request_query_int(request, "after", 0, 0, INT64_MAX - 1, &query.after, err) < 0 ||
	    request_query_int(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX, &query.limit, err) < 0 ||
	    request_query_int(request, "wait_ms", 0, 0, WAIT_MAX_MS, &query.wait_ms, err) < 0 ||
	    request_query_bool(request, "follow", accept && strstr(accept, "text/event-stream"), &query.follow, err) <
		    0)
		return -1;
	if (!query.follow)
		return list_events(request, &query, err);
	if (last && str_to_int64(last, 0, INT64_MAX - 1, &query.after) < 0)
		return husk_fail_field(err, "Last-Event-ID", "Last-Event-ID is not the id of an event");
	return stream_events(request, &query, err);
}

static int handle_events(struct request *request, struct husk_error *err)
{
	return answer_events(request, NULL, err);
}

static int handle_sandbox_events(struct request *request, struct husk_error *err)
{
	return answer_events(request, request_path(request, "id"), err);
}

/* ---- logs and stats ---- */

static int handle_logs(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "source", "position", NULL };
	const char *at = request_query(request, "position");
	struct husk_log_position position = { 0 };
	unsigned long long file = 0, offset = 0;
	char next[48], rest;
	const char *source = request_query(request, "source");
	bool console = str_equal(source, "console");
	cleanup_free char *text = NULL;

	if (request_query_known(request, known, err) < 0)
		return -1;
	if (source && !console && !str_equal(source, "log"))
		return husk_fail_field(err, "source", "source '%s' is not known; give log or console", source);
	if (at && sscanf(at, "%llu:%llu%c", &file, &offset, &rest) != 2)
		return husk_fail_field(err, "position", "position is none that X-Husk-Position gave");
	position = (struct husk_log_position){ file, offset };
	if (husk_logs(request_husk(request), request_path(request, "id"),
		      console ? HUSK_LOG_CONSOLE : HUSK_LOG_SUPERVISOR, &position, &text, err) < 0)
		return -1;
	snprintf(next, sizeof(next), "%llu:%llu", (unsigned long long)position.file,
		 (unsigned long long)position.offset);
	if (respond_header(request, "X-Husk-Position", next, err) < 0)
		return -1;
	return respond_text(request, 200, "text/plain; charset=utf-8", text, strlen(text), err);
}

static int handle_stats(struct request *request, struct husk_error *err)
{
	struct husk_stats stats = { 0 };

	if (husk_stats(request_husk(request), request_path(request, "id"), &stats, err) < 0)
		return -1;
	return respond_json(request, 200, json_stats(&stats), err);
}

const struct route event_routes[] = {
	{ "GET", "/v1/events", handle_events, ROUTE_STREAM },
	{ "GET", "/v1/sandboxes/{id}/events", handle_sandbox_events, ROUTE_STREAM },
	{ "GET", "/v1/sandboxes/{id}/logs", handle_logs, 0 },
	{ "GET", "/v1/sandboxes/{id}/stats", handle_stats, 0 },
	{ 0 },
};
