/*
 * E2B's polled watchers: CreateWatcher starts one, GetWatcherEvents returns the events since the last call, RemoveWatcher
 * ends it. A watch stays open in this process between calls. Unread events wait in the guest, which reports an overflow. A
 * restarted server has no watchers, and its clients are told that theirs are gone.
 *
 * An answer has the events of all changes that happened before the call, as E2B's has: a client that writes a file and then
 * asks expects the write.
 *
 * A watcher belongs to its sandbox: a token of another sandbox does not find it. A watcher that is not polled is ended.
 */
#include <pthread.h>

#include "server/core.h"
#include "server/dialects/e2b/e2b.h"

#define WATCHERS_MAX 1024 /* of the server */
#define SANDBOX_MAX 64    /* of one sandbox */
#define EVENTS_MAX 4096   /* in one answer; the next one continues */
#define IDLE_MS (15 * 60 * 1000)
#define SETTLE_MS 5000 /* for the guest's answer; an agent of an older version never answers */

struct watcher {
	struct watcher *next;
	char id[32];
	char *sandbox, *path;
	bool with_entry;
	struct husk_watcher *watch;
	int64_t asked_ms; /* time of the last poll; monotonic */
	unsigned due;     /* "settled" events that the guest has not sent yet */
	bool mute;        /* the guest does not answer */
};

/* Watchers that are not being polled: a call removes its watcher from the list, and adds it again. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct watcher *watchers;

static void watcher_free(struct watcher *watcher)
{
	husk_watch_free(watcher->watch);
	free(watcher->sandbox);
	free(watcher->path);
	free(watcher);
}

static void put(struct watcher *watcher)
{
	watcher->asked_ms = time_monotonic_ms();
	pthread_mutex_lock(&lock);
	watcher->next = watchers;
	watchers = watcher;
	pthread_mutex_unlock(&lock);
}

static struct watcher *take(struct request *request, struct husk_error *err)
{
	json_t *message = request_json(request, err);
	const char *given = json_string_value(json_object_get(message, "watcherId")), *id = given ? given : "";
	const char *sandbox = request_path(request, "id");

	if (!message)
		return NULL;
	pthread_mutex_lock(&lock);
	struct watcher **at = &watchers;
	while (*at && (strcmp((*at)->id, id) != 0 || strcmp((*at)->sandbox, sandbox) != 0))
		at = &(*at)->next;
	struct watcher *found = *at;
	if (found)
		*at = found->next;
	pthread_mutex_unlock(&lock);
	if (!found)
		husk_fail(err, HUSK_NOT_FOUND, "watcher '%.40s' not found; make a new one", id);
	return found;
}

/* Ends abandoned watchers, and returns whether there is room for another one. */
static int make_room(struct request *request, struct husk_error *err)
{
	const char *sandbox = request_path(request, "id");
	int64_t oldest = time_monotonic_ms() - IDLE_MS;
	size_t all = 0, own = 0;

	pthread_mutex_lock(&lock);
	for (struct watcher **at = &watchers; *at;) {
		struct watcher *each = *at;
		if (each->asked_ms < oldest) {
			*at = each->next;
			watcher_free(each);
			continue;
		}
		all++;
		own += str_equal(each->sandbox, sandbox);
		at = &each->next;
	}
	pthread_mutex_unlock(&lock);
	if (all < WATCHERS_MAX && own < SANDBOX_MAX)
		return 0;
	request->fault = (struct fault){ 429, "limit" };
	return husk_fail(err, HUSK_LIMIT, "there are %zu watchers of this sandbox, %zu in all; remove some", own, all);
}

void e2b_watchers_end(void)
{
	pthread_mutex_lock(&lock);
	while (watchers) {
		struct watcher *gone = watchers;
		watchers = gone->next;
		watcher_free(gone);
	}
	pthread_mutex_unlock(&lock);
}

/* ---- the calls ---- */

static int handle_create(struct request *request, struct husk_error *err)
{
	json_t *message = request_json(request, err);
	const char *sandbox = request_path(request, "id");
	cleanup_free char *path = NULL;

	if (!message || make_room(request, err) < 0 || e2b_watched_path(request, message, &path, err) < 0)
		return -1;
	struct watcher *watcher = calloc(1, sizeof(*watcher));
	if (!watcher)
		return husk_fail_memory(err);
	watcher->sandbox = strdup(sandbox);
	watcher->path = steal_pointer(path);
	watcher->with_entry = json_is_true(json_object_get(message, "includeEntry"));
	int result = watcher->sandbox ? 0 : husk_fail_memory(err);
	if (result == 0 && random_id("w", 20, watcher->id) < 0)
		result = husk_fail_errno(err, "cannot make an id");
	if (result == 0)
		result = husk_watch_open(request_husk(request), sandbox, watcher->path,
					 json_is_true(json_object_get(message, "recursive")), &watcher->watch, err);
	if (result < 0) {
		watcher_free(watcher);
		return -1;
	}
	json_t *document = json_pack("{s:s}", "watcherId", watcher->id);
	put(watcher);
	return respond_json(request, 200, document, err);
}

static int ask(struct watcher *watcher, struct husk_error *err)
{
	if (watcher->mute)
		return 0;
	watcher->due++;
	return husk_watch_ask(watcher->watch, err);
}

/* Whether there is an event to take. If not, all changes before this call were reported, or the guest is mute. */
static bool await_event(struct request *request, struct watcher *watcher, int64_t end)
{
	for (;;) {
		int64_t left = end - time_monotonic_ms();
		if (husk_watch_pending(watcher->watch))
			return left > 0;
		if (watcher->mute || watcher->due == 0)
			return false;
		watcher->mute = left <= 0;
		if (left <= 0 || request_wait(request, husk_watch_fd(watcher->watch), (int)left) < 0)
			return false;
	}
}

static int take_event(struct request *request, struct watcher *watcher, json_t *events, struct husk_error *err)
{
	struct husk_watch_event event;

	if (husk_watch_next(watcher->watch, &event, err) < 0)
		return -1;
	if (str_equal(event.kind, "settled")) {
		watcher->due -= watcher->due > 0;
		return 0;
	}
	json_t *change = e2b_change(request, watcher->path, &event, watcher->with_entry, err);
	return change && json_array_append_new(events, change) == 0 ? 0 : -1;
}

static int handle_events(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *events = json_array();
	struct watcher *watcher = take(request, err);
	int result = watcher ? ask(watcher, err) : -1;

	if (!watcher)
		return -1;
	for (int64_t end = time_monotonic_ms() + SETTLE_MS; result == 0 && json_array_size(events) < EVENTS_MAX;) {
		if (!await_event(request, watcher, end))
			break;
		result = take_event(request, watcher, events, err);
	}
	if (result < 0) {
		watcher_free(watcher); /* it has missed events, or has ended */
		return -1;
	}
	put(watcher);
	return respond_json(request, 200, json_pack("{s:O}", "events", events), err);
}

static int handle_remove(struct request *request, struct husk_error *err)
{
	struct watcher *watcher = take(request, err);

	if (!watcher)
		return -1;
	watcher_free(watcher);
	return respond_json(request, 200, json_object(), err);
}

const struct route e2b_watcher_routes[] = {
	{ "POST", "/filesystem.Filesystem/CreateWatcher", handle_create, E2B_UNARY },
	{ "POST", "/filesystem.Filesystem/GetWatcherEvents", handle_events, E2B_UNARY },
	{ "POST", "/filesystem.Filesystem/RemoveWatcher", handle_remove, E2B_UNARY },
	{ 0 },
};
