/*
 * Search in files over Daytona's toolbox: lines with a text, names that match a pattern, and replacement of a text. The
 * guest's grep and find search as the sandbox's user. Their output is the guest's and is parsed as hostile.
 */
#include "server/dialects/daytona/daytona_files.h"

#define REPLACE_MAX (64u << 20) /* of one file */
#define FILES_MAX 1000u

static int query_text(struct request *request, const char *name, const char **out, struct husk_error *err)
{
	*out = request_query(request, name);
	if (*out && **out)
		return 0;
	return daytona_fail(request, 400, "BAD_REQUEST", "path and pattern are required");
}

/* ---- find: lines ---- */

/* "file NUL line:content NL" */
static json_t *read_matches(const struct buf *text)
{
	json_t *array = json_array();
	const char *at = text->data, *end = text->data + text->size;

	while (array && at < end) {
		const char *nul = memchr(at, '\0', (size_t)(end - at));
		const char *colon = nul ? memchr(nul, ':', (size_t)(end - nul)) : NULL;
		if (!colon)
			break;
		const char *stop = memchr(colon, '\n', (size_t)(end - colon));
		size_t size = (size_t)((stop ? stop : end) - colon - 1);
		json_array_append_new(array, json_pack("{s:o, s:I, s:o}", "file", json_text0(at), "line",
						       (json_int_t)strtoll(nul + 1, NULL, 10), "content",
						       json_text(colon + 1, size)));
		at = stop ? stop + 1 : end;
	}
	return array;
}

static int handle_find(struct request *request, struct husk_error *err)
{
	cleanup_output struct daytona_output output = { 0 };
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *path = NULL;
	const char *pattern;

	if (query_text(request, "pattern", &pattern, err) < 0 || daytona_enter(request, &box, err) < 0 ||
	    daytona_query_path(request, &box, "path", &path, err) < 0)
		return -1;
	const char *argv[] = { "grep", "-rsnIFHZ", "-e", pattern, "--", path, NULL };
	struct daytona_command command = { .argv = argv };
	if (daytona_run(request, &box, &command, &output, err) < 0)
		return -1;
	if (output.exit_code == 127)
		return dialect_unsupported(request, "a search in a sandbox without grep", err);
	return respond_json(request, 200, read_matches(&output.out), err);
}

/* ---- search: names ---- */

/* Converts a doublestar pattern to an extended regular expression over the path below the directory. */
static int expression(const char *pattern, struct buf *out)
{
	int failed = 0, depth = 0;

	for (; *pattern; pattern++) {
		if (str_starts(pattern, "**/")) {
			failed |= buf_append_string(out, "(.*/)?");
			pattern += 2;
		} else if (str_starts(pattern, "**")) {
			failed |= buf_append_string(out, ".*");
			pattern++;
		} else if (*pattern == '*') {
			failed |= buf_append_string(out, "[^/]*");
		} else if (*pattern == '?') {
			failed |= buf_append_string(out, "[^/]");
		} else if (*pattern == '{') {
			depth++;
			failed |= buf_append_string(out, "(");
		} else if (*pattern == '}' && depth) {
			depth--;
			failed |= buf_append_string(out, ")");
		} else if (*pattern == ',' && depth) {
			failed |= buf_append_string(out, "|");
		} else if (strchr(".+()|^$\\{}", *pattern)) {
			failed |= buf_append_string(out, "\\") | buf_append(out, pattern, 1);
		} else {
			failed |= buf_append(out, pattern, 1);
		}
	}
	return failed;
}

static json_t *read_names(const char *directory, const struct buf *text)
{
	json_t *array = json_array();

	for (const char *at = text->data, *end = text->data + text->size; array && at < end; at += strlen(at) + 1) {
		cleanup_free char *path = str_format("%s/%s", str_equal(directory, "/") ? "" : directory, at);
		if (!path || json_array_append_new(array, json_text0(path)) < 0)
			break;
	}
	return array;
}

/* As in newer servers: a pattern without a slash matches names anywhere below, and a directory that does not exist has no files. */
static int handle_search(struct request *request, struct husk_error *err)
{
	cleanup_output struct daytona_output output = { 0 };
	cleanup_box struct daytona_box box = { 0 };
	cleanup_buf struct buf regex = { 0 };
	cleanup_free char *path = NULL;
	const char *pattern;

	if (query_text(request, "pattern", &pattern, err) < 0 || daytona_enter(request, &box, err) < 0 ||
	    daytona_query_path(request, &box, "path", &path, err) < 0)
		return -1;
	/* find's matches begin with the directory itself. */
	if (buf_append_string(&regex, "\\./") < 0 ||
	    (!strchr(pattern, '/') && buf_append_string(&regex, "(.*/)?") < 0) || expression(pattern, &regex) < 0)
		return husk_fail_memory(err);
	static const char text[] =
		"cd -- \"$1\" 2>/dev/null || exit 0; find . -regextype posix-extended ! -type d -regex \"$2\""
		" -printf '%P\\0' 2>/dev/null; exit 0";
	const char *argv[] = { "/bin/sh", "-c", text, "sh", path, regex.data, NULL };
	struct daytona_command command = { .argv = argv };
	if (daytona_run(request, &box, &command, &output, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:o}", "files", read_names(path, &output.out)), err);
}

/* ---- replace ---- */

static int keep(void *data, const void *bytes, size_t size)
{
	struct buf *text = data;

	return text->size + size > REPLACE_MAX || buf_append(text, bytes, size) < 0 ? -1 : 0;
}

static int put_replaced(const struct buf *from, const char *pattern, const char *value, struct buf *to)
{
	size_t length = strlen(pattern);
	const char *at = from->data, *end = from->data + from->size;

	for (const char *found; at < end && (found = memmem(at, (size_t)(end - at), pattern, length));
	     at = found + length)
		if (buf_append(to, at, (size_t)(found - at)) < 0 || buf_append_string(to, value) < 0)
			return -1;
	return buf_append(to, at ? at : "", (size_t)(end - at));
}

static int replace(struct request *request, const struct daytona_box *box, const char *given, const char *pattern,
		   const char *value, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 }, changed = { 0 };
	cleanup_free char *path = NULL;

	if (daytona_path(box, given, &path, err) < 0 || daytona_may(request, box, path, "r", err) < 0)
		return -1;
	if (husk_file_read(request_husk(request), box->sandbox->id, path, 0, 0, keep, &text, err) < 0)
		return daytona_file_error(request, path, err);
	if (put_replaced(&text, pattern, value, &changed) < 0)
		return husk_fail_memory(err);
	struct bytes bytes = { changed.data, changed.size };
	return daytona_write(request, box, path, bytes_give, &bytes, err);
}

static int handle_replace(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	cleanup_json json_t *array = json_array();
	struct fields fields;

	if (fields_begin(&fields, request_read_json(request, err)) < 0)
		return -1;
	cleanup_free const char **files = fields_strings(&fields, "files");
	const char *pattern = fields_string(&fields, "pattern"), *value = fields_string(&fields, "newValue");
	if (fields_done_open(&fields, err) < 0 || daytona_enter(request, &box, err) < 0)
		return -1;
	if (!files || !pattern || !*pattern || !value)
		return husk_fail_field(err, "pattern", "files, pattern and newValue are required");
	for (size_t i = 0; files[i]; i++) {
		struct husk_error why = { 0 };
		if (i == FILES_MAX)
			return husk_fail_field(err, "files", "more than %u files", FILES_MAX);
		bool good = replace(request, &box, files[i], pattern, value, &why) == 0;
		request->fault = (struct fault){ 0 };
		json_t *entry = json_pack("{s:o, s:b}", "file", json_text0(files[i]), "success", good);
		if (entry && !good)
			json_object_set_new(entry, "error", json_text0(why.message));
		if (json_array_append_new(array, entry) < 0)
			return husk_fail_memory(err);
	}
	return respond_json(request, 200, json_incref(array), err);
}

const struct route daytona_search_routes[] = {
	{ "GET", DAYTONA_TOOLBOX "/files/find", handle_find, 0 },
	{ "GET", DAYTONA_TOOLBOX "/files/search", handle_search, 0 },
	{ "POST", DAYTONA_TOOLBOX "/files/replace", handle_replace, ROUTE_STREAM },
	{ 0 },
};
