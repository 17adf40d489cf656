/*
 * The life of Daytona's sandboxes: start, stop, pause, archive, recover, fork, snapshot, resize, labels, activity. Stopped,
 * paused and archived sandboxes are all hibernated: memory, processes and disk are on the host's disk, and the settings say
 * which of the three it is. Each call answers when it is done, with the final state, because clients poll only once a
 * second.
 */
#include "server/dialects/daytona/daytona.h"

#define GIB (UINT64_C(1) << 30)

/* The TTL from now on, in seconds; 0: none. For a hibernated sandbox: until it is deleted automatically. */
static int64_t seconds_left(const struct daytona_box *box, bool asleep)
{
	int64_t end = daytona_int(box, "destroyAt", 0), destroy = daytona_int(box, "autoDeleteInterval", -1);
	int64_t left = end ? MAX(1, (end - time_wall_ms()) / 1000) : 0;

	if (asleep && destroy > 0)
		return left ? MIN(left, destroy * 60) : destroy * 60;
	return left;
}

/* ---- sleep ---- */

/* First hibernated, then renamed: in between it looks like a stopped one. */
static int put_to_sleep(struct request *request, struct daytona_box *box, const char *word, struct husk_error *err)
{
	struct husk *husk = request_husk(request);
	int64_t left = seconds_left(box, str_equal(word, "stopped"));

	if (box->sandbox->state == HUSK_PAUSED && husk_resume(husk, box->sandbox->id, err) < 0)
		return -1;
	if (box->sandbox->state != HUSK_HIBERNATED && husk_hibernate(husk, box->sandbox->id, err) < 0)
		return -1;
	if (daytona_set(box, "asleep", json_string(word), err) < 0 ||
	    daytona_set(box, "sleptAt", json_integer(time_wall_ms()), err) < 0 ||
	    daytona_set(box, "updatedAt", json_integer(time_wall_ms()), err) < 0 ||
	    daytona_save(request, box, NULL, err) < 0)
		return -1;
	return husk_extend(husk, box->sandbox->id, MAX(left, 1), left == 0, NULL, err);
}

static int sleep_as(struct request *request, const char *word, const char *const *from, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_find(request, &box, err) < 0)
		return -1;
	const char *state = daytona_state(&box);
	for (; *from && !str_equal(*from, state); from++)
		;
	if (!*from)
		return daytona_fail(request, 400, NULL, "Sandbox is %s; it cannot be %s now", state, word);
	if (str_equal(word, "stopped") && daytona_int(&box, "autoDeleteInterval", -1) == 0) {
		if (husk_kill(request_husk(request), box.sandbox->id, err) < 0)
			return -1;
		box.sandbox->state = HUSK_ENDED;
		return respond_json(request, 200, daytona_document(request, &box, false), err);
	}
	daytona_lock();
	int result = str_equal(word, state) ? 0 : put_to_sleep(request, &box, word, err);
	daytona_unlock();
	return result < 0 ? -1 : daytona_respond(request, box.sandbox->id, err);
}

static int handle_stop(struct request *request, struct husk_error *err)
{
	static const char *const from[] = { "started", "paused", "stopped", NULL };

	return sleep_as(request, "stopped", from, err);
}

static int handle_pause(struct request *request, struct husk_error *err)
{
	static const char *const from[] = { "started", "paused", NULL };

	return sleep_as(request, "paused", from, err);
}

static int handle_archive(struct request *request, struct husk_error *err)
{
	static const char *const from[] = { "stopped", "archived", NULL };

	return sleep_as(request, "archived", from, err);
}

/* ---- start ---- */

/* Its end and its idle time are set first: a sandbox that wakes without both would run for ever. */
static int wake(struct request *request, struct daytona_box *box, struct husk_error *err)
{
	struct husk *husk = request_husk(request);
	int64_t left = seconds_left(box, false);

	if (husk_extend(husk, box->sandbox->id, left ? left : DAYTONA_TTL_SECONDS, false, NULL, err) < 0 ||
	    husk_set_idle(husk, box->sandbox->id, daytona_idle_seconds(box->settings), err) < 0)
		return -1;
	int result = box->sandbox->state == HUSK_PAUSED ? husk_resume(husk, box->sandbox->id, err)
							: husk_wake(husk, box->sandbox->id, err);
	if (result < 0)
		return -1;
	json_object_del(box->settings, "asleep");
	json_object_del(box->settings, "sleptAt");
	if (daytona_set(box, "updatedAt", json_integer(time_wall_ms()), err) < 0)
		return -1;
	return daytona_save(request, box, NULL, err);
}

static int handle_start(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_find(request, &box, err) < 0)
		return -1;
	daytona_lock();
	int result = box.sandbox->state == HUSK_RUNNING ? 0 : wake(request, &box, err);
	daytona_unlock();
	return result < 0 ? -1 : daytona_respond(request, box.sandbox->id, err);
}

/* A broken sandbox has already ended in Husk, and no other needs this call. */
static int handle_recover(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_find(request, &box, err) < 0)
		return -1;
	return daytona_fail(request, 400, NULL, "Sandbox is %s, not in an error that it could recover from",
			    daytona_state(&box));
}

/* ---- fork, snapshot ---- */

static int handle_fork(struct request *request, struct husk_error *err)
{
	cleanup_sandboxes struct husk_sandbox **children = NULL;
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free struct husk_pair *pairs = NULL;
	cleanup_free char *text = NULL;
	struct fields fields;
	size_t count = 0;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *name = fields_string(&fields, "name");
	if (fields_done_open(&fields, err) < 0 || daytona_enter(request, &box, err) < 0)
		return -1;
	cleanup_json json_t *labels = daytona_labels(&box);
	cleanup_json json_t *settings = json_deep_copy(box.settings);
	json_object_del(settings, "updatedAt");
	json_object_del(settings, "expired");
	if (!labels || !settings || json_object_set_new(settings, "forkedFrom", json_string(box.sandbox->id)) < 0 ||
	    !(pairs = daytona_metadata(labels, settings, &count, &text)))
		return husk_fail_memory(err);
	int64_t left = seconds_left(&box, false);
	struct husk_create_options options = { .name = name && *name ? name : NULL,
					       .ttl_seconds = left ? left : DAYTONA_TTL_SECONDS,
					       .idle_seconds = daytona_idle_seconds(settings),
					       .metadata = pairs,
					       .metadata_count = count };
	if (husk_fork(request_husk(request), box.sandbox->id, 1, &options, &children, err) < 0)
		return -1;
	return daytona_respond(request, children[0]->id, err);
}

static int handle_snapshot(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	struct husk_snapshot *snapshot = NULL;
	cleanup_free char *name = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *given = fields_string(&fields, "name");
	if (fields_done_open(&fields, err) < 0)
		return -1;
	if (!given || !*given)
		return husk_fail_field(err, "name", "name is missing; give the snapshot's");
	if (daytona_name("name", given, &name, err) < 0 || daytona_find(request, &box, err) < 0 ||
	    husk_snapshot_create(request_husk(request), box.sandbox->id, name, &snapshot, err) < 0)
		return -1;
	husk_snapshot_free(snapshot);
	return daytona_respond(request, box.sandbox->id, err);
}

/* ---- ancestors ---- */

static const char *parent_of(const struct daytona_box *box)
{
	const char *from = daytona_text(box, "forkedFrom");

	return from ? from : "";
}

static int handle_parent(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_find(request, &box, err) < 0)
		return -1;
	if (!*parent_of(&box))
		return husk_fail(err, HUSK_NOT_FOUND, "Sandbox %s has no parent", box.sandbox->id);
	return daytona_respond(request, parent_of(&box), err);
}

static int handle_forks(struct request *request, struct husk_error *err)
{
	cleanup_sandboxes struct husk_sandbox **list = NULL;
	cleanup_json json_t *array = json_array();
	cleanup_box struct daytona_box box = { 0 };
	struct husk_filter filter = { 0 };

	if (daytona_find(request, &box, err) < 0 || husk_list(request_husk(request), &filter, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		struct daytona_box child = { 0 };
		bool bad = daytona_box_of(list[i], &child, err) < 0;
		if (!bad && str_equal(parent_of(&child), box.sandbox->id))
			bad = json_array_append_new(array, daytona_document(request, &child, false)) < 0;
		child.sandbox = NULL; /* the list's */
		daytona_box_free(&child);
		if (bad)
			return husk_fail_memory(err);
	}
	return respond_json(request, 200, json_incref(array), err);
}

/* ---- the rest ---- */

struct size {
	int64_t cpu, memory, disk; /* CPUs, GiB */
};

static struct size size_of(const struct daytona_box *box)
{
	const struct husk_sandbox *sandbox = box->sandbox;

	return (struct size){ MAX(1u, (sandbox->cpu_milli + 999) / 1000),
			      (int64_t)MAX(1u, (sandbox->memory_bytes + GIB - 1) / GIB),
			      (int64_t)MAX(1u, (sandbox->disk_bytes + GIB - 1) / GIB) };
}

/* The rules and words of Daytona's server. `wanted` has the size of the sandbox where nothing is asked for. */
static int check_resize(struct request *request, const struct daytona_box *box, const struct size *wanted,
			struct husk_error *err)
{
	struct size now = size_of(box);
	bool running = box->sandbox->state == HUSK_RUNNING;

	if (!running && !str_equal(daytona_state(box), "stopped"))
		return daytona_fail(request, 400, NULL, "Sandbox must be in started or stopped state to resize");
	if (wanted->disk != now.disk && running)
		return daytona_fail(request, 400, NULL, "Disk resize can only be performed on a stopped sandbox");
	if (running && wanted->cpu < now.cpu)
		return daytona_fail(request, 400, NULL,
				    "Sandbox must be in stopped state to decrease the number of CPU cores");
	if (running && wanted->memory < now.memory)
		return daytona_fail(request, 400, NULL, "Sandbox must be in stopped state to decrease memory");
	if (wanted->disk < now.disk)
		return daytona_fail(request, 400, NULL, "Sandbox disk size cannot be decreased");
	if (wanted->disk > now.disk)
		return dialect_unsupported(
			request, "a larger disk of an existing sandbox (its size is part of the sandbox's image)", err);
	if (wanted->cpu == now.cpu && wanted->memory == now.memory)
		return daytona_fail(request, 400, NULL,
				    "No resource changes specified - sandbox is already at the desired configuration");
	return 0;
}

static int handle_resize(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0 || daytona_find(request, &box, err) < 0)
		return -1;
	struct size now = size_of(&box), wanted = { fields_int(&fields, "cpu", now.cpu, 1, 1024),
						    fields_int(&fields, "memory", now.memory, 1, 1024),
						    fields_int(&fields, "disk", now.disk, 1, 16384) };
	if (fields_done_open(&fields, err) < 0 || check_resize(request, &box, &wanted, err) < 0)
		return -1;
	uint32_t cpu_milli = wanted.cpu == now.cpu ? 0 : (uint32_t)(1000 * wanted.cpu);
	uint64_t memory_bytes = wanted.memory == now.memory ? 0 : (uint64_t)wanted.memory * GIB;
	if (husk_resize(request_husk(request), box.sandbox->id, cpu_milli, memory_bytes, err) < 0)
		return -1;
	return daytona_respond(request, box.sandbox->id, err);
}

static int handle_labels(struct request *request, struct husk_error *err)
{
	json_t *body = request_json(request, err), *labels = json_object_get(body, "labels"), *value;
	cleanup_box struct daytona_box box = { 0 };
	const char *name;

	if (!body)
		return -1;
	if (!json_is_object(labels))
		return husk_fail_field(err, "labels", "'labels' must be an object of strings");
	json_object_foreach(labels, name, value)
	{
		if (!json_is_string(value) || str_starts(name, "husk."))
			return husk_fail_field(err, "labels", "'labels.%.80s' must be a string, and no name of Husk's",
					       name);
	}
	daytona_lock();
	int result = daytona_find(request, &box, err) < 0 ? -1 : daytona_save(request, &box, labels, err);
	daytona_unlock();
	return result < 0 ? -1 : respond_json(request, 200, json_pack("{s:O}", "labels", labels), err);
}

/* Every call counts as activity in Husk; this one does nothing else. */
static int handle_activity(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	struct husk_stats stats;

	daytona_lock();
	int result = daytona_find(request, &box, err);
	if (result == 0 && box.sandbox->state == HUSK_RUNNING)
		result = husk_stats(request_husk(request), box.sandbox->id, &stats, err);
	if (result == 0)
		result = daytona_set(&box, "activityAt", json_integer(time_wall_ms()), err);
	if (result == 0)
		result = daytona_save(request, &box, NULL, err);
	daytona_unlock();
	return result < 0 ? -1 : respond_empty(request, 201, err);
}

static int handle_toolbox_url(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *address = daytona_address(request);

	if (daytona_find(request, &box, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:o}", "url", json_sprintf("%s/toolbox", address ? address : "")),
			    err);
}

const struct route daytona_lifecycle_routes[] = {
	{ "POST", "/daytona/sandbox/{id}/start", handle_start, 0 },
	{ "POST", "/daytona/sandbox/{id}/stop", handle_stop, 0 },
	{ "POST", "/daytona/sandbox/{id}/pause", handle_pause, 0 },
	{ "POST", "/daytona/sandbox/{id}/archive", handle_archive, 0 },
	{ "POST", "/daytona/sandbox/{id}/recover", handle_recover, 0 },
	{ "POST", "/daytona/sandbox/{id}/fork", handle_fork, 0 },
	{ "POST", "/daytona/sandbox/{id}/snapshot", handle_snapshot, 0 },
	{ "GET", "/daytona/sandbox/{id}/parent", handle_parent, 0 },
	{ "GET", "/daytona/sandbox/{id}/forks", handle_forks, 0 },
	{ "POST", "/daytona/sandbox/{id}/resize", handle_resize, 0 },
	{ "PUT", "/daytona/sandbox/{id}/labels", handle_labels, 0 },
	{ "POST", "/daytona/sandbox/{id}/last-activity", handle_activity, 0 },
	{ "GET", "/daytona/sandbox/{id}/toolbox-proxy-url", handle_toolbox_url, 0 },
	{ 0 },
};
