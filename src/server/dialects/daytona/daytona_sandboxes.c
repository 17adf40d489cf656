/*
 * Daytona's sandboxes: create, inspect, list, delete. A thin layer over libhusk that translates Daytona's terms. A create
 * answers when the sandbox runs and its user exists, because clients that read "creating" poll only once a second.
 */
#include <time.h>

#include "server/dialects/daytona/daytona.h"

#define PAGE_DEFAULT 100
#define PAGE_MAX 200
#define GIB (UINT64_C(1) << 30)

/* ---- create ---- */

struct create {
	struct husk_create_options options;
	struct husk_pair *metadata, *environment;
	struct husk_mount *mounts;
	struct daytona_network network;
	json_t *settings, *labels, *image; /* the last one belongs to the body */
	char *text, *name, *snapshot, *build;
	const char *user;
};

static void create_cleanup(struct create *create)
{
	free(create->metadata);
	free(create->environment);
	free(create->mounts);
	daytona_network_free(&create->network);
	json_decref(create->settings);
	json_decref(create->labels);
	free(create->text);
	free(create->name);
	free(create->snapshot);
	free(create->build);
}

/* volumes: [{volumeId, mountPath, subpath?}] */
static int read_mounts(struct create *create, const json_t *list, struct husk_error *err)
{
	create->mounts = calloc(json_array_size(list) + 1, sizeof(*create->mounts));
	if (!create->mounts)
		return husk_fail_memory(err);
	for (size_t i = 0; i < json_array_size(list); i++) {
		json_t *each = json_array_get(list, i);
		const char *subpath = json_string_value(json_object_get(each, "subpath"));
		create->mounts[i].volume = json_string_value(json_object_get(each, "volumeId"));
		create->mounts[i].path = json_string_value(json_object_get(each, "mountPath"));
		if (!create->mounts[i].volume || !create->mounts[i].path)
			return husk_fail_field(err, "volumes", "volumes[%zu] needs volumeId and mountPath", i);
		create->mounts[i].subpath = subpath && *subpath ? subpath : NULL;
	}
	create->options.mounts = create->mounts;
	create->options.mount_count = json_array_size(list);
	return 0;
}

static int put_int(json_t *settings, const char *name, int64_t value)
{
	return json_object_set_new(settings, name, json_integer(value));
}

static int read_intervals(struct fields *fields, struct create *create, struct husk_error *err)
{
	int64_t pause = fields_int(fields, "autoPauseInterval", 0, 0, DAYTONA_MINUTES_MAX);
	int64_t stop = fields_int(fields, "autoStopInterval", pause ? 0 : 15, 0, DAYTONA_MINUTES_MAX);
	int64_t archive = fields_int(fields, "autoArchiveInterval", 10080, 0, DAYTONA_MINUTES_MAX);
	int64_t destroy = fields_int(fields, "autoDeleteInterval", -1, -1, DAYTONA_MINUTES_MAX);
	int64_t ttl = fields_int(fields, "ttlMinutes", 0, 0, DAYTONA_MINUTES_MAX);

	if (pause && stop)
		return husk_fail_field(
			err, "autoPauseInterval",
			"autoStopInterval and autoPauseInterval are mutually exclusive; set one of them to 0");
	int failed = put_int(create->settings, "autoStopInterval", stop) |
		     put_int(create->settings, "autoPauseInterval", pause) |
		     put_int(create->settings, "autoArchiveInterval", archive) |
		     put_int(create->settings, "autoDeleteInterval", destroy);
	if (ttl)
		failed |= put_int(create->settings, "destroyAt", time_wall_ms() + ttl * 60000);
	create->options.ttl_seconds = ttl ? ttl * 60 : DAYTONA_TTL_SECONDS;
	create->options.on_expiry = "kill";
	create->options.idle_seconds = daytona_idle_seconds(create->settings);
	return failed ? husk_fail_memory(err) : 0;
}

void daytona_read_size(struct fields *fields, struct husk_create_options *options)
{
	options->cpu_milli = (uint32_t)(1000 * fields_int(fields, "cpu", 0, 1, 1024));
	options->memory_bytes = GIB * (uint64_t)fields_int(fields, "memory", 0, 1, 4096);
	options->disk_bytes = GIB * (uint64_t)fields_int(fields, "disk", 0, 1, 65536);
}

/* Options that Husk does not support, unless their value means "no". */
static int refuse(struct request *request, struct fields *fields, struct husk_error *err)
{
	static const char *const texts[] = { "outboundProxyUrl", "otelEndpointOverride", "linkedSandbox" };
	static const char *const flags[] = { "kvm", "spot" };

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		const char *value = fields_string(fields, texts[i]);
		if (value && *value)
			return dialect_unsupported(request, texts[i], err);
	}
	for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
		if (fields_bool(fields, flags[i], false))
			return dialect_unsupported(request, flags[i], err);
	if (fields_int(fields, "gpu", 0, 0, 1024) > 0)
		return dialect_unsupported(request, "a GPU", err);
	return 0;
}

static int check_labels(json_t *labels, struct husk_error *err)
{
	const char *name;
	json_t *value;

	json_object_foreach(labels, name, value)
	{
		if (!json_is_string(value))
			return husk_fail_field(err, "labels", "'labels.%.80s' must be a string", name);
		if (str_starts(name, "husk."))
			return husk_fail_field(err, "labels", "labels that begin with 'husk.' are not free to use");
	}
	return 0;
}

static int read_labels(struct fields *fields, struct create *create, struct husk_error *err)
{
	json_t *labels = fields_any(fields, "labels");

	if (labels && !json_is_object(labels))
		return husk_fail_field(err, "labels", "'labels' must be an object of strings");
	create->labels = labels ? json_deep_copy(labels) : json_object();
	return create->labels ? check_labels(create->labels, err) : husk_fail_memory(err);
}

static int read_create(struct request *request, json_t *body, struct create *create, struct husk_error *err)
{
	struct fields fields;

	if (fields_begin(&fields, body) < 0)
		return -1;
	create->settings = json_object();
	if (!create->settings)
		return husk_fail_memory(err);
	const char *name = fields_string(&fields, "name"), *snapshot = fields_string(&fields, "snapshot");
	const char *user = fields_string(&fields, "user"), *target = fields_string(&fields, "target");
	bool public = fields_bool(&fields, "public", false);
	json_t *volumes = fields_any(&fields, "volumes"), *secrets = fields_any(&fields, "secrets");
	json_t *environment = json_object_get(fields.object, "env");
	create->environment = fields_pairs(&fields, "env", &create->options.environment_count);
	create->options.environment = create->environment;
	create->image = fields_any(&fields, "buildInfo");
	daytona_read_size(&fields, &create->options);
	if (refuse(request, &fields, err) < 0 || read_labels(&fields, create, err) < 0 ||
	    read_intervals(&fields, create, err) < 0 || daytona_network_take(&fields, create->settings, err) < 0 ||
	    fields_done_open(&fields, err) < 0 || daytona_secrets_take(secrets, create->settings, err) < 0 ||
	    read_mounts(create, volumes, err) < 0)
		return -1;
	create->user = user && *user ? user : DAYTONA_USER;
	create->snapshot = snapshot && *snapshot ? strdup(snapshot) : NULL;
	create->options.name = name && *name ? name : NULL;
	int failed = json_object_set_new(create->settings, "user", json_text0(create->user)) |
		     json_object_set_new(create->settings, "public", json_boolean(public));
	if (target && *target)
		failed |= json_object_set_new(create->settings, "target", json_text0(target));
	if (json_object_size(environment))
		failed |= json_object_set(create->settings, "env", environment);
	return failed ? husk_fail_memory(err) : 0;
}

/* The user is made, and its home is recorded, before the sandbox is announced. */
static int settle(struct request *request, struct create *create, struct husk_sandbox *sandbox, const char *shown,
		  struct husk_error *err)
{
	cleanup_free struct husk_pair *pairs = NULL;
	cleanup_free char *home = NULL, *text = NULL;
	struct husk *husk = request_husk(request);
	size_t count = 0;

	if (daytona_make_user(husk, sandbox->id, create->user, &home, err) < 0)
		return -1;
	if (json_object_set_new(create->settings, "home", json_text0(home)) < 0 ||
	    json_object_set_new(create->settings, "snapshot", json_text0(shown)) < 0 ||
	    !(pairs = daytona_metadata(create->labels, create->settings, &count, &text)))
		return husk_fail_memory(err);
	return husk_set_metadata(husk, sandbox->id, pairs, count, err);
}

/* Everything before the sandbox itself; create->build is set if its image has to be built first. */
static int prepare(struct request *request, json_t *body, struct create *create, struct husk_error *err)
{
	if (read_create(request, body, create, err) < 0 ||
	    daytona_network_read(request, create->settings, &create->network, err) < 0)
		return -1;
	create->options.egress = &create->network.egress;
	create->metadata =
		daytona_metadata(create->labels, create->settings, &create->options.metadata_count, &create->text);
	if (!create->metadata)
		return husk_fail_memory(err);
	create->options.metadata = create->metadata;
	return create->image
		       ? daytona_build(request, create->image, &create->options, &create->snapshot, &create->build, err)
		       : 0;
}

static int make(struct request *request, struct create *create, char id[static 64], struct husk_error *err)
{
	struct husk_sandbox *sandbox = NULL;
	cleanup_free char *shown = NULL;

	if (daytona_create(request, create->snapshot, &create->options, &sandbox, &shown, err) < 0)
		return -1;
	snprintf(id, 64, "%s", sandbox->id);
	int result = settle(request, create, sandbox, shown, err);
	husk_sandbox_free(sandbox);
	if (result < 0) /* nobody was told of it */
		husk_kill(request_husk(request), id, NULL);
	return result;
}

/* ---- create from an image that is being built (daytona_pending.c) ---- */

static void drop_pending(struct daytona_pending *pending)
{
	daytona_pending_free(pending);
}

static int respond_pending(struct request *request, json_t *document, const char *state, const char *reason,
			   struct husk_error *err)
{
	if (json_object_set_new(document, "state", json_string(state)) < 0 ||
	    json_object_set_new(document, "desiredState", json_string("started")) < 0 ||
	    json_object_set_new(document, "errorReason", json_text0(reason)) < 0)
		return husk_fail_memory(err);
	return respond_json(request, 200, json_incref(document), err);
}

static bool is_taken(struct request *request, const char *name)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	return name && husk_inspect(request_husk(request), name, &sandbox, NULL) == 0 && sandbox->state != HUSK_ENDED;
}

/* The sandbox as it will be. */
static int announce(struct request *request, struct create *create, const json_t *body, struct husk_error *err)
{
	struct husk_sandbox planned = { .id = (char *)"",
					.name = (char *)create->options.name,
					.tenant = request->tenant,
					.isolation = (char *)"gvisor",
					.state = HUSK_CREATING,
					.created_ms = time_wall_ms(),
					.cpu_milli = create->options.cpu_milli,
					.memory_bytes = create->options.memory_bytes,
					.disk_bytes = create->options.disk_bytes,
					.egress_mode = (char *)create->network.egress.mode,
					.metadata = create->metadata,
					.metadata_count = create->options.metadata_count,
					.mounts = create->mounts,
					.mount_count = create->options.mount_count };
	struct daytona_box box = { 0 };

	if (is_taken(request, create->options.name))
		return husk_fail(err, HUSK_CONFLICT, "Sandbox with name %.64s already exists", create->options.name);
	int result = daytona_box_of(&planned, &box, err);
	cleanup_json json_t *document = result == 0 ? daytona_document(request, &box, false) : NULL;
	box.sandbox = NULL; /* it is ours */
	daytona_box_free(&box);
	if (result < 0 || !document)
		return result < 0 ? -1 : husk_fail_memory(err);
	if (daytona_pending_add(request, document, body, create->build, err) < 0)
		return -1;
	return respond_pending(request, document, "pending_build", NULL, err);
}

/* The build has ended: the create is carried out, once. */
static int carry_out(struct request *request, const char *id, struct daytona_pending *pending, struct husk_error *err)
{
	cleanup(create_cleanup) struct create create = { 0 };
	char made[64];
	int result = prepare(request, pending->body, &create, err);

	if (result == 0 && create.build)
		result = husk_fail(err, HUSK_CONFLICT, "the snapshot of the image is gone; create the sandbox again");
	if (result == 0 && json_object_set_new(create.settings, "build", json_text0(pending->build)) < 0)
		result = husk_fail_memory(err);
	if (result == 0)
		result = make(request, &create, made, err);
	if (!daytona_pending_end(request, id, result < 0 ? err->message : NULL) && result == 0) {
		husk_kill(request_husk(request), made, NULL);
		return husk_fail(err, HUSK_NOT_FOUND, "Sandbox with ID or name %.64s not found: it was deleted", id);
	}
	return result < 0 ? respond_pending(request, pending->document, "error", err->message, err)
			  : daytona_respond(request, made, err);
}

static int get_pending(struct request *request, const char *id, struct husk_error *err)
{
	cleanup(drop_pending) struct daytona_pending pending = { 0 };
	cleanup_free char *built = NULL;

	if (daytona_pending_find(request, id, false, &pending, err) < 0)
		return -1;
	if (*pending.reason)
		return respond_pending(request, pending.document, "error", pending.reason, err);
	cleanup_json json_t *build = daytona_build_find(request, pending.build, &built);
	const char *state = json_string_value(json_object_get(build, "state"));
	if (state)
		return respond_pending(request, pending.document,
				       str_equal(state, "building") ? "building_snapshot" : "build_failed",
				       json_string_value(json_object_get(build, "errorReason")), err);
	daytona_pending_free(&pending);
	if (daytona_pending_find(request, id, true, &pending, err) < 0)
		return -1;
	return pending.body ? carry_out(request, id, &pending, err)
			    : respond_pending(request, pending.document, "starting", NULL, err);
}

static int delete_pending(struct request *request, const char *id, struct husk_error *err)
{
	cleanup(drop_pending) struct daytona_pending pending = { 0 };

	if (daytona_pending_find(request, id, false, &pending, err) < 0)
		return -1;
	daytona_pending_remove(request, id);
	return respond_pending(request, pending.document, "destroyed", NULL, err);
}

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup(create_cleanup) struct create create = { 0 };
	json_t *body = request_json(request, err);
	char id[64];

	if (!body || prepare(request, body, &create, err) < 0)
		return -1;
	if (create.build)
		return announce(request, &create, body, err);
	return make(request, &create, id, err) < 0 ? -1 : daytona_respond(request, id, err);
}

/* ---- get, delete ---- */

static int handle_get(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	const char *id = request_path(request, "id");

	if (daytona_is_pending(request, id))
		return get_pending(request, id, err);
	if (daytona_find(request, &box, err) < 0)
		return -1;
	return respond_json(request, 200, daytona_document(request, &box, false), err);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	const char *id = request_path(request, "id");

	if (daytona_is_pending(request, id))
		return delete_pending(request, id, err);
	if (daytona_find(request, &box, err) < 0 || husk_kill(request_husk(request), box.sandbox->id, err) < 0)
		return -1;
	box.sandbox->state = HUSK_ENDED;
	return respond_json(request, 200, daytona_document(request, &box, false), err);
}

/* ---- list ---- */

struct listing {
	struct husk_filter filter;
	json_t *labels;
	struct husk_pair *pairs;
	bool ascending;
	const char *sort, *id, *name, *states[32];
	size_t state_count;
	const char *snapshots[32];
	size_t snapshot_count;
	int64_t after_ms, before_ms;
	const char *open; /* isPublic: "true", "false" or NULL */
};

static void listing_cleanup(struct listing *listing)
{
	json_decref(listing->labels);
	free(listing->pairs);
}

static int take_lists(void *data, const char *name, const char *value)
{
	struct listing *listing = data;

	if (str_equal(name, "states") && listing->state_count < ARRAY_SIZE(listing->states))
		listing->states[listing->state_count++] = value;
	else if (str_equal(name, "snapshots") && listing->snapshot_count < ARRAY_SIZE(listing->snapshots))
		listing->snapshots[listing->snapshot_count++] = value;
	return 0;
}

/* labels={"key":"value"} */
static int read_label_filter(struct request *request, struct listing *listing, struct husk_error *err)
{
	const char *text = request_query(request, "labels"), *name;
	json_t *value;

	if (!text || !*text)
		return 0;
	listing->labels = str_json_deeper(text, strlen(text), 4) ? NULL : json_loads(text, 0, NULL);
	if (!json_is_object(listing->labels))
		return husk_fail_field(err, "labels", "labels is not a JSON object of strings");
	listing->pairs = calloc(json_object_size(listing->labels) + 1, sizeof(*listing->pairs));
	if (!listing->pairs)
		return husk_fail_memory(err);
	json_object_foreach(listing->labels, name, value)
	{
		if (!json_is_string(value))
			return husk_fail_field(err, "labels", "labels is not a JSON object of strings");
		listing->pairs[listing->filter.metadata_count++] = (struct husk_pair){ name, json_string_value(value) };
	}
	listing->filter.metadata = listing->pairs;
	return 0;
}

static int read_moment(struct request *request, const char *name, int64_t fallback, int64_t *out,
		       struct husk_error *err)
{
	const char *text = request_query(request, name);
	struct tm parts = { 0 };
	const char *rest = text && *text ? strptime(text, "%Y-%m-%dT%H:%M:%S", &parts) : NULL;
	int fraction = 0;

	*out = fallback;
	if (!text || !*text)
		return 0;
	if (!rest)
		return husk_fail_field(err, name, "%s is a time such as 2026-01-31T12:00:00Z", name);
	if (*rest == '.')
		sscanf(rest, ".%3d", &fraction);
	*out = (int64_t)timegm(&parts) * 1000 + fraction;
	return 0;
}

static int read_listing(struct request *request, struct listing *listing, struct husk_error *err)
{
	const char *order = request_query(request, "order");

	listing->sort = request_query(request, "sort");
	listing->ascending = str_equal(order, "asc");
	listing->id = request_query(request, "id");
	listing->name = request_query(request, "name");
	listing->open = request_query(request, "isPublic");
	request_queries(request, take_lists, listing);
	if (order && *order && !listing->ascending && !str_equal(order, "desc"))
		return husk_fail_field(err, "order", "order is asc or desc");
	if (read_label_filter(request, listing, err) < 0 ||
	    read_moment(request, "createdAtAfter", INT64_MIN, &listing->after_ms, err) < 0)
		return -1;
	return read_moment(request, "createdAtBefore", INT64_MAX, &listing->before_ms, err);
}

static bool one_of(const char *const *list, size_t count, const char *word)
{
	for (size_t i = 0; i < count; i++)
		if (str_equal(list[i], word))
			return true;
	return count == 0;
}

static bool is_listed(const struct listing *listing, const struct daytona_box *box)
{
	const struct husk_sandbox *sandbox = box->sandbox;
	const char *name = sandbox->name ? sandbox->name : sandbox->id;
	const char *snapshot = daytona_text(box, "snapshot");

	if (listing->id && *listing->id && !str_starts(sandbox->id, listing->id))
		return false;
	if (listing->name && *listing->name && !str_starts(name, listing->name))
		return false;
	if (listing->open && *listing->open && str_equal(listing->open, "true") != daytona_bool(box, "public"))
		return false;
	return sandbox->created_ms >= listing->after_ms && sandbox->created_ms <= listing->before_ms &&
	       one_of(listing->states, listing->state_count, daytona_state(box)) &&
	       one_of(listing->snapshots, listing->snapshot_count, snapshot ? snapshot : sandbox->template_name);
}

static const char *name_of(const struct husk_sandbox *sandbox)
{
	return sandbox->name ? sandbox->name : sandbox->id;
}

static int compare_numbers(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

static int by_order(const void *a, const void *b, void *data)
{
	const struct husk_sandbox *one = *(struct husk_sandbox *const *)a, *two = *(struct husk_sandbox *const *)b;
	const struct listing *listing = data;
	int order = 0;

	if (str_equal(listing->sort, "name"))
		order = strcmp(name_of(one), name_of(two));
	else if (str_equal(listing->sort, "cpu"))
		order = compare_numbers(one->cpu_milli, two->cpu_milli);
	else if (str_equal(listing->sort, "memoryGib"))
		order = compare_numbers(one->memory_bytes, two->memory_bytes);
	else if (str_equal(listing->sort, "diskGib"))
		order = compare_numbers(one->disk_bytes, two->disk_bytes);
	if (order == 0)
		order = compare_numbers((uint64_t)one->created_ms, (uint64_t)two->created_ms);
	if (order == 0)
		order = strcmp(one->id, two->id);
	return listing->ascending ? order : -order;
}

/* All requested sandboxes, in order, as documents. */
static json_t *select_all(struct request *request, struct listing *listing, struct husk_error *err)
{
	cleanup_sandboxes struct husk_sandbox **list = NULL;
	cleanup_json json_t *array = json_array();
	size_t count = 0;

	if (husk_list(request_husk(request), &listing->filter, &list, err) < 0)
		return NULL;
	while (list[count])
		count++;
	qsort_r(list, count, sizeof(*list), by_order, listing);
	for (size_t i = 0; array && i < count; i++) {
		struct daytona_box box = { 0 };
		if (list[i]->state == HUSK_CREATING)
			continue;
		bool bad = daytona_box_of(list[i], &box, err) < 0;
		if (!bad && is_listed(listing, &box))
			bad = json_array_append_new(array, daytona_document(request, &box, true)) < 0;
		box.sandbox = NULL; /* the list's */
		daytona_box_free(&box);
		if (bad) {
			husk_fail_memory(err);
			return NULL;
		}
	}
	if (!array)
		husk_fail_memory(err);
	return steal_pointer(array);
}

/* A cursor is the id of the last one in the previous page. */
static size_t after_cursor(json_t *all, const char *cursor)
{
	for (size_t i = 0; cursor && *cursor && i < json_array_size(all); i++)
		if (str_equal(json_string_value(json_object_get(json_array_get(all, i), "id")), cursor))
			return i + 1;
	return 0;
}

static json_t *slice(json_t *all, size_t from, size_t count)
{
	json_t *part = json_array();

	for (size_t i = from; part && i < json_array_size(all) && i < from + count; i++)
		json_array_append(part, json_array_get(all, i));
	return part;
}

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup(listing_cleanup) struct listing listing = { 0 };
	int64_t limit;

	if (request_query_int(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX, &limit, err) < 0 ||
	    read_listing(request, &listing, err) < 0)
		return -1;
	cleanup_json json_t *all = select_all(request, &listing, err);
	if (!all)
		return -1;
	size_t from = after_cursor(all, request_query(request, "cursor"));
	json_t *items = slice(all, from, (size_t)limit);
	bool more = from + (size_t)limit < json_array_size(all);
	json_t *last = json_array_get(items, json_array_size(items) - 1);
	return respond_json(
		request, 200,
		json_pack("{s:o, s:O?}", "items", items, "nextCursor", more ? json_object_get(last, "id") : NULL), err);
}

/* The paging of clients before 2026. */
static int handle_pages(struct request *request, struct husk_error *err)
{
	cleanup(listing_cleanup) struct listing listing = { 0 };
	int64_t limit, page;

	if (request_query_int(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX, &limit, err) < 0 ||
	    request_query_int(request, "page", 1, 1, INT32_MAX, &page, err) < 0 ||
	    read_listing(request, &listing, err) < 0)
		return -1;
	cleanup_json json_t *all = select_all(request, &listing, err);
	if (!all)
		return -1;
	size_t total = json_array_size(all);
	return respond_json(request, 200,
			    json_pack("{s:o, s:I, s:I, s:I}", "items",
				      slice(all, (size_t)(page - 1) * (size_t)limit, (size_t)limit), "total",
				      (json_int_t)total, "page", (json_int_t)page, "totalPages",
				      (json_int_t)((total + (size_t)limit - 1) / (size_t)limit)),
			    err);
}

const struct route daytona_sandbox_routes[] = {
	{ "POST", "/daytona/sandbox", handle_create, 0 },         { "GET", "/daytona/sandbox", handle_list, 0 },
	{ "GET", "/daytona/sandbox/paginated", handle_pages, 0 }, { "GET", "/daytona/sandbox/{id}", handle_get, 0 },
	{ "DELETE", "/daytona/sandbox/{id}", handle_delete, 0 },  { 0 },
};
