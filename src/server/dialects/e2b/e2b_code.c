/*
 * E2B's code interpreter (which its clients reach on port 49999 of a sandbox): POST /execute, which answers with lines of
 * JSON, and routes for contexts. A context's id is "<language>:<name>". When a client disconnects, its code is interrupted,
 * because a context runs one request at a time. Output is the guest's and is passed on as text.
 */
#include <signal.h>

#include "server/core.h"
#include "server/dialects/e2b/e2b.h"

#define KEEPALIVE_MS 30000

/* ---- languages and contexts ---- */

/* As in E2B's server, case does not count. */
static const char *language_of(const char *name)
{
	static const char *const names[][2] = {
		{ "python", "python" },
		{ "javascript", "javascript" },
		{ "typescript", "typescript" },
		{ "bash", "bash" },
		{ "r", "r" },
		{ "java", "java" },
		{ "py", "python" },
		{ "python3", "python" },
		{ "js", "javascript" },
		{ "ts", "typescript" },
		{ "sh", "bash" },
	};

	for (size_t i = 0; name && i < ARRAY_SIZE(names); i++)
		if (strcasecmp(name, names[i][0]) == 0)
			return names[i][1];
	return name ? name : "python";
}

/* E2B lists a default context of Python and one of JavaScript. The template has the first; the second starts with its first
 * run, and exists for clients before that. */
#define LAZY_LANGUAGE "javascript"
#define LAZY_NAME "default"

static bool is_lazy(const char *id)
{
	return str_equal(id, LAZY_LANGUAGE ":" LAZY_NAME);
}

/* Splits "python:ctx-…". *pid 0: the context has not been started. NOT_FOUND: no such context. */
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
	if (found)
		return 0;
	if (!is_lazy(id))
		return husk_fail(err, HUSK_NOT_FOUND, "context '%.80s' not found", id);
	*pid = 0;
	*language = strdup(LAZY_LANGUAGE);
	*name = strdup(LAZY_NAME);
	return *language && *name ? 0 : husk_fail_memory(err);
}

/* ---- one run ---- */

struct run {
	struct request *request;
	const char *language, *context;
	struct e2b_environment variables; /* of this run alone */
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

/* As in E2B's server, the quotes around the text of a string are removed. */
static json_t *bare_text(const char *text)
{
	size_t size = strlen(text);
	bool quoted = size >= 2 && (text[0] == '\'' || text[0] == '"') && text[size - 1] == text[0];

	return quoted ? json_text(text + 1, size - 2) : json_text(text, size);
}

/* A result with E2B's names for its forms; other types keep their names, in "extra". */
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
	cleanup_json json_t *extra = json_object();
	json_t *document = json_pack("{s:s, s:b}", "type", "result", "is_main_result", event->main_result), *value;
	const char *type;

	json_object_foreach(bundle, type, value)
	{
		const char *name = NULL;
		for (size_t i = 0; i < ARRAY_SIZE(names); i++)
			if (str_equal(type, names[i][0]))
				name = names[i][1];
		json_object_set(name ? document : extra, name ? name : type, value);
	}
	if (event->text && (*event->text || json_object_get(bundle, "text/plain")))
		json_object_set_new(document, "text", bare_text(event->text));
	if (json_object_size(extra))
		json_object_set(document, "extra", extra);
	return document;
}

static json_t *event_document(const struct husk_code_event *event)
{
	switch (event->kind) {
	case HUSK_CODE_STDOUT:
	case HUSK_CODE_STDERR:
		return json_pack("{s:s, s:o, s:I}", "type", event->kind == HUSK_CODE_STDOUT ? "stdout" : "stderr",
				 "text", json_text0(event->text ? event->text : ""), "timestamp",
				 (json_int_t)time_wall_ms() * 1000000);
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

/* Clients give up if the head of the answer or the next line takes too long; unknown types are ignored. */
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

	if (id && find_context(run->request, id, &language, &name, &pid, NULL) == 0 && pid > 0)
		husk_process_kill(request_husk(run->request), request_path(run->request, "id"), pid, SIGINT, NULL);
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

/* Has the sandbox itself ended, not only the context? Then it does not answer. */
static bool sandbox_is_over(struct request *request, struct husk_error *err)
{
	struct husk_code_context *list = NULL;
	size_t count = 0;

	if (husk_code_contexts(request_husk(request), request_path(request, "id"), &list, &count, NULL) == 0) {
		husk_code_context_list_free(list, count);
		return false;
	}
	e2b_explain_end(request, err);
	return true;
}

static int execute(struct run *run, const char *code, const char *cwd, struct husk_error *err)
{
	struct request *request = run->request;
	int64_t executions = 0;
	struct husk_code_options options = { .language = run->language,
					     .context = run->context,
					     .code = code,
					     .variables = run->variables.pairs,
					     .variable_count = run->variables.count,
					     .cwd = cwd,
					     .executions = &executions,
					     .wait = wait_for_code,
					     .wait_data = run };
	bool timed_out;

	int result = husk_code_run(request_husk(request), request_path(request, "id"), &options, on_event, run,
				   &timed_out, err);
	if (run->broken || request_over(request)) {
		interrupt(run);
		return husk_fail(err, HUSK_GONE, "the client disconnected; its code was interrupted");
	}
	if (result == 0)
		return finish(run, executions, err);
	/* Clients recognize a lost sandbox by a stream that ends early. */
	if (!run->begun || sandbox_is_over(request, err))
		return -1;
	/* The head was sent already: the end of the context is reported as an error of the code. */
	if (send_line(run,
		      json_pack("{s:s, s:s, s:o, s:s}", "type", "error", "name", "ContextError", "value",
				json_text0(err->message), "traceback", ""),
		      err) < 0)
		return -1;
	return finish(run, 0, err);
}

static void run_cleanup(struct run *run)
{
	e2b_environment_free(&run->variables);
}

static int handle_execute(struct request *request, struct husk_error *err)
{
	cleanup(run_cleanup) struct run run = { .request = request, .context = "default" };
	cleanup_free char *language = NULL, *name = NULL, *home = NULL;
	cleanup_free struct husk_pair *pairs = NULL;
	struct fields fields;
	size_t count = 0;
	int64_t pid;

	if (fields_begin(&fields, request_read_json(request, err)) < 0)
		return -1;
	const char *code = fields_string(&fields, "code");
	const char *context = fields_string(&fields, "context_id");
	const char *wanted = fields_string(&fields, "language");
	pairs = fields_pairs(&fields, "env_vars", &count);
	if (fields_done_open(&fields, err) < 0)
		return -1;
	if (!code)
		return husk_fail_field(err, "code", "code is missing; give the source text to run");
	if (context && wanted)
		return husk_fail_field(err, "language", "only one of context_id and language can be given");
	run.language = language_of(wanted);
	if (e2b_environment(request, pairs, count, &run.variables, err) < 0 ||
	    e2b_home(request, E2B_USER, &home, err) < 0 ||
	    (context && find_context(request, context, &language, &name, &pid, err) < 0))
		return -1;
	if (context) {
		run.language = language;
		run.context = name;
	}
	return execute(&run, code, home, err);
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
	const char *lazy_cwd = NULL; /* that of Python's; NULL: no such context, or JavaScript's was started */
	size_t count = 0;
	int failed = 0;

	if (husk_code_contexts(request_husk(request), request_path(request, "id"), &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++) {
		failed |= json_array_append_new(array, context_document(list[i].language, list[i].name, list[i].cwd));
		if (str_equal(list[i].name, LAZY_NAME) && str_equal(list[i].language, "python"))
			lazy_cwd = list[i].cwd;
	}
	for (size_t i = 0; i < count; i++)
		if (str_equal(list[i].name, LAZY_NAME) && str_equal(list[i].language, LAZY_LANGUAGE))
			lazy_cwd = NULL;
	/* First: clients take the last one for the one that they made. */
	if (lazy_cwd)
		failed |= json_array_insert_new(array, 0, context_document(LAZY_LANGUAGE, LAZY_NAME, lazy_cwd));
	husk_code_context_list_free(list, count);
	return failed ? husk_fail_memory(err) : respond_json(request, 200, json_incref(array), err);
}

static void ignore_event(void *data, const struct husk_code_event *event)
{
	(void)data, (void)event;
}

/* Clients may name a directory that they make later. */
static int make_directory(struct request *request, const char *path, struct husk_error *err)
{
	cleanup(husk_file_free) struct husk_file file = { 0 };
	const char *sandbox = request_path(request, "id");
	cleanup_free char *home = NULL;

	if (husk_file_stat(request_husk(request), sandbox, path, true, &file, NULL) == 0)
		return 0;
	if (e2b_home(request, E2B_USER, &home, err) < 0)
		return -1;
	return husk_file_mkdir(request_husk(request), sandbox, path, 0755, E2B_USER, err);
}

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_free char *cwd = NULL;
	struct fields fields;
	char name[32];

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *language = language_of(fields_string(&fields, "language"));
	const char *given = fields_string(&fields, "cwd");
	if (fields_done_open(&fields, err) < 0 || e2b_path(request, E2B_USER, given ? given : "", &cwd, err) < 0)
		return -1;
	if (random_id("ctx-", 16, name) < 0)
		return husk_fail_errno(err, "cannot make a context's name");
	if (make_directory(request, cwd, err) < 0)
		return -1;
	struct husk_code_options options = { .language = language, .context = name, .code = "", .cwd = cwd };
	if (husk_code_run(request_husk(request), request_path(request, "id"), &options, ignore_event, NULL, NULL, err) <
	    0)
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
	if (change(request, husk_code_restart, err) == 0)
		return 0;
	/* A context that has not been started has nothing to lose. */
	return err->code == HUSK_NOT_FOUND && is_lazy(request_path(request, "context"))
		       ? respond_empty(request, 204, err)
		       : -1;
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
