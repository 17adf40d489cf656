/*
 * Daytona's builds: from a Dockerfile to a snapshot, by the builder of `husk build` (src/build): FROM names a container image of the
 * instance, one of a registry that the server's owner lists, a template or a snapshot; each RUN happens in a sandbox of the size that
 * the caller asked for; results of steps are kept for later builds of the same caller. Builds run on a thread of their own
 * (daytona_builds.c), also those of a create (daytona_pending.c). COPY of the client's files would need object storage, and is refused with an error that names it.
 */
#include <openssl/evp.h>

#include "build/build.h"
#include "server/dialects/daytona/daytona.h"
#include "server/follow.h"

#define TEXT_MAX (256u << 10)
#define COMPLAINT_BYTES 600u

struct builder {
	const struct daytona_order *order;
	char *step;      /* that runs, as written */
	struct buf said; /* the end of its output */
};

static void builder_cleanup(struct builder *builder)
{
	free(builder->step);
	buf_free(&builder->said);
}

/* ---- callbacks of the builder ---- */

/* The log has steps as Docker writes them, and all output. */
static void put_log(const struct daytona_order *order, const struct husk_build_event *event)
{
	cleanup_buf struct buf line = { 0 };
	bool step = event->kind == HUSK_BUILD_STEP || event->kind == HUSK_BUILD_CACHED;

	if (event->kind == HUSK_BUILD_OUTPUT)
		order->say(order->data, event->text, event->size);
	if ((!step && event->kind != HUSK_BUILD_NOTE) ||
	    (step && buf_printf(&line, "Step %zu/%zu : ", event->step, event->steps) < 0) ||
	    buf_append(&line, event->text, event->size) < 0 ||
	    buf_append_string(&line, event->kind == HUSK_BUILD_CACHED ? " (kept)\n" : "\n") < 0)
		return;
	order->say(order->data, line.data, line.size);
}

static int follow(void *data, const struct husk_build_event *event)
{
	struct builder *builder = data;

	if (event && builder->order->say)
		put_log(builder->order, event);
	if (event && event->kind == HUSK_BUILD_STEP) {
		free(builder->step);
		builder->step = strndup(event->text, event->size);
		buf_consume(&builder->said, builder->said.size);
	} else if (event && event->kind == HUSK_BUILD_OUTPUT &&
		   buf_append(&builder->said, event->text, event->size) == 0 && builder->said.size > COMPLAINT_BYTES) {
		buf_consume(&builder->said, builder->said.size - COMPLAINT_BYTES);
	}
	return builder->order->stops(builder->order->data);
}

static char *alias(void *data, const char *word)
{
	return daytona_base(((struct builder *)data)->order->husk, word);
}

/* export NAME='value' */
static int put_export(struct buf *script, const char *pair)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
	size_t name = strcspn(pair, "=");
	int failed = 0;

	if (!pair[name] || strspn(pair, letters) != name) /* a shell cannot have it */
		return 0;
	failed |= buf_printf(script, "export %.*s='", (int)name, pair);
	for (const char *at = pair + name + 1; *at; at++)
		failed |= *at == '\'' ? buf_append_string(script, "'\\''") : buf_append(script, at, 1);
	return failed | buf_append_string(script, "'\n");
}

static int leave_script(struct husk *husk, const char *sandbox, const struct buf *script, struct husk_error *err)
{
	/* The base may be a snapshot that was built so, and has its own lines. */
	static const char command[] = "mkdir -p /etc/profile.d && cat >>/etc/profile.d/daytona.sh";
	const char *argv[] = { "/bin/sh", "-c", command, NULL };
	struct husk_exec_options options = { .argv = argv, .user = "root", .keep_stdin = true, .timeout_ms = 30000 };
	cleanup_process struct husk_process *process = NULL;
	struct husk_process_event event = { 0 };

	if (husk_exec(husk, sandbox, &options, &process, NULL, err) < 0)
		return -1;
	int result = husk_process_write(process, script->data, script->size, err);
	if (result == 0)
		result = husk_process_close_stdin(process, err);
	while (result == 0 && event.kind != HUSK_EXIT)
		result = husk_process_next(process, &event, err);
	return result;
}

/* Variables of ENV are for each login shell, and for each command (daytona_process.c reads the file). */
static int finish(void *data, const struct build_result *result, struct husk_error *err)
{
	struct builder *builder = data;
	struct husk *husk = builder->order->husk;
	cleanup_buf struct buf script = { 0 };
	int failed = 0;

	for (char *const *pair = result->environment; pair && *pair; pair++)
		failed |= put_export(&script, *pair);
	if (failed)
		return husk_fail_memory(err);
	if (script.size && leave_script(husk, result->sandbox, &script, err) < 0)
		return -1;
	return husk_snapshot_create(husk, result->sandbox, builder->order->name, NULL, err);
}

/* ---- a build ---- */

static int tell_failure(struct builder *builder, const struct husk_error *why, struct husk_error *err)
{
	if (why->code != HUSK_INVALID && why->code != HUSK_CONFLICT && why->code != HUSK_DENIED &&
	    why->code != HUSK_NOT_FOUND && why->code != HUSK_TIMEOUT)
		return husk_fail(err, why->code, "%s", why->message);
	const char *said = builder->said.size ? builder->said.data : "";
	return husk_fail(err, HUSK_INVALID, "the build failed: %.500s%s%.200s%s%.*s", why->message,
			 builder->step ? " (" : "", builder->step ? builder->step : "", builder->step ? "): " : "",
			 (int)builder->said.size, said);
}

int daytona_build_run(const struct daytona_order *order, struct husk_error *err)
{
	static const struct husk_egress open = { .mode = "open" };
	cleanup(builder_cleanup) struct builder builder = { .order = order };
	const char *registries = getenv("HUSK_PULL_REGISTRIES");
	const struct build_client client = {
		.husk = order->husk, .owner = order->owner, .alias = alias, .finish = finish, .data = &builder
	};
	const struct husk_dockerfile_options options = { .text = json_string_value(
								 json_object_get(order->info, "dockerfileContent")),
							 .egress = &open,
							 .registries = registries ? registries : "",
							 .memory_bytes = order->size->memory_bytes,
							 .disk_bytes = order->size->disk_bytes,
							 .cpu_milli = order->size->cpu_milli,
							 .progress = follow,
							 .data = &builder };
	struct husk_error why = { 0 };

	return build_for_client(&client, &options, &why) < 0 ? tell_failure(&builder, &why, err) : 0;
}

int daytona_build_check(struct request *request, const json_t *info, struct husk_error *err)
{
	const char *text = json_string_value(json_object_get(info, "dockerfileContent"));

	if (!text || !*text || strlen(text) > TEXT_MAX)
		return husk_fail_field(err, "dockerfileContent",
				       "dockerfileContent is missing, or longer than %u bytes", TEXT_MAX);
	if (json_array_size(json_object_get(info, "contextHashes")))
		return dialect_unsupported(request, DAYTONA_LOCAL_FILES, err);
	return 0;
}

/* ---- for a create ---- */

static bool is_there(struct request *request, const char *name)
{
	struct husk_snapshot **list = NULL;
	bool found = false;

	if (husk_snapshot_list(request_husk(request), &list, NULL) < 0)
		return false;
	for (size_t i = 0; list[i]; i++)
		found |= str_equal(list[i]->name, name);
	husk_snapshot_list_free(list);
	return found;
}

/* Another create may be waiting for the same build. */
static int join(struct request *request, const char *name, json_t *info, const struct husk_create_options *size,
		char **build, struct husk_error *err)
{
	cleanup_free char *built = NULL;
	cleanup_json json_t *document = daytona_build_find(request, name, &built);

	if (!str_equal(json_string_value(json_object_get(document, "state")), "building")) {
		json_decref(steal_pointer(document));
		if (daytona_build_start(request, name, info, size, &document, err) < 0)
			return -1;
	}
	*build = strdup(json_string_value(json_object_get(document, "id")));
	return *build ? 0 : husk_fail_memory(err);
}

int daytona_build(struct request *request, json_t *info, const struct husk_create_options *size, char **snapshot,
		  char **build, struct husk_error *err)
{
	const char *text = json_string_value(json_object_get(info, "dockerfileContent"));
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned digest_size = 0;
	char name[64] = "daytona-build-";

	if (daytona_build_check(request, info, err) < 0)
		return -1;
	/* Memory and disk are part of what is built. */
	cleanup_free char *whole =
		str_format("%u %llu %llu\n%s", size->cpu_milli, (unsigned long long)size->memory_bytes,
			   (unsigned long long)size->disk_bytes, text);
	if (!whole || EVP_Digest(whole, strlen(whole), digest, &digest_size, EVP_sha256(), NULL) != 1)
		return husk_fail_memory(err);
	for (size_t i = 0, at = strlen(name); i < 12; i++, at += 2)
		snprintf(name + at, 3, "%02x", digest[i]);
	free(*snapshot);
	*snapshot = strdup(name);
	if (!*snapshot)
		return husk_fail_memory(err);
	return is_there(request, name) ? 0 : join(request, name, info, size, build, err);
}
