/*
 * The files of a sandbox: uploads, downloads, entries, directories as tar streams. Paths are guest paths and are
 * resolved in the guest only; nothing here touches the host's filesystem. A transfer holds one piece in memory, however
 * large the file. An upload that fails changes nothing.
 */
#include "server/api_files.h"

#include <inttypes.h>

#include "server/range.h"

#define PIECE 65536u /* of a listing */

/* ---- the request ---- */

int files_path(struct request *request, const char *const *known, const char **path, struct husk_error *err)
{
	if (request_query_known(request, known, err) < 0)
		return -1;
	*path = request_query(request, "path");
	if (!*path)
		return husk_fail_field(err, "path", "path is missing; add ?path=/absolute/path");
	return 0;
}

int files_mode(const char *text, uint32_t *mode, struct husk_error *err)
{
	*mode = 0;
	if (!text)
		return 0;
	size_t digits = strspn(text, "01234567");
	if (digits == 0 || digits > 5 || text[digits])
		return husk_fail_field(err, "mode", "mode '%.20s' is not one; give octal digits, such as \"0644\"",
				       text);
	*mode = (uint32_t)strtoul(text, NULL, 8);
	if (*mode == 0 || *mode > 07777)
		return husk_fail_field(err, "mode", "mode '%.20s' is not one; the bits are 0001 to 7777", text);
	return 0;
}

/* Answers with the current entry. */
static int respond_entry(struct request *request, unsigned status, const char *path, bool follow,
			 struct husk_error *err)
{
	cleanup(husk_file_free) struct husk_file file = { 0 };

	if (husk_file_stat(request_husk(request), request_path(request, "id"), path, follow, &file, err) < 0)
		return -1;
	return respond_json(request, status, json_file(&file), err);
}

/* ---- streams ---- */

static int download_begin(struct files_download *download, struct husk_error *err)
{
	if (download->begun)
		return 0;
	download->begun = true;
	return stream_begin(download->request, download->status, download->type, download->length, err);
}

int files_sink(void *data, const void *bytes, size_t size)
{
	struct files_download *download = data;

	if (download_begin(download, &download->failure) < 0)
		return -1;
	return stream_write(download->request, bytes, size, &download->failure);
}

int files_download_end(struct files_download *download, int result, struct husk_error *err)
{
	if (result < 0 && download->failure.code != HUSK_OK && err)
		*err = download->failure;
	return result < 0 ? -1 : download_begin(download, err);
}

ssize_t files_source(void *data, void *bytes, size_t size)
{
	return request_read(data, bytes, size);
}

/* ---- one file ---- */

/* The requested range, with its headers; if it is outside the file, answers itself (1). */
static int choose_range(struct request *request, const struct husk_file *file, struct files_download *download,
			uint64_t *offset, struct husk_error *err)
{
	const char *header = request_header(request, "If-Range") ? NULL : request_header(request, "Range");
	uint64_t length = file->size;
	char text[96];

	*offset = 0;
	/* Many files that are not on a disk (/proc) have size 0 and still have content. */
	bool sized = file->type == HUSK_FILE && file->size > 0;
	enum range_kind kind = sized ? range_parse(header, file->size, offset, &length) : RANGE_WHOLE;
	download->length = sized ? (int64_t)length : -1;
	if (sized && respond_header(request, "Accept-Ranges", "bytes", err) < 0)
		return -1;
	if (kind == RANGE_WHOLE)
		return 0;
	if (kind == RANGE_PART) {
		download->status = 206;
		snprintf(text, sizeof(text), "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, *offset, *offset + length - 1,
			 file->size);
		return respond_header(request, "Content-Range", text, err);
	}
	struct husk_error outside = { 0 };
	husk_fail_field(&outside, "Range", "the range '%.60s' has nothing of the file's %" PRIu64 " bytes", header,
			file->size);
	snprintf(text, sizeof(text), "bytes */%" PRIu64, file->size);
	if (respond_header(request, "Content-Range", text, err) < 0 ||
	    respond_json(request, 416, error_document(&outside), err) < 0)
		return -1;
	return 1;
}

int files_send(struct request *request, const char *path, struct husk_error *err)
{
	struct files_download download = { .request = request, .status = 200, .type = "application/octet-stream" };
	struct husk *husk = request_husk(request);
	const char *sandbox = request_path(request, "id");
	cleanup(husk_file_free) struct husk_file file = { 0 };
	uint64_t offset;

	if (husk_file_stat(husk, sandbox, path, true, &file, err) < 0)
		return -1;
	if (file.type == HUSK_DIRECTORY)
		return husk_fail_field(err, "path",
				       "'%.200s' is a directory; GET …/files/list lists it, GET …/files/tar fetches it",
				       path);
	int chosen = choose_range(request, &file, &download, &offset, err);
	if (chosen != 0)
		return chosen < 0 ? -1 : 0;
	if (str_equal(request_method(request), "HEAD"))
		return download_begin(&download, err);
	int result = husk_file_read(husk, sandbox, path, offset, (uint64_t)MAX(download.length, 0), files_sink,
				    &download, err);
	return files_download_end(&download, result, err);
}

static int handle_read(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "path", NULL };
	const char *path;

	return files_path(request, known, &path, err) < 0 ? -1 : files_send(request, path, err);
}

static int handle_write(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "path", "mode", "user", NULL };
	const char *path;
	uint32_t mode;

	if (files_path(request, known, &path, err) < 0 || files_mode(request_query(request, "mode"), &mode, err) < 0)
		return -1;
	if (husk_file_write(request_husk(request), request_path(request, "id"), path, mode,
			    request_query(request, "user"), files_source, request, err) < 0)
		return -1;
	return respond_entry(request, 201, path, true, err);
}

static int handle_remove(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "path", NULL };
	const char *path;

	if (files_path(request, known, &path, err) < 0 ||
	    husk_file_remove(request_husk(request), request_path(request, "id"), path, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

static int handle_stat(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "path", "follow", NULL };
	const char *path;
	bool follow;

	if (files_path(request, known, &path, err) < 0 ||
	    request_query_bool(request, "follow", false, &follow, err) < 0)
		return -1;
	return respond_entry(request, 200, path, follow, err);
}

/* ---- changes ---- */

static int handle_mkdir(struct request *request, struct husk_error *err)
{
	struct fields fields;
	uint32_t mode;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *path = fields_string(&fields, "path");
	const char *mode_text = fields_string(&fields, "mode");
	const char *user = fields_string(&fields, "user");
	if (fields_done(&fields, err) < 0 || files_mode(mode_text, &mode, err) < 0 ||
	    husk_file_mkdir(request_husk(request), request_path(request, "id"), path, mode, user, err) < 0)
		return -1;
	return respond_entry(request, 201, path, true, err);
}

static int handle_move(struct request *request, struct husk_error *err)
{
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *path = fields_string(&fields, "path");
	const char *target = fields_string(&fields, "target");
	if (fields_done(&fields, err) < 0 ||
	    husk_file_move(request_husk(request), request_path(request, "id"), path, target, err) < 0)
		return -1;
	return respond_entry(request, 200, target, false, err);
}

static int handle_chmod(struct request *request, struct husk_error *err)
{
	struct fields fields;
	uint32_t mode;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *path = fields_string(&fields, "path");
	const char *mode_text = fields_string(&fields, "mode");
	if (fields_done(&fields, err) < 0)
		return -1;
	if (!mode_text)
		return husk_fail_field(err, "mode", "mode is missing; give octal digits, such as \"0644\"");
	if (files_mode(mode_text, &mode, err) < 0 ||
	    husk_file_chmod(request_husk(request), request_path(request, "id"), path, mode, err) < 0)
		return -1;
	return respond_entry(request, 200, path, true, err);
}

/* ---- directories ---- */

/* A listing may be long: each entry is written out as it is made, none is kept. */
static int send_entries(struct request *request, const struct husk_file *list, size_t count, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };

	if (stream_begin(request, 200, "application/json", -1, err) < 0)
		return -1;
	if (buf_append_string(&text, "{\"entries\":[") < 0)
		return husk_fail_memory(err);
	for (size_t i = 0; i < count; i++) {
		cleanup_json json_t *entry = json_file(&list[i]);
		cleanup_free char *dump = entry ? json_dumps(entry, JSON_COMPACT) : NULL;
		if (!dump || (i && buf_append_string(&text, ",") < 0) || buf_append_string(&text, dump) < 0)
			return husk_fail_memory(err);
		if (text.size < PIECE)
			continue;
		if (stream_write(request, text.data, text.size, err) < 0)
			return -1;
		text.size = 0;
	}
	if (buf_append_string(&text, "]}") < 0)
		return husk_fail_memory(err);
	return stream_write(request, text.data, text.size, err);
}

int files_entries(struct request *request, struct husk_file *list, size_t count, struct husk_error *err)
{
	int result = send_entries(request, list, count, err);

	husk_file_list_free(list, count);
	return result;
}

static int handle_list(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "path", "depth", NULL };
	struct husk_file *list = NULL;
	const char *path;
	size_t count = 0;
	int64_t depth;

	if (files_path(request, known, &path, err) < 0 ||
	    request_query_int(request, "depth", 1, 1, 1000, &depth, err) < 0 ||
	    husk_file_list(request_husk(request), request_path(request, "id"), path, (uint32_t)depth, &list, &count,
			   err) < 0)
		return -1;
	return files_entries(request, list, count, err);
}

static int handle_tar_read(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "path", NULL };
	struct files_download download = {
		.request = request, .status = 200, .type = "application/x-tar", .length = -1
	};
	const char *path;

	if (files_path(request, known, &path, err) < 0)
		return -1;
	int result =
		husk_tar_read(request_husk(request), request_path(request, "id"), path, files_sink, &download, err);
	return files_download_end(&download, result, err);
}

static int handle_tar_write(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "path", "user", NULL };
	const char *path;

	if (files_path(request, known, &path, err) < 0)
		return -1;
	if (husk_tar_write(request_husk(request), request_path(request, "id"), path, request_query(request, "user"),
			   files_source, request, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

const struct route file_routes[] = {
	{ "GET", "/v1/sandboxes/{id}/files", handle_read, ROUTE_STREAM },
	{ "PUT", "/v1/sandboxes/{id}/files", handle_write, ROUTE_STREAM },
	{ "DELETE", "/v1/sandboxes/{id}/files", handle_remove, 0 },
	{ "GET", "/v1/sandboxes/{id}/files/stat", handle_stat, 0 },
	{ "GET", "/v1/sandboxes/{id}/files/list", handle_list, ROUTE_STREAM },
	{ "POST", "/v1/sandboxes/{id}/files/mkdir", handle_mkdir, 0 },
	{ "POST", "/v1/sandboxes/{id}/files/move", handle_move, 0 },
	{ "POST", "/v1/sandboxes/{id}/files/chmod", handle_chmod, 0 },
	{ "GET", "/v1/sandboxes/{id}/files/tar", handle_tar_read, ROUTE_STREAM },
	{ "PUT", "/v1/sandboxes/{id}/files/tar", handle_tar_write, ROUTE_STREAM },
	{ "GET", "/v1/sandboxes/{id}/files/watch", files_watch, ROUTE_STREAM },
	{ 0 },
};
