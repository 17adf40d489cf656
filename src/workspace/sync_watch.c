/*
 * husk_workspace_sync with `watch`: waits for changes on both sides, and makes a round about the paths that changed once they have been
 * quiet for a moment. The whole directory is compared at the start, and when something may have been missed: too many events, a
 * rewind, a sandbox that slept.
 */
#include <poll.h>

#include "workspace/host_watch.h"
#include "workspace/sync.h"

#define QUIET_MS 150     /* without a new event, before a round */
#define PATIENCE_MS 2000 /* a round comes after this time in any case */
#define LOOK_MS 1000     /* between looks at a sandbox that sleeps */
#define SETTLE_MS 30000  /* for the event that tells why a machine went away */
#define EVENTS_MAX 500   /* at a time */
#define DIRTY_MAX 10000  /* paths; with more, everything is compared */
#define ROUNDS_MAX 5     /* of the first round, if files change while they are written */

struct watching {
	struct sync *sync;
	struct host_watch host;
	struct husk_watcher *guest;
	struct names dirty;
	bool everything, stopped;
	int64_t since_ms; /* the first change that waits; 0: none */
	int64_t event;    /* of the sandbox: those up to it are known */
};

static void watching_end(struct watching *w)
{
	host_watch_close(&w->host);
	husk_watch_free(w->guest);
	names_free(&w->dirty);
}

static bool should_stop(struct watching *w, int timeout_ms)
{
	struct pollfd stop = { .fd = w->sync->options->stop_fd, .events = POLLIN };

	w->stopped |= poll(&stop, 1, timeout_ms) > 0;
	return w->stopped;
}

/* ---- the sandbox ---- */

static void free_sandbox(struct husk_sandbox **sandbox)
{
	husk_sandbox_free(*sandbox);
}

/* Reads the sandbox's events. True: it went to sleep, back, on or away. */
static bool has_moved(struct watching *w, int wait_ms)
{
	static const char *const kinds[] = { "hibernated", "woken",    "rewound",   "promoted",
					     "paused",     "rebooted", "recovered", "ended" };
	bool moved = false;
	size_t count = EVENTS_MAX;

	for (int wait = wait_ms; count == EVENTS_MAX; wait = 0) {
		struct husk_event *list = NULL;
		count = 0;
		if (husk_events(w->sync->husk, w->sync->record.sandbox, w->event, EVENTS_MAX, wait, &list, &count,
				NULL) < 0)
			return true;
		for (size_t i = 0; i < count; i++) {
			w->event = list[i].sequence;
			for (size_t k = 0; k < ARRAY_SIZE(kinds); k++)
				moved |= str_equal(list[i].kind, kinds[k]);
		}
		husk_event_list_free(list, count);
	}
	return moved;
}

/* A machine that goes to sleep ends its calls first, and its state says so later: a call in between would wake it again. */
static void settle(struct watching *w)
{
	int64_t deadline = time_monotonic_ms() + SETTLE_MS;

	while (!has_moved(w, LOOK_MS / 2) && !should_stop(w, 0) && time_monotonic_ms() < deadline)
		;
}

/* Waits while it sleeps: a call would wake it. GONE: it has ended. */
static int wait_awake(struct watching *w, struct husk_error *err)
{
	const char *id = w->sync->record.sandbox;

	for (bool told = false; !w->stopped; told = true) {
		cleanup(free_sandbox) struct husk_sandbox *sandbox = NULL;
		if (husk_inspect(w->sync->husk, id, &sandbox, err) < 0)
			return -1;
		if (sandbox->state == HUSK_ENDED)
			return husk_fail(err, HUSK_GONE, "sandbox %s has ended", id);
		if (sandbox->state == HUSK_RUNNING)
			return 0;
		if (!told)
			sync_note(w->sync, "sandbox %s is %s; the sync goes on when it runs", id,
				  husk_state_name(sandbox->state));
		should_stop(w, LOOK_MS);
	}
	return 0;
}

static int open_guest(struct watching *w, struct husk_error *err)
{
	husk_watch_free(w->guest);
	w->guest = NULL;
	w->everything = true;
	has_moved(w, 0);
	return husk_watch_open(w->sync->husk, w->sync->record.sandbox, w->sync->record.path, true, &w->guest, err);
}

/* The watch has ended, or a round failed because the machine went away. */
static int come_back(struct watching *w, const struct husk_error *why, struct husk_error *err)
{
	struct husk_error failed = *why;

	husk_watch_free(w->guest);
	w->guest = NULL;
	settle(w);
	for (int tries = 0; !w->stopped && tries < 10; tries++) {
		if (failed.code != HUSK_GONE && failed.code != HUSK_CONFLICT && failed.code != HUSK_TIMEOUT)
			break;
		if (wait_awake(w, err) < 0)
			return -1;
		if (w->stopped)
			return 0;
		if (open_guest(w, &failed) == 0) {
			if (sync_check_mark(w->sync, err) < 0)
				return -1;
			sync_note(w->sync, "everything is compared again: %s", why->message);
			return 0;
		}
		should_stop(w, LOOK_MS);
	}
	return w->stopped ? 0 : husk_fail(err, failed.code, "%s", failed.message);
}

/* ---- events ---- */

static int take_guest(struct watching *w, struct husk_error *err)
{
	const char *top = w->sync->record.path;
	size_t size = strlen(top);

	while (w->guest && husk_watch_pending(w->guest)) {
		struct husk_watch_event event;
		if (husk_watch_next(w->guest, &event, err) < 0)
			return -1;
		if (str_equal(event.kind, "overflow"))
			w->everything = true;
		else if (strncmp(event.path, top, size) == 0 && event.path[size] == '/' &&
			 !name_refused(event.path + size + 1) && names_add(&w->dirty, event.path + size + 1, err) < 0)
			return -1;
		if (w->dirty.count > DIRTY_MAX) {
			names_free(&w->dirty);
			w->everything = true;
		}
	}
	return 0;
}

static int take_host(struct watching *w, struct husk_error *err)
{
	if (host_watch_read(&w->host, &w->dirty, &w->everything, err) < 0)
		return -1;
	if (w->dirty.count > DIRTY_MAX) {
		names_free(&w->dirty);
		w->everything = true;
	}
	return 0;
}

/* Until something is there, or it is time for a round. */
static void wait_for_events(struct watching *w)
{
	struct pollfd fds[] = { { .fd = w->sync->options->stop_fd, .events = POLLIN },
				{ .fd = w->host.fd, .events = POLLIN },
				{ .fd = w->guest ? husk_watch_fd(w->guest) : -1, .events = POLLIN } };
	bool changed = w->everything || w->dirty.count;
	int timeout = changed ? QUIET_MS : w->sync->unsaved ? PATIENCE_MS : -1;

	if (w->guest && husk_watch_pending(w->guest))
		timeout = 0;
	poll(fds, ARRAY_SIZE(fds), timeout);
	w->stopped |= fds[0].revents != 0;
}

/* ---- rounds ---- */

/* A failed round comes again, unless it fails for another reason than changes meanwhile. */
static int make_round(struct watching *w, struct husk_error *err)
{
	struct names dirty = w->dirty;
	bool everything = w->everything;

	w->dirty = (struct names){ 0 };
	w->everything = false;
	w->since_ms = 0;
	int result = sync_round(w->sync, everything ? NULL : &dirty, err);
	names_free(&dirty);
	if (result < 0)
		w->everything = true;
	return result;
}

static int turn(struct watching *w, struct husk_error *err)
{
	size_t before = w->dirty.count;
	bool everything = w->everything;

	wait_for_events(w);
	if (w->stopped)
		return 0;
	if (take_host(w, err) < 0 || take_guest(w, err) < 0)
		return -1;
	if (!w->everything && !w->dirty.count)
		return sync_save(w->sync, false, err);
	bool quiet = w->dirty.count == before && w->everything == everything;
	int64_t now = time_monotonic_ms();
	w->since_ms = w->since_ms ? w->since_ms : now;
	return quiet || now - w->since_ms > PATIENCE_MS ? make_round(w, err) : 0;
}

/* Everything, once both sides are watched. */
static int first_round(struct watching *w, struct husk_error *err)
{
	struct husk_error why = { 0 };

	for (int tries = 0; make_round(w, &why) < 0; tries++)
		if (why.code != HUSK_CONFLICT || tries == ROUNDS_MAX || !w->sync->record.sandbox)
			return husk_fail(err, why.code, "%s", why.message);
	return 0;
}

int sync_watch(struct sync *sync, struct husk_error *err)
{
	cleanup(watching_end) struct watching w = { .sync = sync, .host.fd = -1 };

	if (host_watch_open(&w.host, sync->record.directory, sync->directory, sync->record.all, err) < 0 ||
	    open_guest(&w, err) < 0 || sync_mark(sync, err) < 0 || first_round(&w, err) < 0)
		return -1;
	sync_note(sync, "%s and %s of sandbox %s are in step; Ctrl-C ends it", sync->record.directory,
		  sync->record.path, sync->record.sandbox);
	while (!w.stopped) {
		struct husk_error why = { 0 };
		if (turn(&w, &why) == 0)
			continue;
		if (!sync->record.sandbox)
			return husk_fail(err, why.code, "%s", why.message);
		if (why.code == HUSK_CONFLICT && !should_stop(&w, QUIET_MS) && w.guest)
			continue; /* a file changed while it was written */
		if (!w.stopped && come_back(&w, &why, err) < 0)
			return -1;
	}
	return 0;
}
