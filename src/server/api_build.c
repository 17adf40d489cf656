/*
 * Builds from Dockerfiles over HTTP (POST /v1/templates/build), by the builder of `husk build`. The request is a form:
 * `options`, a JSON document with the text of the Dockerfile, and `context`, a tar of the files that it may copy. The
 * answer is a stream of events. The build belongs to its request: if the client disconnects, the build ends and leaves
 * nothing that has a name.
 *
 * A build of the owner makes an image of the instance, as `husk build` does on this host. A build of a tenant makes a
 * template of that tenant: its sandboxes and kept steps belong to the tenant and count in its quotas.
 */
#include <fcntl.h>
#include <pthread.h>

#include "build/build.h"
#include "server/api_egress.h"
#include "server/api_files.h"
#include "server/api_templates.h"
#include "server/multipart.h"
#include "store/template.h"

#define OPTIONS_MAX (4u << 20)
#define CONTEXT_MAX (INT64_C(2) << 30)
#define CONTEXT_PLACE "/var/tmp"
#define BUILDS_MAX 8 /* of one tenant at one time: each has a context on the disk */
#define PING_MS 5000
#define PIECE_BYTES 65536

/* A build that is under way. */
struct turn {
	struct turn *next;
	const char *tenant; /* NULL: the owner */
};

static pthread_mutex_t turns_lock = PTHREAD_MUTEX_INITIALIZER;
static struct turn *turns; /* under the lock */

struct building {
	struct request *request;
	const char *name, *warm;
	struct husk_image *image;
	bool fresh;
	int64_t sent_ms; /* when the client last got something */
};

/* ---- the form ---- */

static json_t *read_options(struct multipart *form, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	char piece[PIECE_BYTES];
	json_error_t where;
	ssize_t size;

	while ((size = multipart_read(form, piece, sizeof(piece))) > 0) {
		if (text.size + (size_t)size > OPTIONS_MAX) {
			husk_fail_field(err, "options", "the options are larger than %u bytes", OPTIONS_MAX);
			return NULL;
		}
		if (buf_append(&text, piece, (size_t)size) < 0) {
			husk_fail_memory(err);
			return NULL;
		}
	}
	json_t *document =
		size < 0 || !text.size ? NULL : json_loadb(text.data, text.size, JSON_REJECT_DUPLICATES, &where);
	if (text.data)
		explicit_bzero(text.data, text.size); /* values of secrets */
	if (json_is_object(document))
		return document;
	json_decref(document);
	husk_fail_field(err, "options", "the part 'options' of the form is not a JSON object");
	return NULL;
}

static int read_context(struct multipart *form, struct husk_error *err)
{
	cleanup_close int fd = open(CONTEXT_PLACE, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	char piece[PIECE_BYTES];
	int64_t total = 0;
	ssize_t size;

	if (fd < 0)
		return husk_fail_errno(err, "cannot make a file in %s", CONTEXT_PLACE);
	while ((size = multipart_read(form, piece, sizeof(piece))) > 0) {
		total += size;
		if (total > CONTEXT_MAX)
			return husk_fail_field(err, "context",
					       "the context is larger than %lld bytes; leave files out with "
					       ".dockerignore",
					       (long long)CONTEXT_MAX);
		if (write_full(fd, piece, (size_t)size) < 0)
			return husk_fail_errno(err, "cannot keep the context");
	}
	if (size < 0)
		return husk_fail(err, HUSK_INVALID, "the body breaks off inside the context");
	return steal_fd(&fd);
}

/* *context: -1 if the form has none. */
static int read_form(struct request *request, json_t **options, int *context, struct husk_error *err)
{
	cleanup(multipart_close) struct multipart form = { 0 };
	const char *type = request_header(request, "Content-Type");

	if (!type || multipart_open(&form, type, files_source, request, err) < 0)
		return type ? -1 : husk_fail(err, HUSK_INVALID, "send a form (multipart/form-data) with 'options'");
	for (;;) {
		cleanup_free char *name = NULL, *filename = NULL;
		int next = multipart_next(&form, &name, &filename, err);
		if (next <= 0)
			return next;
		if (str_equal(name, "options") && !*options) {
			*options = read_options(&form, err);
			if (!*options)
				return -1;
		} else if (str_equal(name, "context") && *context < 0) {
			*context = read_context(&form, err);
			if (*context < 0)
				return -1;
		} else {
			return husk_fail(err, HUSK_INVALID,
					 "the form has the part '%.60s'; 'options' and 'context' are known, once each",
					 name ? name : "");
		}
	}
}

/* ---- the options ---- */

struct wanted {
	struct husk_dockerfile_options options;
	struct egress_request egress;
	struct husk_pair *arguments, *secrets;
};

static void wanted_free(struct wanted *wanted)
{
	egress_free(&wanted->egress);
	free(wanted->arguments);
	free(wanted->secrets);
}

static int read_wanted(json_t *document, struct wanted *out, struct husk_error *err)
{
	struct husk_dockerfile_options *options = &out->options;
	struct fields fields;

	if (fields_begin(&fields, document) < 0)
		return husk_fail_field(err, "options", "the form has no part 'options'");
	options->name = fields_string(&fields, "name");
	options->text = fields_string(&fields, "dockerfile");
	options->dockerfile = fields_string(&fields, "dockerfile_name");
	options->target = fields_string(&fields, "target");
	options->arguments = out->arguments = fields_pairs(&fields, "args", &options->argument_count);
	options->secrets = out->secrets = fields_pairs(&fields, "secrets", &options->secret_count);
	options->isolation = fields_string(&fields, "isolation");
	options->memory_bytes = fields_size(&fields, "memory");
	options->disk_bytes = fields_size(&fields, "disk");
	options->cpu_milli = (uint32_t)(fields_number(&fields, "cpus", 0, 0.05, 1024) * 1000 + 0.5);
	options->timeout_ms = fields_timeout_ms(&fields);
	options->warm = fields_string(&fields, "warm");
	options->no_cache = fields_bool(&fields, "no_cache", false);
	json_t *egress = fields_any(&fields, "egress");
	if (fields_done(&fields, err) < 0 || (egress && egress_parse(egress, &out->egress, err) < 0))
		return -1;
	options->egress = egress ? &out->egress.egress : NULL;
	if (!options->text || !*options->text)
		return husk_fail_field(err, "dockerfile", "the text of the Dockerfile is missing");
	if (!options->name)
		return husk_fail_field(err, "name", "the name of what is built is missing");
	return 0;
}

/* ---- the build ---- */

static int tell(void *data, const struct husk_build_event *event)
{
	struct building *building = data;
	int64_t now = time_monotonic_ms();
	int result = 0;

	if (event) {
		json_t *document = json_build_event(event);
		const char *kind = json_string_value(json_object_get(document, "event"));
		result = sse_send(building->request, kind ? kind : "note", NULL, document, NULL);
	} else if (now - building->sent_ms > PING_MS) {
		result = sse_ping(building->request, NULL);
	} else {
		return request_over(building->request);
	}
	building->sent_ms = now;
	return result < 0 || request_over(building->request);
}

static void say_progress(void *data, const char *line)
{
	const struct husk_build_event note = { .kind = HUSK_BUILD_NOTE, .text = line, .size = strlen(line) };

	tell(data, &note);
}

/* A tenant's template, from an image of the files that nobody else sees. */
static int finish(void *data, const struct build_result *result, struct husk_error *err)
{
	struct building *building = data;
	struct husk *husk = request_husk(building->request);
	char place[] = CONTEXT_PLACE "/husk-upload.XXXXXX";
	struct husk_build_options options = {
		.name = building->name, .warm = building->warm, .progress = say_progress, .data = building
	};
	const struct husk_commit_options commit = { .name = building->name,
						    .config = result->config,
						    .directory = place };

	cleanup_close int lock = template_scratch(place, err);
	if (lock < 0)
		return -1;
	cleanup_free char *layout = str_format("%s/pulled", place);
	options.image = layout;
	int status =
		layout ? husk_commit(husk, result->sandbox, &commit, &building->image, err) : husk_fail_memory(err);
	if (status == 0)
		status = husk_template_build(husk, &options, NULL, &building->fresh, err);
	dir_remove(place, NULL);
	if (status == 0)
		building->image->built = true;
	return status;
}

static int build(struct building *building, struct husk_dockerfile_options *options, struct husk_error *err)
{
	struct request *request = building->request;
	const char *registries = getenv("HUSK_PULL_REGISTRIES");
	const struct build_client client = { .husk = request_husk(request),
					     .owner = request_owner(request),
					     .finish = finish,
					     .data = building,
					     .files = true };

	options->progress = tell;
	options->data = building;
	if (!request_tenant(request))
		return husk_build(request_owner(request), options, &building->image, &building->fresh, err);
	options->registries = registries ? registries : "";
	return build_for_client(&client, options, err);
}

/* From here on the answer is a stream: a failure is its last event. */
static int build_and_tell(struct request *request, struct husk_dockerfile_options *options, struct husk_error *err)
{
	struct building building = { .request = request, .name = options->name, .warm = options->warm };
	struct husk_error failure = { 0 };

	if (sse_begin(request, err) < 0)
		return -1;
	int result = build(&building, options, &failure);
	if (result < 0)
		result = sse_error(request, &failure, err);
	else
		result = sse_send(request, "built", NULL,
				  json_pack("{s:o, s:b}", "image", json_image(building.image), "fresh", building.fresh),
				  err);
	husk_image_free(building.image);
	return result;
}

static int handle(struct request *request, struct husk_error *err)
{
	cleanup(wanted_free) struct wanted wanted = { 0 };
	cleanup_json json_t *document = NULL;
	cleanup_close int context = -1;
	struct build_upload *upload = NULL;

	if (request_query_known(request, (const char *const[]){ NULL }, err) < 0 ||
	    read_form(request, &document, &context, err) < 0 || read_wanted(document, &wanted, err) < 0)
		return -1;
	if (request_tenant(request) && !template_name_valid(wanted.options.name))
		return husk_fail_field(
			err, "name",
			"'%.80s' cannot be a template's name, which a tenant's build needs; use letters, "
			"digits, - _ .",
			wanted.options.name);
	int result = context < 0 ? 0 : build_upload_open(request_owner(request), &upload, err);
	if (result == 0 && upload)
		result = build_upload_add(upload, NULL, context, err);
	fd_close(&context);
	wanted.options.context = upload ? build_upload_path(upload) : NULL;
	if (result == 0)
		result = build_and_tell(request, &wanted.options, err);
	build_upload_close(upload);
	return result;
}

static int turn_begin(struct turn *turn, struct husk_error *err)
{
	size_t count = 0;

	pthread_mutex_lock(&turns_lock);
	for (const struct turn *at = turns; at; at = at->next)
		count += str_equal(at->tenant ? at->tenant : "", turn->tenant ? turn->tenant : "");
	if (count < BUILDS_MAX) {
		turn->next = turns;
		turns = turn;
	}
	pthread_mutex_unlock(&turns_lock);
	return count < BUILDS_MAX
		       ? 0
		       : husk_fail(err, HUSK_LIMIT, "%d of your builds are under way; wait for one to end", BUILDS_MAX);
}

static void turn_end(const struct turn *turn)
{
	struct turn **at = &turns;

	pthread_mutex_lock(&turns_lock);
	while (*at != turn)
		at = &(*at)->next;
	*at = turn->next;
	pthread_mutex_unlock(&turns_lock);
}

int template_build_dockerfile(struct request *request, struct husk_error *err)
{
	struct turn turn = { .tenant = request_tenant(request) };

	if (turn_begin(&turn, err) < 0)
		return -1;
	int result = handle(request, err);
	turn_end(&turn);
	return result;
}
