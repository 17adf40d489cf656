/*
 * Code in a sandbox: runs code in a context that keeps its state between calls. A context is an ordinary process of the
 * agent, labelled "code:<language>:<name>", that runs a kernel program of the guest image. So contexts are found in the
 * process list, are copied by a fork, and need no state on the host.
 *
 * A kernel speaks JSON lines: {"type":"ready"} once; {"id","code","env"} in; {"id","type","…"} out until type "end". It
 * runs one request after the other. Several clients may use it at once: each follows its own id and skips the rest. All
 * output comes from the guest: a line that is not an event of ours is skipped, and the length of lines is limited.
 */
#include <signal.h>

#include "client/lines.h"
#include "instance/pairs.h"

#define CODE_MAX_BYTES (16u * 1024u * 1024u)
#define START_LIMIT_MS 60000
#define INTERRUPT_GRACE_MS 2000
#define NAME_MAX_BYTES 64

/* The Python kernel is forked from the warm interpreter, if the template has one. The other kernels only pass the code
 * on: -S starts python3 without its packages, which needs a tenth of the memory. */
#define KERNEL "/.husk/guest/kernel.py"

struct language {
	const char *name;
	const char *argv[5];
};

static const struct language languages[] = {
	{ "python", { "python3", KERNEL, "python", NULL } },
	{ "javascript", { "python3", "-S", KERNEL, "javascript", NULL } },
	{ "typescript", { "python3", "-S", KERNEL, "typescript", NULL } },
	{ "bash", { "python3", "-S", KERNEL, "bash", NULL } },
	{ "r", { "python3", "-S", KERNEL, "r", NULL } },
	{ "java", { "python3", "-S", KERNEL, "java", NULL } },
};

/* One client's conversation with one context. */
struct session {
	struct lines lines;
	const struct language *language;
	const struct husk_code_options *options; /* NULL: a restart */
};

static void session_close(struct session *session)
{
	lines_close(&session->lines);
}

/* ---- names ---- */

static const struct language *language_find(const char *name, size_t size)
{
	for (size_t i = 0; i < ARRAY_SIZE(languages); i++)
		if (strlen(languages[i].name) == size && memcmp(languages[i].name, name, size) == 0)
			return &languages[i];
	return NULL;
}

static const struct language *language_get(const char *name, struct husk_error *err)
{
	const char *names[ARRAY_SIZE(languages)];
	const struct language *found = name ? language_find(name, strlen(name)) : &languages[0];

	if (found)
		return found;
	for (size_t i = 0; i < ARRAY_SIZE(languages); i++)
		names[i] = languages[i].name;
	const char *near = str_nearest(name, names, ARRAY_SIZE(names));
	husk_fail_field(err, "language",
			"language '%.64s' is not known%s%s%s (python, javascript, typescript, bash, r, java)", name,
			near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
	return NULL;
}

static bool name_is_valid(const char *name)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
	size_t size = strlen(name);

	return size >= 1 && size <= NAME_MAX_BYTES && strspn(name, allowed) == size;
}

static int check_name(const char *name, struct husk_error *err)
{
	if (name_is_valid(name))
		return 0;
	return husk_fail_field(err, "context", "context name '%.80s' is not valid; use 1 to %d of A-Z a-z 0-9 _ . -",
			       name, NAME_MAX_BYTES);
}

/* Splits "code:<language>:<name>"; false for any other label. *name points into the label. */
static bool label_read(const char *label, const struct language **language, const char **name)
{
	if (!label || !str_starts(label, "code:"))
		return false;
	const char *first = label + strlen("code:");
	const char *colon = strchr(first, ':');
	if (!colon || !name_is_valid(colon + 1))
		return false;
	*language = language_find(first, (size_t)(colon - first));
	*name = colon + 1;
	return *language != NULL;
}

static bool is_context(const void *data, const char *label)
{
	const struct session *session = data;
	const struct language *language;
	const char *name;

	return label_read(label, &language, &name) && language == session->language &&
	       str_equal(name, session->lines.name);
}

/* ---- talking to the kernel ---- */

/* The process of the context has ended: removes it and reports how it ended. */
static int context_ended(struct lines *lines, const struct husk_process_event *event, struct husk_error *err)
{
	const struct session *session = lines->data;
	const char *last = lines_complaint(lines);
	const char *separator = *last ? ": " : "";

	lines_forget(lines, lines->pid, NULL);
	if (event->out_of_memory)
		return husk_fail(err, HUSK_GONE, "context '%s' ended: out of memory; the next run starts it afresh",
				 lines->name);
	if (event->signal)
		return husk_fail(err, HUSK_GONE, "context '%s' ended: killed by signal %d%s%s", lines->name,
				 event->signal, separator, last);
	if (event->exit_code == 127 || event->exit_code == 126)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "template has no python3, which %s needs; use -t code-interpreter",
				 session->language->name);
	if (lines->starting)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "%s does not start in this template (exit code %d%s%s); use -t code-interpreter",
				 session->language->name, event->exit_code, separator, last);
	return husk_fail(err, HUSK_GONE, "context '%s' ended: exit code %d%s%s", lines->name, event->exit_code,
			 separator, last);
}

typedef void (*code_callback)(void *data, const struct husk_code_event *event);

/* Output may contain NUL bytes, C strings may not: delivers the pieces between NUL bytes. */
static void deliver_output(enum husk_code_kind kind, const json_t *text, code_callback callback, void *data)
{
	const char *piece = json_string_value(text);
	const char *end = piece ? piece + json_string_length(text) : NULL;

	for (; piece && piece < end; piece += strlen(piece) + 1)
		if (*piece)
			callback(data, &(struct husk_code_event){ .kind = kind, .text = piece });
}

/* Passes one event of the kernel on. 1: it was the end. Types that this version does not know are skipped. */
static int deliver(const json_t *object, code_callback callback, void *data)
{
	const char *type = lines_text(object, "type");

	if (str_equal(type, "end"))
		return 1;
	if (str_equal(type, "stdout")) {
		deliver_output(HUSK_CODE_STDOUT, json_object_get(object, "text"), callback, data);
	} else if (str_equal(type, "stderr")) {
		deliver_output(HUSK_CODE_STDERR, json_object_get(object, "text"), callback, data);
	} else if (str_equal(type, "result")) {
		const json_t *bundle = json_object_get(object, "bundle");
		cleanup_free char *dump = json_is_object(bundle) ? json_dumps(bundle, JSON_COMPACT) : NULL;
		callback(data, &(struct husk_code_event){
				       .kind = HUSK_CODE_RESULT,
				       .text = lines_text(object, "text"),
				       .bundle = dump ? dump : "{}",
				       .main_result = json_is_true(json_object_get(object, "main")),
			       });
	} else if (str_equal(type, "error")) {
		callback(data, &(struct husk_code_event){
				       .kind = HUSK_CODE_ERROR,
				       .text = lines_text(object, "traceback"),
				       .name = lines_text(object, "name"),
				       .value = lines_text(object, "value"),
			       });
	}
	return 0;
}

/* Delivers all events of our own request until its end: 1; 0: the deadline passed; -1: the context ended. */
static int follow(struct session *session, const char *id, int64_t deadline_ms, code_callback callback, void *data,
		  struct husk_error *err)
{
	for (;;) {
		cleanup_json json_t *object = NULL;
		int got = lines_read(&session->lines, deadline_ms, &object, err);
		if (got <= 0)
			return got;
		if (!str_equal(lines_text(object, "id"), id) || !deliver(object, callback, data))
			continue;
		if (session->options && session->options->executions)
			*session->options->executions = json_integer_value(json_object_get(object, "count"));
		return 1;
	}
}

/* ---- opening a context ---- */

static int session_open(struct session *session, bool fresh, const struct husk_code_options *options,
			struct husk_error *err)
{
	cleanup_free char *label = str_format("code:%s:%s", session->language->name, session->lines.name);
	struct husk_exec_options exec = {
		.argv = session->language->argv,
		.environment = options->environment,
		.environment_count = options->environment_count,
		.cwd = options->cwd,
		.label = label,
		.keep_stdin = true,
	};

	if (!label)
		return husk_fail_memory(err);
	if (fresh)
		return lines_start(&session->lines, &exec, START_LIMIT_MS, err);
	return lines_open(&session->lines, is_context, session, &exec, START_LIMIT_MS, err);
}

/* ---- the calls ---- */

static json_t *variables_json(const struct husk_pair *pairs, size_t count)
{
	json_t *object = json_object();

	for (size_t i = 0; object && i < count; i++) {
		if (json_object_set_new(object, pairs[i].key, json_string(pairs[i].value)) < 0) {
			json_decref(object);
			return NULL;
		}
	}
	return object;
}

static int send_request(struct session *session, const char *id, const struct husk_code_options *options,
			struct husk_error *err)
{
	json_t *variables = variables_json(options->variables, options->variable_count);
	cleanup_json json_t *request =
		variables ? json_pack("{s:s, s:s, s:o}", "id", id, "code", options->code, "env", variables) : NULL;

	return lines_send(&session->lines, request, err);
}

static int check_code(const struct husk_code_options *options, struct husk_error *err)
{
	if (!options->code)
		return husk_fail_field(err, "code", "code is missing");
	if (strlen(options->code) > CODE_MAX_BYTES)
		return husk_fail_field(err, "code", "code has more than %u MiB", CODE_MAX_BYTES >> 20);
	if (!str_is_utf8(options->code, strlen(options->code)))
		return husk_fail_field(err, "code", "code is not valid UTF-8");
	if (options->timeout_ms < 0)
		return husk_fail_field(err, "timeout_seconds", "timeout is negative; 0 means none");
	return pairs_check_environment(options->variables, options->variable_count, err);
}

/* The time is up: interrupts the code. If that fails, ends the context, and the next run starts a new one. Events that
 * arrive meanwhile are delivered. */
static void interrupt(struct session *session, const char *id, code_callback callback, void *data)
{
	if (husk_process_signal(session->lines.process, SIGINT, NULL) == 0 &&
	    follow(session, id, time_monotonic_ms() + INTERRUPT_GRACE_MS, callback, data, NULL) == 1)
		return;
	lines_forget(&session->lines, session->lines.pid, NULL);
}

int husk_code_run(struct husk *husk, const char *sandbox, const struct husk_code_options *options,
		  code_callback callback, void *data, bool *timed_out, struct husk_error *err)
{
	cleanup(session_close) struct session session = {
		.lines = { .husk = husk,
			   .sandbox = sandbox,
			   .what = "context",
			   .name = options->context ? options->context : "default",
			   .wait = options->wait,
			   .wait_data = options->wait_data,
			   .ended = context_ended,
			   .data = &session },
		.language = language_get(options->language, err),
		.options = options,
	};
	char id[32];

	if (timed_out)
		*timed_out = false;
	if (!session.language || check_name(session.lines.name, err) < 0 || check_code(options, err) < 0)
		return -1;
	if (random_id("run-", 20, id) < 0)
		return husk_fail_errno(err, "no random bytes for a request id");
	if (session_open(&session, false, options, err) < 0 || send_request(&session, id, options, err) < 0)
		return -1;
	int64_t deadline = options->timeout_ms ? time_monotonic_ms() + options->timeout_ms : -1;
	int done = follow(&session, id, deadline, callback, data, err);
	if (done != 0)
		return done < 0 ? -1 : 0;
	interrupt(&session, id, callback, data);
	if (!timed_out)
		return husk_fail(err, HUSK_TIMEOUT, "the code took longer than %lld ms",
				 (long long)options->timeout_ms);
	*timed_out = true;
	return 0;
}

void husk_code_context_list_free(struct husk_code_context *list, size_t count)
{
	for (size_t i = 0; list && i < count; i++) {
		free(list[i].name);
		free(list[i].language);
		free(list[i].cwd);
	}
	free(list);
}

int husk_code_contexts(struct husk *husk, const char *sandbox, struct husk_code_context **out, size_t *count,
		       struct husk_error *err)
{
	struct husk_process_info *processes = NULL;
	const struct language *language;
	const char *name;
	size_t total = 0, used = 0;
	bool complete = true;

	if (husk_process_list(husk, sandbox, &processes, &total, err) < 0)
		return -1;
	struct husk_code_context *list = calloc(total + 1, sizeof(*list));
	for (size_t i = 0; list && i < total; i++) {
		if (!processes[i].running || !label_read(processes[i].label, &language, &name))
			continue;
		list[used] = (struct husk_code_context){ strdup(name), strdup(language->name),
							 strdup(processes[i].cwd ? processes[i].cwd : "/"),
							 processes[i].pid };
		complete = complete && list[used].name && list[used].language && list[used].cwd;
		used++;
	}
	husk_process_list_free(processes, total);
	if (!list || !complete) {
		husk_code_context_list_free(list, used);
		return husk_fail_memory(err);
	}
	*out = list;
	*count = used;
	return 0;
}

/* Ends the one context with "name" or "language:name"; the caller gets its language and directory. */
static int context_end(struct husk *husk, const char *sandbox, const char *wanted, const struct language **language,
		       char **cwd, struct husk_error *err)
{
	const char *colon = strchr(wanted, ':');
	const char *name = colon ? colon + 1 : wanted;
	struct husk_code_context *list = NULL, *match = NULL;
	size_t count = 0;
	int result = -1;

	if (check_name(name, err) < 0 || husk_code_contexts(husk, sandbox, &list, &count, err) < 0)
		return -1;
	bool several = false;
	for (size_t i = 0; i < count; i++) {
		const struct language *of = language_find(list[i].language, strlen(list[i].language));
		if (!str_equal(list[i].name, name) || (colon && of != language_find(wanted, (size_t)(colon - wanted))))
			continue;
		several = several || (match && !str_equal(match->language, list[i].language));
		match = &list[i];
		*language = of;
	}
	if (!match)
		husk_fail(err, HUSK_NOT_FOUND, "context '%.150s' not found in sandbox '%.100s'", wanted, sandbox);
	else if (several)
		husk_fail(err, HUSK_CONFLICT, "context '%s' exists in more than one language; say which, as in '%s:%s'",
			  name, match->language, name);
	else if (!(*cwd = strdup(match->cwd)))
		husk_fail_memory(err);
	else
		result = lines_forget(&(struct lines){ .husk = husk, .sandbox = sandbox }, match->pid, err);
	husk_code_context_list_free(list, count);
	return result;
}

int husk_code_restart(struct husk *husk, const char *sandbox, const char *context, struct husk_error *err)
{
	cleanup(session_close) struct session session = {
		.lines = { .husk = husk,
			   .sandbox = sandbox,
			   .what = "context",
			   .ended = context_ended,
			   .data = &session },
	};
	cleanup_free char *cwd = NULL;
	const char *colon = strchr(context, ':');

	if (context_end(husk, sandbox, context, &session.language, &cwd, err) < 0)
		return -1;
	session.lines.name = colon ? colon + 1 : context;
	return session_open(&session, true, &(struct husk_code_options){ .cwd = cwd }, err);
}

int husk_code_remove(struct husk *husk, const char *sandbox, const char *context, struct husk_error *err)
{
	cleanup_free char *cwd = NULL;
	const struct language *language = NULL;

	return context_end(husk, sandbox, context, &language, &cwd, err);
}
