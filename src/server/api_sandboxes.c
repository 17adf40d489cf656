/*
 * Sandboxes over HTTP: create, list, inspect, change, pause, hibernate, fork, remove. A thin layer over libhusk, which
 * checks the values; this file has the form of requests and answers. The first create of a bundled template builds it.
 * Environment values are passed on and never shown, kept or logged.
 */
#include "server/api_egress.h"
#include "server/api_templates.h"

#define PAGE_DEFAULT 100
#define PAGE_MAX 1000
#define FORKS_MAX 256
#define SECONDS_MAX (INT64_C(365) * 86400)

static const char *sandbox_of(const struct request *request)
{
	return request_path(request, "id");
}

/* ---- create and fork ---- */

/* Options of both. The caller frees the pairs. */
static void take_limits(struct fields *fields, struct husk_create_options *options, struct husk_pair **metadata,
			struct husk_pair **environment)
{
	options->name = fields_string(fields, "name");
	options->ttl_seconds = fields_int(fields, "ttl_seconds", 0, 1, SECONDS_MAX);
	options->persistent = fields_bool(fields, "persistent", false);
	options->on_expiry = fields_string(fields, "on_expiry");
	options->checkpoints = fields_string(fields, "checkpoints");
	options->idle_seconds = fields_int(fields, "idle_seconds", 0, 0, SECONDS_MAX);
	options->memory_bytes = fields_size(fields, "memory");
	options->cpu_milli = (uint32_t)(fields_number(fields, "cpus", 0, 0.05, 1024) * 1000 + 0.5);
	options->pids = (uint32_t)fields_int(fields, "pids", 0, 1, UINT32_MAX);
	options->metadata = *metadata = fields_pairs(fields, "metadata", &options->metadata_count);
	options->environment = *environment = fields_pairs(fields, "env", &options->environment_count);
}

/* Reads `egress`, the last of the fields, and fails if unknown fields are left. */
static int take_egress(struct fields *fields, struct husk_create_options *options, struct egress_request *egress,
		       struct husk_error *err)
{
	json_t *document = fields_any(fields, "egress");

	if (fields_done(fields, err) < 0 || (document && egress_parse(document, egress, err) < 0))
		return -1;
	options->egress = document ? &egress->egress : NULL;
	return 0;
}

/* [{"volume", "path", "read_only"?, "subpath"?}]; the caller frees the array, its strings belong to the document. */
static int take_volumes(struct fields *fields, struct husk_mount **mounts, struct husk_create_options *options,
			struct husk_error *err)
{
	const json_t *list = fields_any(fields, "volumes");
	size_t count = json_array_size(list);

	*mounts = calloc(count + 1, sizeof(**mounts));
	if (!*mounts)
		return husk_fail_memory(err);
	if (list && !json_is_array(list))
		return husk_fail_field(err, "volumes", "'volumes' must be an array of objects with volume and path");
	for (size_t i = 0; i < count; i++) {
		struct fields mount;
		if (!json_is_object(json_array_get(list, i)))
			return husk_fail_field(err, "volumes",
					       "'volumes' must be an array of objects with volume and path");
		fields_begin(&mount, json_array_get(list, i));
		(*mounts)[i].volume = fields_string(&mount, "volume");
		(*mounts)[i].path = fields_string(&mount, "path");
		(*mounts)[i].read_only = fields_bool(&mount, "read_only", false);
		(*mounts)[i].subpath = fields_string(&mount, "subpath");
		if (fields_done(&mount, err) < 0)
			return -1;
	}
	options->mounts = *mounts;
	options->mount_count = count;
	return 0;
}

static int create(struct request *request, const struct husk_create_options *options, struct husk_sandbox **out,
		  struct husk_error *err)
{
	const char *template = options->template_name ? options->template_name : "base";
	int result = husk_create(request_husk(request), options, out, err);

	if (result == 0 || err->code != HUSK_NOT_FOUND || options->snapshot ||
	    str_equal(request_header(request, "Husk-Build"), "never"))
		return result;
	int built = template_ensure(request, template, err);
	return built > 0 ? husk_create(request_husk(request), options, out, err) : -1;
}

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_free struct husk_pair *metadata = NULL;
	cleanup_free struct husk_pair *environment = NULL;
	cleanup_free struct husk_mount *mounts = NULL;
	cleanup_egress struct egress_request egress = { 0 };
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	struct husk_create_options options = { .idempotency_key = request_header(request, "Idempotency-Key") };
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0 ||
	    request_query_known(request, (const char *const[]){ NULL }, err) < 0)
		return -1;
	options.template_name = fields_string(&fields, "template");
	options.snapshot = fields_string(&fields, "snapshot");
	options.isolation = fields_string(&fields, "isolation");
	options.disk_bytes = fields_size(&fields, "disk");
	take_limits(&fields, &options, &metadata, &environment);
	if (take_volumes(&fields, &mounts, &options, err) < 0 || take_egress(&fields, &options, &egress, err) < 0 ||
	    create(request, &options, &sandbox, err) < 0)
		return -1;
	return respond_json(request, 201, json_sandbox(sandbox), err);
}

static int handle_fork(struct request *request, struct husk_error *err)
{
	cleanup_free struct husk_pair *metadata = NULL;
	cleanup_free struct husk_pair *environment = NULL;
	cleanup_egress struct egress_request egress = { 0 };
	cleanup_sandboxes struct husk_sandbox **children = NULL;
	struct husk_create_options options = { 0 };
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	int64_t count = fields_int(&fields, "count", 1, 1, FORKS_MAX);
	take_limits(&fields, &options, &metadata, &environment);
	if (take_egress(&fields, &options, &egress, err) < 0 ||
	    husk_fork(request_husk(request), sandbox_of(request), (size_t)count, &options, &children, err) < 0)
		return -1;
	return respond_json(request, 201, json_pack("{s:o}", "sandboxes", json_sandbox_list(children)), err);
}

/* ---- list ---- */

struct list_query {
	struct husk_filter filter;
	struct husk_pair *metadata;
	size_t count;
};

static int add_metadata(void *data, const char *name, const char *value)
{
	struct list_query *query = data;

	if (str_starts(name, "metadata."))
		query->metadata[query->count++] = (struct husk_pair){ name + strlen("metadata."), value };
	return 0;
}

static int count_name(void *data, const char *name, const char *value)
{
	(void)name, (void)value;
	++*(size_t *)data;
	return 0;
}

static int parse_state(const char *text, enum husk_state *out, struct husk_error *err)
{
	for (enum husk_state state = HUSK_CREATING; state <= HUSK_ENDED; state++) {
		if (str_equal(text, husk_state_name(state))) {
			*out = state;
			return 0;
		}
	}
	return husk_fail_field(err, "state",
			       "state '%s' is not known; use creating, running, paused, hibernated or ended", text);
}

static int parse_list(struct request *request, struct list_query *query, int64_t *limit, struct husk_error *err)
{
	static const char *const known[] = { "state", "template", "limit",      "cursor",
					     "ended", "builds",   "metadata.*", NULL };
	const char *state = request_query(request, "state");
	size_t names = 0;

	if (request_query_known(request, known, err) < 0 ||
	    request_query_int(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX, limit, err) < 0 ||
	    request_query_bool(request, "ended", false, &query->filter.with_ended, err) < 0 ||
	    request_query_bool(request, "builds", false, &query->filter.with_builds, err) < 0 ||
	    (state && parse_state(state, &query->filter.state, err) < 0))
		return -1;
	request_queries(request, count_name, &names);
	query->metadata = calloc(names + 1, sizeof(*query->metadata));
	if (!query->metadata)
		return husk_fail_memory(err);
	request_queries(request, add_metadata, query);
	query->filter.metadata = query->metadata;
	query->filter.metadata_count = query->count;
	query->filter.template_name = request_query(request, "template");
	query->filter.after = request_query(request, "cursor");
	/* One more than requested, to know whether there is a next page. */
	query->filter.limit = (size_t)*limit + 1;
	return 0;
}

static int handle_list(struct request *request, struct husk_error *err)
{
	struct list_query query = { 0 };
	cleanup_sandboxes struct husk_sandbox **list = NULL;
	int64_t limit = 0;
	size_t count = 0;
	int result = parse_list(request, &query, &limit, err);

	if (result == 0)
		result = husk_list(request_husk(request), &query.filter, &list, err);
	free(query.metadata);
	if (result < 0) {
		if (str_equal(err->field, "after"))
			snprintf(err->field, sizeof(err->field), "cursor");
		return -1;
	}
	while (list[count])
		count++;
	bool more = count > (size_t)limit;
	if (more) {
		husk_sandbox_free(list[limit]);
		list[limit] = NULL;
	}
	json_t *next = more ? json_string(list[limit - 1]->id) : json_null();
	return respond_json(request, 200,
			    json_pack("{s:o, s:o}", "sandboxes", json_sandbox_list(list), "next_cursor", next), err);
}

/* ---- one sandbox ---- */

static int show(struct request *request, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	if (husk_inspect(request_husk(request), sandbox_of(request), &sandbox, err) < 0)
		return -1;
	return respond_json(request, 200, json_sandbox(sandbox), err);
}

static int handle_get(struct request *request, struct husk_error *err)
{
	return show(request, err);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	if (husk_kill(request_husk(request), sandbox_of(request), err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

/* An action without a body: any content in the body is a mistake, and is reported. */
static int act(struct request *request, int (*action)(struct husk *husk, const char *sandbox, struct husk_error *err),
	       struct husk_error *err)
{
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	if (fields_done(&fields, err) < 0 || action(request_husk(request), sandbox_of(request), err) < 0)
		return -1;
	return show(request, err);
}

static int handle_pause(struct request *request, struct husk_error *err)
{
	return act(request, husk_pause, err);
}

static int handle_resume(struct request *request, struct husk_error *err)
{
	return act(request, husk_resume, err);
}

static int handle_hibernate(struct request *request, struct husk_error *err)
{
	return act(request, husk_hibernate, err);
}

static int handle_wake(struct request *request, struct husk_error *err)
{
	return act(request, husk_wake, err);
}

static int handle_reboot(struct request *request, struct husk_error *err)
{
	return act(request, husk_reboot, err);
}

/* ---- time and metadata ---- */

struct lifetime {
	bool given, persistent;
	int64_t ttl_seconds;
};

static void take_lifetime(struct fields *fields, struct lifetime *lifetime)
{
	lifetime->ttl_seconds = fields_int(fields, "ttl_seconds", 0, 1, SECONDS_MAX);
	lifetime->persistent = fields_bool(fields, "persistent", false);
	lifetime->given = lifetime->ttl_seconds || lifetime->persistent ||
			  json_is_false(json_object_get(fields->object, "persistent"));
}

static int check_lifetime(const struct lifetime *lifetime, struct husk_error *err)
{
	if (lifetime->given && !lifetime->persistent && !lifetime->ttl_seconds)
		return husk_fail_field(err, "ttl_seconds", "a sandbox that is not persistent needs ttl_seconds");
	if (lifetime->persistent && lifetime->ttl_seconds)
		return husk_fail_field(err, "ttl_seconds", "give ttl_seconds or persistent, not both");
	return 0;
}

static int handle_ttl(struct request *request, struct husk_error *err)
{
	struct lifetime lifetime;
	struct fields fields;
	int64_t expires_ms = 0;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	take_lifetime(&fields, &lifetime);
	if (fields_done(&fields, err) < 0 || check_lifetime(&lifetime, err) < 0)
		return -1;
	if (!lifetime.given)
		return husk_fail_field(err, "ttl_seconds", "give ttl_seconds, or persistent: true");
	if (husk_extend(request_husk(request), sandbox_of(request), lifetime.ttl_seconds, lifetime.persistent,
			&expires_ms, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:o}", "expires_at", json_time(expires_ms)), err);
}

static int handle_metadata(struct request *request, struct husk_error *err)
{
	json_t *body = request_json(request, err);
	cleanup_json json_t *holder = body ? json_pack("{s:O}", "metadata", body) : NULL;
	struct fields fields;
	size_t count = 0;

	if (!body)
		return -1;
	if (!holder)
		return husk_fail_memory(err);
	fields_begin(&fields, holder);
	cleanup_free struct husk_pair *pairs = fields_pairs(&fields, "metadata", &count);
	if (fields_done(&fields, err) < 0 ||
	    husk_set_metadata(request_husk(request), sandbox_of(request), pairs, count, err) < 0)
		return -1;
	return show(request, err);
}

static int handle_patch(struct request *request, struct husk_error *err)
{
	cleanup_free struct husk_pair *pairs = NULL;
	struct lifetime lifetime;
	struct fields fields;
	size_t count = 0;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	take_lifetime(&fields, &lifetime);
	pairs = fields_pairs(&fields, "metadata", &count);
	int64_t idle = fields_int(&fields, "idle_seconds", -1, 0, SECONDS_MAX);
	uint64_t memory = fields_size(&fields, "memory");
	uint32_t cpu_milli = (uint32_t)(fields_number(&fields, "cpus", 0, 0.05, 1024) * 1000 + 0.5);
	if (fields_done(&fields, err) < 0 || check_lifetime(&lifetime, err) < 0)
		return -1;
	/* Metadata and limits first: libhusk may still refuse them, and then the TTL has not changed. */
	if (pairs && husk_set_metadata(request_husk(request), sandbox_of(request), pairs, count, err) < 0)
		return -1;
	if ((memory || cpu_milli) &&
	    husk_resize(request_husk(request), sandbox_of(request), cpu_milli, memory, err) < 0)
		return -1;
	if (lifetime.given && husk_extend(request_husk(request), sandbox_of(request), lifetime.ttl_seconds,
					  lifetime.persistent, NULL, err) < 0)
		return -1;
	if (idle >= 0 && husk_set_idle(request_husk(request), sandbox_of(request), idle, err) < 0)
		return -1;
	return show(request, err);
}

const struct route sandbox_routes[] = {
	{ "POST", "/v1/sandboxes", handle_create, 0 },
	{ "GET", "/v1/sandboxes", handle_list, 0 },
	{ "GET", "/v1/sandboxes/{id}", handle_get, 0 },
	{ "DELETE", "/v1/sandboxes/{id}", handle_delete, 0 },
	{ "PATCH", "/v1/sandboxes/{id}", handle_patch, 0 },
	{ "POST", "/v1/sandboxes/{id}/ttl", handle_ttl, 0 },
	{ "PUT", "/v1/sandboxes/{id}/metadata", handle_metadata, 0 },
	{ "POST", "/v1/sandboxes/{id}/pause", handle_pause, 0 },
	{ "POST", "/v1/sandboxes/{id}/resume", handle_resume, 0 },
	{ "POST", "/v1/sandboxes/{id}/hibernate", handle_hibernate, 0 },
	{ "POST", "/v1/sandboxes/{id}/wake", handle_wake, 0 },
	{ "POST", "/v1/sandboxes/{id}/reboot", handle_reboot, 0 },
	{ "POST", "/v1/sandboxes/{id}/fork", handle_fork, 0 },
	{ 0 },
};
