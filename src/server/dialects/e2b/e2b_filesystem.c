/*
 * E2B's filesystem service (Connect: filesystem.Filesystem): entries, directories, watches. e2b_files.c transfers content.
 * Paths belong to the guest, and every operation runs inside it.
 */
#include <sys/stat.h>

#include "server/core.h"
#include "server/dialects/e2b/connect.h"
#include "server/dialects/e2b/e2b.h"
#include "server/guest_user.h"

/* ---- entries ---- */

/* "drwxr-xr-x" as Go writes it: a link is "L". */
static void permissions(const struct husk_file *file, char out[static 11])
{
	static const char kinds[] = {
		[HUSK_FILE] = '-', [HUSK_DIRECTORY] = 'd', [HUSK_SYMLINK] = 'L', [HUSK_OTHER] = '?'
	};
	static const char letters[] = "rwxrwxrwx";

	out[0] = kinds[file->type];
	for (int i = 0; i < 9; i++)
		out[1 + i] = file->mode & (0400u >> i) ? letters[i] : '-';
	out[10] = '\0';
}

static const char *type_name(enum husk_file_type type)
{
	switch (type) {
	case HUSK_FILE:
		return "FILE_TYPE_FILE";
	case HUSK_DIRECTORY:
		return "FILE_TYPE_DIRECTORY";
	case HUSK_SYMLINK:
		return "FILE_TYPE_SYMLINK";
	default:
		return "FILE_TYPE_UNSPECIFIED";
	}
}

/* A link has the type of its target; a link without a target stays a link. */
static const char *entry_type(struct request *request, const struct husk_file *file)
{
	struct husk_file target = { 0 };

	if (file->type != HUSK_SYMLINK ||
	    husk_file_stat(request_husk(request), request_path(request, "id"), file->path, true, &target, NULL) < 0)
		return type_name(file->type);
	const char *name = type_name(target.type);
	husk_file_free(&target);
	return name;
}

json_t *e2b_metadata(char *const *attributes)
{
	json_t *object = json_object();

	for (; attributes && *attributes; attributes++) {
		size_t key = strcspn(*attributes, "=");
		cleanup_free char *name = strndup(*attributes, key);
		if (name && (*attributes)[key] && str_is_utf8(name, key))
			json_object_set_new(object, name, json_text0(*attributes + key + 1));
	}
	return object;
}

/* The target of a link, as an absolute path: a relative target begins at the directory of the link. */
static json_t *link_target(const struct husk_file *file)
{
	size_t parent = (size_t)(strrchr(file->path, '/') - file->path);
	cleanup_free char *target = file->target[0] == '/'
					    ? strdup(file->target)
					    : str_format("%.*s/%s", (int)parent, file->path, file->target);

	if (!target)
		return NULL;
	guest_path_clean(target);
	return json_text0(target);
}

json_t *e2b_entry(struct request *request, const struct husk_file *file)
{
	const char *slash = strrchr(file->path, '/');
	char mode[11], size[24], id[2][16];

	permissions(file, mode);
	snprintf(size, sizeof(size), "%llu", (unsigned long long)file->size);
	snprintf(id[0], sizeof(id[0]), "%u", file->uid);
	snprintf(id[1], sizeof(id[1]), "%u", file->gid);
	/* clang-format off */
	cleanup_json json_t *document = json_pack(
		"{s:o, s:s, s:o, s:s, s:I, s:s, s:o, s:o, s:o}",
		"name", json_text0(slash && slash[1] ? slash + 1 : file->path),
		"type", entry_type(request, file),
		"path", json_text0(file->path),
		"size", size,
		"mode", (json_int_t)(file->mode & 07777),
		"permissions", mode,
		"owner", json_text0(file->user ? file->user : id[0]),
		"group", json_text0(file->group ? file->group : id[1]),
		"modifiedTime", json_time(file->mtime_ms));
	/* clang-format on */
	if (document && file->attributes &&
	    json_object_set_new(document, "metadata", e2b_metadata(file->attributes)) < 0)
		return NULL;
	if (document && file->type == HUSK_SYMLINK && file->target && file->path[0] == '/' &&
	    json_object_set_new(document, "symlinkTarget", link_target(file)) < 0)
		return NULL;
	return steal_pointer(document);
}

/* The arguments of a call: the user, and the path in the message's `name`. */
static int read_path(struct request *request, json_t *message, const char *name, char user[static 33], char **path,
		     struct husk_error *err)
{
	const char *given = json_string_value(json_object_get(message, name));

	if (!message || e2b_user(request, user, err) < 0)
		return -1;
	return e2b_path(request, user, given ? given : "", path, err);
}

static int respond_entry(struct request *request, const char *path, struct husk_error *err)
{
	cleanup(husk_file_free) struct husk_file file = { 0 };

	if (husk_file_stat(request_husk(request), request_path(request, "id"), path, false, &file, err) < 0)
		return -1;
	json_t *entry = e2b_entry(request, &file);
	return respond_json(request, 200, entry ? json_pack("{s:o}", "entry", entry) : NULL, err);
}

static int handle_stat(struct request *request, struct husk_error *err)
{
	cleanup_free char *path = NULL;
	char user[33];

	if (read_path(request, request_json(request, err), "path", user, &path, err) < 0)
		return -1;
	return respond_entry(request, path, err);
}

/* ---- changes ---- */

static int handle_make(struct request *request, struct husk_error *err)
{
	cleanup(husk_file_free) struct husk_file file = { 0 };
	cleanup_free char *path = NULL, *home = NULL;
	const char *sandbox = request_path(request, "id");
	struct husk *husk = request_husk(request);
	char user[33];

	if (read_path(request, request_json(request, err), "path", user, &path, err) < 0 ||
	    e2b_home(request, user, &home, err) < 0)
		return -1;
	if (husk_file_stat(husk, sandbox, path, true, &file, NULL) == 0) {
		if (file.type != HUSK_DIRECTORY)
			return husk_fail_field(err, "path", "'%.400s' exists, and is not a directory", path);
		request->fault = (struct fault){ 409, "already_exists" };
		return husk_fail(err, HUSK_CONFLICT, "the directory '%.400s' exists already", path);
	}
	if (husk_file_mkdir(husk, sandbox, path, 0755, user, err) < 0)
		return -1;
	return respond_entry(request, path, err);
}

static int handle_move(struct request *request, struct husk_error *err)
{
	json_t *message = request_json(request, err);
	cleanup_free char *from = NULL, *to = NULL, *home = NULL;
	const char *sandbox = request_path(request, "id");
	struct husk *husk = request_husk(request);
	cleanup(husk_file_free) struct husk_file file = { 0 };
	char user[33];

	if (read_path(request, message, "source", user, &from, err) < 0 ||
	    read_path(request, message, "destination", user, &to, err) < 0 ||
	    husk_file_stat(husk, sandbox, from, false, &file, err) < 0)
		return -1;
	cleanup_free char *parent = strdup(to);
	if (!parent)
		return husk_fail_memory(err);
	*strrchr(parent, '/') = '\0';
	if (*parent &&
	    (e2b_home(request, user, &home, err) < 0 || husk_file_mkdir(husk, sandbox, parent, 0755, user, err) < 0))
		return -1;
	if (husk_file_move(husk, sandbox, from, to, err) < 0)
		return -1;
	return respond_entry(request, to, err);
}

static int handle_remove(struct request *request, struct husk_error *err)
{
	cleanup_free char *path = NULL;
	char user[33];

	if (read_path(request, request_json(request, err), "path", user, &path, err) < 0)
		return -1;
	/* Removing a missing file is no error. */
	if (husk_file_remove(request_husk(request), request_path(request, "id"), path, err) < 0 &&
	    err->code != HUSK_NOT_FOUND)
		return -1;
	return respond_json(request, 200, json_object(), err);
}

/* ---- directories ---- */

static int require_directory(struct request *request, const char *path, struct husk_error *err)
{
	cleanup(husk_file_free) struct husk_file file = { 0 };

	if (husk_file_stat(request_husk(request), request_path(request, "id"), path, true, &file, err) < 0)
		return -1;
	if (file.type != HUSK_DIRECTORY)
		return husk_fail_field(err, "path", "'%.400s' is not a directory", path);
	return 0;
}

static int handle_list(struct request *request, struct husk_error *err)
{
	json_t *message = request_json(request, err);
	cleanup_json json_t *array = json_array();
	cleanup_free char *path = NULL;
	struct husk_file *list = NULL;
	size_t count = 0;
	char user[33];
	int failed = 0;

	if (read_path(request, message, "path", user, &path, err) < 0)
		return -1;
	json_int_t depth = json_integer_value(json_object_get(message, "depth"));
	if (depth < 0 || depth > 200)
		return husk_fail_field(err, "depth", "depth is 1 to 200");
	if (require_directory(request, path, err) < 0 ||
	    husk_file_list(request_husk(request), request_path(request, "id"), path, depth ? (uint32_t)depth : 1, &list,
			   &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++)
		failed |= json_array_append_new(array, e2b_entry(request, &list[i]));
	husk_file_list_free(list, count);
	return failed ? husk_fail_memory(err) : respond_json(request, 200, json_pack("{s:O}", "entries", array), err);
}

/* ---- watching ---- */

static void watcher_cleanup(struct husk_watcher **watcher)
{
	husk_watch_free(*watcher);
}

static const char *change_type(const char *kind)
{
	static const char *const names[][2] = {
		{ "create", "EVENT_TYPE_CREATE" }, { "write", "EVENT_TYPE_WRITE" }, { "remove", "EVENT_TYPE_REMOVE" },
		{ "rename", "EVENT_TYPE_RENAME" }, { "chmod", "EVENT_TYPE_CHMOD" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (str_equal(kind, names[i][0]))
			return names[i][1];
	return NULL;
}

json_t *e2b_change(struct request *request, const char *root, const struct husk_watch_event *event, bool with_entry,
		   struct husk_error *err)
{
	size_t size = strlen(root);
	const char *name = event->path;
	const char *type = change_type(event->kind);
	struct husk_file file = { 0 };

	if (!type) {
		husk_fail(err, HUSK_LIMIT, "changes came faster than they were read, and some were lost");
		return NULL;
	}
	if (strncmp(name, root, size) == 0)
		name += size;
	name += *name == '/' ? 1 : 0;
	json_t *change = json_pack("{s:o, s:s}", "name", json_text0(name), "type", type);
	if (!change)
		husk_fail_memory(err);
	if (change && with_entry &&
	    husk_file_stat(request_husk(request), request_path(request, "id"), event->path, false, &file, NULL) == 0) {
		json_object_set_new(change, "entry", e2b_entry(request, &file));
		husk_file_free(&file);
	}
	return change;
}

int e2b_watched_path(struct request *request, json_t *message, char **path, struct husk_error *err)
{
	char user[33];

	if (read_path(request, message, "path", user, path, err) < 0)
		return -1;
	return require_directory(request, *path, err);
}

static int run_watch(struct connect *connect, json_t *message, struct husk_error *err)
{
	struct request *request = connect->request;
	cleanup(watcher_cleanup) struct husk_watcher *watcher = NULL;
	bool with_entry = json_is_true(json_object_get(message, "includeEntry"));
	cleanup_free char *path = NULL;
	struct husk_watch_event event;

	if (e2b_watched_path(request, message, &path, err) < 0 ||
	    husk_watch_open(request_husk(request), request_path(request, "id"), path,
			    json_is_true(json_object_get(message, "recursive")), &watcher, err) < 0 ||
	    connect_send(connect, json_pack("{s:{}}", "start"), err) < 0)
		return -1;
	for (;;) {
		int wait = connect_patience(connect);
		int ready = husk_watch_pending(watcher) ? 1 : request_wait(request, husk_watch_fd(watcher), wait);
		if (ready < 0)
			return husk_fail(err, HUSK_GONE, "the client disconnected");
		if (connect_check(connect, err) < 0)
			return -1;
		if (ready == 0 && connect_send(connect, json_pack("{s:{}}", "keepalive"), err) < 0)
			return -1;
		if (ready == 0 || !husk_watch_pending(watcher))
			continue;
		json_t *change = husk_watch_next(watcher, &event, err) < 0
					 ? NULL
					 : e2b_change(request, path, &event, with_entry, err);
		if (!change || connect_send(connect, json_pack("{s:o}", "filesystem", change), err) < 0)
			return -1;
	}
}

static int handle_watch(struct request *request, struct husk_error *err)
{
	return connect_serve(request, run_watch, err);
}

const struct route e2b_filesystem_routes[] = {
	{ "POST", "/filesystem.Filesystem/Stat", handle_stat, E2B_UNARY },
	{ "POST", "/filesystem.Filesystem/MakeDir", handle_make, E2B_UNARY },
	{ "POST", "/filesystem.Filesystem/Move", handle_move, E2B_UNARY },
	{ "POST", "/filesystem.Filesystem/ListDir", handle_list, E2B_UNARY },
	{ "POST", "/filesystem.Filesystem/Remove", handle_remove, E2B_UNARY },
	{ "POST", "/filesystem.Filesystem/WatchDir", handle_watch, E2B_STREAM },
	{ 0 },
};
