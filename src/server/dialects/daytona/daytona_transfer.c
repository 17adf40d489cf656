/*
 * Upload and download of files over Daytona's toolbox: one file (also by a signed address), or many in one form. Files of
 * any size pass in constant memory. A write is in place, by a program of the guest as the sandbox's user: mode, owner and
 * hard links of the target stay, and the guest's kernel decides whether the write is allowed.
 */
#include "server/api_files.h"
#include "server/api_process.h"
#include "server/dialects/daytona/daytona_files.h"
#include "server/follow.h"
#include "server/multipart.h"

#define PIECE 65536u
#define FILES_MAX 10000u
#define FIELD_MAX 8192u /* of a path in a form */

/* ---- writing ---- */

/* Writes the whole source to the program's stdin; -1 also if the source ended early. */
static int feed(struct follow *follow, husk_source source, void *data, struct husk_error *err)
{
	char *piece = malloc(PIECE);
	ssize_t count = -1;
	int result = piece ? 0 : husk_fail_memory(err);

	while (result == 0 && (count = source(data, piece, PIECE)) > 0)
		result = process_feed(follow, piece, (size_t)count, err);
	free(piece);
	if (result == 0 && count < 0)
		return husk_fail(err, HUSK_INVALID, "the body breaks off inside a file");
	/* If the program ended before it had read everything, its own message has the reason. */
	return result < 0 && err->code == HUSK_CONFLICT ? 0 : result;
}

static int await(struct follow *follow, struct buf *said, struct husk_process_event *event, struct husk_error *err)
{
	int got;

	do {
		got = follow_next(follow, SSE_PING_MS, event, err);
		if (got > 0 && event->kind == HUSK_STDERR && said->size < PIECE)
			buf_append(said, event->data, event->size);
	} while (got >= 0 && !(got > 0 && event->kind == HUSK_EXIT));
	return got < 0 ? -1 : 0;
}

int daytona_write(struct request *request, const struct daytona_box *box, const char *path, husk_source source,
		  void *data, struct husk_error *err)
{
	static const char text[] = "d=$(dirname -- \"$1\"); [ -d \"$d\" ] || mkdir -p -- \"$d\" || exit 1\n"
				   "exec cat >\"$1\"";
	static const struct husk_pair plain[] = { { "LC_ALL", "C" } };
	const char *argv[] = { "/bin/sh", "-c", text, "sh", path, NULL };
	struct husk_exec_options options = { .argv = argv,
					     .user = box->user,
					     .cwd = "/",
					     .environment = plain,
					     .environment_count = 1,
					     .keep_stdin = true };
	cleanup_process struct husk_process *process = NULL;
	struct husk_process_event event = { 0 };
	cleanup_buf struct buf said = { 0 };
	struct follow follow = { .request = request };

	if (husk_exec(request_husk(request), box->sandbox->id, &options, &process, &follow.pid, err) < 0)
		return -1;
	follow.process = process;
	int fed = feed(&follow, source, data, err);
	husk_process_close_stdin(process, NULL);
	if (fed < 0) {
		husk_process_kill(request_husk(request), box->sandbox->id, follow.pid, 9, NULL);
		return -1;
	}
	if (await(&follow, &said, &event, err) < 0)
		return -1;
	if (event.exit_code == 0)
		return 0;
	if (said.data)
		said.data[strcspn(said.data, "\n")] = '\0';
	return daytona_file_failed(request, path, said.data ? said.data : "the file could not be written", err);
}

/* ---- one file ---- */

static int handle_download(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *path = NULL;

	if (daytona_enter(request, &box, err) < 0 || daytona_query_path(request, &box, "path", &path, err) < 0 ||
	    daytona_may(request, &box, path, "r", err) < 0)
		return -1;
	const char *slash = strrchr(path, '/');
	cleanup_free char *header = str_format("attachment; filename=\"%s\"", slash + 1);
	if (header && !strpbrk(slash + 1, "\"\r\n\\") &&
	    respond_header(request, "Content-Disposition", header, err) < 0)
		return -1;
	return files_send(request, path, err) < 0 ? daytona_file_error(request, path, err) : 0;
}

/* The field `file` of a form. */
static int handle_upload(struct request *request, struct husk_error *err)
{
	cleanup(multipart_close) struct multipart multipart = { 0 };
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *path = NULL;

	if (daytona_enter(request, &box, err) < 0 || daytona_query_path(request, &box, "path", &path, err) < 0 ||
	    multipart_open(&multipart, request_header(request, "Content-Type"), files_source, request, err) < 0)
		return -1;
	for (;;) {
		cleanup_free char *name = NULL, *filename = NULL;
		int next = multipart_next(&multipart, &name, &filename, err);
		if (next < 0)
			return -1;
		if (next == 0)
			return daytona_fail(request, 400, "BAD_REQUEST", "file is required");
		if (!str_equal(name, "file"))
			continue;
		if (daytona_write(request, &box, path, multipart_read, &multipart, err) < 0)
			return -1;
		const char *slash = strrchr(path, '/');
		return respond_json(request, 200,
				    json_pack("{s:o, s:o, s:s}", "name", json_text0(slash + 1), "path",
					      json_text0(path), "type", "file"),
				    err);
	}
}

/* ---- many up ---- */

struct uploads {
	struct request *request;
	struct daytona_box box;
	struct multipart multipart;
	json_t *paths; /* by index of the form */
	json_t *written, *errors;
};

static void uploads_cleanup(struct uploads *uploads)
{
	daytona_box_free(&uploads->box);
	multipart_close(&uploads->multipart);
	json_decref(uploads->paths);
	json_decref(uploads->written);
	json_decref(uploads->errors);
}

static int take_path(struct uploads *uploads, const char *index, struct husk_error *err)
{
	char text[FIELD_MAX + 1];
	size_t size = 0;
	ssize_t count;

	while (size < FIELD_MAX && (count = multipart_read(&uploads->multipart, text + size, FIELD_MAX - size)) > 0)
		size += (size_t)count;
	text[size] = '\0';
	if (size == FIELD_MAX || strlen(text) != size)
		return husk_fail_field(err, "path", "a path of the form is too long, or has a NUL");
	if (json_object_size(uploads->paths) >= FILES_MAX)
		return husk_fail_field(err, "files", "more than %u files", FILES_MAX);
	return json_object_set_new(uploads->paths, index, json_text(text, size)) < 0 ? husk_fail_memory(err) : 0;
}

struct counted {
	struct multipart *multipart;
	int64_t total;
};

static ssize_t counted(void *data, void *bytes, size_t size)
{
	struct counted *source = data;
	ssize_t count = multipart_read(source->multipart, bytes, size);

	source->total += MAX(count, 0);
	return count;
}

/* A file that cannot be written is reported with the others; a body that ends early fails the whole request. */
static int take_file(struct uploads *uploads, const char *index, const char *filename, struct husk_error *err)
{
	const char *given = json_string_value(json_object_get(uploads->paths, index));
	struct counted source = { &uploads->multipart, 0 };
	struct husk_error why = { 0 };
	cleanup_free char *path = NULL;

	if (!given)
		given = filename;
	if (!given || !*given) {
		json_array_append_new(uploads->errors, json_sprintf("files[%s]: no path was given", index));
		return 0;
	}
	if (daytona_path(&uploads->box, given, &path, err) < 0)
		return -1;
	int result = daytona_write(uploads->request, &uploads->box, path, counted, &source, &why);
	if (uploads->multipart.broken)
		return husk_fail(err, HUSK_INVALID, "the body breaks off inside a file");
	uploads->request->fault = (struct fault){ 0 };
	if (result < 0)
		json_array_append_new(uploads->errors, json_sprintf("%s: %s", given, why.message));
	else
		json_array_append_new(uploads->written, json_pack("{s:o, s:I}", "path", json_text0(path), "bytes",
								  (json_int_t)source.total));
	return 0;
}

/* "files[3].path" */
static bool is_part(const char *name, const char *what, char index[static 16])
{
	char word[8] = "";

	return name && sscanf(name, "files[%15[0-9]].%7s", index, word) == 2 && str_equal(word, what);
}

static int handle_uploads(struct request *request, struct husk_error *err)
{
	cleanup(uploads_cleanup) struct uploads uploads = {
		.request = request, .paths = json_object(), .written = json_array(), .errors = json_array()
	};
	char index[16];
	int next;

	if (daytona_enter(request, &uploads.box, err) < 0 ||
	    multipart_open(&uploads.multipart, request_header(request, "Content-Type"), files_source, request, err) < 0)
		return -1;
	do {
		cleanup_free char *name = NULL, *filename = NULL;
		next = multipart_next(&uploads.multipart, &name, &filename, err);
		if (next < 0)
			return -1;
		if (next > 0 && is_part(name, "path", index) && take_path(&uploads, index, err) < 0)
			return -1;
		if (next > 0 && is_part(name, "file", index) && take_file(&uploads, index, filename, err) < 0)
			return -1;
	} while (next > 0);
	bool bad = json_array_size(uploads.errors) > 0;
	json_t *document = json_pack("{s:O}", "files", uploads.written);
	if (document && bad)
		json_object_set(document, "errors", uploads.errors);
	return respond_json(request, bad ? 400 : 200, document, err);
}

/* ---- many down ---- */

struct download {
	struct request *request;
	struct husk_error failure; /* of the client's side */
};

static int sink(void *data, const void *bytes, size_t size)
{
	struct download *download = data;

	return stream_write(download->request, bytes, size, &download->failure);
}

/* The requested name: quoted, and encoded if it is not plain. */
static int put_filename(struct buf *head, const char *path)
{
	bool plain = true;
	int failed = buf_append_string(head, "filename=\"");

	for (const char *at = path; *at; at++) {
		plain &= *at >= 0x20 && *at < 0x7f;
		if (*at == '"' || *at == '\\')
			failed |= buf_append_string(head, "\\");
		failed |= *at >= 0x20 && *at < 0x7f ? buf_append(head, at, 1) : buf_append_string(head, "_");
	}
	failed |= buf_append_string(head, "\"");
	if (plain)
		return failed;
	failed |= buf_append_string(head, "; filename*=UTF-8''");
	for (const char *at = path; *at; at++)
		failed |= strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~", *at)
				  ? buf_append(head, at, 1)
				  : buf_printf(head, "%%%02X", (unsigned char)*at);
	return failed;
}

static int part_head(struct request *request, const char *boundary, const char *name, const char *path,
		     const char *type, int64_t length, struct husk_error *err)
{
	cleanup_buf struct buf head = { 0 };

	if (buf_printf(&head, "--%s\r\nContent-Disposition: form-data; name=\"%s\"; ", boundary, name) < 0 ||
	    put_filename(&head, path) < 0 ||
	    buf_printf(&head, "\r\nContent-Type: %s\r\nContent-Length: %lld\r\n\r\n", type, (long long)length) < 0)
		return husk_fail_memory(err);
	return stream_write(request, head.data, head.size, err);
}

static int part_error(struct request *request, const char *boundary, const char *path, const struct husk_error *why,
		      struct husk_error *err)
{
	unsigned status = request->fault.status ? request->fault.status : error_status(why);
	const char *code = request->fault.name ? request->fault.name : "FILE_READ_FAILED";
	cleanup_json json_t *document = json_pack("{s:i, s:o, s:s, s:s}", "statusCode", (int)status, "message",
						  json_text0(why->message), "code", code, "source", "DAYTONA_DAEMON");
	cleanup_free char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;

	request->fault = (struct fault){ 0 };
	if (!text)
		return husk_fail_memory(err);
	if (part_head(request, boundary, "error", path, "application/json", (int64_t)strlen(text), err) < 0 ||
	    stream_write(request, text, strlen(text), err) < 0)
		return -1;
	return stream_write(request, "\r\n", 2, err);
}

/* One file, or its error. If a file shrinks while it is sent, the answer is cut. */
static int send_part(struct request *request, const struct daytona_box *box, const char *boundary, const char *given,
		     struct husk_error *err)
{
	struct download download = { .request = request };
	struct husk_error why = { 0 };
	struct husk_file file = { 0 };
	cleanup_free char *path = NULL;

	if (daytona_path(box, given, &path, err) < 0)
		return -1;
	if (daytona_may(request, box, path, "r", &why) < 0)
		return part_error(request, boundary, given, &why, err);
	if (husk_file_stat(request_husk(request), box->sandbox->id, path, true, &file, &why) < 0) {
		daytona_file_error(request, path, &why);
		return part_error(request, boundary, given, &why, err);
	}
	bool regular = file.type == HUSK_FILE;
	uint64_t size = file.size;
	husk_file_free(&file);
	if (!regular) {
		request->fault = (struct fault){ 400, "INVALID_FILE_PATH" };
		husk_fail(&why, HUSK_INVALID, "path is a directory or no regular file: %.400s", given);
		return part_error(request, boundary, given, &why, err);
	}
	if (part_head(request, boundary, "file", given, "application/octet-stream", (int64_t)size, err) < 0 ||
	    (size && husk_file_read(request_husk(request), box->sandbox->id, path, 0, size, sink, &download, err) < 0))
		return -1;
	return stream_write(request, "\r\n", 2, err);
}

static int handle_downloads(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	char boundary[48], type[128], end[64];
	struct fields fields;

	if (fields_begin(&fields, request_read_json(request, err)) < 0)
		return -1;
	cleanup_free const char **paths = fields_strings(&fields, "paths");
	if (fields_done_open(&fields, err) < 0 || daytona_enter(request, &box, err) < 0)
		return -1;
	if (!paths || !paths[0])
		return daytona_fail(request, 400, "BAD_REQUEST",
				    "request body must be {\"paths\": [ ... ]} and non-empty");
	if (random_id("husk-", 32, boundary) < 0)
		return husk_fail_errno(err, "cannot make a boundary");
	snprintf(type, sizeof(type), "multipart/form-data; boundary=%s", boundary);
	if (stream_begin(request, 200, type, -1, err) < 0)
		return -1;
	for (size_t i = 0; paths[i]; i++)
		if (send_part(request, &box, boundary, paths[i], err) < 0)
			return -1;
	snprintf(end, sizeof(end), "--%s--\r\n", boundary);
	return stream_write(request, end, strlen(end), err);
}

const struct route daytona_transfer_routes[] = {
	{ "GET", DAYTONA_TOOLBOX "/files/download", handle_download, ROUTE_STREAM | ROUTE_AUTHORISE },
	{ "POST", DAYTONA_TOOLBOX "/files/upload-v2", handle_upload, ROUTE_STREAM | ROUTE_AUTHORISE },
	{ "POST", DAYTONA_TOOLBOX "/files/upload", handle_upload, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/files/bulk-upload", handle_uploads, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/files/bulk-download", handle_downloads, ROUTE_STREAM },
	{ 0 },
};
