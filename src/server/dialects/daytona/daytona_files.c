/*
 * Daytona's files: list, info, delete, create folder, move, permissions. Changes are made by the guest's own programs as
 * the sandbox's user, so that the guest's kernel decides what that user may do. Errors have the codes that Daytona's
 * clients turn into exceptions.
 */
#include "server/dialects/daytona/daytona_files.h"

#define DEPTH_MAX 64

/* ---- errors ---- */

/* Recognizes the errno in a message of the guest's programs, in English because of LC_ALL=C. */
int daytona_file_failed(struct request *request, const char *path, const char *complaint, struct husk_error *err)
{
	if (strstr(complaint, "No such file"))
		return daytona_fail(request, 404, "FILE_NOT_FOUND", "file not found: %.400s", path);
	if (strstr(complaint, "ermission denied") || strstr(complaint, "not permitted"))
		return daytona_fail(request, 403, "FILE_ACCESS_DENIED", "permission denied: %.400s", path);
	if (strstr(complaint, "No space left"))
		return husk_fail(err, HUSK_LIMIT, "the disk is full: %.400s", path);
	return daytona_fail(request, 400, "INVALID_FILE_PATH", "%.400s", complaint);
}

/* The same for an error of libhusk. */
int daytona_file_error(struct request *request, const char *path, struct husk_error *err)
{
	if (err->code == HUSK_NOT_FOUND)
		return daytona_fail(request, 404, "FILE_NOT_FOUND", "file not found: %.400s", path);
	if (err->code == HUSK_DENIED)
		return daytona_fail(request, 403, "FILE_ACCESS_DENIED", "permission denied: %.400s", path);
	if (err->code == HUSK_INVALID)
		request->fault = (struct fault){ 400, "INVALID_FILE_PATH" };
	return -1;
}

/* A path of the query, absolute. */
int daytona_query_path(struct request *request, const struct daytona_box *box, const char *name, char **out,
		       struct husk_error *err)
{
	const char *given = request_query(request, name);

	if (!given || !*given)
		return daytona_fail(request, 400, "INVALID_FILE_PATH", "%s is required", name);
	return daytona_path(box, given, out, err);
}

/* Runs a script with the arguments as the user; its error message becomes the error. */
static int script(struct request *request, const struct daytona_box *box, const char *user, const char *text,
		  const char *first, const char *second, struct husk_error *err)
{
	static const struct husk_pair plain[] = { { "LC_ALL", "C" } };
	const char *argv[] = { "/bin/sh", "-c", text, "sh", first, second, NULL };
	struct daytona_command command = {
		.argv = argv, .user = user, .cwd = "/", .environment = plain, .environment_count = 1
	};
	cleanup_output struct daytona_output output = { 0 };

	if (daytona_run(request, box, &command, &output, err) < 0)
		return -1;
	if (output.exit_code == 0)
		return 0;
	return output.exit_code == 9 ? 9 : daytona_file_failed(request, first, daytona_complaint(&output), err);
}

/* ---- info ---- */

/* "drwxr-xr-x", as Go writes it. */
static void mode_text(const struct husk_file *file, char out[static 11])
{
	static const char bits[] = "rwxrwxrwx";

	out[0] = file->type == HUSK_DIRECTORY ? 'd' : file->type == HUSK_SYMLINK ? 'L' : '-';
	for (int i = 0; i < 9; i++)
		out[1 + i] = file->mode & (0400u >> i) ? bits[i] : '-';
	out[10] = '\0';
}

static json_t *info_document(const struct husk_file *file)
{
	const char *slash = strrchr(file->path, '/');
	char mode[11];

	mode_text(file, mode);
	/* clang-format off */
	return json_pack("{s:o, s:o, s:I, s:b, s:s, s:o, s:o, s:o, s:o, s:o}",
		"name", json_text0(slash && slash[1] ? slash + 1 : file->path),
		"path", json_text0(file->path),
		"size", (json_int_t)file->size,
		"isDir", file->type == HUSK_DIRECTORY,
		"mode", mode,
		"permissions", json_sprintf("%04o", file->mode & 0777),
		"owner", json_sprintf("%u", file->uid),
		"group", json_sprintf("%u", file->gid),
		"modTime", json_time(MAX(1, file->mtime_ms)),
		"modifiedAt", json_time(MAX(1, file->mtime_ms)));
	/* clang-format on */
}

static int handle_info(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *path = NULL;
	struct husk_file file = { 0 };

	if (daytona_enter(request, &box, err) < 0 || daytona_query_path(request, &box, "path", &path, err) < 0)
		return -1;
	if (husk_file_stat(request_husk(request), box.sandbox->id, path, true, &file, err) < 0)
		return daytona_file_error(request, path, err);
	json_t *document = info_document(&file);
	husk_file_free(&file);
	return respond_json(request, 200, document, err);
}

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	cleanup_json json_t *array = json_array();
	cleanup_free char *path = NULL;
	struct husk_file *list = NULL;
	size_t count = 0;
	int64_t depth;
	int failed = 0;

	if (request_query_int(request, "depth", 1, 1, DEPTH_MAX, &depth, err) < 0 ||
	    daytona_enter(request, &box, err) < 0 ||
	    daytona_path(&box, request_query(request, "path") ? request_query(request, "path") : "", &path, err) < 0)
		return -1;
	if (daytona_may(request, &box, path, "r", err) < 0)
		return -1;
	if (husk_file_list(request_husk(request), box.sandbox->id, path, (uint32_t)depth, &list, &count, err) < 0)
		return daytona_file_error(request, path, err);
	for (size_t i = 0; i < count; i++)
		failed |= json_array_append_new(array, info_document(&list[i]));
	husk_file_list_free(list, count);
	return failed ? husk_fail_memory(err) : respond_json(request, 200, json_incref(array), err);
}

int daytona_may(struct request *request, const struct daytona_box *box, const char *path, const char *right,
		struct husk_error *err)
{
	static const char text[] = "[ -e \"$1\" ] || [ -L \"$1\" ] || { ls -d -- \"$1\" >/dev/null; exit 1; }\n"
				   "case $2 in r) [ -r \"$1\" ];; w) [ -w \"$1\" ];; esac || "
				   "{ echo 'Permission denied' >&2; exit 1; }";

	return str_equal(box->user, "root") ? 0 : script(request, box, NULL, text, path, right, err);
}

/* ---- changes ---- */

static int handle_delete(struct request *request, struct husk_error *err)
{
	static const char text[] = "[ -e \"$1\" ] || [ -L \"$1\" ] || { echo 'No such file' >&2; exit 1; }\n"
				   "[ -L \"$1\" ] || [ ! -d \"$1\" ] || [ \"$2\" = true ] || exit 9\n"
				   "exec rm -rf -- \"$1\"";
	const char *recursive = request_query(request, "recursive");
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *path = NULL;

	if (daytona_enter(request, &box, err) < 0 || daytona_query_path(request, &box, "path", &path, err) < 0)
		return -1;
	int result = script(request, &box, NULL, text, path, recursive ? recursive : "false", err);
	if (result == 9)
		return daytona_fail(request, 400, "BAD_REQUEST", "cannot delete directory without recursive flag");
	return result < 0 ? -1 : respond_empty(request, 204, err);
}

static int handle_folder(struct request *request, struct husk_error *err)
{
	static const char text[] = "mkdir -p -- \"$1\" && chmod \"$2\" -- \"$1\"";
	const char *mode = request_query(request, "mode");
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *path = NULL;
	uint32_t bits;

	if (daytona_enter(request, &box, err) < 0 || daytona_query_path(request, &box, "path", &path, err) < 0 ||
	    files_mode(mode && *mode ? mode : "0755", &bits, err) < 0)
		return -1;
	if (script(request, &box, NULL, text, path, mode && *mode ? mode : "0755", err) < 0)
		return -1;
	return respond_empty(request, 201, err);
}

static int handle_move(struct request *request, struct husk_error *err)
{
	static const char text[] = "ls -d -- \"$1\" >/dev/null || exit 1\n"
				   "ls -d -- \"$(dirname -- \"$2\")\" >/dev/null || exit 1\n"
				   "[ ! -e \"$2\" ] && [ ! -L \"$2\" ] || exit 9\n"
				   "exec mv -T -- \"$1\" \"$2\"";
	cleanup_free char *source = NULL, *destination = NULL;
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_enter(request, &box, err) < 0 || daytona_query_path(request, &box, "source", &source, err) < 0 ||
	    daytona_query_path(request, &box, "destination", &destination, err) < 0)
		return -1;
	int result = script(request, &box, NULL, text, source, destination, err);
	if (result == 9)
		return daytona_fail(request, 409, "CONFLICT", "destination already exists");
	return result < 0 ? -1 : respond_empty(request, 200, err);
}

static bool is_name(const char *text)
{
	return *text && !text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")];
}

/* Only root can change an owner, as in Daytona's sandboxes. */
static int handle_permissions(struct request *request, struct husk_error *err)
{
	const char *mode = request_query(request, "mode"), *owner = request_query(request, "owner");
	const char *group = request_query(request, "group");
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *path = NULL;
	uint32_t bits;

	if (daytona_enter(request, &box, err) < 0 || daytona_query_path(request, &box, "path", &path, err) < 0)
		return -1;
	if (mode && *mode && files_mode(mode, &bits, err) < 0)
		return -1;
	if ((owner && *owner && !is_name(owner)) || (group && *group && !is_name(group)))
		return husk_fail_field(err, "owner", "owner and group are names or numbers");
	cleanup_free char *both =
		str_format("%s%s%s", owner ? owner : "", group && *group ? ":" : "", group ? group : "");
	if (!both)
		return husk_fail_memory(err);
	if (mode && *mode && script(request, &box, NULL, "exec chmod \"$2\" -- \"$1\"", path, mode, err) < 0)
		return -1;
	if (*both && script(request, &box, "root", "exec chown \"$2\" -- \"$1\"", path, both, err) < 0)
		return -1;
	return respond_empty(request, 200, err);
}

const struct route daytona_file_routes[] = {
	{ "GET", DAYTONA_TOOLBOX "/files", handle_list, 0 },
	{ "GET", DAYTONA_TOOLBOX "/files/", handle_list, 0 },
	{ "GET", DAYTONA_TOOLBOX "/files/info", handle_info, 0 },
	{ "DELETE", DAYTONA_TOOLBOX "/files", handle_delete, 0 },
	{ "DELETE", DAYTONA_TOOLBOX "/files/", handle_delete, 0 },
	{ "POST", DAYTONA_TOOLBOX "/files/folder", handle_folder, 0 },
	{ "POST", DAYTONA_TOOLBOX "/files/move", handle_move, 0 },
	{ "POST", DAYTONA_TOOLBOX "/files/permissions", handle_permissions, 0 },
	{ 0 },
};
