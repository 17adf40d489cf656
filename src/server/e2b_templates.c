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

static bool snapshot_exists(struct husk *husk, const char *name)
{
	cleanup(drop_snapshots) struct husk_snapshot **list = NULL;

	if (husk_snapshot_list(husk, &list, NULL) < 0)
		return false;
	for (size_t i = 0; list[i]; i++)
		if (str_equal(list[i]->name, name) || str_equal(list[i]->id, name))
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
static const char *tag_of(const struct husk_snapshot *snapshot, const char *name)
{
	size_t size = strlen(name);

	if (!snapshot->name || strncmp(snapshot->name, name, size) != 0)
		return NULL;
	if (!snapshot->name[size])
		return "default";
	return snapshot->name[size] == '.' ? snapshot->name + size + 1 : NULL;
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
		const char *tag = tag_of(list[i], name);
		if (tag && json_array_append_new(array, json_pack("{s:s, s:s, s:o}", "tag", tag, "buildID", list[i]->id,
								  "createdAt", json_time(list[i]->created_ms))) < 0)
			return husk_fail_memory(err);
	}
	if (json_array_size(array) == 0)
		return husk_fail(err, HUSK_NOT_FOUND, "template '%.80s' not found", name);
	return respond_json(request, 200, json_incref(array), err);
}

static int handle_assign(struct request *request, struct husk_error *err)
{
	return e2b_unsupported(request, "a second tag for a build (build it once more under 'name:tag')", err);
}

static int handle_untag(struct request *request, struct husk_error *err)
{
	json_t *body = request_json(request, err);
	struct fields fields;

	if (!body)
		return -1;
	fields_begin(&fields, body);
	const char *name = fields_string(&fields, "name");
	cleanup_free const char **tags = fields_strings(&fields, "tags");
	if (e2b_fields_done(&fields, err) < 0)
		return -1;
	if (!name || !tags)
		return husk_fail_field(err, name ? "tags" : "name", "name and tags are both needed");
	for (size_t i = 0; tags[i]; i++) {
		cleanup_free char *full = str_format("%s:%s", name, tags[i]);
		cleanup_free char *snapshot = NULL;
		if (!full)
			return husk_fail_memory(err);
		if (e2b_snapshot_name(full, &snapshot, err) < 0 ||
		    husk_snapshot_remove(request_husk(request), snapshot, err) < 0)
			return -1;
	}
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
