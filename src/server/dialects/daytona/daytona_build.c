/*
 * Daytona's builds: from a Dockerfile to a snapshot. FROM names a container image of the instance, one of a registry that
 * the server's owner lists, or a template. RUN, ENV, ARG, WORKDIR and USER run in a sandbox that is created for the build, with the size that the caller
 * asked for, and saved as a snapshot at the end. A build belongs to its request: it is finished when the answer is sent, and
 * the sandbox of a killed server ends by its TTL. COPY of the client's files would need object storage, and is refused with
 * an error that names it.
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
	const struct husk_create_options *size; /* of whom only processors, memory and disk count */
	char *sandbox;
	char *user, *directory;
	struct buf environment; /* a script of exports, for what the sandbox is to know later */
	struct buf arguments;   /* the same for what only the build knows */
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
	buf_free(&builder->arguments);
}

/* ---- FROM ---- */

static int pull_stops(void *data, const struct husk_pull_progress *progress)
{
	(void)progress;
	return request_over(data);
}

/* Among those of this host, or fetched from a registry that the server's owner lists. NOT_FOUND: neither. */
static int find_image(struct request *request, const char *image, char **path, char **reference, struct husk_error *err)
{
	const struct husk_pull_options options = { .name = image, .progress = pull_stops, .data = request };
	cleanup_image struct husk_image *pulled = NULL;

	if (husk_image_find(request_husk(request), image, path, reference, err) == 0)
		return 0;
	if (err->code != HUSK_NOT_FOUND || !husk_image_is_name(image) ||
	    !husk_image_allowed(image, getenv("HUSK_PULL_REGISTRIES")))
		return -1;
	/* Images are the instance's, as when its owner pulls them. */
	struct husk_error why = { 0 };
	if (husk_image_pull(request_owner(request), &options, &pulled, &why) < 0)
		return daytona_fail(request, 400, NULL, "the image '%.120s' cannot be pulled: %s", image, why.message);
	return husk_image_find(request_husk(request), pulled->name, path, reference, err);
}

/* The template of an image is made once, and found by its name later. */
static int image_template(struct request *request, const char *image, char **out, struct husk_error *err)
{
	cleanup_free char *path = NULL, *reference = NULL, *name = NULL;
	struct husk_error why = { 0 };

	if (daytona_name("FROM", image, &name, err) < 0)
		return -1;
	if (find_image(request, image, &path, &reference, &why) < 0) {
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
	const struct husk_create_options *size = builder->size;
	struct husk_create_options options = { .ttl_seconds = BUILD_SECONDS,
					       .cpu_milli = size->cpu_milli,
					       .memory_bytes = size->memory_bytes ? size->memory_bytes : BUILD_MEMORY,
					       .disk_bytes = size->disk_bytes,
					       .egress = &open };
	cleanup_free char *template = NULL, *shown = NULL, *plain = strndup(image, strcspn(image, " \t"));
	struct husk_sandbox *sandbox = NULL;

	if (builder->sandbox)
		return dialect_unsupported(builder->request, "a Dockerfile with more than one FROM", err);
	if (strchr(image, '$'))
		return dialect_unsupported(builder->request, "a variable in FROM", err);
	if (!plain)
		return husk_fail_memory(err);
	if (image_template(builder->request, plain, &template, err) < 0)
		return -1;
	if (daytona_create(builder->request, template, &options, &sandbox, &shown, err) < 0) {
		if (err->code != HUSK_NOT_FOUND)
			return -1;
		return daytona_fail(
			builder->request, 400, NULL,
			"the image '%.120s' is not on this host; use a template's name, or let the server's owner run "
			"husk pull, list its registry in HUSK_PULL_REGISTRIES, or save it (docker save) into the "
			"folder "
			"images of the instance",
			plain);
	}
	builder->sandbox = strdup(sandbox->id);
	husk_sandbox_free(sandbox);
	return builder->sandbox ? 0 : husk_fail_memory(err);
}

/* ---- steps ---- */

/* A script with the variables of the steps before, as the user and in the directory that they left. */
static int run_script(struct builder *builder, const char *script, const char *const *arguments,
		      struct husk_result *result, struct husk_error *err)
{
	const char *known = builder->arguments.data, *environment = builder->environment.data;
	cleanup_free char *text = str_format("%s%s%s", known ? known : "", environment ? environment : "", script);
	size_t count = 0;

	while (arguments && arguments[count])
		count++;
	cleanup_free const char **argv = calloc(count + 5, sizeof(*argv));
	if (!text || !argv)
		return husk_fail_memory(err);
	argv[0] = "/bin/sh";
	argv[1] = "-c";
	argv[2] = text;
	argv[3] = "sh";
	for (size_t i = 0; i < count; i++)
		argv[4 + i] = arguments[i];
	struct husk_exec_options options = {
		.argv = argv, .user = builder->user, .cwd = builder->directory, .timeout_ms = BUILD_SECONDS * 1000
	};
	return husk_run(builder->husk, builder->sandbox, &options, result, err);
}

/* ["program", "argument"], borrowed from *array; caller frees both. NULL: it is a line for the shell. */
static const char **exec_form(const char *command, json_t **array)
{
	bool maybe = command[0] == '[' && !str_json_deeper(command, strlen(command), 2);

	*array = maybe ? json_loads(command, 0, NULL) : NULL;
	size_t count = json_array_size(*array);
	const char **words = count ? calloc(count + 1, sizeof(*words)) : NULL;
	for (size_t i = 0; words && i < count; i++)
		words[i] = json_string_value(json_array_get(*array, i));
	return words;
}

static int run(struct builder *builder, const char *command, struct husk_error *err)
{
	cleanup_json json_t *array = NULL;
	cleanup_free const char **words = exec_form(command, &array);
	struct husk_result result = { 0 };

	if (str_starts(command, "--"))
		return dialect_unsupported(builder->request, "an option of RUN (--mount, --network)", err);
	if (run_script(builder, words ? "exec \"$@\"" : command, words, &result, err) < 0)
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

/* One that a shell reads as itself between double quotes. */
static int put_plain(struct buf *out, char byte)
{
	return (strchr("\"\\$`", byte) ? buf_append_string(out, "\\") : 0) | buf_append(out, &byte, 1);
}

/* $NAME or ${NAME…}, which the shell replaces; 0: it is neither. */
static size_t variable_size(const char *at)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
	size_t name = strspn(at + (at[1] == '{' ? 2 : 1), letters);

	if (at[0] != '$' || !name || at[1] != '{')
		return at[0] == '$' && name ? name + 1 : 0;
	size_t rest = strspn(at + 2 + name, ":+-./=, ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789");
	return at[2 + name + rest] == '}' ? name + rest + 3 : 0;
}

/* A word, or all that is left, with its quotes taken off: as a text for a shell's double quotes, in which variables stay
 * variables unless they were in single quotes. *at moves behind it. Caller frees. */
static char *word(const char **at, bool to_end)
{
	cleanup_buf struct buf out = { 0 };
	char quote = '\0';
	int failed = 0;

	for (*at += strspn(*at, " \t"); **at && (quote || to_end || !strchr(" \t", **at)); (*at)++) {
		size_t variable = quote == '\'' ? 0 : variable_size(*at);
		if (variable) {
			failed |= buf_append(&out, *at, variable);
			*at += variable - 1;
		} else if (!quote && (**at == '"' || **at == '\'')) {
			quote = **at;
		} else if (quote && **at == quote) {
			quote = '\0';
		} else {
			*at += **at == '\\' && quote != '\'' && (*at)[1];
			failed |= put_plain(&out, **at);
		}
	}
	return failed ? NULL : buf_steal(&out);
}

/* The same as the shell of the build reads it, with the variables of the steps before. Caller frees. */
static int value(struct builder *builder, const char **at, bool to_end, char **out, struct husk_error *err)
{
	cleanup_free char *text = word(at, to_end);
	cleanup_free char *script = text ? str_format("printf %%s \"%s\"", text) : NULL;
	struct husk_result result = { 0 };

	if (!script)
		return husk_fail_memory(err);
	if (run_script(builder, script, NULL, &result, err) < 0)
		return -1;
	*out = result.exit_code || result.output_size > TEXT_MAX ? NULL : strdup(result.output);
	husk_result_free(&result);
	return *out ? 0 : husk_fail_field(err, "dockerfileContent", "'%.80s' cannot be read", text);
}

/* The name before "=" or a space; *at moves to what is behind the name. */
static int variable(const char **at, char **name, struct husk_error *err)
{
	*at += strspn(*at, " \t");
	size_t size = strcspn(*at, "= \t");
	*name = strndup(*at, size);
	if (!*name)
		return husk_fail_memory(err);
	if (!size || (*name)[strspn(*name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")])
		return husk_fail_field(err, "dockerfileContent", "'%.80s' is not key=value", *at);
	*at += size;
	return 0;
}

static int export(struct buf *script, const char *name, const char *text, struct husk_error *err)
{
	if (buf_printf(script, "export %s=", name) < 0 || put_quoted(script, text) < 0 ||
	    buf_append_string(script, "\n") < 0)
		return husk_fail_memory(err);
	return 0;
}

/* ENV key=value …, or ENV key value: for later steps, and for every shell of the sandbox. */
static int environment(struct builder *builder, const char *rest, struct husk_error *err)
{
	while (*rest) {
		cleanup_free char *name = NULL, *text = NULL;
		if (variable(&rest, &name, err) < 0)
			return -1;
		bool old = *rest != '=';
		rest += !old;
		if (value(builder, &rest, old, &text, err) < 0 || export(&builder->environment, name, text, err) < 0)
			return -1;
		rest += strspn(rest, " \t");
	}
	return 0;
}

/* ARG key[=value]: for later steps alone. One before FROM is for FROM alone. */
static int argument(struct builder *builder, const char *rest, struct husk_error *err)
{
	cleanup_free char *name = NULL, *text = NULL;

	if (variable(&rest, &name, err) < 0)
		return -1;
	if (!builder->sandbox || *rest != '=')
		return 0;
	rest++;
	return value(builder, &rest, false, &text, err) < 0 ? -1 : export(&builder->arguments, name, text, err);
}

static int directory(struct builder *builder, const char *rest, struct husk_error *err)
{
	cleanup_free char *path = NULL;

	if (value(builder, &rest, true, &path, err) < 0)
		return -1;
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
	return dialect_unsupported(builder->request, DAYTONA_LOCAL_FILES, err);
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
		{ "VOLUME", nothing },     { "ARG", argument },
	};
	size_t size = strcspn(line, " \t");
	const char *rest = line + size + strspn(line + size, " \t");

	if (++builder->steps > STEPS_MAX)
		return husk_fail_field(err, "dockerfileContent", "the Dockerfile has more than %d steps", STEPS_MAX);
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		if (strlen(steps[i].name) != size || strncasecmp(steps[i].name, line, size) != 0)
			continue;
		if (!builder->sandbox && steps[i].run != from && steps[i].run != argument)
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

int daytona_build_named(struct request *request, json_t *info, const struct husk_create_options *size, const char *name,
			struct husk_error *err)
{
	cleanup(builder_cleanup) struct builder builder = { .request = request,
							    .husk = request_husk(request),
							    .size = size };
	const char *text = json_string_value(json_object_get(info, "dockerfileContent"));
	struct husk_snapshot *snapshot = NULL;

	if (!text || !*text || strlen(text) > TEXT_MAX)
		return husk_fail_field(err, "dockerfileContent",
				       "dockerfileContent is missing, or longer than %u bytes", TEXT_MAX);
	if (json_array_size(json_object_get(info, "contextHashes")))
		return dialect_unsupported(request, DAYTONA_LOCAL_FILES, err);
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

int daytona_build(struct request *request, json_t *info, const struct husk_create_options *size, char **snapshot,
		  struct husk_error *err)
{
	const char *text = json_string_value(json_object_get(info, "dockerfileContent"));
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned digest_size = 0;
	char name[64] = "daytona-build-";

	if (!text)
		return husk_fail_field(err, "buildInfo", "buildInfo has no dockerfileContent");
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
	return is_there(request, name) ? 0 : daytona_build_named(request, info, size, name, err);
}
