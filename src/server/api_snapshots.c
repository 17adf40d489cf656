/*
 * Snapshots over HTTP: create, list, inspect, remove. A thin layer over libhusk.
 */
#include "server/server.h"

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_snapshot struct husk_snapshot *snapshot = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *name = fields_string(&fields, "name");
	if (fields_done(&fields, err) < 0 ||
	    husk_snapshot_create(request_husk(request), request_path(request, "id"), name, &snapshot, err) < 0)
		return -1;
	return respond_json(request, 201, json_snapshot(snapshot), err);
}

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_snapshots struct husk_snapshot **list = NULL;

	if (husk_snapshot_list(request_husk(request), &list, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:o}", "snapshots", json_snapshots(list)), err);
}

static int handle_get(struct request *request, struct husk_error *err)
{
	const char *wanted = request_path(request, "id");
	cleanup_snapshots struct husk_snapshot **list = NULL;

	if (husk_snapshot_list(request_husk(request), &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++)
		if (str_equal(list[i]->id, wanted) || str_equal(list[i]->name, wanted))
			return respond_json(request, 200, json_snapshot(list[i]), err);
	return husk_fail(err, HUSK_NOT_FOUND, "snapshot '%.80s' not found; GET /v1/snapshots lists them", wanted);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	if (husk_snapshot_remove(request_husk(request), request_path(request, "id"), err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

const struct route snapshot_routes[] = {
	{ "POST", "/v1/sandboxes/{id}/snapshots", handle_create, 0 },
	{ "GET", "/v1/snapshots", handle_list, 0 },
	{ "GET", "/v1/snapshots/{id}", handle_get, 0 },
	{ "DELETE", "/v1/snapshots/{id}", handle_delete, 0 },
	{ 0 },
};
