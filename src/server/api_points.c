/*
 * Checkpoints of a sandbox over HTTP: take, list, remove, and go back to one; what changed in a sandbox; and families of
 * sandboxes. A thin layer over libhusk.
 */
#include "server/server.h"

#define EXPLORE_MAX 256
#define EXPLORE_SECONDS 600 /* for all branches, unless the request says otherwise */

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_checkpoint struct husk_checkpoint *checkpoint = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *label = fields_string(&fields, "label");
	if (fields_done(&fields, err) < 0 ||
	    husk_checkpoint(request_husk(request), request_path(request, "id"), label, &checkpoint, err) < 0)
		return -1;
	return respond_json(request, 201, json_checkpoint(checkpoint), err);
}

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_checkpoints struct husk_checkpoint **list = NULL;
	bool files = false;

	if (request_query_known(request, (const char *const[]){ "files", NULL }, err) < 0 ||
	    request_query_bool(request, "files", false, &files, err) < 0 ||
	    (files ? husk_history_files : husk_history)(request_husk(request), request_path(request, "id"), &list,
							err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:o}", "checkpoints", json_checkpoints(list)), err);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	if (husk_checkpoint_remove(request_husk(request), request_path(request, "id"), request_path(request, "point"),
				   err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

static int handle_rewind(struct request *request, struct husk_error *err)
{
	cleanup_rewound struct husk_rewound *rewound = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *point = fields_string(&fields, "checkpoint");
	bool drop_later = fields_bool(&fields, "drop_later", false);
	if (fields_done(&fields, err) < 0 ||
	    husk_rewind(request_husk(request), request_path(request, "id"), point, drop_later, &rewound, err) < 0)
		return -1;
	return respond_json(request, 200, json_rewound(rewound), err);
}

static int handle_promote(struct request *request, struct husk_error *err)
{
	cleanup_promoted struct husk_promoted *promoted = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	bool keep = fields_bool(&fields, "keep", false);
	if (fields_done(&fields, err) < 0 ||
	    husk_promote(request_husk(request), request_path(request, "id"), keep, &promoted, err) < 0)
		return -1;
	return respond_json(request, 200, json_promoted(promoted), err);
}

static int handle_merge(struct request *request, struct husk_error *err)
{
	cleanup_merged struct husk_merged *merged = NULL;
	struct husk_merge_options options = { 0 };
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *from = fields_string(&fields, "from"), *base = fields_string(&fields, "base");
	const char *path = fields_string(&fields, "path");
	options.conflicts = fields_string(&fields, "conflicts");
	options.dry_run = fields_bool(&fields, "dry_run", false);
	/* A merge is in memory until it is written, here in that of the server. */
	options.limit_bytes = (uint64_t)fields_int(&fields, "limit_bytes", 0, 0, INT64_C(1) << 30);
	if (fields_done(&fields, err) < 0)
		return -1;
	if (!from)
		return husk_fail_field(err, "from", "from is missing: the sandbox whose changes are merged");
	if (husk_merge(request_husk(request), from, request_path(request, "id"), base, path, &options, &merged, err) <
	    0)
		return -1;
	return respond_json(request, 200, json_merged(merged), err);
}

static int handle_tree(struct request *request, struct husk_error *err)
{
	bool all = false;
	json_t *families = NULL;

	if (request_query_known(request, (const char *const[]){ "of", "all", NULL }, err) < 0 ||
	    request_query_bool(request, "all", false, &all, err) < 0 ||
	    json_tree(request_husk(request), request_query(request, "of"), all, &families, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:o}", "families", families), err);
}

static int handle_diff(struct request *request, struct husk_error *err)
{
	cleanup_changes struct husk_change **list = NULL;

	if (request_query_known(request, (const char *const[]){ "against", "path", NULL }, err) < 0 ||
	    husk_diff(request_husk(request), request_path(request, "id"), request_query(request, "against"),
		      request_query(request, "path"), &list, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:o}", "changes", json_changes(list)), err);
}

static int handle_diff_system(struct request *request, struct husk_error *err)
{
	bool packages = true, processes = true;
	struct husk_difference *list = NULL;
	size_t count = 0;

	if (request_query_known(request, (const char *const[]){ "against", "packages", "processes", NULL }, err) < 0 ||
	    request_query_bool(request, "packages", true, &packages, err) < 0 ||
	    request_query_bool(request, "processes", true, &processes, err) < 0 ||
	    husk_diff_system(request_husk(request), request_path(request, "id"), request_query(request, "against"),
			     (packages ? HUSK_DIFF_PACKAGES : 0u) | (processes ? HUSK_DIFF_PROCESSES : 0u), &list,
			     &count, err) < 0)
		return -1;
	json_t *differences = json_differences(list, count);
	husk_difference_list_free(list, count);
	return respond_json(request, 200, json_pack("{s:o}", "differences", differences), err);
}

static int handle_explore(struct request *request, struct husk_error *err)
{
	struct husk_explore_options options = { 0 };
	struct husk_branch *branches = NULL;
	struct fields fields;
	size_t count = 0;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	cleanup_free const char **plans = fields_strings(&fields, "plans");
	options.score = fields_string(&fields, "score");
	options.keep = (size_t)fields_int(&fields, "keep", 1, 1, EXPLORE_MAX);
	options.parallel = (size_t)fields_int(&fields, "parallel", 8, 1, EXPLORE_MAX);
	options.budget_ms = fields_int(&fields, "budget_seconds", EXPLORE_SECONDS, 1, 86400) * 1000;
	options.no_promote = !fields_bool(&fields, "promote", true);
	if (fields_done(&fields, err) < 0)
		return -1;
	while (plans && plans[count])
		count++;
	if (husk_explore(request_husk(request), request_path(request, "id"), plans, count, &options, &branches, err) <
	    0)
		return -1;
	json_t *list = json_branches(branches, count);
	husk_branch_list_free(branches, count);
	return respond_json(request, 200, json_pack("{s:o}", "branches", list), err);
}

const struct route point_routes[] = {
	{ "POST", "/v1/sandboxes/{id}/explore", handle_explore, 0 },
	{ "GET", "/v1/sandboxes/{id}/diff/system", handle_diff_system, 0 },
	{ "GET", "/v1/sandboxes/{id}/diff", handle_diff, 0 },
	{ "POST", "/v1/sandboxes/{id}/checkpoints", handle_create, 0 },
	{ "GET", "/v1/sandboxes/{id}/checkpoints", handle_list, 0 },
	{ "DELETE", "/v1/sandboxes/{id}/checkpoints/{point}", handle_delete, 0 },
	{ "POST", "/v1/sandboxes/{id}/rewind", handle_rewind, 0 },
	{ "POST", "/v1/sandboxes/{id}/promote", handle_promote, 0 },
	{ "POST", "/v1/sandboxes/{id}/merge", handle_merge, 0 },
	{ "GET", "/v1/tree", handle_tree, 0 },
	{ 0 },
};
