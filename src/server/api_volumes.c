/*
 * Volumes over HTTP: create, list, inspect, remove; and their files, to fill or read a volume without a sandbox. A thin
 * layer over libhusk, which resolves every path beneath the volume.
 */
#include "server/api_files.h"

static const char *volume_of(struct request *request)
{
	return request_path(request, "id");
}

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_volume struct husk_volume *volume = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *name = fields_string(&fields, "name");
	uint64_t size = fields_size(&fields, "size");
	if (fields_done(&fields, err) < 0 || husk_volume_create(request_husk(request), name, size, &volume, err) < 0)
		return -1;
	return respond_json(request, 201, json_volume(volume), err);
}

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_volumes struct husk_volume **list = NULL;

	if (husk_volume_list(request_husk(request), &list, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:o}", "volumes", json_volumes(list)), err);
}

static int handle_get(struct request *request, struct husk_error *err)
{
	cleanup_volume struct husk_volume *volume = NULL;

	if (husk_volume_inspect(request_husk(request), volume_of(request), &volume, err) < 0)
		return -1;
	return respond_json(request, 200, json_volume(volume), err);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	if (husk_volume_remove(request_husk(request), volume_of(request), err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

/* ---- files ---- */

static int respond_entry(struct request *request, unsigned status, const char *path, struct husk_error *err)
{
	cleanup(husk_file_free) struct husk_file file = { 0 };

	if (husk_volume_file_stat(request_husk(request), volume_of(request), path, &file, err) < 0)
		return -1;
	return respond_json(request, status, json_file(&file), err);
}

static int handle_read(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "path", "offset", "length", NULL };
	int64_t offset, length;
	struct files_download download = {
		.request = request, .status = 200, .type = "application/octet-stream", .length = -1
	};
	const char *path;

	if (files_path(request, known, &path, err) < 0 ||
	    request_query_int(request, "offset", 0, 0, INT64_MAX, &offset, err) < 0 ||
	    request_query_int(request, "length", 0, 1, INT64_MAX, &length, err) < 0)
		return -1;
	int result = husk_volume_file_read(request_husk(request), volume_of(request), path, (uint64_t)offset,
					   (uint64_t)length, files_sink, &download, err);
	return files_download_end(&download, result, err);
}

/* "0644" or none. */
static int mode_or_keep(const char *text, uint32_t *mode, struct husk_error *err)
{
	*mode = HUSK_KEEP;
	return text ? files_mode(text, mode, err) : 0;
}

static int handle_write(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "path", "mode", "uid", "gid", "fresh", NULL };
	struct husk_file_attributes wanted = { 0 };
	int64_t uid, gid;
	const char *path;

	if (files_path(request, known, &path, err) < 0 ||
	    mode_or_keep(request_query(request, "mode"), &wanted.mode, err) < 0 ||
	    request_query_int(request, "uid", HUSK_KEEP, 0, INT32_MAX, &uid, err) < 0 ||
	    request_query_int(request, "gid", HUSK_KEEP, 0, INT32_MAX, &gid, err) < 0 ||
	    request_query_bool(request, "fresh", false, &wanted.fresh, err) < 0)
		return -1;
	wanted.uid = (uint32_t)uid;
	wanted.gid = (uint32_t)gid;
	if (husk_volume_file_write(request_husk(request), volume_of(request), path, &wanted, files_source, request,
				   err) < 0)
		return -1;
	return respond_entry(request, 201, path, err);
}

static int handle_remove(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "path", NULL };
	const char *path;

	if (files_path(request, known, &path, err) < 0 ||
	    husk_volume_file_remove(request_husk(request), volume_of(request), path, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

static int handle_stat(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "path", NULL };
	const char *path;

	return files_path(request, known, &path, err) < 0 ? -1 : respond_entry(request, 200, path, err);
}

static int handle_files(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "path", "depth", NULL };
	struct husk_file *list = NULL;
	const char *path;
	size_t count = 0;
	int64_t depth;

	if (files_path(request, known, &path, err) < 0 ||
	    request_query_int(request, "depth", 1, 1, 100, &depth, err) < 0 ||
	    husk_volume_file_list(request_husk(request), volume_of(request), path, (uint32_t)depth, &list, &count,
				  err) < 0)
		return -1;
	return files_entries(request, list, count, err);
}

/* mkdir, and change: a path and attributes. */
static int take_attributes(struct request *request, const char **path, struct husk_file_attributes *wanted,
			   bool *parents, struct husk_error *err)
{
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	*path = fields_string(&fields, "path");
	const char *mode = fields_string(&fields, "mode");
	wanted->uid = (uint32_t)fields_int(&fields, "uid", HUSK_KEEP, 0, INT32_MAX);
	wanted->gid = (uint32_t)fields_int(&fields, "gid", HUSK_KEEP, 0, INT32_MAX);
	if (parents)
		*parents = fields_bool(&fields, "parents", true);
	if (fields_done(&fields, err) < 0 || mode_or_keep(mode, &wanted->mode, err) < 0)
		return -1;
	return *path ? 0 : husk_fail_field(err, "path", "path is missing");
}

static int handle_mkdir(struct request *request, struct husk_error *err)
{
	struct husk_file_attributes wanted = { 0 };
	const char *path;
	bool parents;

	if (take_attributes(request, &path, &wanted, &parents, err) < 0 ||
	    husk_volume_file_mkdir(request_husk(request), volume_of(request), path, &wanted, parents, err) < 0)
		return -1;
	return respond_entry(request, 201, path, err);
}

static int handle_change(struct request *request, struct husk_error *err)
{
	struct husk_file_attributes wanted = { 0 };
	const char *path;

	if (take_attributes(request, &path, &wanted, NULL, err) < 0 ||
	    husk_volume_file_change(request_husk(request), volume_of(request), path, &wanted, err) < 0)
		return -1;
	return respond_entry(request, 200, path, err);
}

const struct route volume_routes[] = {
	{ "POST", "/v1/volumes", handle_create, 0 },
	{ "GET", "/v1/volumes", handle_list, 0 },
	{ "GET", "/v1/volumes/{id}", handle_get, 0 },
	{ "DELETE", "/v1/volumes/{id}", handle_delete, 0 },
	{ "GET", "/v1/volumes/{id}/files", handle_read, ROUTE_STREAM },
	{ "PUT", "/v1/volumes/{id}/files", handle_write, ROUTE_STREAM },
	{ "DELETE", "/v1/volumes/{id}/files", handle_remove, 0 },
	{ "GET", "/v1/volumes/{id}/files/stat", handle_stat, 0 },
	{ "GET", "/v1/volumes/{id}/files/list", handle_files, ROUTE_STREAM },
	{ "POST", "/v1/volumes/{id}/files/mkdir", handle_mkdir, 0 },
	{ "POST", "/v1/volumes/{id}/files/change", handle_change, 0 },
	{ 0 },
};
