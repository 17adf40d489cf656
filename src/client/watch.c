/*
 * Observes a sandbox: changes of its files, and its use of resources. File events come from the guest and are not
 * trusted. Memory and CPU are the host's own accounting, from the supervisor. Only what the host cannot see (the disk
 * inside, the number of processes) comes from the agent.
 */
#include <jansson.h>

#include "client/call.h"
#include "instance/contact.h"

static const char *event_kind(int64_t event)
{
	switch (event) {
	case EVENT_CREATE:
		return "create";
	case EVENT_WRITE:
		return "write";
	case EVENT_REMOVE:
		return "remove";
	case EVENT_RENAME:
		return "rename";
	case EVENT_CHMOD:
		return "chmod";
	case EVENT_OVERFLOW:
		return "overflow";
	case EVENT_SETTLED:
		return "settled";
	default:
		return NULL; /* of a newer agent */
	}
}

struct husk_watcher {
	struct call *call;
	char *path; /* that is watched */
	char *name; /* of the last event */
};

int husk_watch_open(struct husk *husk, const char *sandbox, const char *path, bool recursive, struct husk_watcher **out,
		    struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	cleanup_call struct call *call = NULL;
	cleanup_free char *copy = NULL;
	struct call_event event;
	int bad = 0;

	if (check_path("path", path, err) < 0)
		return -1;
	bad |= wire_put_string(&message, TAG_PATH, path);
	bad |= wire_put_int(&message, TAG_FLAGS, recursive ? WATCH_RECURSIVE : 0);
	if (check_arguments(bad, err) < 0 || call_start(husk, sandbox, METHOD_WATCH, &message, &call, err) < 0)
		return -1;
	if (call_first_message(call, &event, err) < 0 || call_make_pollable(call, err) < 0)
		return -1;
	copy = strdup(path);
	struct husk_watcher *watcher = calloc(1, sizeof(*watcher));
	if (!copy || !watcher) {
		free(watcher);
		return husk_fail_memory(err);
	}
	watcher->call = steal_pointer(call);
	watcher->path = steal_pointer(copy);
	*out = watcher;
	return 0;
}

int husk_watch_fd(struct husk_watcher *watcher)
{
	return call_poll_fd(watcher->call);
}

bool husk_watch_pending(struct husk_watcher *watcher)
{
	return call_wait(watcher->call, 0) > 0;
}

int husk_watch_ask(struct husk_watcher *watcher, struct husk_error *err)
{
	static const struct buf empty = { 0 };

	return call_message(watcher->call, &empty, err);
}

int husk_watch_next(struct husk_watcher *watcher, struct husk_watch_event *out, struct husk_error *err)
{
	struct call_event event;

	for (;;) {
		if (call_next(watcher->call, &event, err) < 0)
			return -1;
		if (event.type == WIRE_END) {
			if (wire_end_status(event.data, event.size, err) < 0)
				return -1;
			return husk_fail(err, HUSK_GONE, "the watch of '%.200s' ended", watcher->path);
		}
		if (event.type != WIRE_MSG)
			continue;
		const char *kind = event_kind(wire_get_int(event.data, event.size, TAG_EVENT, 0));
		if (!kind)
			continue;
		free(watcher->name);
		watcher->name = wire_get_string(event.data, event.size, TAG_PATH);
		*out = (struct husk_watch_event){ kind, watcher->name ? watcher->name : watcher->path };
		return 0;
	}
}

void husk_watch_free(struct husk_watcher *watcher)
{
	if (!watcher)
		return;
	call_free(watcher->call);
	free(watcher->path);
	free(watcher->name);
	free(watcher);
}

static void watcher_cleanup(struct husk_watcher **watcher)
{
	husk_watch_free(*watcher);
}

int husk_watch(struct husk *husk, const char *sandbox, const char *path, bool recursive,
	       int (*callback)(void *data, const struct husk_watch_event *event), void *data, struct husk_error *err)
{
	cleanup(watcher_cleanup) struct husk_watcher *watcher = NULL;
	struct husk_watch_event event;

	if (husk_watch_open(husk, sandbox, path, recursive, &watcher, err) < 0)
		return -1;
	do {
		if (husk_watch_next(watcher, &event, err) < 0)
			return -1;
	} while (callback(data, &event) == 0);
	return 0;
}

static void json_cleanup(json_t **json)
{
	json_decref(*json);
}

/* A number from the supervisor, or `fallback` if it is unknown. */
static uint64_t json_count(const json_t *object, const char *key, uint64_t fallback)
{
	json_int_t value = json_integer_value(json_object_get(object, key));

	return value > 0 ? (uint64_t)value : fallback;
}

static uint64_t field_count(const struct buf *fields, enum wire_tag tag)
{
	int64_t value = wire_get_int(fields->data, fields->size, (uint16_t)tag, 0);

	return value > 0 ? (uint64_t)value : 0;
}

int husk_stats(struct husk *husk, const char *sandbox, struct husk_stats *out, struct husk_error *err)
{
	if (husk->remote)
		return remote_stats(husk->remote, sandbox, out, err);
	cleanup_buf struct buf inside = { 0 }, outside = { 0 };

	if (husk_call(husk, sandbox, METHOD_STATS, NULL, &inside, err) < 0 ||
	    husk_call(husk, sandbox, METHOD_SANDBOX_INFO, NULL, &outside, err) < 0)
		return -1;
	cleanup_free char *text = wire_get_string(outside.data, outside.size, TAG_JSON);
	cleanup(json_cleanup) json_t *info = text ? json_loads(text, 0, NULL) : NULL;
	if (!info)
		return husk_fail(err, HUSK_PROTOCOL, "the supervisor's account of the sandbox is not JSON");
	const json_t *network = json_object_get(info, "network");
	*out = (struct husk_stats){
		.cpu_us = json_count(info, "cpu_us", field_count(&inside, TAG_CPU_US)),
		.memory_bytes = json_count(info, "memory", field_count(&inside, TAG_MEMORY)),
		.memory_limit = json_count(info, "memory_limit", field_count(&inside, TAG_MEMORY_TOTAL)),
		.disk_bytes = json_count(info, "disk", field_count(&inside, TAG_DISK)),
		.disk_limit = json_count(info, "disk_limit", field_count(&inside, TAG_DISK_TOTAL)),
		.processes = field_count(&inside, TAG_COUNT),
		.network_sent = json_count(network, "sent", 0),
		.network_received = json_count(network, "received", 0),
		.network_connections = json_count(network, "connections", 0),
		.network_denied = json_count(network, "denied", 0),
	};
	return 0;
}
