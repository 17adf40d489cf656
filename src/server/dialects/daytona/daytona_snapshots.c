/*
 * Daytona's snapshots, from which sandboxes are created. A template of Husk is a general snapshot to Daytona. A snapshot of
 * Husk belongs to its owner, and continues with the memory and processes that it was taken with. daytona_build.c makes
 * snapshots from an image or a Dockerfile.
 */
#include <ctype.h>

#include "server/api_templates.h"
#include "server/dialects/daytona/daytona.h"

#define DEFAULT_NAME "default"
#define PAGE_DEFAULT 100
#define PAGE_MAX 200
#define GIB (UINT64_C(1) << 30)

/* ---- names ---- */

int daytona_name(const char *field, const char *given, char **out, struct husk_error *err)
{
	cleanup_free char *copy = strdup(given);

	if (!copy)
		return husk_fail_memory(err);
	for (char *at = copy; *at; at++)
		*at = *at == ':' || *at == '/' ? '.' : (char)tolower((unsigned char)*at);
	if (!*copy || copy[strspn(copy, "abcdefghijklmnopqrstuvwxyz0123456789-_.")])
		return husk_fail_field(err, field, "'%.80s' cannot be a name; use letters, digits, '-', '_', '.', ':'",
				       given);
	*out = steal_pointer(copy);
	return 0;
}

/* Prefers the built template with the most content. */
static const char *default_template(struct husk *husk)
{
	static const char *const names[] = { "code-interpreter", "base" };
	cleanup_templates struct husk_template **list = NULL;

	if (husk_template_list(husk, &list, NULL) < 0)
		return "base";
	for (size_t n = 0; n < ARRAY_SIZE(names); n++)
		for (size_t i = 0; list[i]; i++)
			if (str_equal(list[i]->name, names[n]))
				return names[n];
	return "base";
}

static bool is_default(const char *name)
{
	return !name || str_equal(name, DEFAULT_NAME) || str_starts(name, "daytonaio/sandbox") ||
	       str_equal(name, "daytona-small") || str_equal(name, "daytona-medium") ||
	       str_equal(name, "daytona-large");
}

char *daytona_base(struct husk *husk, const char *word)
{
	char *name = NULL;

	return daytona_name("FROM", is_default(word) ? default_template(husk) : word, &name, NULL) < 0 ? NULL : name;
}

/* ---- a sandbox from one ---- */

static int create_from(struct request *request, const char *template, const char *snapshot,
		       struct husk_create_options *options, struct husk_sandbox **out, struct husk_error *err)
{
	options->template_name = template;
	options->snapshot = snapshot;
	return husk_create(request_husk(request), options, out, err);
}

int daytona_create(struct request *request, const char *name, struct husk_create_options *options,
		   struct husk_sandbox **out, char **shown, struct husk_error *err)
{
	const char *template = is_default(name) ? default_template(request_husk(request)) : name;
	cleanup_free char *lower = NULL;

	*shown = strdup(is_default(name) ? DEFAULT_NAME : name);
	if (!*shown)
		return husk_fail_memory(err);
	if (daytona_name("snapshot", template, &lower, err) < 0)
		return -1;
	if (!str_starts(template, "sn-")) {
		int made = create_from(request, lower, NULL, options, out, err);
		if (made == 0 || err->code != HUSK_NOT_FOUND)
			return made;
	}
	int made = create_from(request, NULL, lower, options, out, err);
	if (made == 0 || err->code != HUSK_NOT_FOUND)
		return made;
	husk_fail(err, HUSK_NOT_FOUND, "Snapshot %.80s not found (husk template ls, husk snapshot ls)", template);
	if (template_ensure(request, lower, err) < 0)
		return -1;
	return create_from(request, lower, NULL, options, out, err);
}

/* ---- documents ---- */

static json_t *snapshot_document(const struct husk_snapshot *snapshot)
{
	/* clang-format off */
	return json_pack("{s:s, s:s, s:b, s:s, s:s, s:f, s:n, s:I, s:i, s:I, s:I, s:n, s:o, s:o, s:n, s:o}",
		"id", snapshot->id,
		"organizationId", snapshot->tenant ? snapshot->tenant : "husk",
		"general", false,
		"name", snapshot->name ? snapshot->name : snapshot->id,
		"state", "active",
		"size", (double)snapshot->bytes / (double)GIB,
		"entrypoint",
		"cpu", (json_int_t)MAX(1u, (snapshot->cpu_milli + 999) / 1000),
		"gpu", 0,
		"mem", (json_int_t)MAX(1u, (snapshot->memory_bytes + GIB - 1) / GIB),
		"disk", (json_int_t)MAX(1u, (snapshot->disk_bytes + GIB - 1) / GIB),
		"errorReason",
		"createdAt", json_time(snapshot->created_ms),
		"updatedAt", json_time(snapshot->created_ms),
		"lastUsedAt",
		"sourceSandboxId", json_text0(snapshot->sandbox));
	/* clang-format on */
}

static json_t *template_document(const struct husk_template *template)
{
	/* clang-format off */
	return json_pack("{s:s, s:b, s:s, s:s, s:f, s:n, s:i, s:i, s:i, s:I, s:n, s:o, s:o, s:n}",
		"id", template->name,
		"general", template->tenant == NULL,
		"name", template->name,
		"state", "active",
		"size", (double)template->bytes / (double)GIB,
		"entrypoint",
		"cpu", 2,
		"gpu", 0,
		"mem", 1,
		"disk", (json_int_t)MAX(1u, (template->disk_bytes + GIB - 1) / GIB),
		"errorReason",
		"createdAt", json_time(template->created_ms),
		"updatedAt", json_time(template->created_ms),
		"lastUsedAt");
	/* clang-format on */
}

/* ---- routes ---- */

static json_t *all_snapshots(struct request *request, struct husk_error *err)
{
	const char *source = request_query(request, "sourceSandboxId"), *name = request_query(request, "name");
	cleanup_templates struct husk_template **templates = NULL;
	cleanup_snapshots struct husk_snapshot **snapshots = NULL;
	cleanup_json json_t *array = json_array();
	int failed = 0;

	if (husk_snapshot_list(request_husk(request), &snapshots, err) < 0 ||
	    husk_template_list(request_husk(request), &templates, err) < 0)
		return NULL;
	for (size_t i = 0; snapshots[i]; i++) {
		const char *own = snapshots[i]->name ? snapshots[i]->name : snapshots[i]->id;
		if ((!source || str_equal(snapshots[i]->sandbox, source)) && (!name || strstr(own, name)))
			failed |= json_array_append_new(array, snapshot_document(snapshots[i]));
	}
	for (size_t i = 0; !source && templates[i]; i++)
		if (!name || strstr(templates[i]->name, name))
			failed |= json_array_append_new(array, template_document(templates[i]));
	failed |= source ? 0 : daytona_builds_add(request, array);
	if (failed)
		husk_fail_memory(err);
	return failed ? NULL : steal_pointer(array);
}

static int handle_list(struct request *request, struct husk_error *err)
{
	int64_t limit, page;

	if (request_query_int(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX, &limit, err) < 0 ||
	    request_query_int(request, "page", 1, 1, INT32_MAX, &page, err) < 0)
		return -1;
	cleanup_json json_t *all = all_snapshots(request, err);
	cleanup_json json_t *items = json_array();
	if (!all || !items)
		return all ? husk_fail_memory(err) : -1;
	size_t total = json_array_size(all), from = (size_t)(page - 1) * (size_t)limit;
	for (size_t i = from; i < total && i < from + (size_t)limit; i++)
		json_array_append(items, json_array_get(all, i));
	return respond_json(request, 200,
			    json_pack("{s:O, s:I, s:I, s:I}", "items", items, "total", (json_int_t)total, "page",
				      (json_int_t)page, "totalPages",
				      (json_int_t)((total + (size_t)limit - 1) / (size_t)limit)),
			    err);
}

static json_t *find_in(json_t *all, const char *name)
{
	size_t i;
	json_t *each;

	json_array_foreach(all, i, each)
	{
		if (str_equal(json_string_value(json_object_get(each, "id")), name) ||
		    str_equal(json_string_value(json_object_get(each, "name")), name))
			return json_incref(each);
	}
	return NULL;
}

/* By its id or its name, or by the id of its build; the caller drops it. */
static json_t *find(struct request *request, const char *given, struct husk_error *err)
{
	cleanup_free char *name = NULL, *built = NULL;
	const char *wanted = is_default(given) ? default_template(request_husk(request)) : given;

	if (daytona_name("id", wanted, &name, err) < 0)
		return NULL;
	cleanup_json json_t *build = daytona_build_find(request, name, &built);
	cleanup_json json_t *all = all_snapshots(request, err);
	if (!all)
		return NULL;
	json_t *found = find_in(all, built ? built : name);
	if (!found)
		found = steal_pointer(build); /* one that failed */
	if (!found)
		husk_fail(err, HUSK_NOT_FOUND, "Snapshot with ID or name %.80s not found", given);
	return found;
}

static int handle_get(struct request *request, struct husk_error *err)
{
	json_t *found = find(request, request_path(request, "snapshot"), err);

	return found ? respond_json(request, 200, found, err) : -1;
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *found = find(request, request_path(request, "snapshot"), err);

	if (!found)
		return -1;
	if (daytona_build_remove(request, json_string_value(json_object_get(found, "id"))))
		return respond_empty(request, 200, err);
	if (json_is_true(json_object_get(found, "general"))) {
		request->fault = (struct fault){ 403, "forbidden" };
		return husk_fail(err, HUSK_DENIED, "Snapshot %s is the instance's; husk template rm removes it",
				 json_string_value(json_object_get(found, "name")));
	}
	const char *id = json_string_value(json_object_get(found, "id"));
	int result = str_starts(id, "sn-") ? husk_snapshot_remove(request_husk(request), id, err)
					   : husk_template_remove(request_husk(request), id, err);
	return result < 0 ? -1 : respond_empty(request, 200, err);
}

static bool is_taken(struct request *request, const char *name)
{
	cleanup_json json_t *all = all_snapshots(request, NULL);
	cleanup_json json_t *there = find_in(all, name);

	return there;
}

/* name and imageName, or buildInfo */
static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_free char *name = NULL;
	cleanup_json json_t *info = NULL;
	struct husk_create_options size = { 0 };
	json_t *document = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *given = fields_string(&fields, "name"), *image = fields_string(&fields, "imageName");
	daytona_read_size(&fields, &size);
	json_t *build = fields_any(&fields, "buildInfo");
	int64_t gpu = fields_int(&fields, "gpu", 0, 0, 1024);
	if (fields_done_open(&fields, err) < 0)
		return -1;
	if (!given || !*given)
		return husk_fail_field(err, "name", "name is missing; give the snapshot's");
	if (gpu)
		return dialect_unsupported(request, "a GPU", err);
	if (!build && (!image || !*image))
		return husk_fail_field(err, "imageName", "imageName or buildInfo is missing");
	if (daytona_name("name", given, &name, err) < 0)
		return -1;
	if (is_taken(request, name))
		return husk_fail(err, HUSK_CONFLICT, "Snapshot with name \"%.80s\" already exists", given);
	info = build ? json_incref(build) : json_pack("{s:o}", "dockerfileContent", json_sprintf("FROM %s", image));
	if (!info)
		return husk_fail_memory(err);
	if (daytona_build_check(request, info, err) < 0 ||
	    daytona_build_start(request, name, info, &size, &document, err) < 0)
		return -1;
	return respond_json(request, 200, document, err);
}

static int respond_logs_url(struct request *request, const char *id, struct husk_error *err)
{
	cleanup_free char *address = daytona_address(request);

	return respond_json(
		request, 200,
		json_pack("{s:o}", "url", json_sprintf("%s/snapshots/%s/build-logs", address ? address : "", id)), err);
}

static int handle_logs_url(struct request *request, struct husk_error *err)
{
	return respond_logs_url(request, request_path(request, "snapshot"), err);
}

/* The log of the build that the create waits or waited for; any other sandbox has an empty log. */
static int handle_sandbox_logs_url(struct request *request, struct husk_error *err)
{
	const char *id = request_path(request, "id");
	struct daytona_pending pending = { 0 };
	cleanup_box struct daytona_box box = { 0 };

	if (!daytona_is_pending(request, id)) {
		if (daytona_find(request, &box, err) < 0)
			return -1;
		const char *build = daytona_text(&box, "build");
		return respond_logs_url(request, build ? build : box.sandbox->id, err);
	}
	if (daytona_pending_find(request, id, false, &pending, err) < 0)
		return -1;
	int result = respond_logs_url(request, pending.build, err);
	daytona_pending_free(&pending);
	return result;
}

const struct route daytona_snapshot_routes[] = {
	{ "GET", "/daytona/snapshots", handle_list, 0 },
	{ "POST", "/daytona/snapshots", handle_create, 0 },
	{ "GET", "/daytona/snapshots/{snapshot}", handle_get, 0 },
	{ "DELETE", "/daytona/snapshots/{snapshot}", handle_delete, 0 },
	{ "POST", "/daytona/snapshots/{snapshot}/activate", handle_get, 0 },
	{ "GET", "/daytona/snapshots/{snapshot}/build-logs-url", handle_logs_url, 0 },
	{ "GET", "/daytona/snapshots/{snapshot}/build-logs", daytona_build_log, ROUTE_STREAM },
	{ "GET", "/daytona/sandbox/{id}/build-logs-url", handle_sandbox_logs_url, 0 },
	{ 0 },
};
