/*
 * The processes of a sandbox over HTTP: list, follow from an offset, signal, write to stdin. Processes belong to the agent
 * and outlive every request; the server keeps nothing about them. Called through the table of routes in api_exec.c.
 */
#include "server/api_process.h"
#include "server/follow.h"

#include <inttypes.h>
#include <signal.h>

static int path_pid(const struct request *request, int64_t *pid, struct husk_error *err)
{
	const char *text = request_path(request, "pid");

	if (str_to_int64(text, 1, INT32_MAX, pid) < 0)
		return husk_fail_field(err, "pid",
				       "process '%.40s' is not a process number; GET …/processes lists them", text);
	return 0;
}

int processes_list(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { NULL };
	struct husk_process_info *list = NULL;
	size_t count = 0;

	if (request_query_known(request, known, err) < 0 ||
	    husk_process_list(request_husk(request), request_path(request, "id"), &list, &count, err) < 0)
		return -1;
	json_t *array = json_process_list(list, count);
	husk_process_list_free(list, count);
	return respond_json(request, 200, array ? json_pack("{s:o}", "processes", array) : NULL, err);
}

int process_find(struct request *request, int64_t pid, struct husk_process_info *out, struct husk_error *err)
{
	const char *sandbox = request_path(request, "id");
	struct husk_process_info *list = NULL;
	size_t count = 0;

	*out = (struct husk_process_info){ 0 };
	if (husk_process_list(request_husk(request), sandbox, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++)
		if (list[i].pid == pid)
			*out = list[i];
	husk_process_list_free(list, count);
	out->label = out->cwd = out->user = NULL; /* these went with the list */
	out->argv = NULL;
	if (out->pid)
		return 0;
	return husk_fail(err, HUSK_NOT_FOUND,
			 "process %" PRId64 " not found in sandbox '%.100s'; GET …/processes lists them", pid, sandbox);
}

/* ---- output ---- */

/* "<stdout>-<stderr>", as in an event's id. */
static int read_event_id(const char *id, struct husk_attach_options *options, struct husk_error *err)
{
	char head[24] = "";
	const char *dash = strchr(id, '-');

	if (dash && (size_t)(dash - id) < sizeof(head))
		memcpy(head, id, (size_t)(dash - id));
	if (!dash || str_to_int64(head, 0, INT64_MAX, &options->offset_stdout) < 0 ||
	    str_to_int64(dash + 1, 0, INT64_MAX, &options->offset_stderr) < 0)
		return husk_fail_field(err, "Last-Event-ID",
				       "Last-Event-ID '%.40s' is not the id of an output event, such as 120-0", id);
	return 0;
}

/* Where to begin: a client that reconnects repeats its query, so the header, which is newer, counts first. */
static int read_offsets(struct request *request, struct husk_attach_options *options, struct husk_error *err)
{
	const char *id = request_header(request, "Last-Event-ID");

	if (request_query_int(request, "stdout_offset", -1, -1, INT64_MAX, &options->offset_stdout, err) < 0 ||
	    request_query_int(request, "stderr_offset", -1, -1, INT64_MAX, &options->offset_stderr, err) < 0)
		return -1;
	return id && *id ? read_event_id(id, options, err) : 0;
}

int processes_output(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "stdout_offset", "stderr_offset", NULL };
	cleanup_process struct husk_process *process = NULL;
	struct husk_attach_options options = { 0 };
	struct husk_attach_result result = { 0 };
	struct follow follow = { .request = request };

	if (path_pid(request, &follow.pid, err) < 0 || request_query_known(request, known, err) < 0 ||
	    read_offsets(request, &options, err) < 0)
		return -1;
	if (husk_attach(request_husk(request), request_path(request, "id"), follow.pid, &options, &process, &result,
			err) < 0)
		return -1;
	follow.process = process;
	follow.offset[0] = result.offset_stdout;
	follow.offset[1] = result.offset_stderr;
	return follow_stream(&follow,
			     json_pack("{s:I, s:I, s:I, s:I, s:I}", "pid", (json_int_t)follow.pid, "stdout_offset",
				       (json_int_t)result.offset_stdout, "stderr_offset",
				       (json_int_t)result.offset_stderr, "stdout_dropped",
				       (json_int_t)result.dropped_stdout, "stderr_dropped",
				       (json_int_t)result.dropped_stderr),
			     err);
}

/* ---- signals ---- */

int process_signal_number(const json_t *value, int *out, struct husk_error *err)
{
	const char *name = json_string_value(value);
	json_int_t number = json_integer_value(value);

	if (name && str_starts(name, "SIG"))
		name += strlen("SIG");
	for (int i = 1; name && i < SIGRTMIN; i++)
		if (str_equal(sigabbrev_np(i), name))
			number = i;
	if (number < 1 || number > SIGRTMAX)
		return husk_fail_field(err, "signal",
				       "signal %s%.20s%s is not known; give a number or a name, such as "
				       "\"TERM\"",
				       name ? "'" : "", name ? name : "", name ? "'" : "of this kind");
	*out = (int)number;
	return 0;
}

int processes_signal(struct request *request, struct husk_error *err)
{
	struct fields fields;
	int64_t pid = 0;
	int number = 0;

	if (fields_begin(&fields, request_json(request, err)) < 0 || path_pid(request, &pid, err) < 0)
		return -1;
	const json_t *signal = fields_any(&fields, "signal");
	if (fields_done(&fields, err) < 0)
		return -1;
	if (!signal)
		return husk_fail_field(err, "signal", "signal is missing; give a number or a name, such as \"TERM\"");
	if (process_signal_number(signal, &number, err) < 0 ||
	    husk_process_kill(request_husk(request), request_path(request, "id"), pid, number, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

/* ---- stdin ---- */

int process_attach(struct request *request, int64_t pid, struct husk_process **out, struct husk_error *err)
{
	struct husk_process_info info;

	if (process_find(request, pid, &info, err) < 0)
		return -1;
	if (!info.running)
		return husk_fail(err, HUSK_CONFLICT, "process %" PRId64 " has ended and accepts no input", pid);
	struct husk_attach_options options = { info.stdout_bytes, info.stderr_bytes, .keep_stdin = true };
	return husk_attach(request_husk(request), request_path(request, "id"), pid, &options, out, NULL, err);
}

int processes_stdin(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "close", NULL };
	cleanup_process struct husk_process *process = NULL;
	struct follow follow = { .request = request };
	cleanup_free char *chunk = malloc(65536);
	bool close = false;
	ssize_t count;

	if (!chunk)
		return husk_fail_memory(err);
	if (path_pid(request, &follow.pid, err) < 0 || request_query_known(request, known, err) < 0 ||
	    request_query_bool(request, "close", false, &close, err) < 0 ||
	    process_attach(request, follow.pid, &process, err) < 0)
		return -1;
	follow.process = process;
	while ((count = request_read(request, chunk, 65536)) > 0)
		if (process_feed(&follow, chunk, (size_t)count, err) < 0)
			return -1;
	if (count < 0)
		return husk_fail(err, HUSK_GONE, "the client disconnected during the input");
	if (process_feed_end(&follow, close, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}
