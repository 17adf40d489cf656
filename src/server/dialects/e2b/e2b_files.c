/*
 * Upload and download of files over E2B's plain HTTP: GET and POST /files, with a token or a signed address; and
 * /health. An upload is a form with several files or the bytes of one file, compressed with gzip if its header says so.
 * Files of any size pass in constant memory. Files are written in place, as in E2B: after an interrupted upload the
 * file holds what has arrived.
 */
#include <archive.h>
#include <ctype.h>

#include "server/api_files.h"
#include "server/core.h"
#include "server/dialects/e2b/e2b.h"
#include "server/multipart.h"

#define PIECE 65536u
#define METADATA_HEADER "X-Metadata-"
#define METADATA_KEY_MAX 246
#define METADATA_PREFIX_BYTES 9 /* length of the prefix before the key in the guest's attribute */
#define METADATA_MAX 4096

static int handle_health(struct request *request, struct husk_error *err)
{
	return respond_empty(request, 204, err); /* the check that it runs was done before this call */
}

static int handle_read(struct request *request, struct husk_error *err)
{
	const char *given = request_query(request, "path");
	cleanup_free char *path = NULL;
	char user[33];

	if (!given)
		return husk_fail_field(err, "path", "path is missing; add ?path=");
	if (e2b_user(request, user, err) < 0 || e2b_path(request, user, given, &path, err) < 0)
		return -1;
	return files_send(request, path, err);
}

/* ---- uploads ---- */

struct upload {
	struct request *request;
	char user[33];
	char **metadata; /* "key=value", for each file */
	json_t *written;
};

/* One file from a source, and its entry in the answer. */
static int write_file(struct upload *upload, const char *given, husk_source source, void *data, struct husk_error *err)
{
	struct request *request = upload->request;
	cleanup_free char *path = NULL, *home = NULL;

	/* Also for an absolute path: the owner must exist. */
	if (e2b_home(request, upload->user, &home, err) < 0 || e2b_path(request, upload->user, given, &path, err) < 0)
		return -1;
	struct husk_write_options options = { .user = upload->user, .attributes = upload->metadata, .in_place = true };
	if (husk_file_write_with(request_husk(request), request_path(request, "id"), path, &options, source, data,
				 err) < 0)
		return -1;
	const char *name = strrchr(path, '/') + 1;
	json_t *entry =
		json_pack("{s:o, s:s, s:o}", "name", json_text0(name), "type", "file", "path", json_text0(path));
	if (upload->metadata && entry)
		json_object_set_new(entry, "metadata", e2b_metadata(upload->metadata));
	return json_array_append_new(upload->written, entry) < 0 ? husk_fail_memory(err) : 0;
}

static int write_form(struct upload *upload, const char *type, const char *path, struct husk_error *err)
{
	cleanup(multipart_close) struct multipart multipart = { 0 };
	int next;

	if (multipart_open(&multipart, type, files_source, upload->request, err) < 0)
		return -1;
	for (;;) {
		cleanup_free char *name = NULL;
		cleanup_free char *filename = NULL;
		next = multipart_next(&multipart, &name, &filename, err);
		if (next <= 0)
			return next;
		if (!str_equal(name, "file"))
			continue;
		const char *target = path && *path ? path : filename;
		if (!target || !*target)
			return husk_fail_field(err, "path", "a file's name is missing; give ?path= or a filename");
		if (write_file(upload, target, multipart_read, &multipart, err) == 0)
			continue;
		return multipart.broken ? husk_fail(err, HUSK_INVALID, "the body breaks off inside a file") : -1;
	}
}

/* ---- gzip ---- */

struct packed {
	struct request *request;
	struct archive *archive;
	char piece[PIECE];
};

static la_ssize_t packed_read(struct archive *archive, void *data, const void **bytes)
{
	struct packed *packed = data;
	ssize_t count = request_read(packed->request, packed->piece, sizeof(packed->piece));

	(void)archive;
	*bytes = packed->piece;
	return count;
}

static ssize_t packed_source(void *data, void *bytes, size_t size)
{
	la_ssize_t count = archive_read_data(((struct packed *)data)->archive, bytes, size);

	return count < 0 ? -1 : (ssize_t)count;
}

static int write_packed(struct upload *upload, const char *path, struct husk_error *err)
{
	struct packed *packed = calloc(1, sizeof(*packed));
	struct archive_entry *entry;
	int result = -1;

	if (!packed || !(packed->archive = archive_read_new())) {
		free(packed);
		return husk_fail_memory(err);
	}
	packed->request = upload->request;
	archive_read_support_filter_gzip(packed->archive);
	archive_read_support_format_raw(packed->archive);
	archive_read_support_format_empty(packed->archive);
	int opened = archive_read_open(packed->archive, packed, NULL, packed_read, NULL);
	int header = opened == ARCHIVE_OK ? archive_read_next_header(packed->archive, &entry) : ARCHIVE_FATAL;
	if (header != ARCHIVE_OK && header != ARCHIVE_EOF)
		husk_fail(err, HUSK_INVALID, "the body is not gzip, as its Content-Encoding says");
	else
		result = write_file(upload, path, packed_source, packed, err);
	archive_read_free(packed->archive);
	free(packed);
	return result;
}

/* ---- the route ---- */

struct metadata {
	char ***list;
	size_t total;
	bool bad;
};

static bool is_plain(const char *text)
{
	for (; *text; text++)
		if (*text < 0x20 || *text > 0x7e)
			return false;
	return true;
}

/* "X-Metadata-Key: value" is key=value; if a key is sent twice, the first counts. */
static int take_metadata(void *data, const char *name, const char *value)
{
	struct metadata *metadata = data;
	const char *key = name + strlen(METADATA_HEADER);

	if (strncasecmp(name, METADATA_HEADER, strlen(METADATA_HEADER)) != 0)
		return 0;
	cleanup_free char *pair = str_format("%s=%s", key, value ? value : "");
	metadata->total += (pair ? strlen(pair) : 0) + METADATA_PREFIX_BYTES;
	metadata->bad |= !pair || !*key || strchr(key, '=') || strlen(key) > METADATA_KEY_MAX || !is_plain(pair) ||
			 metadata->total > METADATA_MAX;
	if (metadata->bad)
		return 1;
	for (char *at = pair; *at != '='; at++)
		*at = (char)tolower((unsigned char)*at);
	for (char **each = *metadata->list; each && *each; each++)
		if (strncmp(*each, pair, strlen(key) + 1) == 0)
			return 0;
	metadata->bad = strv_add(metadata->list, pair) < 0;
	return metadata->bad;
}

static int write_body(struct upload *upload, struct husk_error *err)
{
	struct request *request = upload->request;
	const char *type = request_header(request, "Content-Type"), *path = request_query(request, "path");
	const char *encoding = request_header(request, "Content-Encoding");

	if (!type || strncasecmp(type, "application/octet-stream", 24) != 0)
		return write_form(upload, type, path, err);
	if (!path || !*path)
		return husk_fail_field(err, "path", "path is missing; add ?path=");
	if (!encoding || str_equal(encoding, "identity"))
		return write_file(upload, path, files_source, request, err);
	if (strcasecmp(encoding, "gzip") != 0)
		return husk_fail_field(err, "Content-Encoding", "'%.40s' is not understood; use gzip or none",
				       encoding);
	return write_packed(upload, path, err);
}

static int handle_write(struct request *request, struct husk_error *err)
{
	struct upload upload = { .request = request, .written = json_array() };
	struct metadata metadata = { .list = &upload.metadata };

	request_headers(request, take_metadata, &metadata);
	int result =
		metadata.bad
			? husk_fail_field(err, METADATA_HEADER,
					  "a file's metadata is printable ASCII, keys of at most %d bytes, %d in all",
					  METADATA_KEY_MAX, METADATA_MAX)
			: e2b_user(request, upload.user, err);
	if (result == 0)
		result = write_body(&upload, err);
	strv_free(upload.metadata);
	if (result < 0)
		json_decref(upload.written);
	return result < 0 ? -1 : respond_json(request, 200, upload.written, err);
}

const struct route e2b_file_routes[] = {
	{ "GET", "/health", handle_health, E2B_DATA },
	{ "GET", "/files", handle_read, E2B_DATA | ROUTE_STREAM },
	{ "POST", "/files", handle_write, E2B_DATA | ROUTE_STREAM },
	{ 0 },
};
