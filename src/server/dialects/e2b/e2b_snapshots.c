/*
 * E2B's snapshots: taken of a sandbox, listed, and used by creating a sandbox from their id or name. They are Husk's
 * snapshots under Husk's ids.
 */
#include "server/dialects/e2b/e2b.h"

#define PAGE_MAX 100

static json_t *snapshot_document(const struct husk_snapshot *snapshot)
{
	json_t *names = json_array();

	if (names && snapshot->name)
		json_array_append_new(names, json_text0(snapshot->name));
	for (char **each = snapshot->tags; names && each && *each; each++)
		json_array_append_new(names, json_text0(*each));
	return json_pack("{s:s, s:o}", "snapshotID", snapshot->id, "names", names);
}

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	cleanup_free char *name = NULL;
	struct husk_snapshot *snapshot = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *given = fields_string(&fields, "name");
	if (!fields_bool(&fields, "memory", true))
		return dialect_unsupported(request, "a snapshot of the disk alone (memory: false)", err);
	if (fields_done_open(&fields, err) < 0 || (given && e2b_snapshot_name(given, &name, err) < 0) ||
	    husk_inspect(request_husk(request), request_path(request, "id"), &sandbox, err) < 0 ||
	    husk_snapshot_create(request_husk(request), sandbox->id, name, &snapshot, err) < 0)
		return -1;
	json_t *document = snapshot_document(snapshot);
	husk_snapshot_free(snapshot);
	return respond_json(request, 201, document, err);
}

static bool is_listed(struct request *request, const struct husk_snapshot *snapshot)
{
	const char *sandbox = request_query(request, "sandboxID"), *name = request_query(request, "name");
	char id[E2B_ID_SIZE];

	e2b_id(sandbox ? sandbox : "", id);
	return (!*id || str_equal(id, snapshot->sandbox)) &&
	       (!name || !*name || str_equal(name, snapshot->name) || str_equal(name, snapshot->id));
}

/* nextToken is the last id of the previous page; the list keeps its order. */
static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_snapshots struct husk_snapshot **list = NULL;
	cleanup_json json_t *array = json_array();
	const char *token = request_query(request, "nextToken"), *last = NULL;
	bool past = !token || !*token;
	int64_t limit;

	if (request_query_int(request, "limit", PAGE_MAX, 1, PAGE_MAX, &limit, err) < 0 ||
	    husk_snapshot_list(request_husk(request), &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		if (!past || !is_listed(request, list[i])) {
			past |= str_equal(list[i]->id, token);
			continue;
		}
		if (json_array_size(array) == (size_t)limit)
			return e2b_respond_page(request, steal_pointer(array), last, err);
		last = list[i]->id;
		if (json_array_append_new(array, snapshot_document(list[i])) < 0)
			return husk_fail_memory(err);
	}
	return e2b_respond_page(request, steal_pointer(array), NULL, err);
}

const struct route e2b_snapshot_routes[] = {
	{ "POST", "/sandboxes/{id}/snapshots", handle_create, E2B_CONTROL },
	{ "GET", "/snapshots", handle_list, E2B_CONTROL },
	{ 0 },
};
