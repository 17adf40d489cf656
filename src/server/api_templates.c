/*
 * Templates over HTTP: list (built ones, and bundled definitions), build with the log as a stream, remove. An uploaded root
 * filesystem is a file that is locked while this process lives. A file that can be locked was left by a killed server, and
 * the next upload removes it. A build continues when its client disconnects; its result is kept.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "server/api_templates.h"
#include "store/template.h"

#define TAR_MAX (INT64_C(32) << 30)
#define PIECE_BYTES 65536
#define UPLOAD_DIRECTORY "/var/tmp"
#define UPLOAD_PREFIX "husk-upload."

/* Builds are expensive and share one cache: this server runs one at a time. */
static pthread_mutex_t building = PTHREAD_MUTEX_INITIALIZER;

static bool is_built(struct husk_template *const *list, const char *name)
{
	for (; *list; list++)
		if (str_equal((*list)->name, name))
			return true;
	return false;
}

/* ---- list and remove ---- */

static json_t *unbuilt_json(const char *name)
{
	cleanup_template struct template_definition *definition = NULL;
	cleanup_free char *directory = template_find(name, NULL);
	const char *description = NULL;

	if (directory && template_load(directory, &definition, NULL) == 0)
		description = definition->description;
	return json_pack("{s:o, s:b, s:o}", "name", json_text0(name), "built", false, "description",
			 json_text0(description));
}

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_templates struct husk_template **list = NULL;
	cleanup_strv char **shipped = template_shipped(err);

	if (husk_template_list(request_husk(request), &list, err) < 0)
		return -1;
	cleanup_json json_t *array = json_templates(list);
	for (size_t i = 0; shipped && shipped[i]; i++)
		if (!is_built(list, shipped[i]) && json_array_append_new(array, unbuilt_json(shipped[i])) < 0)
			return husk_fail_memory(err);
	return respond_json(request, 200, json_pack("{s:O}", "templates", array), err);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	if (husk_template_remove(request_husk(request), request_path(request, "name"), err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

/* ---- build ---- */

struct build_stream {
	struct request *request;
	bool gone;
};

static void send_line(void *data, const char *line)
{
	struct build_stream *stream = data;

	if (!stream->gone)
		stream->gone =
			sse_send(stream->request, "log", NULL, json_pack("{s:o}", "line", json_text0(line)), NULL) < 0;
}

/* From here on the answer is a stream: a failure is its last event. `husk`: whose template it becomes. */
static int build(struct request *request, struct husk *husk, const struct husk_build_options *wanted,
		 struct husk_error *err)
{
	struct husk_build_options options = *wanted;
	cleanup_husk_template struct husk_template *template = NULL;
	struct build_stream stream = { .request = request };
	struct husk_error failure = { 0 };
	bool fresh = false;

	options.progress = send_line;
	options.data = &stream;
	if (sse_begin(request, err) < 0)
		return -1;
	pthread_mutex_lock(&building);
	int result = husk_template_build(husk, &options, &template, &fresh, &failure);
	pthread_mutex_unlock(&building);
	if (result < 0)
		return sse_error(request, &failure, err);
	return sse_send(request, "done", NULL,
			json_pack("{s:o, s:b}", "template", json_template(template), "fresh", fresh), err);
}

/* Removes remains of killed servers. Everybody can make files in that directory: only our own are checked. */
static void sweep_uploads(void)
{
	cleanup_dir DIR *dir = opendir(UPLOAD_DIRECTORY);

	for (struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir)) {
		struct stat status;
		if (!str_starts(entry->d_name, UPLOAD_PREFIX))
			continue;
		cleanup_close int fd =
			openat(dirfd(dir), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (fd < 0 || fstat(fd, &status) < 0 || status.st_uid != geteuid() || flock(fd, LOCK_EX | LOCK_NB) < 0)
			continue;
		cleanup_free char *path = str_format("%s/%s", UPLOAD_DIRECTORY, entry->d_name);
		if (S_ISREG(status.st_mode))
			unlinkat(dirfd(dir), entry->d_name, 0);
		else if (S_ISDIR(status.st_mode) && path)
			dir_remove(path, NULL);
	}
}

int template_scratch(char *path, struct husk_error *err)
{
	sweep_uploads();
	if (!mkdtemp(path))
		return husk_fail_errno(err, "cannot make a directory '%s'", path);
	cleanup_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
		return steal_fd(&fd);
	husk_fail_errno(err, "cannot lock '%s'", path);
	rmdir(path);
	return -1;
}

static int open_upload(char *path, struct husk_error *err)
{
	cleanup_close int fd = mkostemp(path, O_CLOEXEC);

	if (fd < 0)
		return husk_fail_errno(err, "cannot make a file in %s", UPLOAD_DIRECTORY);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		unlink(path);
		return husk_fail_errno(err, "cannot lock '%s'", path);
	}
	return steal_fd(&fd);
}

static int receive_tar(struct request *request, int fd, struct husk_error *err)
{
	cleanup_free char *piece = malloc(PIECE_BYTES);
	int64_t total = 0;

	if (!piece)
		return husk_fail_memory(err);
	for (;;) {
		ssize_t size = request_read(request, piece, PIECE_BYTES);

		if (size < 0)
			return husk_fail(err, HUSK_GONE, "the client has gone");
		if (size == 0)
			break;
		total += size;
		if (total > TAR_MAX)
			return husk_fail(err, HUSK_LIMIT, "the root filesystem is larger than %lld bytes",
					 (long long)TAR_MAX);
		if (write_full(fd, piece, (size_t)size) < 0)
			return husk_fail_errno(err, "cannot keep the root filesystem");
	}
	return total ? 0 : husk_fail(err, HUSK_INVALID, "the body is empty; send a root filesystem as a tar");
}

static int build_tar(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "name", "isolation", "warm", "force", NULL };
	struct husk_build_options options = { .name = request_query(request, "name"),
					      .isolation = request_query(request, "isolation"),
					      .warm = request_query(request, "warm") };

	if (request_query_known(request, known, err) < 0 ||
	    request_query_bool(request, "force", false, &options.force, err) < 0)
		return -1;
	if (!options.name || !template_name_valid(options.name))
		return husk_fail_field(err, "name",
				       "a template's name is needed; give ?name= with letters, digits, - _ .");
	char path[] = UPLOAD_DIRECTORY "/" UPLOAD_PREFIX "XXXXXX";
	sweep_uploads();
	cleanup_close int fd = open_upload(path, err);
	if (fd < 0)
		return -1;
	options.tar = path;
	int result = receive_tar(request, fd, err);
	if (result == 0)
		result = build(request, request_husk(request), &options, err);
	unlink(path);
	return result;
}

/* The first use of a bundled template builds it for all tenants. */
static int is_first_use(struct request *request, const struct husk_build_options *options, const char *bundled,
			struct husk_error *err)
{
	cleanup_templates struct husk_template **list = NULL;

	if (options->force || options->isolation || !str_equal(options->name, bundled))
		return 0;
	return husk_template_list(request_husk(request), &list, err) < 0 ? -1 : !is_built(list, bundled);
}

static int build_bundled(struct request *request, struct husk_error *err)
{
	struct fields fields;

	if (fields_begin(&fields, request_read_json(request, err)) < 0 ||
	    request_query_known(request, (const char *const[]){ NULL }, err) < 0)
		return -1;
	const char *name = fields_string(&fields, "name");
	const char *bundled = fields_string(&fields, "bundled");
	const char *isolation = fields_string(&fields, "isolation");
	bool force = fields_bool(&fields, "force", false);
	if (fields_done(&fields, err) < 0)
		return -1;
	if (!bundled)
		bundled = name;
	if (!bundled)
		return husk_fail_field(err, "bundled",
				       "name a bundled definition; or send a root filesystem as application/x-tar");
	if (name && !template_name_valid(name))
		return husk_fail_field(err, "name", "'%.80s' cannot be a template's name; use letters, digits, - _ .",
				       name);
	cleanup_free char *definition = template_find(bundled, err);
	if (!definition)
		return -1;
	struct husk_build_options options = {
		.name = name ? name : bundled, .definition = definition, .isolation = isolation, .force = force
	};
	int first = is_first_use(request, &options, bundled, err);
	return first < 0 ? -1 : build(request, first ? request_owner(request) : request_husk(request), &options, err);
}

static int handle_build(struct request *request, struct husk_error *err)
{
	const char *type = request_header(request, "Content-Type");

	if (type && (str_starts(type, "application/x-tar") || str_starts(type, "application/octet-stream")))
		return build_tar(request, err);
	return build_bundled(request, err);
}

/* ---- the first use of a bundled template ---- */

int template_ensure(struct request *request, const char *name, struct husk_error *err)
{
	cleanup_husk_template struct husk_template *template = NULL;
	cleanup_templates struct husk_template **list = NULL;
	cleanup_free char *definition = template_find(name, NULL);
	struct husk_build_options options = { .name = name, .definition = definition };
	bool fresh = false;

	if (!definition)
		return -1; /* `err` already names what was not found */
	pthread_mutex_lock(&building);
	/* Another request may have built it during the wait. */
	int result = husk_template_list(request_husk(request), &list, err);
	if (result == 0 && !is_built(list, name))
		result = husk_template_build(request_owner(request), &options, &template, &fresh, err);
	pthread_mutex_unlock(&building);
	return result < 0 ? -1 : 1;
}

const struct route template_routes[] = {
	{ "GET", "/v1/templates", handle_list, 0 },
	{ "POST", "/v1/templates", handle_build, ROUTE_STREAM },
	{ "POST", "/v1/templates/build", template_build_dockerfile, ROUTE_STREAM },
	{ "DELETE", "/v1/templates/{name}", handle_delete, 0 },
	{ 0 },
};
