/*
 * Daytona's builds: from a Dockerfile to a snapshot. FROM names a container image in the instance's image folder, or a
 * template. RUN, ENV, WORKDIR and USER run in a sandbox that is created for the build and saved as a snapshot at the end. A
 * build belongs to its request: it is finished when the answer is sent, and the sandbox of a killed server ends by its TTL.
 * COPY of the client's files would need object storage, and is refused with an error that names it.
 */
#include <ctype.h>
#include <openssl/evp.h>

#include "server/api_templates.h"
#include "server/dialects/daytona/daytona.h"

#define TEXT_MAX (256u << 10)
#define STEPS_MAX 500
#define BUILD_SECONDS 3600
#define BUILD_MEMORY (UINT64_C(2) << 30)
#define COMPLAINT_BYTES 1500u

struct builder {
	struct request *request;
	struct husk *husk;
	char *sandbox;
	char *user, *directory;
	struct buf environment; /* a script of exports, for later commands in the sandbox */
	size_t steps;
};

static void builder_cleanup(struct builder *builder)
{
	if (builder->sandbox)
		husk_kill(builder->husk, builder->sandbox, NULL);
	free(builder->sandbox);
	free(builder->user);
	free(builder->directory);
	buf_free(&builder->environment);
}

/* ---- FROM ---- */

/* The template of an image is made once, and found by its name later. */
static int image_template(struct request *request, const char *image, char **out, struct husk_error *err)
{
	cleanup_free char *path = NULL, *reference = NULL, *name = NULL;
	struct husk_error why = { 0 };

	if (daytona_name("FROM", image, &name, err) < 0)
		return -1;
	if (husk_image_find(request_husk(request), image, &path, &reference, &why) < 0) {
		if (why.code != HUSK_NOT_FOUND)
			return husk_fail(err, why.code, "%s", why.message);
		*out = steal_pointer(name); /* may be a template or a snapshot */
		return 0;
	}
	cleanup_free char *template = str_format("image-%s", name);
	struct husk_build_options options = { .name = template, .image = path, .reference = reference };
	if (!template)
		return husk_fail_memory(err);
	if (template_import(request_husk(request), &options, err) < 0)
		return -1;
	*out = steal_pointer(template);
	return 0;
}

static int from(struct builder *builder, const char *image, struct husk_error *err)
{
	static const struct husk_egress open = { .mode = "open" };
	struct husk_create_options options = { .ttl_seconds = BUILD_SECONDS,
					       .memory_bytes = BUILD_MEMORY,
					       .egress = &open };
	cleanup_free char *template = NULL, *shown = NULL, *plain = strndup(image, strcspn(image, " \t"));
	struct husk_sandbox *sandbox = NULL;

	if (builder->sandbox)
		return dialect_unsupported(builder->request, "a Dockerfile with more than one FROM", err);
	if (!plain)
		return husk_fail_memory(err);
	if (image_template(builder->request, plain, &template, err) < 0)
		return -1;
	if (daytona_create(builder->request, template, &options, &sandbox, &shown, err) < 0) {
		if (err->code != HUSK_NOT_FOUND)
			return -1;
		return daytona_fail(
			builder->request, 400, NULL,
			"the image '%.120s' is not on this host; save it (docker save) into the folder images of "
			"the instance, or use a template's name",
			plain);
	}
	builder->sandbox = strdup(sandbox->id);
	husk_sandbox_free(sandbox);
	return builder->sandbox ? 0 : husk_fail_memory(err);
}

/* ---- steps ---- */

static int run(struct builder *builder, const char *command, struct husk_error *err)
{
	struct husk_exec_options options = { .shell = NULL, .timeout_ms = BUILD_SECONDS * 1000 };
	struct husk_result result = { 0 };
	cleanup_free char *script =
		str_format("%s%s", builder->environment.data ? builder->environment.data : "", command);
	const char *argv[] = { "/bin/sh", "-c", script, NULL };

	if (!script)
		return husk_fail_memory(err);
	options.argv = argv;
	options.user = builder->user;
	options.cwd = builder->directory;
	if (husk_run(builder->husk, builder->sandbox, &options, &result, err) < 0)
		return -1;
	int code = result.exit_code;
	const char *said = result.error_output_size ? result.error_output : result.output;
	size_t size = strlen(said), skip = size > COMPLAINT_BYTES ? size - COMPLAINT_BYTES : 0;
	if (code)
		daytona_fail(builder->request, 400, NULL, "the build failed: '%.200s' ended with %d: %s", command, code,
			     said + skip);
	husk_result_free(&result);
	return code ? -1 : 0;
}

/* 'text' for a shell. */
static int put_quoted(struct buf *out, const char *text)
{
	int failed = buf_append_string(out, "'");

	for (; *text; text++)
		failed |= *text == '\'' ? buf_append_string(out, "'\\''") : buf_append(out, text, 1);
	return failed | buf_append_string(out, "'");
}

/* One word of an ENV or LABEL line without its quotes; *at moves past it. Caller frees. */
static char *word(const char **at)
{
	cleanup_buf struct buf out = { 0 };
	char quote = '\0';

	*at += strspn(*at, " \t");
	for (; **at && (quote || !strchr(" \t", **at)); (*at)++) {
		if (!quote && (**at == '"' || **at == '\''))
			quote = **at;
		else if (quote && **at == quote)
			quote = '\0';
		else if (**at == '\\' && quote != '\'' && (*at)[1])
			buf_append(&out, ++*at, 1);
		else
			buf_append(&out, *at, 1);
	}
	return buf_steal(&out);
}

static bool is_variable(const char *name, size_t size)
{
	return size && strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") >= size;
}

/* ENV key=value …, or ENV key value: for later steps, and for every shell of the sandbox. */
static int environment(struct builder *builder, const char *rest, struct husk_error *err)
{
	bool old = strcspn(rest, "=") > strcspn(rest, " \t");
	cleanup_buf struct buf lines = { 0 };

	while (*rest) {
		cleanup_free char *pair = word(&rest);
		char *equals = pair ? strchr(pair, '=') : NULL;
		const char *value = equals ? equals + 1 : rest + strspn(rest, " \t");
		size_t size = pair ? (equals ? (size_t)(equals - pair) : strlen(pair)) : 0;
		if (!pair || !is_variable(pair, size) || (!equals && !old))
			return husk_fail_field(err, "dockerfileContent", "ENV '%.80s' is not key=value",
					       pair ? pair : "");
		if (buf_printf(&lines, "export %.*s=", (int)size, pair) < 0 || put_quoted(&lines, value) < 0 ||
		    buf_append_string(&lines, "\n") < 0)
			return husk_fail_memory(err);
		if (old)
			break;
		rest += strspn(rest, " \t");
	}
	if (buf_append(&builder->environment, lines.data ? lines.data : "", lines.size) < 0)
		return husk_fail_memory(err);
	return 0;
}

static int directory(struct builder *builder, const char *rest, struct husk_error *err)
{
	const char *at = rest;
	cleanup_free char *path = word(&at);
	char *joined = !path            ? NULL
		       : path[0] == '/' ? strdup(path)
					: str_format("%s/%s", builder->directory ? builder->directory : "", path);
	const char *argv[] = { "/bin/mkdir", "-p", "--", joined, NULL };
	struct husk_exec_options options = { .argv = argv, .timeout_ms = 30000, .user = builder->user };
	struct husk_result result = { 0 };

	if (!joined)
		return husk_fail_memory(err);
	free(builder->directory);
	builder->directory = joined;
	if (husk_run(builder->husk, builder->sandbox, &options, &result, err) < 0)
		return -1;
	husk_result_free(&result);
	return 0;
}

static int user(struct builder *builder, const char *rest, struct husk_error *err)
{
	free(builder->user);
	builder->user = strndup(rest, strcspn(rest, " \t:"));
	return builder->user ? 0 : husk_fail_memory(err);
}

static int nothing(struct builder *builder, const char *rest, struct husk_error *err)
{
	(void)builder, (void)rest, (void)err;
	return 0;
}

static int copy(struct builder *builder, const char *rest, struct husk_error *err)
{
	(void)rest;
	return dialect_unsupported(builder->request, "COPY and ADD in a Dockerfile (files of the client's disk)", err);
}

static int step(struct builder *builder, const char *line, struct husk_error *err)
{
	static const struct {
		const char *name;
		int (*run)(struct builder *builder, const char *rest, struct husk_error *err);
	} steps[] = {
		{ "FROM", from },          { "RUN", run },        { "ENV", environment },
		{ "WORKDIR", directory },  { "USER", user },      { "COPY", copy },
		{ "ADD", copy },           { "CMD", nothing },    { "ENTRYPOINT", nothing },
		{ "LABEL", nothing },      { "EXPOSE", nothing }, { "MAINTAINER", nothing },
		{ "STOPSIGNAL", nothing }, { "SHELL", nothing },  { "HEALTHCHECK", nothing },
	};
	size_t size = strcspn(line, " \t");
	const char *rest = line + size + strspn(line + size, " \t");

	if (++builder->steps > STEPS_MAX)
		return husk_fail_field(err, "dockerfileContent", "the Dockerfile has more than %d steps", STEPS_MAX);
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		if (strlen(steps[i].name) != size || strncasecmp(steps[i].name, line, size) != 0)
			continue;
		if (!builder->sandbox && steps[i].run != from)
			return husk_fail_field(err, "dockerfileContent", "the Dockerfile does not begin with FROM");
		return steps[i].run(builder, rest, err);
	}
	cleanup_free char *name = strndup(line, MIN(size, 40u));
	cleanup_free char *what = str_format("%s in a Dockerfile", name ? name : "this");
	return dialect_unsupported(builder->request, what ? what : "this step", err);
}

/* A line that ends in a backslash continues; comments do not count. */
static int steps(struct builder *builder, const char *text, struct husk_error *err)
{
	cleanup_buf struct buf line = { 0 };

	while (*text) {
		size_t size = strcspn(text, "\n"), kept = size;
		const char *first = text + strspn(text, " \t\r");
		bool comment = *first == '#' || first >= text + size;
		while (kept && strchr(" \t\r", text[kept - 1]))
			kept--;
		bool more = kept && text[kept - 1] == '\\';
		const char *from_at = line.size ? text : first;
		size_t length = (size_t)(text + kept - (more ? 1 : 0) - from_at);
		if (!comment && buf_append(&line, from_at, length) < 0)
			return husk_fail_memory(err);
		text += size + (text[size] == '\n');
		if (more || (comment && line.size && *text))
			continue;
		if (line.size && step(builder, line.data, err) < 0)
			return -1;
		buf_consume(&line, line.size);
	}
	return line.size ? step(builder, line.data, err) : 0;
}

/* Variables of ENV for later use: by each login shell, and by each command (daytona_run.c reads it). */
static int leave_environment(struct builder *builder, struct husk_error *err)
{
	static const char script[] = "mkdir -p /etc/profile.d && cat >/etc/profile.d/daytona.sh";
	const char *argv[] = { "/bin/sh", "-c", script, NULL };
	struct husk_exec_options options = { .argv = argv, .keep_stdin = true, .timeout_ms = 30000 };
	struct husk_process *process = NULL;
	struct husk_process_event event = { 0 };

	if (!builder->environment.size)
		return 0;
	if (husk_exec(builder->husk, builder->sandbox, &options, &process, NULL, err) < 0)
		return -1;
	int result = husk_process_write(process, builder->environment.data, builder->environment.size, err);
	if (result == 0)
		result = husk_process_close_stdin(process, err);
	while (result == 0 && event.kind != HUSK_EXIT)
		result = husk_process_next(process, &event, err);
	husk_process_free(process);
	return result;
}

int daytona_build_named(struct request *request, json_t *info, const char *name, struct husk_error *err)
{
	cleanup(builder_cleanup) struct builder builder = { .request = request, .husk = request_husk(request) };
	const char *text = json_string_value(json_object_get(info, "dockerfileContent"));
	struct husk_snapshot *snapshot = NULL;

	if (!text || !*text || strlen(text) > TEXT_MAX)
		return husk_fail_field(err, "dockerfileContent",
				       "dockerfileContent is missing, or longer than %u bytes", TEXT_MAX);
	if (json_array_size(json_object_get(info, "contextHashes")))
		return dialect_unsupported(request, "local files of an image (contextHashes)", err);
	if (steps(&builder, text, err) < 0)
		return -1;
	if (!builder.sandbox)
		return husk_fail_field(err, "dockerfileContent", "the Dockerfile has no FROM");
	if (leave_environment(&builder, err) < 0 ||
	    husk_snapshot_create(builder.husk, builder.sandbox, name, &snapshot, err) < 0)
		return -1;
	husk_snapshot_free(snapshot);
	return 0;
}

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

int daytona_build(struct request *request, json_t *info, char **snapshot, struct husk_error *err)
{
	const char *text = json_string_value(json_object_get(info, "dockerfileContent"));
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned size = 0;
	char name[64] = "daytona-build-";

	if (!text || EVP_Digest(text, strlen(text), digest, &size, EVP_sha256(), NULL) != 1)
		return husk_fail_field(err, "buildInfo", "buildInfo has no dockerfileContent");
	for (size_t i = 0, at = strlen(name); i < 12; i++, at += 2)
		snprintf(name + at, 3, "%02x", digest[i]);
	free(*snapshot);
	*snapshot = strdup(name);
	if (!*snapshot)
		return husk_fail_memory(err);
	return is_there(request, name) ? 0 : daytona_build_named(request, info, name, err);
}
