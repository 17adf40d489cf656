/*
 * E2B's code interpreter (what its clients reach on port 49999 of a sandbox): POST /execute as lines of JSON, and the
 * contexts. A context's id is "<language>:<name>". A client that goes away has its code interrupted, since the context runs
 * one thing after the other and the next would wait for it. What the code says is the guest's and passed on as text.
 */
#include <signal.h>

#include "server/core.h"
#include "server/e2b.h"

#define KEEPALIVE_MS 30000

/* ---- languages and contexts ---- */

static const char *language_of(const char *name)
{
	static const char *const other[][2] = { { "js", "javascript" }, { "py", "python" }, { "sh", "bash" } };

	for (size_t i = 0; name && i < ARRAY_SIZE(other); i++)
		if (str_equal(name, other[i][0]))
			return other[i][1];
	return name ? name : "python";
}

static int check_language(struct request *request, const char *language, struct husk_error *err)
{
	static const char *const beyond[] = { "typescript", "ts", "r", "java", "deno" };

	for (size_t i = 0; i < ARRAY_SIZE(beyond); i++) {
		if (str_equal(language, beyond[i])) {
			char what[64];
			snprintf(what, sizeof(what), "the language '%s'", language);
			return e2b_unsupported(request, what, err);
		}
	}
	return 0;
}

/* "python:ctx-…" to both. NOT_FOUND: there is no such context. */
static int find_context(struct request *request, const char *id, char **language, char **name, int64_t *pid,
			struct husk_error *err)
{
	struct husk_code_context *list = NULL;
	const char *colon = strchr(id, ':');
	size_t count = 0;
	bool found = false;

	if (husk_code_contexts(request_husk(request), request_path(request, "id"), &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; colon && i < count && !found; i++) {
		if (strncmp(list[i].language, id, (size_t)(colon - id)) != 0 || !str_equal(list[i].name, colon + 1))
			continue;
		found = true;
		*language = steal_pointer(list[i].language);
		*name = steal_pointer(list[i].name);
		*pid = list[i].pid;
	}
	husk_code_context_list_free(list, count);
	return found ? 0 : husk_fail(err, HUSK_NOT_FOUND, "context '%.80s' not found", id);
}

/* ---- one run ---- */

struct run {
	struct request *request;
	const char *language, *context;
	bool begun, broken;
	struct husk_error failure; /* of the client's side */
};

static int send_line(struct run *run, json_t *document, struct husk_error *err)
{
	cleanup_json json_t *taken = document;
	cleanup_free char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;
	cleanup_buf struct buf line = { 0 };

	if (!text || buf_append_string(&line, text) < 0 || buf_append_string(&line, "\n") < 0)
		return husk_fail_memory(err);
	if (!run->begun && stream_begin(run->request, 200, "application/x-ndjson", -1, err) < 0)
		return -1;
	run->begun = true;
	return stream_write(run->request, line.data, line.size, err);
}

/* A result under the names that E2B's clients have for its forms; other types go under their own. */
static json_t *result_document(const struct husk_code_event *event)
{
	static const char *const names[][2] = {
		{ "text/html", "html" },
		{ "text/markdown", "markdown" },
		{ "image/svg+xml", "svg" },
		{ "image/png", "png" },
		{ "image/jpeg", "jpeg" },
		{ "application/pdf", "pdf" },
		{ "text/latex", "latex" },
		{ "application/json", "json" },
		{ "application/javascript", "javascript" },
		{ "application/vnd.husk.chart+json", "chart" },
		{ "application/vnd.husk.data+json", "data" },
		{ "text/plain", "text" },
	};
	cleanup_json json_t *bundle = event->bundle ? json_loads(event->bundle, 0, NULL) : NULL;
	json_t *document = json_pack("{s:s, s:b}", "type", "result", "is_main_result", event->main_result), *value;
	const char *type;

	json_object_foreach(bundle, type, value)
	{
		const char *name = type;
		for (size_t i = 0; i < ARRAY_SIZE(names); i++)
			if (str_equal(type, names[i][0]))
				name = names[i][1];
		if (document)
			json_object_set(document, name, value);
	}
	if (document && event->text)
		json_object_set_new(document, "text", json_text0(event->text));
	return document;
}

static json_t *event_document(const struct husk_code_event *event)
{
	switch (event->kind) {
	case HUSK_CODE_STDOUT:
	case HUSK_CODE_STDERR:
		return json_pack("{s:s, s:o}", "type", event->kind == HUSK_CODE_STDOUT ? "stdout" : "stderr", "text",
				 json_text0(event->text ? event->text : ""));
	case HUSK_CODE_ERROR:
		return json_pack("{s:s, s:o, s:o, s:o}", "type", "error", "name", json_text0(event->name), "value",
				 json_text0(event->value), "traceback", json_text0(event->text));
	default:
		return result_document(event);
	}
}

static void on_event(void *data, const struct husk_code_event *event)
{
	struct run *run = data;

	if (!run->broken)
		run->broken = send_line(run, event_document(event), &run->failure) < 0;
}

/* Clients give up on an answer without a head, and on one that falls silent; types they do not know they pass over. */
static bool keep_warm(struct run *run)
{
	run->broken = send_line(run, json_pack("{s:s}", "type", "keepalive"), &run->failure) < 0;
	return !run->broken;
}

static int wait_for_code(void *data, int fd, int timeout_ms)
{
	struct run *run = data;
	int64_t deadline = time_monotonic_ms() + timeout_ms;

	if (!run->broken && !run->begun)
		keep_warm(run);
	while (!run->broken) {
		int64_t left = timeout_ms < 0 ? KEEPALIVE_MS : MAX(0, deadline - time_monotonic_ms());
		int ready = request_wait(run->request, fd, (int)MIN(left, KEEPALIVE_MS));
		if (ready != 0 || (timeout_ms >= 0 && time_monotonic_ms() >= deadline))
			return ready;
		keep_warm(run);
	}
	return -1;
}

static void interrupt(struct run *run)
{
	cleanup_free char *id = str_format("%s:%s", run->language, run->context);
	cleanup_free char *language = NULL, *name = NULL;
	int64_t pid = 0;

	if (id && find_context(run->request, id, &language, &name, &pid, NULL) == 0)
		husk_process_kill(request_husk(run->request), request_path(run->request, "id"), pid, SIGINT, NULL);
}

/* ---- the environment of one run ---- */

static void ignore_event(void *data, const struct husk_code_event *event)
{
	(void)data, (void)event;
}

static int run_quietly(struct run *run, const char *cwd, char *code, struct husk_error *err)
{
	cleanup_free char *owned = code;
	struct husk_code_options options = {
		.language = run->language, .context = run->context, .code = code, .cwd = cwd
	};

	if (!code)
		return husk_fail_memory(err);
	return husk_code_run(request_husk(run->request), request_path(run->request, "id"), &options, ignore_event, NULL,
			     NULL, err);
}

/* 'text' for a shell. */
static int put_quoted(struct buf *out, const char *text)
{
	int failed = buf_append_string(out, "'");

	for (; *text; text++)
		failed |= *text == '\'' ? buf_append_string(out, "'\\''") : buf_append(out, text, 1);
	return failed | buf_append_string(out, "'");
}

static bool is_variable(const char *name)
{
	return *name && strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name);
}

static char *bash_environment(json_t *variables, bool set)
{
	cleanup_buf struct buf code = { 0 };
	const char *name;
	json_t *value;
	int failed = 0;

	json_object_foreach(variables, name, value)
	{
		if (!is_variable(name))
			continue;
		if (!set) {
			failed |= buf_printf(
				&code,
				"if [ -n \"${__husk_%s+x}\" ]; then export %s=\"$__husk_%s\"; else unset %s; fi;"
				" unset __husk_%s;",
				name, name, name, name, name);
			continue;
		}
		failed |= buf_printf(&code, "[ -z \"${%s+x}\" ] || __husk_%s=\"$%s\"; export %s=", name, name, name,
				     name);
		failed |= put_quoted(&code, json_string_value(value));
		failed |= buf_append_string(&code, ";");
	}
	return failed ? NULL : buf_steal(&code);
}

/* Code that sets the variables in the context, or puts back what was there. */
static char *environment_code(const char *language, json_t *variables, bool set)
{
	cleanup_free char *text = json_dumps(variables, JSON_COMPACT);
	cleanup_json json_t *holder = text ? json_string(text) : NULL;
	cleanup_free char *literal = holder ? json_dumps(holder, JSON_ENCODE_ANY) : NULL;

	if (!literal)
		return NULL;
	if (str_equal(language, "bash"))
		return bash_environment(variables, set);
	if (str_equal(language, "javascript"))
		return set ? str_format("globalThis.__husk_env = Object.assign({}, process.env);"
					"Object.assign(process.env, JSON.parse(%s)); undefined",
					literal)
			   : str_format("for (const k of Object.keys(JSON.parse(%s))) if (k in globalThis.__husk_env)"
					" process.env[k] = globalThis.__husk_env[k]; else delete process.env[k]; "
					"undefined",
					literal);
	return set ? str_format("import os as __o, json as __j; __v = __j.loads(%s);"
				" __s = {k: __o.environ.get(k) for k in __v}; __o.environ.update(__v)",
				literal)
		   : strdup("for __k, __x in __s.items(): __o.environ.pop(__k, None) if __x is None else"
			    " __o.environ.__setitem__(__k, __x)");
}

/* ---- POST /execute ---- */

static int finish(struct run *run, int64_t executions, struct husk_error *err)
{
	if (executions && send_line(run,
				    json_pack("{s:s, s:I}", "type", "number_of_executions", "execution_count",
					      (json_int_t)executions),
				    err) < 0)
		return -1;
	return send_line(run, json_pack("{s:s}", "type", "end_of_execution"), err);
}

static int execute(struct run *run, const char *code, const char *cwd, json_t *variables, struct husk_error *err)
{
	struct request *request = run->request;
	int64_t executions = 0;
	struct husk_code_options options = { .language = run->language,
					     .context = run->context,
					     .code = code,
					     .cwd = cwd,
					     .executions = &executions,
					     .wait = wait_for_code,
					     .wait_data = run };
	bool timed_out;

	if (variables && run_quietly(run, cwd, environment_code(run->language, variables, true), err) < 0)
		return -1;
	int result = husk_code_run(request_husk(request), request_path(request, "id"), &options, on_event, run,
				   &timed_out, err);
	if (run->broken || request_over(request)) {
		interrupt(run);
		return husk_fail(err, HUSK_GONE, "the client went away; its code was interrupted");
	}
	if (result == 0 && variables)
		result = run_quietly(run, cwd, environment_code(run->language, variables, false), err);
	if (result == 0)
		return finish(run, executions, err);
	if (!run->begun)
		return -1;
	/* The head is out: that the context ended is told as an error of the code. */
	if (send_line(run,
		      json_pack("{s:s, s:s, s:o, s:s}", "type", "error", "name", "ContextError", "value",
				json_text0(err->message), "traceback", ""),
		      err) < 0)
		return -1;
	return finish(run, 0, err);
}

static int handle_execute(struct request *request, struct husk_error *err)
{
	json_t *body = request_read_json(request, err);
	struct run run = { .request = request, .context = "default" };
	cleanup_free char *language = NULL, *name = NULL, *home = NULL;
	cleanup_free struct husk_pair *pairs = NULL;
	struct fields fields;
	size_t count = 0;
	int64_t pid;

	if (!body)
		return -1;
	fields_begin(&fields, body);
	const char *code = fields_string(&fields, "code");
	const char *context = fields_string(&fields, "context_id");
	const char *wanted = fields_string(&fields, "language");
	pairs = fields_pairs(&fields, "env_vars", &count);
	if (e2b_fields_done(&fields, err) < 0)
		return -1;
	if (!code)
		return husk_fail_field(err, "code", "code is missing; give the source text to run");
	run.language = language_of(wanted);
	if (check_language(request, run.language, err) < 0 || e2b_home(request, E2B_USER, &home, err) < 0 ||
	    (context && find_context(request, context, &language, &name, &pid, err) < 0))
		return -1;
	if (context) {
		run.language = language;
		run.context = name;
	}
	return execute(&run, code, home, count ? json_object_get(body, "env_vars") : NULL, err);
}

/* ---- contexts ---- */

static json_t *context_document(const char *language, const char *name, const char *cwd)
{
	return json_pack("{s:o, s:s, s:o}", "id", json_sprintf("%s:%s", language, name), "language", language, "cwd",
			 json_text0(cwd));
}

static int handle_contexts(struct request *request, struct husk_error *err)
{
	struct husk_code_context *list = NULL;
	cleanup_json json_t *array = json_array();
	size_t count = 0;
	int failed = 0;

	if (husk_code_contexts(request_husk(request), request_path(request, "id"), &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++)
		failed |= json_array_append_new(array, context_document(list[i].language, list[i].name, list[i].cwd));
	husk_code_context_list_free(list, count);
	return failed ? husk_fail_memory(err) : respond_json(request, 200, json_incref(array), err);
}

static int handle_create(struct request *request, struct husk_error *err)
{
	json_t *body = request_json(request, err);
	cleanup_free char *cwd = NULL;
	struct fields fields;
	char name[32];

	if (!body)
		return -1;
	fields_begin(&fields, body);
	const char *language = language_of(fields_string(&fields, "language"));
	const char *given = fields_string(&fields, "cwd");
	if (e2b_fields_done(&fields, err) < 0 || check_language(request, language, err) < 0 ||
	    e2b_path(request, E2B_USER, given ? given : "", &cwd, err) < 0)
		return -1;
	if (random_id("ctx-", 16, name) < 0)
		return husk_fail_errno(err, "cannot make a context's name");
	struct run run = { .request = request, .language = language, .context = name };
	if (run_quietly(&run, cwd, strdup(""), err) < 0)
		return -1;
	return respond_json(request, 200, context_document(language, name, cwd), err);
}

static int change(struct request *request,
		  int (*action)(struct husk *husk, const char *sandbox, const char *context, struct husk_error *err),
		  struct husk_error *err)
{
	if (action(request_husk(request), request_path(request, "id"), request_path(request, "context"), err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

static int handle_restart(struct request *request, struct husk_error *err)
{
	return change(request, husk_code_restart, err);
}

static int handle_remove(struct request *request, struct husk_error *err)
{
	return change(request, husk_code_remove, err);
}

const struct route e2b_code_routes[] = {
	{ "POST", "/execute", handle_execute, E2B_DATA | ROUTE_STREAM },
	{ "GET", "/contexts", handle_contexts, E2B_DATA },
	{ "POST", "/contexts", handle_create, E2B_DATA },
	{ "POST", "/contexts/{context}/restart", handle_restart, E2B_DATA },
	{ "DELETE", "/contexts/{context}", handle_remove, E2B_DATA },
	{ 0 },
};
