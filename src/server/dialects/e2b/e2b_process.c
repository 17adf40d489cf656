/*
 * E2B's process service (Connect: process.Process): commands and terminals. Processes belong to the agent and outlive every
 * stream; output that nobody read is sent to the next client that connects. The server keeps nothing about them. Command
 * lines, input and environments are never logged.
 */
#include <inttypes.h>
#include <signal.h>

#include "server/api_process.h"
#include "server/core.h"
#include "server/dialects/e2b/connect.h"
#include "server/dialects/e2b/e2b.h"
#include "server/follow.h"

#define PIECE 65536u /* of output in one message */
#define KILL_WAIT_MS 2000

/* ---- output ---- */

static json_t *event_message(const char *kind, json_t *value)
{
	return json_pack("{s:{s:o}}", "event", kind, value);
}

static int send_start(struct connect *connect, int64_t pid, struct husk_error *err)
{
	return connect_send(connect, event_message("start", json_pack("{s:I}", "pid", (json_int_t)pid)), err);
}

static int send_data(struct connect *connect, const struct husk_process_event *event, bool terminal,
		     struct husk_error *err)
{
	const char *stream = terminal ? "pty" : event->kind == HUSK_STDERR ? "stderr" : "stdout";

	for (size_t at = 0; at < event->size; at += PIECE) {
		json_t *bytes = json_base64(event->data + at, MIN(PIECE, event->size - at));
		if (connect_send(connect, event_message("data", json_pack("{s:o}", stream, bytes)), err) < 0)
			return -1;
	}
	return 0;
}

/* As in Go: -1 and the signal's name for a killed process. */
static int send_end(struct connect *connect, const struct husk_process_event *event, struct husk_error *err)
{
	const char *name = event->signal ? sigdescr_np(event->signal) : NULL;
	char status[96];

	if (event->signal)
		snprintf(status, sizeof(status), "signal: %s%s", name ? name : "unknown",
			 event->out_of_memory ? " (out of memory)" : "");
	else
		snprintf(status, sizeof(status), "exit status %d", event->exit_code);
	if (event->signal)
		status[8] = (char)(status[8] | 0x20); /* "killed" */
	json_t *value = json_pack("{s:i, s:b, s:s}", "exitCode", event->signal ? -1 : event->exit_code, "exited",
				  event->signal == 0, "status", status);
	if (value && (event->signal || event->exit_code))
		json_object_set_new(value, "error", json_string(status));
	return connect_send(connect, event_message("end", value), err);
}

/* Clients show stderr beside a failure, but not the reason. Without this line a killed process looks like a bug. */
static int send_out_of_memory(struct connect *connect, struct husk_error *err)
{
	static const char text[] = "husk: killed: the sandbox ran out of memory; a template built with more "
				   "(memory_mb, memoryMB) has more\n";
	const struct husk_process_event event = { .kind = HUSK_STDERR, .data = text, .size = sizeof(text) - 1 };

	return send_data(connect, &event, false, err);
}

/* Relays all output until the end of the process, or of the call's time. */
static int relay(struct connect *connect, struct follow *follow, bool terminal, struct husk_error *err)
{
	struct husk_process_event event = { 0 };

	for (;;) {
		int got = follow_next(follow, connect_patience(connect), &event, err);
		if (got < 0)
			return -1;
		if (got > 0 && event.kind == HUSK_EXIT && event.timed_out)
			return husk_fail(err, HUSK_TIMEOUT,
					 "the command took longer than it was allowed, and was killed");
		if (got > 0 && event.kind == HUSK_EXIT && event.out_of_memory && !terminal &&
		    send_out_of_memory(connect, err) < 0)
			return -1;
		if (got > 0 && event.kind == HUSK_EXIT)
			return send_end(connect, &event, err);
		if (got > 0 && send_data(connect, &event, terminal, err) < 0)
			return -1;
		if (connect_check(connect, err) < 0)
			return -1;
		if (got == 0 && connect_send(connect, event_message("keepalive", json_object()), err) < 0)
			return -1;
	}
}

/* ---- start ---- */

struct start {
	struct husk_exec_options options;
	const char **argv;
	struct husk_pair *environment;
	char user[33];
	char *cwd;
	struct husk_sandbox *sandbox; /* that the defaults of the environment name; NULL: none were added */
};

static void start_cleanup(struct start *start)
{
	free(start->argv);
	free(start->environment);
	free(start->cwd);
	husk_sandbox_free(start->sandbox);
}

static int read_process(struct start *start, json_t *process, struct husk_error *err)
{
	struct fields fields;

	if (!json_is_object(process))
		return husk_fail_field(err, "process", "process is missing; give {cmd, args, envs, cwd}");
	fields_begin(&fields, process);
	const char *command = fields_string(&fields, "cmd");
	cleanup_free const char **words = fields_strings(&fields, "args");
	start->environment = fields_pairs(&fields, "envs", &start->options.environment_count);
	start->options.environment = start->environment;
	start->options.cwd = fields_string(&fields, "cwd");
	if (fields_done_open(&fields, err) < 0)
		return -1;
	if (!command || !*command)
		return husk_fail_field(err, "cmd", "cmd is missing; give the program to run");
	size_t count = 0;
	while (words && words[count])
		count++;
	start->argv = calloc(count + 2, sizeof(*start->argv));
	if (!start->argv)
		return husk_fail_memory(err);
	start->argv[0] = command;
	if (count)
		memcpy(start->argv + 1, words, count * sizeof(*words));
	start->options.argv = start->argv;
	return 0;
}

static bool is_given(const struct start *start, const char *key)
{
	for (size_t i = 0; i < start->options.environment_count; i++)
		if (str_equal(start->environment[i].key, key))
			return true;
	return false;
}

/* The variables by which programs know that they run in a sandbox, and in which. A fork has its own. */
static int add_defaults(struct request *request, struct start *start, struct husk_error *err)
{
	const char *id = request_path(request, "id");

	if (husk_inspect(request_husk(request), id, &start->sandbox, err) < 0)
		return -1;
	const struct husk_pair defaults[] = {
		{ "E2B_SANDBOX", "true" },
		{ "E2B_SANDBOX_ID", id },
		{ "E2B_TEMPLATE_ID", e2b_template_of(start->sandbox) },
	};
	size_t count = start->options.environment_count;
	struct husk_pair *grown =
		reallocarray(start->environment, count + ARRAY_SIZE(defaults), sizeof(*start->environment));
	if (!grown)
		return husk_fail_memory(err);
	start->options.environment = start->environment = grown;
	for (size_t i = 0; i < ARRAY_SIZE(defaults); i++)
		if (!is_given(start, defaults[i].key))
			grown[count++] = defaults[i];
	start->options.environment_count = count;
	return 0;
}

static int read_size(json_t *pty, uint16_t *rows, uint16_t *columns, struct husk_error *err)
{
	json_t *size = json_object_get(pty, "size");
	struct fields fields;

	if (!json_is_object(size))
		return husk_fail_field(err, "size", "a terminal needs its size; give {cols, rows}");
	fields_begin(&fields, size);
	*rows = (uint16_t)fields_int(&fields, "rows", 24, 1, UINT16_MAX);
	*columns = (uint16_t)fields_int(&fields, "cols", 80, 1, UINT16_MAX);
	return fields_done_open(&fields, err);
}

static int read_start(struct connect *connect, struct start *start, json_t *message, struct husk_error *err)
{
	json_t *pty = json_object_get(message, "pty");
	json_t *keep = json_object_get(message, "stdin");

	if (e2b_user(connect->request, start->user, err) < 0 ||
	    read_process(start, json_object_get(message, "process"), err) < 0 ||
	    add_defaults(connect->request, start, err) < 0 ||
	    (json_is_object(pty) && read_size(pty, &start->options.rows, &start->options.columns, err) < 0))
		return -1;
	const char *cwd = start->options.cwd;
	if (cwd && *cwd ? e2b_path(connect->request, start->user, cwd, &start->cwd, err) < 0
			: e2b_directory(connect->request, &start->cwd, err) < 0)
		return -1;
	start->options.cwd = start->cwd;
	start->options.user = start->user;
	start->options.label = json_string_value(json_object_get(message, "tag"));
	start->options.timeout_ms = connect->timeout_ms;
	/* Clients older than this field expect a stdin. */
	start->options.keep_stdin = json_is_object(pty) || !keep || json_is_true(keep);
	return 0;
}

/* The user is made only if the start fails without it: most starts need no second call. */
static int start_process(struct connect *connect, const struct start *start, struct husk_process **process,
			 int64_t *pid, struct husk_error *err)
{
	const char *sandbox = request_path(connect->request, "id");
	struct husk *husk = request_husk(connect->request);
	cleanup_free char *home = NULL;

	if (husk_exec(husk, sandbox, &start->options, process, pid, err) == 0)
		return 0;
	if (err->code != HUSK_NOT_FOUND)
		return -1;
	if (e2b_home(connect->request, start->user, &home, err) < 0)
		return -1;
	if (husk_exec(husk, sandbox, &start->options, process, pid, err) == 0)
		return 0;
	if (err->code != HUSK_NOT_FOUND)
		return -1;
	return husk_fail_field(err, "cwd", "cannot start '%.200s': the directory '%.400s' does not exist",
			       start->argv[0], start->cwd ? start->cwd : home);
}

static int run_start(struct connect *connect, json_t *message, struct husk_error *err)
{
	cleanup(start_cleanup) struct start start = { 0 };
	cleanup_process struct husk_process *process = NULL;
	struct follow follow = { .request = connect->request };

	if (read_start(connect, &start, message, err) < 0 ||
	    start_process(connect, &start, &process, &follow.pid, err) < 0)
		return -1;
	follow.process = process;
	connect->deadline_ms = 0; /* the agent enforces it, and kills the command */
	if (send_start(connect, follow.pid, err) < 0)
		return -1;
	return relay(connect, &follow, start.options.rows != 0, err);
}

static int handle_start(struct request *request, struct husk_error *err)
{
	return connect_serve(request, run_start, err);
}

/* ---- existing processes ---- */

/* {"process":{"pid":9}} or {"process":{"tag":"…"}}: its current state. Its strings are not filled. */
static int select_process(struct request *request, json_t *message, struct husk_process_info *out,
			  struct husk_error *err)
{
	json_t *selector = json_object_get(message, "process");
	const char *tag = json_string_value(json_object_get(selector, "tag"));
	json_int_t pid = json_integer_value(json_object_get(selector, "pid"));
	struct husk_process_info *list = NULL;
	size_t count = 0;

	if (!tag && pid < 1)
		return husk_fail_field(err, "process", "process is missing; give its pid or its tag");
	if (!tag)
		return process_find(request, pid, out, err);
	if (husk_process_list(request_husk(request), request_path(request, "id"), &list, &count, err) < 0)
		return -1;
	pid = 0;
	for (size_t i = 0; i < count; i++)
		if (str_equal(list[i].label, tag))
			pid = list[i].pid;
	husk_process_list_free(list, count);
	if (!pid)
		return husk_fail(err, HUSK_NOT_FOUND, "process with tag '%.80s' not found", tag);
	return process_find(request, pid, out, err);
}

/* Attaches to a running process. */
static int reach(struct request *request, json_t *message, struct follow *follow, struct husk_process **process,
		 struct husk_error *err)
{
	struct husk_process_info info;

	if (!message || select_process(request, message, &info, err) < 0)
		return -1;
	if (!info.running)
		return husk_fail(err, HUSK_NOT_FOUND, "process with pid %" PRId64 " not found: it has ended", info.pid);
	*follow = (struct follow){ .request = request, .pid = info.pid };
	if (process_attach(request, info.pid, process, err) < 0)
		return -1;
	follow->process = *process;
	return 0;
}

static int run_connect(struct connect *connect, json_t *message, struct husk_error *err)
{
	struct husk_attach_options options = { .offset_stdout = -1, .offset_stderr = -1 };
	cleanup_process struct husk_process *process = NULL;
	struct husk_process_info info;

	if (select_process(connect->request, message, &info, err) < 0 ||
	    husk_attach(request_husk(connect->request), request_path(connect->request, "id"), info.pid, &options,
			&process, NULL, err) < 0 ||
	    send_start(connect, info.pid, err) < 0)
		return -1;
	struct follow follow = { .request = connect->request, .pid = info.pid, .process = process };
	return relay(connect, &follow, info.terminal, err);
}

static int handle_connect(struct request *request, struct husk_error *err)
{
	return connect_serve(request, run_connect, err);
}

/* {"input":{"stdin"|"pty": base64}} */
static int read_input(json_t *message, struct buf *out, struct husk_error *err)
{
	json_t *input = json_object_get(message, "input");
	json_t *bytes = json_object_get(input, "stdin");
	const char *text = json_string_value(bytes ? bytes : json_object_get(input, "pty"));

	if (!text)
		return husk_fail_field(err, "input", "input is missing; give {stdin} or {pty}");
	return base64_decode("input", text, strlen(text), out, err);
}

static int handle_input(struct request *request, struct husk_error *err)
{
	cleanup_process struct husk_process *process = NULL;
	cleanup_buf struct buf input = { 0 };
	json_t *message = request_json(request, err);
	struct follow follow;

	if (!message || read_input(message, &input, err) < 0 || reach(request, message, &follow, &process, err) < 0 ||
	    process_feed(&follow, input.data, input.size, err) < 0 || process_feed_end(&follow, false, err) < 0)
		return -1;
	return respond_json(request, 200, json_object(), err);
}

static int handle_close_stdin(struct request *request, struct husk_error *err)
{
	cleanup_process struct husk_process *process = NULL;
	struct follow follow;

	if (reach(request, request_json(request, err), &follow, &process, err) < 0 ||
	    process_feed_end(&follow, true, err) < 0)
		return -1;
	return respond_json(request, 200, json_object(), err);
}

static int handle_update(struct request *request, struct husk_error *err)
{
	cleanup_process struct husk_process *process = NULL;
	json_t *message = request_json(request, err);
	struct follow follow;
	uint16_t rows, columns;

	if (!message || read_size(json_object_get(message, "pty"), &rows, &columns, err) < 0 ||
	    reach(request, message, &follow, &process, err) < 0 ||
	    husk_process_resize(process, rows, columns, err) < 0 || husk_process_detach(process, err) < 0)
		return -1;
	return respond_json(request, 200, json_object(), err);
}

/* A killed process takes a moment to end. Clients list the processes right after a kill and expect it to be gone. */
static void wait_for_end(struct request *request, int64_t pid)
{
	struct husk_process_info info;
	int64_t end = time_monotonic_ms() + KILL_WAIT_MS;

	while (process_find(request, pid, &info, NULL) == 0 && info.running && time_monotonic_ms() < end)
		usleep(10000);
}

static int handle_signal(struct request *request, struct husk_error *err)
{
	json_t *message = request_json(request, err);
	json_t *signal = json_object_get(message, "signal");
	const char *name = json_string_value(signal);
	json_int_t number = json_integer_value(signal);
	struct husk_process_info info;

	if (!message)
		return -1;
	if (str_equal(name, "SIGNAL_SIGKILL") || number == SIGKILL)
		number = SIGKILL;
	else if (str_equal(name, "SIGNAL_SIGTERM") || number == SIGTERM)
		number = SIGTERM;
	else
		return husk_fail_field(err, "signal", "signal is SIGNAL_SIGTERM or SIGNAL_SIGKILL");
	if (select_process(request, message, &info, err) < 0)
		return -1;
	if (!info.running)
		return husk_fail(err, HUSK_NOT_FOUND, "process with pid %" PRId64 " not found: it has ended", info.pid);
	if (husk_process_kill(request_husk(request), request_path(request, "id"), info.pid, (int)number, err) < 0)
		return -1;
	if (number == SIGKILL)
		wait_for_end(request, info.pid);
	return respond_json(request, 200, json_object(), err);
}

/* ---- list ---- */

/* Contexts of run_code are processes too, but clients of this service did not start them. */
static bool is_shown(const struct husk_process_info *info)
{
	return info->running && info->argv && info->argv[0] && !(info->label && str_starts(info->label, "code:"));
}

static json_t *process_document(const struct husk_process_info *info)
{
	json_t *document = json_pack("{s:I, s:{s:o, s:o, s:{}, s:o}}", "pid", (json_int_t)info->pid, "config", "cmd",
				     json_text0(info->argv[0]), "args", json_texts(info->argv + 1), "envs", "cwd",
				     json_text0(info->cwd));

	if (document && info->label && *info->label)
		json_object_set_new(document, "tag", json_text0(info->label));
	return document;
}

static int handle_list(struct request *request, struct husk_error *err)
{
	struct husk_process_info *list = NULL;
	cleanup_json json_t *array = json_array();
	size_t count = 0;
	int failed = 0;

	if (husk_process_list(request_husk(request), request_path(request, "id"), &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++)
		if (is_shown(&list[i]))
			failed |= json_array_append_new(array, process_document(&list[i]));
	husk_process_list_free(list, count);
	return failed ? husk_fail_memory(err) : respond_json(request, 200, json_pack("{s:O}", "processes", array), err);
}

/* {"start":{"process":…}} first, then {"data":{"input":…}} in order, {"keepalive":{}} in between. */
static int run_stream_input(struct connect *connect, json_t *message, struct husk_error *err)
{
	cleanup_process struct husk_process *process = NULL;
	struct follow follow;
	json_t *next;
	int more;

	json_t *start = json_object_get(message, "start");
	if (!start)
		return husk_fail_field(err, "start", "the first message is {start: {process}}");
	if (reach(connect->request, start, &follow, &process, err) < 0)
		return -1;
	while ((more = connect_next(connect, &next, err)) > 0) {
		cleanup_json json_t *taken = next;
		cleanup_buf struct buf input = { 0 };
		json_t *data = json_object_get(taken, "data");
		if (data &&
		    (read_input(data, &input, err) < 0 || process_feed(&follow, input.data, input.size, err) < 0))
			return -1;
	}
	if (more < 0 || process_feed_end(&follow, false, err) < 0)
		return -1;
	return connect_send(connect, json_object(), err);
}

static int handle_stream_input(struct request *request, struct husk_error *err)
{
	return connect_serve(request, run_stream_input, err);
}

const struct route e2b_process_routes[] = {
	{ "POST", "/process.Process/Start", handle_start, E2B_STREAM },
	{ "POST", "/process.Process/Connect", handle_connect, E2B_STREAM },
	{ "POST", "/process.Process/List", handle_list, E2B_UNARY },
	{ "POST", "/process.Process/SendInput", handle_input, E2B_UNARY },
	{ "POST", "/process.Process/CloseStdin", handle_close_stdin, E2B_UNARY },
	{ "POST", "/process.Process/Update", handle_update, E2B_UNARY },
	{ "POST", "/process.Process/SendSignal", handle_signal, E2B_UNARY },
	{ "POST", "/process.Process/StreamInput", handle_stream_input, E2B_STREAM },
	{ 0 },
};
