/*
 * E2B's sandboxes: create, connect, inspect, list, kill, timeout, pause, fork, metrics. A thin layer over libhusk that
 * translates E2B's terms. "Paused" is hibernated: memory, processes and disk are kept, without expiry. A timeout is the
 * TTL; a sandbox that asked to be paused at its timeout hibernates then (on_expiry).
 */
#include "server/api_templates.h"
#include "server/core.h"
#include "server/dialects/e2b/e2b.h"

#define PAGE_MAX 100
#define FORKS_MAX 256
#define NEVER_MS INT64_C(253402300799000) /* the year 9999: clients want a date */

/* The sandbox in the path, if it has not ended. */
static int find(struct request *request, struct husk_sandbox **out, struct husk_error *err)
{
	const char *id = request_path(request, "id");

	if (husk_inspect(request_husk(request), id, out, err) < 0)
		return -1;
	if ((*out)->state != HUSK_ENDED)
		return 0;
	return husk_fail(err, HUSK_NOT_FOUND, "sandbox %.40s not found: it has ended (%s)", id,
			 (*out)->end_reason ? (*out)->end_reason : "killed");
}

static bool is_paused(const struct husk_sandbox *sandbox)
{
	return sandbox->state == HUSK_HIBERNATED || sandbox->state == HUSK_PAUSED;
}

/* ---- answers ---- */

/* The answer of create, connect and fork: how to reach the sandbox. */
static json_t *reach_document(struct request *request, const struct husk_sandbox *sandbox)
{
	cleanup_free char *access = NULL, *traffic = NULL;
	cleanup_free char *domain = ports_domain(request, NULL);

	if (e2b_token(request, "access", sandbox->id, &access, NULL) < 0 ||
	    e2b_token(request, "traffic", sandbox->id, &traffic, NULL) < 0)
		return NULL;
	const char *template = e2b_template_of(sandbox);
	char id[E2B_ID_SIZE];
	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:o}", "sandboxID", e2b_shown_id(sandbox->id, id),
			 "templateID", template, "alias", template, "clientID", "husk", "envdVersion", E2B_VERSION,
			 "envdAccessToken", access, "trafficAccessToken", traffic, "domain", json_text0(domain));
}

static json_t *metadata_document(const struct husk_sandbox *sandbox)
{
	json_t *document = json_object();

	for (size_t i = 0; document && i < sandbox->metadata_count; i++)
		if (!e2b_hidden(sandbox->metadata[i].key))
			json_object_set_new(document, sandbox->metadata[i].key, json_text0(sandbox->metadata[i].value));
	return document;
}

static json_t *info_document(const struct husk_sandbox *sandbox)
{
	const char *template = e2b_template_of(sandbox);
	char id[E2B_ID_SIZE];

	/* clang-format off */
	return json_pack(
		"{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:s, s:I, s:I, s:I, s:o, s:o}",
		"sandboxID", e2b_shown_id(sandbox->id, id),
		"templateID", template,
		"alias", sandbox->name ? sandbox->name : template,
		"clientID", "husk",
		"envdVersion", E2B_VERSION,
		"startedAt", json_time(sandbox->created_ms),
		"endAt", json_time(sandbox->expires_ms ? sandbox->expires_ms : NEVER_MS),
		"state", is_paused(sandbox) ? "paused" : "running",
		"cpuCount", (json_int_t)MAX(1u, (sandbox->cpu_milli + 999) / 1000),
		"memoryMB", (json_int_t)(sandbox->memory_bytes >> 20),
		"diskSizeMB", (json_int_t)(sandbox->disk_bytes >> 20),
		"metadata", metadata_document(sandbox),
		"volumeMounts", e2b_mounts_document(sandbox));
	/* clang-format on */
}

static int handle_get(struct request *request, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	cleanup_free char *domain = ports_domain(request, NULL);

	if (find(request, &sandbox, err) < 0)
		return -1;
	struct e2b_settings settings = e2b_settings_of(sandbox);
	cleanup_json json_t *document = info_document(sandbox);
	cleanup_json json_t *more =
		json_pack("{s:o, s:b, s:o, s:{s:s, s:b}}", "domain", json_text0(domain), "allowInternetAccess",
			  !str_equal(sandbox->egress_mode, "off"), "network",
			  e2b_network_document(request, sandbox->id, &settings), "lifecycle", "onTimeout",
			  settings.pause ? "pause" : "kill", "autoResume", settings.resume);
	if (!document || !more || json_object_update(document, more) < 0)
		return husk_fail_memory(err);
	return respond_json(request, 200, json_incref(document), err);
}

/* ---- create ---- */

struct create {
	struct husk_create_options options;
	struct husk_pair *metadata, *environment;
	struct e2b_settings settings;
	struct e2b_network network;
	struct husk_mount *mounts;
	char *settings_text, *template_name;
	const char *template;
};

static void create_cleanup(struct create *create)
{
	free(create->metadata);
	free(create->environment);
	free(create->settings_text);
	free(create->template_name);
	free(create->mounts);
	e2b_network_free(&create->network);
}

/* The client's metadata, followed by ours. */
static int add_settings(struct create *create, struct husk_error *err)
{
	size_t count = create->options.metadata_count, more = 0;

	for (size_t i = 0; i < count; i++)
		if (e2b_hidden(create->metadata[i].key))
			return husk_fail_field(err, "metadata",
					       "metadata keys that begin with 'husk.' are not free to use");
	struct husk_pair *grown = reallocarray(create->metadata, count + E2B_PAIRS, sizeof(*grown));
	if (!grown)
		return husk_fail_memory(err);
	create->metadata = grown;
	create->options.metadata = grown;
	int result = e2b_settings_pairs(&create->settings, grown + count, &more, &create->settings_text, err);
	create->options.metadata_count = count + more;
	return result;
}

static int read_create(struct request *request, struct create *create, struct husk_error *err)
{
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	create->template = fields_string(&fields, "templateID");
	int64_t timeout = fields_int(&fields, "timeout", E2B_TIMEOUT_SECONDS, 0, E2B_TIMEOUT_MAX);
	create->metadata = fields_pairs(&fields, "metadata", &create->options.metadata_count);
	create->environment = fields_pairs(&fields, "envVars", &create->options.environment_count);
	bool internet = fields_bool(&fields, "allow_internet_access", true);
	create->settings.pause = fields_bool(&fields, "autoPause", false);
	bool memory = fields_bool(&fields, "autoPauseMemory", true);
	json_t *resume = fields_any(&fields, "autoResume"), *network = fields_any(&fields, "network");
	json_t *mounts = fields_any(&fields, "volumeMounts");
	fields_bool(&fields, "secure", true); /* every sandbox is */
	fields_any(&fields, "mcp");           /* the client starts the template's gateway itself */
	if (fields_done_open(&fields, err) < 0 || e2b_refuse_rest(request, &fields, "the option", err) < 0 ||
	    e2b_network_read(request, network, internet, &create->network, err) < 0)
		return -1;
	if (!memory && json_is_true(json_object_get(resume, "enabled")))
		return husk_fail_field(err, "autoResume",
				       "autoResume needs the memory of the sandbox; leave out autoPauseMemory: false");
	if (!create->template)
		return husk_fail_field(err, "templateID", "templateID is missing");
	if (!(create->mounts = e2b_mounts_read(mounts, &create->options.mount_count, err)))
		return -1;
	create->options.mounts = create->mounts;
	create->settings.timeout = create->options.ttl_seconds = MAX(timeout, 1);
	create->options.on_expiry = create->settings.pause ? "hibernate" : "kill";
	create->settings.resume = json_is_true(json_object_get(resume, "enabled"));
	create->settings.built = !e2b_template_exists(request_husk(request), e2b_template(create->template));
	create->settings.closed = create->network.closed;
	create->settings.host = create->network.host;
	create->settings.https = create->network.https;
	create->settings.cold = create->settings.pause && !memory;
	if (create->settings.built && e2b_template_name(create->template, &create->template_name, err) < 0)
		return -1;
	create->settings.template = create->template_name;
	create->options.environment = create->environment;
	create->options.idempotency_key = request_header(request, "Idempotency-Key");
	create->options.egress = &create->network.egress;
	return add_settings(create, err);
}

/* A template, bundled or built; otherwise a snapshot, by its id or its name (E2B's own builds are snapshots). */
static int make(struct request *request, struct create *create, struct husk_sandbox **out, struct husk_error *err)
{
	struct husk_create_options *options = &create->options;
	struct husk *husk = request_husk(request);
	cleanup_free char *name = NULL;

	if (!str_starts(create->template, "sn-")) {
		options->template_name = e2b_template(create->template);
		int made = husk_create(husk, options, out, err);
		if (made == 0 || err->code != HUSK_NOT_FOUND)
			return made;
	}
	if (e2b_snapshot_name(create->template, &name, err) < 0)
		return -1;
	const char *template = steal_pointer(options->template_name);
	options->snapshot = name;
	int made = husk_create(husk, options, out, err);
	const char *slash = strchr(create->template, '/');
	if (made < 0 && err->code == HUSK_NOT_FOUND && slash) {
		cleanup_free char *shared =
			str_format("%.*s/%s", (int)(slash - create->template), create->template, name);
		options->snapshot = shared;
		return shared ? husk_create(husk, options, out, err) : husk_fail_memory(err);
	}
	if (made == 0 || err->code != HUSK_NOT_FOUND || !template)
		return made;
	husk_fail(err, HUSK_NOT_FOUND, "template '%.80s' not found (husk template ls)", create->template);
	if (template_ensure(request, template, err) < 0)
		return -1;
	options->snapshot = NULL;
	options->template_name = template;
	return husk_create(husk, options, out, err);
}

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup(create_cleanup) struct create create = { 0 };
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	if (read_create(request, &create, err) < 0 || make(request, &create, &sandbox, err) < 0)
		return -1;
	e2b_identify(request_husk(request), sandbox);
	return respond_json(request, 201, reach_document(request, sandbox), err);
}

/* ---- connect, timeout, pause, kill ---- */

/* `cold`: with its disk only, as if the memory had not been kept. */
static int wake(struct request *request, const struct husk_sandbox *sandbox, int64_t timeout, bool cold,
		struct husk_error *err)
{
	struct husk *husk = request_husk(request);

	if (husk_extend(husk, sandbox->id, timeout, false, NULL, err) < 0)
		return -1;
	if (sandbox->state == HUSK_PAUSED)
		return husk_resume(husk, sandbox->id, err);
	if (husk_wake(husk, sandbox->id, err) < 0)
		return -1;
	return cold ? e2b_reboot(husk, sandbox->id, err) : 0;
}

/* A running sandbox gets more time, never less. */
static int handle_connect(struct request *request, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	int64_t timeout = fields_int(&fields, "timeout", -1, 0, E2B_TIMEOUT_MAX);
	bool memory = fields_bool(&fields, "memory", true);
	if (fields_done_open(&fields, err) < 0 || find(request, &sandbox, err) < 0)
		return -1;
	bool cold = !memory || e2b_settings_of(sandbox).cold;
	bool paused = is_paused(sandbox);
	int64_t until = time_wall_ms() + timeout * 1000;
	if (paused && wake(request, sandbox, timeout < 0 ? E2B_TIMEOUT_SECONDS : MAX(timeout, 1), cold, err) < 0)
		return -1;
	if (!paused && sandbox->expires_ms && timeout > 0 && until > sandbox->expires_ms &&
	    husk_extend(request_husk(request), sandbox->id, timeout, false, NULL, err) < 0)
		return -1;
	return respond_json(request, paused ? 201 : 200, reach_document(request, sandbox), err);
}

/* The older form of connect: only for a paused sandbox. */
static int handle_resume(struct request *request, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	if (find(request, &sandbox, err) < 0)
		return -1;
	return is_paused(sandbox) ? handle_connect(request, err)
				  : husk_fail(err, HUSK_CONFLICT, "sandbox %s is running already", sandbox->id);
}

/* {duration}: more time, never less; the default is E2B's. */
static int handle_refresh(struct request *request, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	int64_t seconds = fields_int(&fields, "duration", 15, 0, E2B_TIMEOUT_MAX);
	if (fields_done_open(&fields, err) < 0 || find(request, &sandbox, err) < 0)
		return -1;
	if (is_paused(sandbox))
		return husk_fail(err, HUSK_NOT_FOUND, "sandbox %s is paused; connect to it first", sandbox->id);
	if (sandbox->expires_ms && time_wall_ms() + seconds * 1000 > sandbox->expires_ms &&
	    husk_extend(request_husk(request), sandbox->id, seconds, false, NULL, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

static int handle_timeout(struct request *request, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	int64_t timeout = fields_int(&fields, "timeout", -1, 0, E2B_TIMEOUT_MAX);
	if (fields_done_open(&fields, err) < 0 || find(request, &sandbox, err) < 0)
		return -1;
	if (timeout < 0)
		return husk_fail_field(err, "timeout", "timeout is missing; give seconds");
	if (sandbox->state == HUSK_HIBERNATED)
		return husk_fail(err, HUSK_NOT_FOUND, "sandbox %s is paused; connect to it first", sandbox->id);
	if (husk_extend(request_husk(request), sandbox->id, MAX(timeout, 1), false, NULL, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

static int handle_pause(struct request *request, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	struct husk *husk = request_husk(request);
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	bool memory = fields_bool(&fields, "memory", true);
	if (fields_done_open(&fields, err) < 0 || find(request, &sandbox, err) < 0)
		return -1;
	if (!memory && sandbox->state != HUSK_HIBERNATED && e2b_reboot(husk, sandbox->id, err) < 0)
		return -1;
	/* First hibernated, then without an end: before the answer nobody may rely on either. */
	if (husk_hibernate(husk, sandbox->id, err) < 0 || husk_extend(husk, sandbox->id, 0, true, NULL, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	if (find(request, &sandbox, err) < 0 || husk_kill(request_husk(request), sandbox->id, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

/* ---- fork ---- */

static int handle_fork(struct request *request, struct husk_error *err)
{
	cleanup_sandboxes struct husk_sandbox **children = NULL;
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	cleanup_json json_t *array = json_array();
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	int64_t count = fields_int(&fields, "count", 1, 1, FORKS_MAX);
	int64_t timeout = fields_int(&fields, "timeout", E2B_TIMEOUT_SECONDS, 0, E2B_TIMEOUT_MAX);
	struct husk_create_options options = { .ttl_seconds = MAX(timeout, 1) };
	if (fields_done_open(&fields, err) < 0 || find(request, &sandbox, err) < 0 ||
	    husk_fork(request_husk(request), sandbox->id, (size_t)count, &options, &children, err) < 0)
		return -1;
	for (size_t i = 0; children[i]; i++) {
		e2b_identify(request_husk(request), children[i]);
		if (json_array_append_new(array, json_pack("{s:o}", "sandbox", reach_document(request, children[i]))) <
		    0)
			return husk_fail_memory(err);
	}
	return respond_json(request, 201, json_incref(array), err);
}

/* ---- metrics ---- */

/* The current values, over a tenth of a second: nothing is recorded. A paused sandbox has none. */
static int handle_metrics(struct request *request, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	struct husk_stats now;
	int64_t start, end;
	double used;

	if (request_query_int(request, "start", 0, 0, INT64_MAX / 1000, &start, err) < 0 ||
	    request_query_int(request, "end", INT64_MAX / 1000, 0, INT64_MAX / 1000, &end, err) < 0 ||
	    find(request, &sandbox, err) < 0)
		return -1;
	int64_t at = time_wall_ms() / 1000;
	if (is_paused(sandbox) || at < start || at > end)
		return respond_json(request, 200, json_array(), err);
	if (dialect_usage(request_husk(request), sandbox->id, &now, &used, err) < 0)
		return -1;
	/* clang-format off */
	return respond_json(request, 200, json_pack(
		"[{s:o, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I}]",
		"timestamp", json_time(at * 1000),
		"timestampUnix", (json_int_t)at,
		"cpuCount", (json_int_t)MAX(1u, (sandbox->cpu_milli + 999) / 1000),
		"cpuUsedPct", used,
		"memUsed", (json_int_t)now.memory_bytes,
		"memTotal", (json_int_t)now.memory_limit,
		"memCache", (json_int_t)0,
		"diskUsed", (json_int_t)now.disk_bytes,
		"diskTotal", (json_int_t)now.disk_limit), err);
	/* clang-format on */
}

/* ---- list ---- */

struct listing {
	struct husk_filter filter;
	bool running, paused, ascending;
	int64_t after_ms; /* started then or later */
	char *template;   /* NULL: any */
	int64_t limit;
	int64_t token_ms; /* the last one in the previous page; -1: from the beginning */
	const char *token_id;
	char *metadata_text;
	struct husk_pair *metadata;
};

static void listing_cleanup(struct listing *listing)
{
	free(listing->template);
	free(listing->metadata_text);
	free(listing->metadata);
}

/* Percent-decoding in place; '+' is a blank. */
static void decode(char *text)
{
	char *out = text;

	for (; *text; text++) {
		unsigned value;
		if (*text == '%' && sscanf(text + 1, "%2x", &value) == 1 && text[1] && text[2]) {
			*out++ = (char)value;
			text += 2;
		} else {
			*out++ = *text == '+' ? ' ' : *text;
		}
	}
	*out = '\0';
}

/* "key=value&…", each part encoded twice. */
static int read_metadata(struct listing *listing, const char *text, struct husk_error *err)
{
	size_t count = 1;
	char *save = NULL;

	for (const char *at = text; *at; at++)
		count += *at == '&';
	listing->metadata_text = strdup(text);
	listing->metadata = calloc(count, sizeof(*listing->metadata));
	if (!listing->metadata_text || !listing->metadata)
		return husk_fail_memory(err);
	for (char *pair = strtok_r(listing->metadata_text, "&", &save); pair; pair = strtok_r(NULL, "&", &save)) {
		char *equals = strchr(pair, '=');
		if (!equals)
			return husk_fail_field(err, "metadata", "metadata is key=value pairs joined by '&'");
		*equals++ = '\0';
		decode(pair);
		decode(pair);
		decode(equals);
		decode(equals);
		listing->metadata[listing->filter.metadata_count++] = (struct husk_pair){ pair, equals };
	}
	listing->filter.metadata = listing->metadata;
	return 0;
}

static int read_states(struct listing *listing, const char *text, struct husk_error *err)
{
	if (!text || !*text) {
		listing->running = listing->paused = true;
		return 0;
	}
	for (const char *at = text; *at;) {
		size_t size = strcspn(at, ",");
		if (size == 7 && strncmp(at, "running", 7) == 0)
			listing->running = true;
		else if (size == 6 && strncmp(at, "paused", 6) == 0)
			listing->paused = true;
		else
			return husk_fail_field(err, "state", "state is running or paused, or both with a comma");
		at += size + (at[size] == ',');
	}
	return 0;
}

static int read_time(const char *text, int64_t *out, struct husk_error *err)
{
	*out = INT64_MIN;
	if (!text || e2b_time(text, out) == 0)
		return 0;
	return husk_fail_field(err, "startedAfter", "startedAfter is a time such as 2026-01-31T12:00:00Z");
}

/* "<created>.<id>": the position after which the next page begins, also if that sandbox is gone. */
static int read_token(struct listing *listing, const char *text, struct husk_error *err)
{
	const char *dot = text ? strchr(text, '.') : NULL;
	cleanup_free char *number = dot ? strndup(text, (size_t)(dot - text)) : NULL;

	listing->token_ms = -1;
	if (!text || !*text)
		return 0;
	if (!number || str_to_int64(number, 0, INT64_MAX, &listing->token_ms) < 0)
		return husk_fail_field(err, "nextToken", "nextToken is not one that a page gave");
	listing->token_id = dot + 1;
	return 0;
}

static int read_listing(struct request *request, struct listing *listing, struct husk_error *err)
{
	const char *order = request_query(request, "order"), *metadata = request_query(request, "metadata");
	const char *template = request_query(request, "template");

	listing->ascending = str_equal(order, "asc");
	if (order && !listing->ascending && !str_equal(order, "desc"))
		return husk_fail_field(err, "order", "order is asc or desc");
	if (template && *template && e2b_template_name(template, &listing->template, err) < 0)
		return -1;
	if (request_query_int(request, "limit", PAGE_MAX, 1, PAGE_MAX, &listing->limit, err) < 0 ||
	    read_states(listing, request_query(request, "state"), err) < 0 ||
	    read_time(request_query(request, "startedAfter"), &listing->after_ms, err) < 0 ||
	    read_token(listing, request_query(request, "nextToken"), err) < 0)
		return -1;
	return metadata && *metadata ? read_metadata(listing, metadata, err) : 0;
}

static int by_age(const void *a, const void *b)
{
	const struct husk_sandbox *first = *(struct husk_sandbox *const *)a, *second = *(struct husk_sandbox *const *)b;

	if (first->created_ms != second->created_ms)
		return first->created_ms < second->created_ms ? -1 : 1;
	return strcmp(first->id, second->id);
}

static bool is_listed(const struct listing *listing, const struct husk_sandbox *sandbox)
{
	struct husk_sandbox token = { .created_ms = listing->token_ms, .id = (char *)listing->token_id };
	const struct husk_sandbox *one = sandbox, *other = &token;

	if (sandbox->state == HUSK_CREATING || sandbox->created_ms < listing->after_ms ||
	    (listing->template && !str_equal(e2b_template_of(sandbox), listing->template)) ||
	    !(is_paused(sandbox) ? listing->paused : listing->running))
		return false;
	if (listing->token_ms < 0)
		return true;
	int order = by_age(&one, &other);
	return listing->ascending ? order > 0 : order < 0;
}

static int respond_page(struct request *request, const struct listing *listing, struct husk_sandbox *const *list,
			size_t count, struct husk_error *err)
{
	cleanup_json json_t *array = json_array();
	const struct husk_sandbox *last = NULL;

	for (size_t i = 0; i < count; i++) {
		const struct husk_sandbox *sandbox = list[listing->ascending ? i : count - 1 - i];
		if (!is_listed(listing, sandbox))
			continue;
		if (last && json_array_size(array) == (size_t)listing->limit) {
			cleanup_free char *token = str_format("%lld.%s", (long long)last->created_ms, last->id);
			return token ? e2b_respond_page(request, steal_pointer(array), token, err)
				     : husk_fail_memory(err);
		}
		last = sandbox;
		if (json_array_append_new(array, info_document(sandbox)) < 0)
			return husk_fail_memory(err);
	}
	return e2b_respond_page(request, steal_pointer(array), NULL, err);
}

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup(listing_cleanup) struct listing listing = { 0 };
	cleanup_sandboxes struct husk_sandbox **list = NULL;
	size_t count = 0;

	if (read_listing(request, &listing, err) < 0 ||
	    husk_list(request_husk(request), &listing.filter, &list, err) < 0)
		return -1;
	while (list[count])
		count++;
	qsort(list, count, sizeof(*list), by_age);
	return respond_page(request, &listing, list, count, err);
}

/* ---- metadata ---- */

/* "" and null remove a key. */
static int check_metadata(json_t *given, struct husk_error *err)
{
	const char *key;
	json_t *value;

	json_object_foreach(given, key, value)
	{
		if (e2b_hidden(key))
			return husk_fail_field(err, "metadata",
					       "metadata keys that begin with 'husk.' are not free to use");
		if (!json_is_string(value) && !json_is_null(value))
			return husk_fail_field(err, "metadata", "the value of metadata key '%.80s' is not a string",
					       key);
	}
	return 0;
}

/* `keep`: keys that are not given stay, as ours always do. */
static int change_metadata(struct request *request, bool keep, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	json_t *given = request_json(request, err), *value;
	const char *key;
	size_t count = 0;

	if (!given || check_metadata(given, err) < 0 || find(request, &sandbox, err) < 0)
		return -1;
	cleanup_free struct husk_pair *pairs =
		calloc(sandbox->metadata_count + json_object_size(given) + 1, sizeof(*pairs));
	if (!pairs)
		return husk_fail_memory(err);
	for (size_t i = 0; i < sandbox->metadata_count; i++) {
		const struct husk_pair *each = &sandbox->metadata[i];
		if (e2b_hidden(each->key) || (keep && !json_object_get(given, each->key)))
			pairs[count++] = *each;
	}
	json_object_foreach(given, key, value)
	{
		const char *text = json_string_value(value);
		if (text && *text)
			pairs[count++] = (struct husk_pair){ key, text };
	}
	if (husk_set_metadata(request_husk(request), sandbox->id, pairs, count, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

static int handle_metadata(struct request *request, struct husk_error *err)
{
	return change_metadata(request, false, err);
}

static int handle_metadata_patch(struct request *request, struct husk_error *err)
{
	return change_metadata(request, true, err);
}

const struct route e2b_sandbox_routes[] = {
	{ "POST", "/sandboxes", handle_create, E2B_CONTROL },
	{ "POST", "/v2/sandboxes", handle_create, E2B_CONTROL },
	{ "GET", "/sandboxes", handle_list, E2B_CONTROL },
	{ "GET", "/v2/sandboxes", handle_list, E2B_CONTROL },
	{ "GET", "/sandboxes/{id}", handle_get, E2B_CONTROL },
	{ "DELETE", "/sandboxes/{id}", handle_delete, E2B_CONTROL },
	{ "POST", "/sandboxes/{id}/connect", handle_connect, E2B_CONTROL },
	{ "POST", "/v2/sandboxes/{id}/connect", handle_connect, E2B_CONTROL },
	{ "POST", "/sandboxes/{id}/resume", handle_resume, E2B_CONTROL },
	{ "POST", "/sandboxes/{id}/refreshes", handle_refresh, E2B_CONTROL },
	{ "POST", "/sandboxes/{id}/timeout", handle_timeout, E2B_CONTROL },
	{ "POST", "/sandboxes/{id}/pause", handle_pause, E2B_CONTROL },
	{ "POST", "/sandboxes/{id}/fork", handle_fork, E2B_CONTROL },
	{ "GET", "/sandboxes/{id}/metrics", handle_metrics, E2B_CONTROL },
	{ "PUT", "/sandboxes/{id}/network", e2b_network_update, E2B_CONTROL },
	{ "PUT", "/sandboxes/{id}/metadata", handle_metadata, E2B_CONTROL },
	{ "PATCH", "/sandboxes/{id}/metadata", handle_metadata_patch, E2B_CONTROL },
	{ 0 },
};
