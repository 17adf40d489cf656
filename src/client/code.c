/*
 * Code in a sandbox: runs code in a context that keeps its state between calls. A context is an ordinary process of the
 * agent, labelled "code:<language>:<name>", that runs a kernel program of the guest image. So contexts are found in the
 * process list, are copied by a fork, and need no state on the host.
 *
 * A kernel speaks JSON lines: {"type":"ready"} once; {"id","code","env"} in; {"id","type","…"} out until type "end". It
 * runs one request after the other. Several clients may use it at once: each follows its own id and skips the rest. All
 * output comes from the guest: a line that is not an event of ours is skipped, and the length of lines is limited.
 */
#include <poll.h>
#include <signal.h>

#include "base/jansson.h"
#include "client/call.h"
#include "instance/contact.h"
#include "instance/pairs.h"

#define LINE_MAX_BYTES (32u * 1024u * 1024u)
#define CODE_MAX_BYTES (16u * 1024u * 1024u)
#define START_LIMIT_MS 60000
#define INTERRUPT_GRACE_MS 2000
#define COMPLAINT_MAX 400
#define NAME_MAX_BYTES 64
#define DEPTH_MAX 256 /* of a line's JSON: the parser is recursive, and the caller's thread may have a small stack */

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
	struct husk *husk;
	const char *sandbox;
	const struct language *language;
	const char *name;
	const struct husk_code_options *options; /* NULL: a restart */
	struct husk_process *process;
	int64_t pid;
	bool starting;   /* its kernel has not sent "ready" yet */
	struct buf text; /* output of the kernel; the current line begins at `start` */
	size_t start;
	struct buf complaint; /* the end of the kernel's own stderr */
};

static void session_close(struct session *session)
{
	husk_process_free(session->process);
	buf_free(&session->text);
	buf_free(&session->complaint);
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

/* ---- finding ---- */

static int forget(struct husk *husk, const char *sandbox, int64_t pid, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };

	if (wire_put_int(&message, TAG_PID, pid) < 0)
		return husk_fail_memory(err);
	return husk_call(husk, sandbox, METHOD_PROCESS_FORGET, &message, NULL, err);
}

static bool is_older(const struct husk_process_info *a, const struct husk_process_info *b)
{
	return a->started_ms != b->started_ms ? a->started_ms < b->started_ms : a->pid < b->pid;
}

/* Finds the running process of this context: its pid and the ends of its output so far; pid 0: none. If two clients
 * started a context at the same moment, the oldest process is used, so that all clients agree. Remains of a dead
 * process are removed. */
static int context_find(const struct session *session, struct husk_process_info *out, struct husk_error *err)
{
	struct husk_process_info *list = NULL;
	const struct language *language;
	const char *name;
	size_t count = 0;

	*out = (struct husk_process_info){ 0 };
	if (husk_process_list(session->husk, session->sandbox, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++) {
		if (!label_read(list[i].label, &language, &name) || language != session->language ||
		    !str_equal(name, session->name))
			continue;
		if (!list[i].running)
			forget(session->husk, session->sandbox, list[i].pid, NULL);
		else if (!out->pid || is_older(&list[i], out))
			*out = list[i];
	}
	husk_process_list_free(list, count);
	/* Its strings are freed with the list. */
	out->label = out->cwd = out->user = NULL;
	out->argv = NULL;
	return 0;
}

/* ---- talking to the kernel ---- */

static void complain(struct buf *complaint, const char *data, size_t size)
{
	if (size > COMPLAINT_MAX) {
		data += size - COMPLAINT_MAX;
		size = COMPLAINT_MAX;
	}
	if (complaint->size + size > COMPLAINT_MAX)
		buf_consume(complaint, complaint->size + size - COMPLAINT_MAX);
	buf_append(complaint, data, size); /* without memory only the message is shorter */
}

/* The last line of the kernel's stderr, fit for a terminal; "" if there is none. */
static const char *last_complaint(struct buf *complaint)
{
	while (complaint->size && strchr("\n\r ", complaint->data[complaint->size - 1]))
		complaint->data[--complaint->size] = '\0';
	if (!complaint->size)
		return "";
	const char *line = strrchr(complaint->data, '\n');
	for (size_t i = 0; i < complaint->size; i++)
		if ((unsigned char)complaint->data[i] < 0x20 || complaint->data[i] == 0x7f)
			complaint->data[i] = ' ';
	return line ? line + 1 : complaint->data;
}

/* The process of the context has ended: removes it and reports how it ended. */
static int context_ended(struct session *session, const struct husk_process_event *event, struct husk_error *err)
{
	const char *last = last_complaint(&session->complaint);
	const char *separator = *last ? ": " : "";

	forget(session->husk, session->sandbox, session->pid, NULL);
	if (event->out_of_memory)
		return husk_fail(err, HUSK_GONE, "context '%s' ended: out of memory; the next run starts it afresh",
				 session->name);
	if (event->signal)
		return husk_fail(err, HUSK_GONE, "context '%s' ended: killed by signal %d%s%s", session->name,
				 event->signal, separator, last);
	if (event->exit_code == 127 || event->exit_code == 126)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "template has no python3, which %s needs; use -t code-interpreter",
				 session->language->name);
	if (session->starting)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "%s does not start in this template (exit code %d%s%s); use -t code-interpreter",
				 session->language->name, event->exit_code, separator, last);
	return husk_fail(err, HUSK_GONE, "context '%s' ended: exit code %d%s%s", session->name, event->exit_code,
			 separator, last);
}

/* Waits until the kernel may have sent something, or the time is up. -1: the caller gave up, or the wait failed. */
static int wait_for_kernel(struct session *session, int timeout_ms, struct husk_error *err)
{
	struct pollfd p = { .fd = husk_process_fd(session->process), .events = POLLIN };

	if (session->options && session->options->wait) {
		if (session->options->wait(session->options->wait_data, p.fd, timeout_ms) >= 0)
			return 0;
		return husk_fail(err, HUSK_GONE, "nobody waits for context '%s' any more; its code goes on",
				 session->name);
	}
	if (poll(&p, 1, timeout_ms) < 0 && errno != EINTR)
		return husk_fail_errno(err, "cannot wait for context '%s'", session->name);
	return 0;
}

/* Reads more bytes from the kernel: 1; 0: the deadline (-1: none) passed; -1: the kernel ended. */
static int read_more(struct session *session, int64_t deadline_ms, struct husk_error *err)
{
	struct husk_process_event event;

	while (!husk_process_pending(session->process)) {
		int64_t left = deadline_ms < 0 ? -1 : deadline_ms - time_monotonic_ms();
		if (deadline_ms >= 0 && left <= 0)
			return 0;
		if (wait_for_kernel(session, (int)MIN(left, 3600 * 1000), err) < 0)
			return -1;
	}
	if (husk_process_next(session->process, &event, err) < 0)
		return -1;
	if (event.kind == HUSK_EXIT)
		return context_ended(session, &event, err);
	if (event.kind == HUSK_STDERR) {
		complain(&session->complaint, event.data, event.size);
		return 1;
	}
	buf_consume(&session->text, session->start);
	session->start = 0;
	if (session->text.size + event.size > LINE_MAX_BYTES)
		return husk_fail(err, HUSK_LIMIT,
				 "context '%s' sent a result of more than %u MiB; write it to a file instead",
				 session->name, LINE_MAX_BYTES >> 20);
	return buf_append(&session->text, event.data, event.size) < 0 ? husk_fail_memory(err) : 1;
}

/* Reads the next line that is a JSON object: 1 (the caller drops it); 0: the deadline passed; -1: the kernel ended. */
static int read_object(struct session *session, int64_t deadline_ms, json_t **out, struct husk_error *err)
{
	size_t searched = 0; /* so that a long line is not searched from its start for each piece */

	for (;;) {
		size_t from = session->start + searched;
		char *newline = from < session->text.size
					? memchr(session->text.data + from, '\n', session->text.size - from)
					: NULL;
		if (!newline) {
			searched = session->text.size - session->start;
			/* The deadline also applies to a kernel that never stops sending. */
			if (deadline_ms >= 0 && time_monotonic_ms() >= deadline_ms)
				return 0;
			int more = read_more(session, deadline_ms, err);
			if (more <= 0)
				return more;
			continue;
		}
		char *line = session->text.data + session->start;
		size_t size = (size_t)(newline - line);
		session->start += size + 1;
		searched = 0;
		json_t *object =
			str_json_deeper(line, size, DEPTH_MAX) ? NULL : json_loadb(line, size, JSON_ALLOW_NUL, NULL);
		if (json_is_object(object)) {
			*out = object;
			return 1;
		}
		json_decref(object);
	}
}

static const char *text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
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
	const char *type = text_of(object, "type");

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
				       .text = text_of(object, "text"),
				       .bundle = dump ? dump : "{}",
				       .main_result = json_is_true(json_object_get(object, "main")),
			       });
	} else if (str_equal(type, "error")) {
		callback(data, &(struct husk_code_event){
				       .kind = HUSK_CODE_ERROR,
				       .text = text_of(object, "traceback"),
				       .name = text_of(object, "name"),
				       .value = text_of(object, "value"),
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
		int got = read_object(session, deadline_ms, &object, err);
		if (got <= 0)
			return got;
		if (!str_equal(text_of(object, "id"), id) || !deliver(object, callback, data))
			continue;
		if (session->options && session->options->executions)
			*session->options->executions = json_integer_value(json_object_get(object, "count"));
		return 1;
	}
}

/* ---- opening a context ---- */

static int wait_ready(struct session *session, struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + START_LIMIT_MS;

	for (;;) {
		cleanup_json json_t *object = NULL;
		int got = read_object(session, deadline, &object, err);
		if (got < 0)
			return -1;
		if (got == 0) {
			forget(session->husk, session->sandbox, session->pid, NULL);
			return husk_fail(err, HUSK_TIMEOUT, "context '%s' did not start within %d seconds",
					 session->name, START_LIMIT_MS / 1000);
		}
		if (str_equal(text_of(object, "type"), "stderr"))
			complain(&session->complaint, text_of(object, "text"), strlen(text_of(object, "text")));
		if (str_equal(text_of(object, "type"), "ready")) {
			session->starting = false;
			return 0;
		}
	}
}

static int context_start(struct session *session, const struct husk_code_options *options, struct husk_error *err)
{
	cleanup_free char *label = str_format("code:%s:%s", session->language->name, session->name);
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
	session->starting = true;
	if (husk_exec(session->husk, session->sandbox, &exec, &session->process, &session->pid, err) < 0)
		return -1;
	return wait_ready(session, err);
}

static int context_attach(struct session *session, const struct husk_process_info *found, struct husk_error *err)
{
	struct husk_attach_options options = {
		.offset_stdout = found->stdout_bytes,
		.offset_stderr = found->stderr_bytes,
		.keep_stdin = true,
	};

	session->pid = found->pid;
	return husk_attach(session->husk, session->sandbox, found->pid, &options, &session->process, NULL, err);
}

/* Finds the context or starts it. Two clients may do so at once. Each checks again afterwards, and the younger kernel,
 * which has no state yet, is ended. */
static int session_open(struct session *session, const struct husk_code_options *options, struct husk_error *err)
{
	struct husk_process_info found;

	if (context_find(session, &found, err) < 0)
		return -1;
	if (found.pid)
		return context_attach(session, &found, err);
	if (context_start(session, options, err) < 0 || context_find(session, &found, err) < 0)
		return -1;
	if (!found.pid || found.pid == session->pid)
		return 0;
	forget(session->husk, session->sandbox, session->pid, NULL);
	husk_process_free(steal_pointer(session->process));
	buf_consume(&session->text, session->text.size);
	session->start = 0;
	return context_attach(session, &found, err);
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
	cleanup_free char *line = request ? json_dumps(request, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
	cleanup_buf struct buf text = { 0 };

	if (!line || buf_append_string(&text, line) < 0 || buf_append_string(&text, "\n") < 0)
		return husk_fail_memory(err);
	/* One write, so that the request of another client cannot come in between. */
	return husk_process_write(session->process, text.data, text.size, err);
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
	if (husk_process_signal(session->process, SIGINT, NULL) == 0 &&
	    follow(session, id, time_monotonic_ms() + INTERRUPT_GRACE_MS, callback, data, NULL) == 1)
		return;
	forget(session->husk, session->sandbox, session->pid, NULL);
}

int husk_code_run(struct husk *husk, const char *sandbox, const struct husk_code_options *options,
		  code_callback callback, void *data, bool *timed_out, struct husk_error *err)
{
	cleanup(session_close) struct session session = {
		.husk = husk,
		.sandbox = sandbox,
		.language = language_get(options->language, err),
		.name = options->context ? options->context : "default",
		.options = options,
	};
	char id[32];

	if (timed_out)
		*timed_out = false;
	if (!session.language || check_name(session.name, err) < 0 || check_code(options, err) < 0)
		return -1;
	if (random_id("run-", 20, id) < 0)
		return husk_fail_errno(err, "no random bytes for a request id");
	if (session_open(&session, options, err) < 0 || send_request(&session, id, options, err) < 0)
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
		result = forget(husk, sandbox, match->pid, err);
	husk_code_context_list_free(list, count);
	return result;
}

int husk_code_restart(struct husk *husk, const char *sandbox, const char *context, struct husk_error *err)
{
	cleanup(session_close) struct session session = { .husk = husk, .sandbox = sandbox };
	cleanup_free char *cwd = NULL;
	const char *colon = strchr(context, ':');

	if (context_end(husk, sandbox, context, &session.language, &cwd, err) < 0)
		return -1;
	session.name = colon ? colon + 1 : context;
	return context_start(&session, &(struct husk_code_options){ .cwd = cwd }, err);
}

int husk_code_remove(struct husk *husk, const char *sandbox, const char *context, struct husk_error *err)
{
	cleanup_free char *cwd = NULL;
	const struct language *language = NULL;

	return context_end(husk, sandbox, context, &language, &cwd, err);
}
