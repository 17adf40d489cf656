/*
 * Daytona's volumes, which are Husk's volumes: directories that outlive sandboxes and are mounted by a create.
 */
#include "server/dialects/daytona/daytona.h"

static json_t *volume_document(const struct husk_volume *volume)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:n, s:n}", "id", volume->id, "name", volume->name,
			 "organizationId", volume->tenant ? volume->tenant : "husk", "state", "ready", "createdAt",
			 json_time(volume->created_ms), "updatedAt", json_time(volume->created_ms), "lastUsedAt",
			 "errorReason");
}

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *array = json_array();
	struct husk_volume **list = NULL;
	int failed = 0;

	if (husk_volume_list(request_husk(request), &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++)
		failed |= json_array_append_new(array, volume_document(list[i]));
	husk_volume_list_free(list);
	return failed ? husk_fail_memory(err) : respond_json(request, 200, json_incref(array), err);
}

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_volume struct husk_volume *volume = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *name = fields_string(&fields, "name");
	if (fields_done_open(&fields, err) < 0)
		return -1;
	if (!name || !*name)
		return husk_fail_field(err, "name", "name is missing; give the volume's");
	if (husk_volume_create(request_husk(request), name, 0, &volume, err) < 0)
		return -1;
	return respond_json(request, 200, volume_document(volume), err);
}

static int handle_get(struct request *request, struct husk_error *err)
{
	cleanup_volume struct husk_volume *volume = NULL;

	if (husk_volume_inspect(request_husk(request), request_path(request, "volume"), &volume, err) < 0)
		return -1;
	return respond_json(request, 200, volume_document(volume), err);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	if (husk_volume_remove(request_husk(request), request_path(request, "volume"), err) < 0)
		return -1;
	return respond_empty(request, 200, err);
}

const struct route daytona_volume_routes[] = {
	{ "GET", "/daytona/volumes", handle_list, 0 },
	{ "POST", "/daytona/volumes", handle_create, 0 },
	{ "GET", "/daytona/volumes/by-name/{volume}", handle_get, 0 },
	{ "GET", "/daytona/volumes/{volume}", handle_get, 0 },
	{ "DELETE", "/daytona/volumes/{volume}", handle_delete, 0 },
	{ 0 },
};
