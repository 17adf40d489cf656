/*
 * POST …/exec: starts a process and answers with all of its output, with a stream, or with the process id only. A
 * process belongs to its sandbox: if a client disconnects, the process continues, unless the client asked for
 * "kill_on_disconnect". The table also has the routes of api_process.c. Command lines, input and environments are never
 * logged here.
 */
#include <signal.h>

#include "server/api_process.h"
#include "server/follow.h"

#define OUTPUT_MAX (16u << 20) /* of each stream in a collected answer; the rest is counted */

/* What a request asks for. */
struct exec {
	struct husk_exec_options options;
	const char **argv;             /* ours to free */
	struct husk_pair *environment; /* likewise */
	struct buf decoded;            /* stdin_base64 */
	const char *input;
	size_t input_size;
	bool has_input, keep_stdin, stream, kill_on_disconnect;
};

static void exec_cleanup(struct exec *exec)
{
	free(exec->argv);
	free(exec->environment);
	buf_free(&exec->decoded);
}

/* ---- the request ---- */

static int read_input(struct exec *exec, const char *text, const char *encoded, struct husk_error *err)
{
	if (text && encoded)
		return husk_fail_field(err, "stdin_base64", "stdin and stdin_base64 are both given; give one");
	if (encoded && base64_decode("stdin_base64", encoded, strlen(encoded), &exec->decoded, err) < 0)
		return -1;
	exec->has_input = text || encoded;
	exec->input = text ? text : exec->decoded.data;
	exec->input_size = text ? strlen(text) : exec->decoded.size;
	return 0;
}

static int check_exec(const struct exec *exec, struct husk_error *err)
{
	const struct husk_exec_options *options = &exec->options;

	if (options->shell && options->argv)
		return husk_fail_field(err, "argv", "cmd and argv are both given; give one");
	if (!options->shell && !options->argv)
		return husk_fail_field(err, "cmd",
				       "cmd is missing; give cmd (a line for the shell) or argv (a list of words)");
	if (options->shell && !*options->shell)
		return husk_fail_field(err, "cmd", "cmd is empty; give a line for the shell");
	if (options->argv && (!options->argv[0] || !*options->argv[0]))
		return husk_fail_field(err, "argv", "argv names no program; its first word is the program");
	if (!options->rows != !options->columns)
		return husk_fail_field(err, options->rows ? "columns" : "rows",
				       "a terminal needs both rows and columns; give both, or neither");
	if (options->detach && exec->stream)
		return husk_fail_field(
			err, "stream",
			"detach and stream exclude each other; GET …/processes/{pid}/output streams later");
	if (options->detach && exec->kill_on_disconnect)
		return husk_fail_field(err, "kill_on_disconnect",
				       "a detached process has no connection to end with; leave one of the two out");
	return 0;
}

static int read_exec(struct request *request, struct exec *exec, struct husk_error *err)
{
	struct husk_exec_options *options = &exec->options;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	options->shell = fields_string(&fields, "cmd");
	exec->argv = fields_strings(&fields, "argv");
	options->argv = exec->argv;
	exec->environment = fields_pairs(&fields, "env", &options->environment_count);
	options->environment = exec->environment;
	options->cwd = fields_string(&fields, "cwd");
	options->user = fields_string(&fields, "user");
	options->label = fields_string(&fields, "label");
	options->timeout_ms = fields_timeout_ms(&fields);
	options->detach = fields_bool(&fields, "detach", false);
	options->rows = (uint16_t)fields_int(&fields, "rows", 0, 1, UINT16_MAX);
	options->columns = (uint16_t)fields_int(&fields, "columns", 0, 1, UINT16_MAX);
	options->keep_output = fields_int(&fields, "keep_output", 0, 0, INT64_C(1) << 40);
	exec->keep_stdin = fields_bool(&fields, "keep_stdin", false);
	exec->stream = fields_bool(&fields, "stream", !options->detach && request_wants_events(request));
	exec->kill_on_disconnect = fields_bool(&fields, "kill_on_disconnect", false);
	const char *text = fields_string(&fields, "stdin");
	const char *encoded = fields_string(&fields, "stdin_base64");
	if (fields_done(&fields, err) < 0 || read_input(exec, text, encoded, err) < 0)
		return -1;
	options->keep_stdin = exec->keep_stdin || exec->has_input;
	return check_exec(exec, err);
}

/* ---- the three ways to answer ---- */

static int exec_detached(struct request *request, const struct exec *exec, struct husk_error *err)
{
	const char *sandbox = request_path(request, "id");
	struct husk *husk = request_husk(request);
	cleanup_process struct husk_process *process = NULL;
	struct follow follow = { .request = request };

	if (husk_exec(husk, sandbox, &exec->options, NULL, &follow.pid, err) < 0)
		return -1;
	if (exec->has_input) {
		struct husk_attach_options options = { .keep_stdin = true };
		if (husk_attach(husk, sandbox, follow.pid, &options, &process, NULL, err) < 0)
			return -1;
		follow.process = process;
		/* A process may end without reading its input. A client that left does not end the process. */
		if (process_feed(&follow, exec->input, exec->input_size, NULL) == 0)
			process_feed_end(&follow, !exec->keep_stdin, NULL);
	}
	return respond_json(request, 201, json_pack("{s:I}", "pid", (json_int_t)follow.pid), err);
}

/* The streams, [0] is stdout. */
struct output {
	struct buf bytes[2];
	uint64_t lost[2];
};

static void output_cleanup(struct output *output)
{
	buf_free(&output->bytes[0]);
	buf_free(&output->bytes[1]);
}

static int collect(struct output *output, const struct husk_process_event *event, struct husk_error *err)
{
	int index = event->kind == HUSK_STDERR;
	struct buf *bytes = &output->bytes[index];
	size_t kept = MIN(event->size, OUTPUT_MAX - bytes->size);

	output->lost[index] += event->size - kept;
	return kept && buf_append(bytes, event->data, kept) < 0 ? husk_fail_memory(err) : 0;
}

static json_t *result_document(const struct follow *follow, const struct output *output,
			       const struct husk_process_event *exit)
{
	cleanup_json json_t *document =
		json_pack("{s:I, s:I, s:I}", "pid", (json_int_t)follow->pid, "stdout_lost", (json_int_t)output->lost[0],
			  "stderr_lost", (json_int_t)output->lost[1]);
	cleanup_json json_t *rest = process_end_document(follow, exit, output->bytes[1].data, output->bytes[1].size);

	if (!document || !rest || json_object_update(document, rest) < 0 ||
	    json_set_bytes(document, "stdout", output->bytes[0].data, output->bytes[0].size) < 0 ||
	    json_set_bytes(document, "stderr", output->bytes[1].data, output->bytes[1].size) < 0)
		return NULL;
	return steal_pointer(document);
}

static int exec_blocking(struct follow *follow, struct husk_error *err)
{
	cleanup(output_cleanup) struct output output = { 0 };
	struct husk_process_event event = { 0 };

	for (;;) {
		int got = follow_next(follow, -1, &event, err);
		if (got < 0)
			return -1;
		if (got > 0 && event.kind == HUSK_EXIT)
			return respond_json(follow->request, 200, result_document(follow, &output, &event), err);
		if (got > 0 && collect(&output, &event, err) < 0)
			return -1;
	}
}

/* Starts a process and follows it to its end. */
static int exec_followed(struct request *request, const struct exec *exec, struct husk_error *err)
{
	const char *sandbox = request_path(request, "id");
	cleanup_process struct husk_process *process = NULL;
	struct follow follow = { .request = request,
				 .input = exec->input,
				 .input_size = exec->input_size,
				 .close_input = exec->has_input && !exec->keep_stdin,
				 .started_ms = time_wall_ms() };

	if (husk_exec(request_husk(request), sandbox, &exec->options, &process, &follow.pid, err) < 0)
		return -1;
	follow.process = process;
	int result = exec->stream ? follow_stream(&follow, json_pack("{s:I}", "pid", (json_int_t)follow.pid), err)
				  : exec_blocking(&follow, err);
	if (follow.abandoned && exec->kill_on_disconnect)
		husk_process_kill(request_husk(request), sandbox, follow.pid, SIGKILL, NULL);
	return result;
}

static int handle_stream(struct request *request, struct husk_error *err)
{
	cleanup(exec_cleanup) struct exec exec = { 0 };

	return read_exec(request, &exec, err) < 0 ? -1 : exec_followed(request, &exec, err);
}

static int handle_exec(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { NULL };
	cleanup(exec_cleanup) struct exec exec = { 0 };

	if (request_query_known(request, known, err) < 0 || read_exec(request, &exec, err) < 0)
		return -1;
	if (exec.stream)
		return respond_streaming(request, handle_stream);
	return exec.options.detach ? exec_detached(request, &exec, err) : exec_followed(request, &exec, err);
}

const struct route exec_routes[] = {
	{ "POST", "/v1/sandboxes/{id}/exec", handle_exec, 0 },
	{ "GET", "/v1/sandboxes/{id}/processes", processes_list, 0 },
	{ "GET", "/v1/sandboxes/{id}/processes/{pid}/output", processes_output, ROUTE_STREAM },
	{ "POST", "/v1/sandboxes/{id}/processes/{pid}/signal", processes_signal, 0 },
	{ "POST", "/v1/sandboxes/{id}/processes/{pid}/stdin", processes_stdin, ROUTE_STREAM },
	{ 0 },
};
