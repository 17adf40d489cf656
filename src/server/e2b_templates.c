/*
 * E2B's templates apart from building them (e2b_build.c): whether a name is there, its tags, and removal. What E2B's
 * builder made is a snapshot under the template's name, with ".tag" behind it for any tag but the default one.
 */
#include "server/e2b.h"
#include "store/template.h"

static void drop_snapshots(struct husk_snapshot ***list)
{
	if (*list)
		husk_snapshot_list_free(*list);
}

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

static bool snapshot_exists(struct husk *husk, const char *name)
{
	cleanup(drop_snapshots) struct husk_snapshot **list = NULL;

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
	    !snapshot_exists(request_husk(request), name))
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

/* ---- tags ---- */

/* "default" for the template's own name, what follows the dot for the others; NULL: not of this template. */
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
	json_t *document = json_pack("{s:s, s:s, s:o}", "tag", tag, "buildID", snapshot->id, "createdAt",
				     json_time(snapshot->created_ms));
	return json_array_append_new(array, document) < 0 ? husk_fail_memory(err) : 0;
}

static int handle_tags(struct request *request, struct husk_error *err)
{
	cleanup(drop_snapshots) struct husk_snapshot **list = NULL;
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

/* The names of snapshots that the tags of a template are. */
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
	json_t *body = request_json(request, err);
	struct fields fields;

	if (!body)
		return -1;
	fields_begin(&fields, body);
	*template = fields_string(&fields, what);
	*tags = fields_strings(&fields, "tags");
	if (e2b_fields_done(&fields, err) < 0)
		return -1;
	if (!*template || !*tags || !**tags)
		return husk_fail_field(err, *template ? "tags" : what, "%s and tags are both needed", what);
	return tag_names(*template, *tags, names, err);
}

static int handle_assign(struct request *request, struct husk_error *err)
{
	cleanup(drop_snapshots) struct husk_snapshot **list = NULL;
	cleanup_strv char **names = NULL;
	cleanup_free const char **tags = NULL;
	cleanup_free char *snapshot = NULL;
	cleanup_json json_t *given = json_array();
	const char *target, *id = NULL;

	if (read_tags(request, "target", &target, &tags, &names, err) < 0 ||
	    e2b_snapshot_name(target, &snapshot, err) < 0 || husk_snapshot_list(request_husk(request), &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i] && !id; i++)
		id = is_named(list[i], snapshot) ? list[i]->id : NULL;
	if (!id)
		return husk_fail(err, HUSK_NOT_FOUND, "template '%.80s' not found among those that were built here",
				 target);
	for (size_t i = 0; names[i]; i++)
		if (husk_snapshot_tag(request_husk(request), id, names[i], err) < 0 ||
		    json_array_append_new(given, json_text0(tags[i])) < 0)
			return -1;
	return respond_json(request, 201, json_pack("{s:s, s:O}", "buildID", id, "tags", given), err);
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
	{ "GET", "/templates/aliases/{alias}", handle_alias, E2B_CONTROL },
	{ "POST", "/templates/tags", handle_assign, E2B_CONTROL },
	{ "DELETE", "/templates/tags", handle_untag, E2B_CONTROL },
	{ "GET", "/templates/{template}/tags", handle_tags, E2B_CONTROL },
	{ "DELETE", "/templates/{template}", handle_delete, E2B_CONTROL },
	{ 0 },
};
