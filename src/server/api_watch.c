/*
 * GET …/files/watch: changes beneath a path as server-sent events. After `start` no change is missed; `change` has {kind,
 * path}; kind "overflow" means that changes were missed. The stream ends with the client or the sandbox. When a client does
 * not read, the guest's own queue overflows, and nothing accumulates here.
 */
#include "server/api_files.h"

static void watcher_cleanup(struct husk_watcher **watcher)
{
	husk_watch_free(*watcher);
}

static int send_change(struct request *request, const struct husk_watch_event *event, struct husk_error *err)
{
	cleanup_json json_t *document = json_pack("{s:s}", "kind", event->kind);

	if (!document || json_set_bytes(document, "path", event->path, strlen(event->path)) < 0)
		return husk_fail_memory(err);
	return sse_send(request, "change", NULL, steal_pointer(document), err);
}

int files_watch(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "path", "recursive", NULL };
	cleanup(watcher_cleanup) struct husk_watcher *watcher = NULL;
	struct husk_watch_event event;
	struct husk_error why = { 0 };
	const char *path;
	bool recursive;

	if (files_path(request, known, &path, err) < 0 ||
	    request_query_bool(request, "recursive", false, &recursive, err) < 0 ||
	    husk_watch_open(request_husk(request), request_path(request, "id"), path, recursive, &watcher, err) < 0)
		return -1;
	if (sse_begin(request, err) < 0 ||
	    sse_send(request, "start", NULL, json_pack("{s:o}", "path", json_text0(path)), err) < 0)
		return -1;
	for (;;) {
		int ready =
			husk_watch_pending(watcher) ? 1 : request_wait(request, husk_watch_fd(watcher), SSE_PING_MS);
		if (ready < 0)
			return husk_fail(err, HUSK_GONE, "the client disconnected");
		if (ready == 0 && sse_ping(request, err) < 0)
			return -1;
		if (ready == 0 || !husk_watch_pending(watcher))
			continue;
		if (husk_watch_next(watcher, &event, &why) < 0)
			return sse_error(request, &why, err);
		if (send_change(request, &event, err) < 0)
			return -1;
	}
}
