/*
 * E2B's templates, except building (e2b_build.c): list, existence, tags, visibility, removal. E2B's builder makes a
 * snapshot under the template's name, with ".tag" appended for any tag except the default one. Its metadata has the id
 * of the build.
 */
#include <openssl/evp.h>

#include "server/dialects/e2b/e2b.h"
#include "store/template.h"

bool e2b_template_exists(struct husk *husk, const char *name)
{
	cleanup_free char *bundled = template_find(name, NULL);
	struct husk_template **list = NULL;
	bool found = bundled;

	if (found || husk_template_list(husk, &list, NULL) < 0)
		return found;
	for (size_t i = 0; list[i]; i++)
		found |= str_equal(list[i]->name, name);
	husk_template_list_free(list);
	return found;
}

static bool is_named(const struct husk_snapshot *snapshot, const char *name)
{
	bool named = str_equal(snapshot->name, name) || str_equal(snapshot->id, name);

	for (char **each = snapshot->tags; each && *each; each++)
		named |= str_equal(*each, name);
	return named;
}

bool e2b_snapshot_exists(struct husk *husk, const char *name)
{
	cleanup_snapshots struct husk_snapshot **list = NULL;

	if (husk_snapshot_list(husk, &list, NULL) < 0)
		return false;
	for (size_t i = 0; list[i]; i++)
		if (is_named(list[i], name))
			return true;
	return false;
}

static int handle_alias(struct request *request, struct husk_error *err)
{
	const char *alias = request_path(request, "alias");
	cleanup_free char *name = NULL;

	if (e2b_snapshot_name(alias, &name, err) < 0)
		return -1;
	if (!e2b_template_exists(request_husk(request), e2b_template(alias)) &&
	    !e2b_snapshot_exists(request_husk(request), name))
		return husk_fail(err, HUSK_NOT_FOUND, "template '%.80s' not found", alias);
	return respond_json(request, 200, json_pack("{s:s, s:b}", "templateID", name, "public", false), err);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	const char *given = request_path(request, "template");
	cleanup_free char *name = NULL;

	if (e2b_snapshot_name(given, &name, err) < 0)
		return -1;
	int removed = husk_snapshot_remove(request_husk(request), name, err);
	if (removed < 0 && err->code == HUSK_NOT_FOUND)
		removed = husk_template_remove(request_husk(request), e2b_template(given), err);
	return removed < 0 ? -1 : respond_empty(request, 204, err);
}

/* ---- the list ---- */

/* An id in E2B's form for what E2B's builder did not make; always the same for the same text. */
static json_t *derived_id(const char *text)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	char out[37];

	if (EVP_Digest(text, strlen(text), digest, NULL, EVP_sha256(), NULL) != 1)
		return NULL;
	e2b_uuid(digest, out);
	return json_string(out);
}

/* The id of the build that made it. */
static json_t *build_id(const struct husk_snapshot *snapshot)
{
	for (size_t i = 0; i < snapshot->metadata_count; i++)
		if (str_equal(snapshot->metadata[i].key, E2B_BUILD_KEY))
			return json_text0(snapshot->metadata[i].value);
	return derived_id(snapshot->id);
}

static bool was_built(const struct husk_snapshot *snapshot)
{
	for (size_t i = 0; i < snapshot->metadata_count; i++)
		if (str_equal(snapshot->metadata[i].key, E2B_BUILD_KEY))
			return snapshot->name;
	return false;
}

/* "name" for its owner, and "tenant/name" for everybody if it is public. */
static json_t *full_name(const struct husk_snapshot *snapshot, const char *name)
{
	return json_sprintf("%s/%s", snapshot->tenant ? snapshot->tenant : HUSK_SHARER, name);
}

/* The fields that both kinds of templates have; takes ownership of `build`. */
static json_t *template_document(const char *name, json_t *build, json_t *full, bool open, int64_t created_ms,
				 uint64_t disk_bytes)
{
	/* clang-format off */
	return json_pack(
		"{s:s, s:o, s:b, s:[s], s:[o], s:o, s:o, s:n, s:n, s:i, s:i, s:s, s:s, s:i, s:i, s:I}",
		"templateID", name,
		"buildID", build,
		"public", open,
		"aliases", name,
		"names", full,
		"createdAt", json_time(created_ms),
		"updatedAt", json_time(created_ms),
		"createdBy",
		"lastSpawnedAt",
		"spawnCount", 0,
		"buildCount", 1,
		"envdVersion", E2B_VERSION,
		"buildStatus", "ready",
		"cpuCount", 2,
		"memoryMB", 1024,
		"diskSizeMB", (json_int_t)(disk_bytes >> 20));
	/* clang-format on */
}

/* The template in the list; the newest build comes first. */
static json_t *find_listed(json_t *array, const char *name)
{
	json_t *each;
	size_t i;

	json_array_foreach(array, i, each)
	{
		if (str_equal(json_string_value(json_object_get(each, "templateID")), name))
			return each;
	}
	return NULL;
}

static int add_built(struct request *request, json_t *array, struct husk_error *err)
{
	cleanup_snapshots struct husk_snapshot **list = NULL;

	if (husk_snapshot_list(request_husk(request), &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		if (!was_built(list[i]))
			continue;
		cleanup_free char *name = strndup(list[i]->name, strcspn(list[i]->name, "."));
		json_t *listed = name ? find_listed(array, name) : NULL;
		if (listed) {
			json_int_t builds = json_integer_value(json_object_get(listed, "buildCount"));
			json_object_set_new(listed, "buildCount", json_integer(builds + 1));
			continue;
		}
		json_t *document = name ? template_document(name, build_id(list[i]), full_name(list[i], name),
							    list[i]->shared, list[i]->created_ms, list[i]->disk_bytes)
					: NULL;
		if (!document || json_array_append_new(array, document) < 0)
			return husk_fail_memory(err);
		json_object_set_new(document, "cpuCount", json_integer(MAX(1u, (list[i]->cpu_milli + 999) / 1000)));
		json_object_set_new(document, "memoryMB", json_integer((json_int_t)(list[i]->memory_bytes >> 20)));
	}
	return 0;
}

/* Templates of the instance are public. */
static int add_bundled(struct request *request, json_t *array, struct husk_error *err)
{
	struct husk_template **list = NULL;
	int failed = 0;

	if (husk_template_list(request_husk(request), &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		const char *name = e2b_template_shown(list[i]->name);
		if (!str_equal(e2b_template(name), list[i]->name)) /* clients reach another one by this name */
			continue;
		failed |= json_array_append_new(array, template_document(name, derived_id(list[i]->digest),
									 json_text0(name), !list[i]->tenant,
									 list[i]->created_ms, list[i]->disk_bytes));
	}
	husk_template_list_free(list);
	return failed ? husk_fail_memory(err) : 0;
}

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *array = json_array();

	if (add_built(request, array, err) < 0 || add_bundled(request, array, err) < 0)
		return -1;
	return respond_json(request, 200, json_incref(array), err);
}

static int handle_get(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *array = json_array();
	cleanup_free char *name = NULL;

	if (e2b_template_name(request_path(request, "template"), &name, err) < 0 ||
	    add_built(request, array, err) < 0 || add_bundled(request, array, err) < 0)
		return -1;
	json_t *found = find_listed(array, name);
	if (!found)
		return husk_fail(err, HUSK_NOT_FOUND, "template '%.80s' not found", name);
	/* clang-format off */
	json_t *build = json_pack(
		"{s:O, s:s, s:O, s:O, s:O, s:O, s:O, s:s}",
		"buildID", json_object_get(found, "buildID"),
		"status", "ready",
		"createdAt", json_object_get(found, "createdAt"),
		"updatedAt", json_object_get(found, "updatedAt"),
		"cpuCount", json_object_get(found, "cpuCount"),
		"memoryMB", json_object_get(found, "memoryMB"),
		"diskSizeMB", json_object_get(found, "diskSizeMB"),
		"envdVersion", E2B_VERSION);
	/* clang-format on */
	if (!build || json_object_set_new(found, "builds", json_pack("[o]", build)) < 0)
		return husk_fail_memory(err);
	return respond_json(request, 200, json_incref(found), err);
}

/* ---- who may use it ---- */

/* All snapshots of the template: all tags are published together. */
static int handle_publish(struct request *request, struct husk_error *err)
{
	cleanup_snapshots struct husk_snapshot **list = NULL;
	cleanup_json json_t *names = json_array();
	cleanup_free char *name = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	bool given = json_is_boolean(json_object_get(fields.object, "public")),
	     open = fields_bool(&fields, "public", false);
	if (fields_done_open(&fields, err) < 0 ||
	    e2b_template_name(request_path(request, "template"), &name, err) < 0 ||
	    husk_snapshot_list(request_husk(request), &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		size_t size = strlen(name);
		if (!was_built(list[i]) || strncmp(list[i]->name, name, size) != 0 ||
		    (list[i]->name[size] && list[i]->name[size] != '.'))
			continue;
		if (given && husk_snapshot_share(request_husk(request), list[i]->id, open, err) < 0)
			return -1;
		if (json_array_size(names) == 0)
			json_array_append_new(names, full_name(list[i], name));
	}
	if (json_array_size(names) == 0)
		return husk_fail(err, HUSK_NOT_FOUND, "template '%.80s' not found among those that were built here",
				 name);
	return respond_json(request, 200, json_pack("{s:O}", "names", names), err);
}

/* ---- tags ---- */

/* "default" for the template's own name, the text after the dot for others; NULL: not of this template. */
static const char *tag_of(const char *snapshot, const char *name)
{
	size_t size = strlen(name);

	if (!snapshot || strncmp(snapshot, name, size) != 0)
		return NULL;
	if (!snapshot[size])
		return "default";
	return snapshot[size] == '.' ? snapshot + size + 1 : NULL;
}

static int add_tag(json_t *array, const struct husk_snapshot *snapshot, const char *tag, struct husk_error *err)
{
	if (!tag)
		return 0;
	json_t *document = json_pack("{s:s, s:o, s:o}", "tag", tag, "buildID", build_id(snapshot), "createdAt",
				     json_time(snapshot->created_ms));
	return json_array_append_new(array, document) < 0 ? husk_fail_memory(err) : 0;
}

static int handle_tags(struct request *request, struct husk_error *err)
{
	cleanup_snapshots struct husk_snapshot **list = NULL;
	cleanup_json json_t *array = json_array();
	cleanup_free char *name = NULL;

	if (e2b_snapshot_name(request_path(request, "template"), &name, err) < 0 ||
	    husk_snapshot_list(request_husk(request), &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		if (add_tag(array, list[i], tag_of(list[i]->name, name), err) < 0)
			return -1;
		for (char **each = list[i]->tags; each && *each; each++)
			if (add_tag(array, list[i], tag_of(*each, name), err) < 0)
				return -1;
	}
	if (json_array_size(array) == 0)
		return husk_fail(err, HUSK_NOT_FOUND, "template '%.80s' not found", name);
	return respond_json(request, 200, json_incref(array), err);
}

/* The snapshot names of a template's tags. */
static int tag_names(const char *template, const char **tags, char ***out, struct husk_error *err)
{
	cleanup_free char *plain = strndup(template, strcspn(template, ":"));

	for (size_t i = 0; plain && tags[i]; i++) {
		cleanup_free char *full = str_format("%s:%s", plain, tags[i]);
		cleanup_free char *name = NULL;
		if (!full)
			return husk_fail_memory(err);
		if (!*tags[i] || strpbrk(tags[i], ":/"))
			return husk_fail_field(err, "tags", "'%.80s' cannot be a tag", tags[i]);
		if (e2b_snapshot_name(full, &name, err) < 0)
			return -1;
		if (strv_add(out, name) < 0)
			return husk_fail_memory(err);
	}
	return plain ? 0 : husk_fail_memory(err);
}

/* `what` names the template, in the body of a request about its tags. */
static int read_tags(struct request *request, const char *what, const char **template, const char ***tags,
		     char ***names, struct husk_error *err)
{
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	*template = fields_string(&fields, what);
	*tags = fields_strings(&fields, "tags");
	if (fields_done_open(&fields, err) < 0)
		return -1;
	if (!*template || !*tags || !**tags)
		return husk_fail_field(err, *template ? "tags" : what, "%s and tags are both needed", what);
	return tag_names(*template, *tags, names, err);
}

static int handle_assign(struct request *request, struct husk_error *err)
{
	cleanup_snapshots struct husk_snapshot **list = NULL;
	cleanup_strv char **names = NULL;
	cleanup_free const char **tags = NULL;
	cleanup_free char *snapshot = NULL;
	cleanup_json json_t *given = json_array();
	const struct husk_snapshot *found = NULL;
	const char *target;

	if (read_tags(request, "target", &target, &tags, &names, err) < 0 ||
	    e2b_snapshot_name(target, &snapshot, err) < 0 || husk_snapshot_list(request_husk(request), &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i] && !found; i++)
		found = is_named(list[i], snapshot) ? list[i] : NULL;
	if (!found)
		return husk_fail(err, HUSK_NOT_FOUND, "template '%.80s' not found among those that were built here",
				 target);
	for (size_t i = 0; names[i]; i++)
		if (husk_snapshot_tag(request_husk(request), found->id, names[i], err) < 0 ||
		    json_array_append_new(given, json_text0(tags[i])) < 0)
			return -1;
	return respond_json(request, 201, json_pack("{s:o, s:O}", "buildID", build_id(found), "tags", given), err);
}

static int handle_untag(struct request *request, struct husk_error *err)
{
	cleanup_strv char **names = NULL;
	cleanup_free const char **tags = NULL;
	const char *template;

	if (read_tags(request, "name", &template, &tags, &names, err) < 0)
		return -1;
	for (size_t i = 0; names[i]; i++)
		if (husk_snapshot_untag(request_husk(request), names[i], err) < 0)
			return -1;
	return respond_empty(request, 204, err);
}

const struct route e2b_template_routes[] = {
	{ "GET", "/templates", handle_list, E2B_CONTROL },
	{ "GET", "/v2/templates", handle_list, E2B_CONTROL },
	{ "GET", "/templates/{template}", handle_get, E2B_CONTROL },
	{ "PATCH", "/templates/{template}", handle_publish, E2B_CONTROL },
	{ "PATCH", "/v2/templates/{template}", handle_publish, E2B_CONTROL },
	{ "GET", "/templates/aliases/{alias}", handle_alias, E2B_CONTROL },
	{ "POST", "/templates/tags", handle_assign, E2B_CONTROL },
	{ "DELETE", "/templates/tags", handle_untag, E2B_CONTROL },
	{ "GET", "/templates/{template}/tags", handle_tags, E2B_CONTROL },
	{ "DELETE", "/templates/{template}", handle_delete, E2B_CONTROL },
	{ 0 },
};
