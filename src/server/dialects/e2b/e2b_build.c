/*
 * Templates made with E2B's builder: POST /v3/templates starts a build, files for its COPY steps are uploaded, and a thread
 * runs the steps in a sandbox of its own. The result is a snapshot of that sandbox, with its start command running, under
 * the template's name. Creating a sandbox by that name continues from the snapshot.
 *
 * A build lives in this process: its log and its uploads (unnamed files) end with it, and its sandbox ends by its TTL. So
 * when a server is killed, its clients have to build again, and nothing is left behind. Values of variables are never
 * logged.
 */
#include <ctype.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <pthread.h>

#include "server/core.h"
#include "server/dialects/e2b/e2b_build.h"

#define BUILDS_MAX 8                        /* kept for each tenant, running or not */
#define UPLOAD_BYTES_MAX (INT64_C(4) << 30) /* of one build */
#define LINES_MAX 20000
#define LINES_BYTES_MAX (4u << 20) /* of one build's log */
#define UPLOAD_DIRECTORY "/var/tmp"

/* All builds of this process, newest first. The lock guards everything in them except what only their own thread
 * uses. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct build *builds;
static size_t running_count;
static atomic_bool ending;

/* ---- the list ---- */

static void build_free(struct build *build)
{
	for (size_t i = 0; i < build->upload_count; i++)
		fd_close(&build->uploads[i].fd);
	if (build->view)
		husk_close(build->view);
	free(build->name);
	free(build->tenant);
	buf_free(&build->held);
	strv_free(build->tags);
	json_decref(build->definition);
	json_decref(build->lines);
	free(build);
}

static bool is_owners(const struct build *build, const struct request *request)
{
	if (build->tenant)
		return request->caller == CALLER_TENANT && str_equal(build->tenant, request->tenant);
	return request->caller == CALLER_INSTANCE;
}

/* If a tenant has too many builds, the oldest one that does not run is removed. Under the lock. */
static bool make_room(const struct request *request)
{
	struct build **oldest = NULL;
	size_t count = 0;

	for (struct build **at = &builds; *at; at = &(*at)->next) {
		bool own = is_owners(*at, request);
		count += own;
		if (own && (*at)->state != BUILD_RUNNING)
			oldest = at;
	}
	if (count < BUILDS_MAX || !oldest)
		return count < BUILDS_MAX;
	struct build *gone = *oldest;
	*oldest = gone->next;
	build_free(gone);
	return true;
}

/* The caller's build: by its id, or (NULL) the newest of the template. Under the lock. */
static struct build *find_build(const struct request *request, const char *template, const char *id,
				struct husk_error *err)
{
	for (struct build *build = builds; build; build = build->next)
		if (is_owners(build, request) && (id ? str_equal(build->id, id) : str_equal(build->name, template)))
			return build;
	husk_fail(err, HUSK_NOT_FOUND,
		  "build '%.40s' of template '%.80s' not found; was the server started anew? build again", id ? id : "",
		  template);
	return NULL;
}

void e2b_build_say(struct build *build, const char *level, const char *text, size_t size)
{
	json_t *line = json_pack("{s:o, s:s, s:o, s:s}", "timestamp", json_time(time_wall_ms()), "level", level,
				 "message", json_text(text, MIN(size, BUILD_LINE_BYTES)), "step", build->step);

	pthread_mutex_lock(&lock);
	if (json_array_size(build->lines) < LINES_MAX && build->line_bytes < LINES_BYTES_MAX) {
		json_array_append_new(build->lines, line);
		build->line_bytes += MIN(size, BUILD_LINE_BYTES);
	} else {
		json_decref(line);
	}
	pthread_mutex_unlock(&lock);
}

int e2b_build_upload(struct build *build, const char *hash, struct husk_error *err)
{
	int fd = -1;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < build->upload_count; i++)
		if (str_equal(build->uploads[i].hash, hash))
			fd = build->uploads[i].fd;
	pthread_mutex_unlock(&lock);
	return fd >= 0 ? fd : husk_fail(err, HUSK_INVALID, "the files of this step were not uploaded");
}

bool e2b_build_stopped(void)
{
	return atomic_load(&ending);
}

/* ---- the thread ---- */

static void *build_main(void *data)
{
	struct build *build = data;
	struct husk_error err = { 0 };
	int result = e2b_build_run(build, &err);

	if (result < 0)
		e2b_build_say(build, "error", err.message, strlen(err.message));
	pthread_mutex_lock(&lock);
	snprintf(build->reason, sizeof(build->reason), "%s", err.message);
	build->state = result < 0 ? BUILD_FAILED : BUILD_READY;
	running_count--;
	pthread_mutex_unlock(&lock);
	return NULL;
}

bool e2b_builds_end(void)
{
	atomic_store(&ending, true);
	for (int64_t end = time_monotonic_ms() + 5000; time_monotonic_ms() < end; usleep(20000)) {
		pthread_mutex_lock(&lock);
		bool quiet = running_count == 0;
		while (quiet && builds) {
			struct build *gone = builds;
			builds = gone->next;
			build_free(gone);
		}
		pthread_mutex_unlock(&lock);
		if (quiet)
			return true;
	}
	return false;
}

/* ---- POST /v3/templates ---- */

/* The names of the resulting snapshots: one for each tag. */
static int name_snapshots(struct build *build, const char *given, const char **tags, struct husk_error *err)
{
	if (e2b_template_name(given, &build->name, err) < 0)
		return -1;
	if (strchr(build->name, '.'))
		return husk_fail_field(err, "name", "'%.80s' cannot be a name; use letters, digits, - and _", given);
	for (size_t i = 0; i == 0 || (tags && tags[i - 1] && tags[i]); i++) {
		cleanup_free char *full = tags && tags[i] ? str_format("%s:%s", build->name, tags[i]) : strdup(given);
		cleanup_free char *name = NULL;
		if (!full || e2b_snapshot_name(full, &name, err) < 0)
			return full ? -1 : husk_fail_memory(err);
		if (strv_add(&build->tags, name) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

static int make_uuid(char out[static 37], struct husk_error *err)
{
	unsigned char bytes[16];

	if (random_bytes(bytes, sizeof(bytes)) < 0)
		return husk_fail_errno(err, "no random numbers");
	e2b_uuid(bytes, out);
	return 0;
}

static struct build *build_new(struct request *request, struct husk_error *err)
{
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return NULL;
	const char *name = fields_string(&fields, "name");
	const char *alias = fields_string(&fields, "alias");
	cleanup_free const char **tags = fields_strings(&fields, "tags");
	int64_t cpus = fields_int(&fields, "cpuCount", 0, 1, 64),
		memory = fields_int(&fields, "memoryMB", 1024, 128, 1 << 20);
	fields_int(&fields, "minFreeDiskMb", 0, 0, INT64_MAX); /* a template's disk is larger than any request */
	name = name ? name : alias;
	if (fields_done_open(&fields, err) < 0)
		return NULL;
	if (!name || e2b_template_exists(request_husk(request), e2b_template(name))) {
		husk_fail_field(err, "name",
				name ? "there is a template '%.80s' already; choose another name"
				     : "name is missing%.0s",
				name ? name : "");
		return NULL;
	}
	struct build *build = calloc(1, sizeof(*build));
	if (!build) {
		husk_fail_memory(err);
		return NULL;
	}
	build->cpus = cpus;
	build->memory_mb = memory;
	build->lines = json_array();
	if (request->caller == CALLER_TENANT && !(build->tenant = strdup(request->tenant))) {
		husk_fail_memory(err);
		build_free(build);
		return NULL;
	}
	if (make_uuid(build->id, err) < 0 || name_snapshots(build, name, tags, err) < 0) {
		build_free(build);
		return NULL;
	}
	return build;
}

static int handle_request(struct request *request, struct husk_error *err)
{
	struct build *build = build_new(request, err);

	if (!build)
		return -1;
	json_t *names = json_array(), *tags = json_array();
	for (size_t i = 0; build->tags[i]; i++) {
		const char *dot = build->tags[i] + MIN(strlen(build->name), strlen(build->tags[i]));
		json_array_append_new(names, json_text0(build->tags[i]));
		json_array_append_new(tags, json_text0(*dot == '.' ? dot + 1 : "default"));
	}
	json_t *document = json_pack("{s:s, s:s, s:b, s:o, s:o, s:[s]}", "templateID", build->name, "buildID",
				     build->id, "public", false, "names", names, "tags", tags, "aliases", build->name);
	pthread_mutex_lock(&lock);
	bool room = make_room(request);
	if (room) {
		build->next = builds;
		builds = build;
	}
	pthread_mutex_unlock(&lock);
	if (room)
		return respond_json(request, 202, document, err);
	json_decref(document);
	build_free(build);
	return husk_fail(err, HUSK_LIMIT, "%d builds are under way; wait for one to end", BUILDS_MAX);
}

/* ---- files ---- */

static int upload_signature(struct request *request, const char *id, const char *hash, char **out,
			    struct husk_error *err)
{
	cleanup_free char *text = str_format("e2b-upload\n%s\n%s", id, hash);

	return text ? husk_sign(request_owner(request), text, out, err) : husk_fail_memory(err);
}

static int handle_file_link(struct request *request, struct husk_error *err)
{
	const char *template = request_path(request, "template"), *hash = request_path(request, "hash");
	const char *host = request_header(request, "Host");
	cleanup_free char *signature = NULL;
	char id[sizeof(((struct build *)0)->id)] = "";
	bool present = false;

	if (strlen(hash) > 70 || hash[strspn(hash, "0123456789abcdefABCDEF")])
		return husk_fail_field(err, "hash", "the hash of the files is not one");
	pthread_mutex_lock(&lock);
	struct build *build = find_build(request, template, NULL, err);
	for (size_t i = 0; build && i < build->upload_count; i++)
		present |= str_equal(build->uploads[i].hash, hash);
	if (build)
		snprintf(id, sizeof(id), "%s", build->id);
	pthread_mutex_unlock(&lock);
	if (!id[0] || upload_signature(request, id, hash, &signature, err) < 0)
		return -1;
	return respond_json(
		request, 201,
		json_pack("{s:b, s:o}", "present", present, "url",
			  json_sprintf("%s://%s/templates/uploads/%s/%s/%s", request_secure(request) ? "https" : "http",
				       host ? host : "localhost", id, hash, signature)),
		err);
}

static int receive(struct request *request, int fd, int64_t *total, struct husk_error *err)
{
	cleanup_free char *piece = malloc(65536);
	ssize_t count;

	if (!piece)
		return husk_fail_memory(err);
	while ((count = request_read(request, piece, 65536)) > 0) {
		*total += count;
		if (*total > UPLOAD_BYTES_MAX)
			return husk_fail(err, HUSK_LIMIT, "the files are larger than %lld bytes",
					 (long long)UPLOAD_BYTES_MAX);
		if (write_full(fd, piece, (size_t)count) < 0)
			return husk_fail_errno(err, "cannot keep the files");
	}
	return count < 0 ? husk_fail(err, HUSK_GONE, "the client has gone") : 0;
}

/* The target of the link above; its signature replaces the key. */
static int handle_upload(struct request *request, struct husk_error *err)
{
	const char *id = request_path(request, "build"), *hash = request_path(request, "hash");
	cleanup_free char *signature = NULL;
	cleanup_close int fd = open(UPLOAD_DIRECTORY, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	int64_t size = 0;

	if (upload_signature(request, id, hash, &signature, err) < 0)
		return -1;
	if (strlen(signature) != strlen(request_path(request, "signature")) ||
	    CRYPTO_memcmp(signature, request_path(request, "signature"), strlen(signature)) != 0) {
		request->fault = (struct fault){ 403, "forbidden" };
		return husk_fail(err, HUSK_DENIED, "the link is not one of this upload");
	}
	if (fd < 0)
		return husk_fail_errno(err, "cannot make a file in %s", UPLOAD_DIRECTORY);
	if (receive(request, fd, &size, err) < 0)
		return -1;
	pthread_mutex_lock(&lock);
	struct build *build = builds;
	while (build && !str_equal(build->id, id))
		build = build->next;
	bool kept = build && build->upload_count < BUILD_UPLOADS_MAX && build->state == BUILD_WAITING &&
		    build->upload_bytes + size <= UPLOAD_BYTES_MAX;
	if (kept) {
		build->upload_bytes += size;
		snprintf(build->uploads[build->upload_count].hash, sizeof(build->uploads[0].hash), "%s", hash);
		build->uploads[build->upload_count++].fd = steal_fd(&fd);
	}
	pthread_mutex_unlock(&lock);
	if (!kept)
		return husk_fail(err, HUSK_CONFLICT, "build '%.40s' takes no more files", id);
	return respond_empty(request, 200, err);
}

/* ---- POST /v2/templates/{template}/builds/{build} ---- */

/* Converts an image's name to a template's name. */
static void template_name(const char *image, char out[static 65])
{
	snprintf(out, 65, "%s", image);
	for (char *at = out; *at; at++)
		if (!isalnum((unsigned char)*at) && !strchr("-_.", *at))
			*at = '-';
}

static bool has_image(struct request *request, const char *image)
{
	cleanup_free char *path = NULL, *reference = NULL;

	return husk_image_find(request_owner(request), image, &path, &reference, NULL) == 0;
}

static int fail_missing(struct request *request, const char *image, const char *plain, struct husk_error *err)
{
	char name[65], text[500];

	template_name(plain, name);
	snprintf(text, sizeof(text),
		 "the image '%.80s' of a registry that the server does not pull from (the server's owner lists its "
		 "host in "
		 "HUSK_PULL_REGISTRIES, runs husk pull, or husk template build %s --image PATH)",
		 image, name);
	return dialect_unsupported(request, text, err);
}

/* "python:3.12" is a template python-3.12, an image of this host, a template python, or an image of a registry that clients may pull
 * from. E2B's own images map to Husk's templates. */
static int find_image(struct request *request, json_t *definition, struct husk_error *err)
{
	const char *image = json_string_value(json_object_get(definition, "fromImage"));
	const char *slash = image ? strrchr(image, '/') : NULL, *plain = slash ? slash + 1 : image;
	char name[65] = "";

	if (!image)
		return json_object_get(definition, "fromTemplate")
			       ? 0
			       : husk_fail_field(err, "fromTemplate",
						 "nothing to build from is given; use fromTemplate or fromImage");
	json_object_del(definition, "fromTemplate");
	bool own = str_starts(image, "e2bdev/");
	if (own)
		snprintf(name, sizeof(name), "%s", strstr(plain, "code-interpreter") ? "code-interpreter" : "base");
	else
		template_name(plain, name);
	if (!own && !e2b_template_exists(request_husk(request), name)) {
		if (has_image(request, image))
			return 0;
		snprintf(name, sizeof(name), "%.*s", (int)MIN(strcspn(plain, ":"), sizeof(name) - 1), plain);
		if (!e2b_template_exists(request_husk(request), name))
			return husk_image_allowed(image, getenv("HUSK_PULL_REGISTRIES"))
				       ? 0
				       : fail_missing(request, image, plain, err);
	}
	if (json_object_set_new(definition, "fromTemplate", json_string(name)) < 0)
		return husk_fail_memory(err);
	json_object_del(definition, "fromImage");
	return 0;
}

static int start_build(struct request *request, json_t *definition, struct husk *view, struct husk_error *err)
{
	pthread_mutex_lock(&lock);
	struct build *build =
		find_build(request, request_path(request, "template"), request_path(request, "build"), err);
	int result = build ? 0 : -1;
	if (build && (build->state != BUILD_WAITING || atomic_load(&ending)))
		result = husk_fail(err, HUSK_CONFLICT, "build '%s' was started already", build->id);
	if (result == 0) {
		build->definition = json_incref(definition);
		build->view = view;
		build->owner = request_owner(request);
		build->husk = view ? view : build->owner;
		build->state = BUILD_RUNNING;
		running_count++;
		if (thread_start(NULL, true, build_main, build) < 0) {
			result = husk_fail(err, HUSK_UNAVAILABLE, "no thread left for this build; try again later");
			build->state = BUILD_WAITING;
			build->view = NULL;
			running_count--;
		}
	}
	pthread_mutex_unlock(&lock);
	return result;
}

static int handle_start(struct request *request, struct husk_error *err)
{
	json_t *body = request_json(request, err);
	cleanup_json json_t *definition = body ? json_deep_copy(body) : NULL;
	struct husk *view = NULL;

	if (!body)
		return -1;
	if (!definition)
		return husk_fail_memory(err);
	if (json_object_get(definition, "fromImageRegistry"))
		return dialect_unsupported(request, "an image from a registry with credentials", err);
	if (find_image(request, definition, err) < 0 || auth_view(request, &view, err) < 0)
		return -1;
	if (start_build(request, definition, view, err) < 0) {
		if (view)
			husk_close(view);
		return -1;
	}
	return respond_empty(request, 202, err);
}

/* ---- status ---- */

static int handle_status(struct request *request, struct husk_error *err)
{
	static const char *const names[] = { [BUILD_WAITING] = "waiting",
					     [BUILD_RUNNING] = "building",
					     [BUILD_READY] = "ready",
					     [BUILD_FAILED] = "error" };
	cleanup_json json_t *lines = json_array();
	json_t *document = NULL;
	int64_t offset;

	if (request_query_int(request, "logsOffset", 0, 0, LINES_MAX + 1, &offset, err) < 0)
		return -1;
	pthread_mutex_lock(&lock);
	struct build *build =
		find_build(request, request_path(request, "template"), request_path(request, "build"), err);
	for (size_t i = (size_t)offset; build && i < json_array_size(build->lines); i++)
		json_array_append_new(lines, json_deep_copy(json_array_get(build->lines, i)));
	if (build)
		document = json_pack("{s:s, s:s, s:s, s:[], s:O}", "templateID", build->name, "buildID", build->id,
				     "status", names[build->state], "logs", "logEntries", lines);
	if (document && build->state == BUILD_FAILED)
		json_object_set_new(document, "reason",
				    json_pack("{s:o, s:s, s:[]}", "message", json_text0(build->reason), "step",
					      build->step, "logEntries"));
	pthread_mutex_unlock(&lock);
	return build ? respond_json(request, 200, document, err) : -1;
}

static int handle_logs(struct request *request, struct husk_error *err)
{
	json_t *document = NULL;

	pthread_mutex_lock(&lock);
	struct build *build =
		find_build(request, request_path(request, "template"), request_path(request, "build"), err);
	if (build)
		document = json_pack("{s:o}", "logs", json_deep_copy(build->lines));
	pthread_mutex_unlock(&lock);
	return build ? respond_json(request, 200, document, err) : -1;
}

const struct route e2b_build_routes[] = {
	{ "POST", "/v3/templates", handle_request, E2B_CONTROL },
	{ "GET", "/templates/{template}/files/{hash}", handle_file_link, E2B_CONTROL },
	{ "PUT", "/templates/uploads/{build}/{hash}/{signature}", handle_upload,
	  E2B_CONTROL | ROUTE_PUBLIC | ROUTE_STREAM },
	{ "POST", "/v2/templates/{template}/builds/{build}", handle_start, E2B_CONTROL },
	{ "GET", "/templates/{template}/builds/{build}/status", handle_status, E2B_CONTROL },
	{ "GET", "/templates/{template}/builds/{build}/logs", handle_logs, E2B_CONTROL },
	{ 0 },
};
