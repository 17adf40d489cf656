/*
 * Volumes for E2B's clients: created, listed and removed with the API key; read and written with a token of the one volume,
 * which is a signature over its id and is not stored. The bearer may use the files of this volume and nothing else:
 * handlers take the id from the path that the token was checked against.
 */
#include <openssl/crypto.h>

#include "server/api_files.h"
#include "server/core.h"
#include "server/dialects/e2b/e2b.h"

static int respond_volume(struct request *request, unsigned status, const struct husk_volume *volume,
			  struct husk_error *err)
{
	cleanup_free char *token = NULL;

	if (e2b_token(request, "volume", volume->id, &token, err) < 0)
		return -1;
	return respond_json(request, status,
			    json_pack("{s:s, s:s, s:s}", "volumeID", volume->id, "name", volume->name, "token", token),
			    err);
}

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_volume struct husk_volume *volume = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *name = fields_string(&fields, "name");
	if (fields_done_open(&fields, err) < 0 || e2b_refuse_rest(request, &fields, "the option", err) < 0 ||
	    husk_volume_create(request_husk(request), name, 0, &volume, err) < 0)
		return -1;
	return respond_volume(request, 201, volume, err);
}

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_volumes struct husk_volume **list = NULL;
	cleanup_json json_t *array = json_array();

	if (husk_volume_list(request_husk(request), &list, err) < 0)
		return -1;
	for (size_t i = 0; array && list[i]; i++)
		if (json_array_append_new(array,
					  json_pack("{s:s, s:s}", "volumeID", list[i]->id, "name", list[i]->name)) < 0)
			return husk_fail_memory(err);
	return respond_json(request, 200, json_incref(array), err);
}

static int handle_get(struct request *request, struct husk_error *err)
{
	cleanup_volume struct husk_volume *volume = NULL;

	if (husk_volume_inspect(request_husk(request), request_path(request, "id"), &volume, err) < 0)
		return -1;
	return respond_volume(request, 200, volume, err);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	if (husk_volume_remove(request_husk(request), request_path(request, "id"), err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

/* ---- at a sandbox's create ---- */

struct husk_mount *e2b_mounts_read(const json_t *list, size_t *count, struct husk_error *err)
{
	size_t size = json_array_size(list);
	struct husk_mount *mounts = calloc(size + 1, sizeof(*mounts));

	*count = size;
	for (size_t i = 0; mounts && i < size; i++) {
		const json_t *item = json_array_get(list, i);
		mounts[i].volume = json_string_value(json_object_get(item, "name"));
		mounts[i].path = json_string_value(json_object_get(item, "path"));
		if (mounts[i].volume && mounts[i].path)
			continue;
		husk_fail_field(err, "volumeMounts", "a mount needs a name and a path, both strings");
		free(mounts);
		return NULL;
	}
	if (!mounts)
		husk_fail_memory(err);
	return mounts;
}

json_t *e2b_mounts_document(const struct husk_sandbox *sandbox)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < sandbox->mount_count; i++)
		json_array_append_new(array, json_pack("{s:o, s:o}", "name", json_text0(sandbox->mounts[i].volume),
						       "path", json_text0(sandbox->mounts[i].path)));
	return array;
}

/* ---- content ---- */

/* The volume of the request's token, and the path in it. */
static int admit(struct request *request, const char **id, const char **path, struct husk_error *err)
{
	const char *header = request_header(request, "Authorization");
	cleanup_free char *expected = NULL;

	*id = request_path(request, "id");
	*path = request_query(request, "path");
	const char *given = header && strncasecmp(header, "Bearer ", 7) == 0 ? header + 7 : "";
	if (e2b_token(request, "volume", *id, &expected, err) < 0)
		return -1;
	if (strlen(given) != strlen(expected) || CRYPTO_memcmp(given, expected, strlen(expected)) != 0) {
		request->fault = (struct fault){ 401, "unauthorized" };
		return husk_fail(err, HUSK_DENIED, "the token is not one of volume %.40s", *id);
	}
	return *path ? 0 : husk_fail_field(err, "path", "path is missing; add ?path=");
}

static json_t *entry_document(const struct husk_file *file)
{
	static const char *const types[] = { [HUSK_FILE] = "file",
					     [HUSK_DIRECTORY] = "directory",
					     [HUSK_SYMLINK] = "symlink",
					     [HUSK_OTHER] = "unknown" };
	const char *name = strrchr(file->path, '/') + 1;
	json_t *document = json_pack(
		"{s:o, s:o, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "name", json_text0(*name ? name : "/"), "path",
		json_text0(file->path), "type", types[file->type], "size", (json_int_t)file->size, "mode",
		(json_int_t)file->mode, "uid", (json_int_t)file->uid, "gid", (json_int_t)file->gid, "atime",
		json_time(file->atime_ms), "mtime", json_time(file->mtime_ms), "ctime", json_time(file->ctime_ms));

	if (document && file->target)
		json_object_set_new(document, "target", json_text0(file->target));
	return document;
}

static int respond_entry(struct request *request, unsigned status, const char *id, const char *path,
			 struct husk_error *err)
{
	cleanup(husk_file_free) struct husk_file file = { 0 };

	if (husk_volume_file_stat(request_owner(request), id, path, &file, err) < 0)
		return -1;
	return respond_json(request, status, entry_document(&file), err);
}

static int query_attributes(struct request *request, struct husk_file_attributes *out, bool *force,
			    struct husk_error *err)
{
	int64_t mode, uid, gid;

	if (request_query_int(request, "mode", HUSK_KEEP, 0, 07777, &mode, err) < 0 ||
	    request_query_int(request, "uid", HUSK_KEEP, 0, INT32_MAX, &uid, err) < 0 ||
	    request_query_int(request, "gid", HUSK_KEEP, 0, INT32_MAX, &gid, err) < 0)
		return -1;
	*out = (struct husk_file_attributes){ .mode = (uint32_t)mode, .uid = (uint32_t)uid, .gid = (uint32_t)gid };
	return request_query_bool(request, "force", false, force, err);
}

static int handle_files(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *array = json_array();
	struct husk_file *list = NULL;
	const char *id, *path;
	size_t count = 0;
	int64_t depth;

	if (admit(request, &id, &path, err) < 0 || request_query_int(request, "depth", 1, 1, 100, &depth, err) < 0 ||
	    husk_volume_file_list(request_owner(request), id, path, (uint32_t)depth, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; array && i < count; i++)
		json_array_append_new(array, entry_document(&list[i]));
	husk_file_list_free(list, count);
	return respond_json(request, 200, json_incref(array), err);
}

static int handle_mkdir(struct request *request, struct husk_error *err)
{
	struct husk_file_attributes wanted = { 0 };
	const char *id, *path;
	bool force;

	if (admit(request, &id, &path, err) < 0 || query_attributes(request, &wanted, &force, err) < 0 ||
	    husk_volume_file_mkdir(request_owner(request), id, path, &wanted, force, err) < 0)
		return -1;
	return respond_entry(request, 201, id, path, err);
}

static int handle_stat(struct request *request, struct husk_error *err)
{
	const char *id, *path;

	return admit(request, &id, &path, err) < 0 ? -1 : respond_entry(request, 200, id, path, err);
}

static int handle_change(struct request *request, struct husk_error *err)
{
	struct husk_file_attributes wanted = { 0 };
	const char *id, *path;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0 || admit(request, &id, &path, err) < 0)
		return -1;
	wanted.mode = (uint32_t)fields_int(&fields, "mode", HUSK_KEEP, 0, 07777);
	wanted.uid = (uint32_t)fields_int(&fields, "uid", HUSK_KEEP, 0, INT32_MAX);
	wanted.gid = (uint32_t)fields_int(&fields, "gid", HUSK_KEEP, 0, INT32_MAX);
	if (fields_done_open(&fields, err) < 0 ||
	    husk_volume_file_change(request_owner(request), id, path, &wanted, err) < 0)
		return -1;
	return respond_entry(request, 200, id, path, err);
}

static int handle_remove(struct request *request, struct husk_error *err)
{
	const char *id, *path;

	if (admit(request, &id, &path, err) < 0 || husk_volume_file_remove(request_owner(request), id, path, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

static int handle_read(struct request *request, struct husk_error *err)
{
	struct files_download download = { .request = request, .status = 200, .type = "application/octet-stream" };
	cleanup(husk_file_free) struct husk_file file = { 0 };
	const char *id, *path;

	if (admit(request, &id, &path, err) < 0 ||
	    husk_volume_file_stat(request_owner(request), id, path, &file, err) < 0)
		return -1;
	/* With a length, if it is known: E2B's client takes an empty answer without a length for no answer. */
	download.length = file.type == HUSK_FILE ? (int64_t)file.size : -1;
	int result = file.type == HUSK_FILE && file.size == 0
			     ? 0
			     : husk_volume_file_read(request_owner(request), id, path, 0, file.size, files_sink,
						     &download, err);
	return files_download_end(&download, result, err);
}

static int handle_write(struct request *request, struct husk_error *err)
{
	struct husk_file_attributes wanted = { 0 };
	const char *id, *path;
	bool force;

	if (admit(request, &id, &path, err) < 0 || query_attributes(request, &wanted, &force, err) < 0)
		return -1;
	wanted.fresh = !force && request_query(request, "force"); /* the default is to overwrite */
	if (husk_volume_file_write(request_owner(request), id, path, &wanted, files_source, request, err) < 0)
		return -1;
	return respond_entry(request, 201, id, path, err);
}

#define CONTENT (E2B_CONTROL | ROUTE_PUBLIC) /* opened by admit() */

const struct route e2b_volume_routes[] = {
	{ "POST", "/volumes", handle_create, E2B_CONTROL },
	{ "GET", "/volumes", handle_list, E2B_CONTROL },
	{ "GET", "/volumes/{id}", handle_get, E2B_CONTROL },
	{ "DELETE", "/volumes/{id}", handle_delete, E2B_CONTROL },
	{ "GET", "/volumecontent/{id}/dir", handle_files, CONTENT },
	{ "POST", "/volumecontent/{id}/dir", handle_mkdir, CONTENT },
	{ "GET", "/volumecontent/{id}/path", handle_stat, CONTENT },
	{ "PATCH", "/volumecontent/{id}/path", handle_change, CONTENT },
	{ "DELETE", "/volumecontent/{id}/path", handle_remove, CONTENT },
	{ "GET", "/volumecontent/{id}/file", handle_read, CONTENT | ROUTE_STREAM },
	{ "PUT", "/volumecontent/{id}/file", handle_write, CONTENT | ROUTE_STREAM },
	{ 0 },
};
