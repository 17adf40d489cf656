/*
 * Processes in a sandbox, from the caller's side: start, attach, follow, feed, signal, list. Each attached process is one
 * call (call.h) to the agent, which owns the process and buffers its output. Freeing the handle leaves the process running.
 *
 * Two threads may use a handle at once: call.c lets one read while the other sends, and no state here is shared between
 * them. What the agent reports about a process is the guest's claim: it is range-checked and never acted on.
 */
#include <limits.h>
#include <signal.h>

#include "client/call.h"
#include "instance/contact.h"
#include "instance/pairs.h"

#define DETACH_MS 30000 /* the agent answers a detach at once; a busy host may not */
#define OUTPUT_MAX (16u * 1024u * 1024u)
#define LIST_MAX 65536u
#define LIST_BYTES_MAX (64u * 1024u * 1024u)

struct husk_process {
	struct call *call;
	int64_t pid;
	bool feeds;    /* this handle may write to its stdin */
	bool fed;      /* stdin was closed by this handle; used by the writing thread only */
	bool held;     /* `first` arrived instead of the opening message, and is the next event */
	bool finished; /* the exit was returned; used by the reading thread only, like `held` */
	struct call_event first;
};

/* ---- starting ---- */

static int check_exec(const struct husk_exec_options *options, struct husk_error *err)
{
	bool has_argv = options->argv && options->argv[0];

	if (has_argv == (options->shell != NULL) && (has_argv || !options->image_command))
		return husk_fail_field(err, "cmd", "give either a command (argv) or a shell string, %s",
				       has_argv ? "not both" : "there is neither");
	if (has_argv && !options->argv[0][0])
		return husk_fail_field(err, "argv", "the command's name (argv[0]) is empty");
	if (options->cwd && check_path("cwd", options->cwd, err) < 0)
		return -1;
	if (options->user && !*options->user)
		return husk_fail_field(err, "user", "user is empty; name one, or leave it out for root");
	if (options->timeout_ms < 0)
		return husk_fail_field(err, "timeout_seconds", "timeout is negative; 0 means none");
	if (!options->rows != !options->columns)
		return husk_fail_field(err, "rows", "a terminal needs both rows and columns");
	if (options->keep_output < 0 || options->keep_output > EXEC_KEEP_MAX)
		return husk_fail_field(err, "keep_output", "keep_output is not within 0 (1 MiB) and 1 TiB");
	return pairs_check_environment(options->environment, options->environment_count, err);
}

static int put_environment(struct buf *message, const struct husk_pair *pairs, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		cleanup_free char *text = str_format("%s=%s", pairs[i].key, pairs[i].value ? pairs[i].value : "");
		if (!text || wire_put_string(message, TAG_ENV, text) < 0)
			return -1;
	}
	return 0;
}

static int put_exec(struct buf *message, const struct husk_exec_options *options, bool detach, struct husk_error *err)
{
	int flags = (options->keep_stdin ? EXEC_STDIN : 0) | (detach ? EXEC_DETACH : 0) |
		    (options->image_command ? EXEC_IMAGE : 0);
	int bad = 0;

	for (size_t i = 0; options->argv && options->argv[i]; i++)
		bad |= wire_put_string(message, TAG_ARG, options->argv[i]);
	bad |= wire_put_string(message, TAG_SHELL, options->shell);
	bad |= put_environment(message, options->environment, options->environment_count);
	bad |= wire_put_string(message, TAG_CWD, options->cwd);
	bad |= wire_put_string(message, TAG_USER, options->user);
	bad |= wire_put_string(message, TAG_NAME, options->label);
	if (options->timeout_ms)
		bad |= wire_put_int(message, TAG_TIMEOUT_MS, options->timeout_ms);
	if (options->keep_output)
		bad |= wire_put_int(message, TAG_KEEP, options->keep_output);
	if (options->rows) {
		bad |= wire_put_int(message, TAG_ROWS, options->rows);
		bad |= wire_put_int(message, TAG_COLUMNS, options->columns);
	}
	bad |= wire_put_int(message, TAG_FLAGS, flags);
	return check_arguments(bad, err);
}

/* Nobody will follow this process, so a failed start has to be reported now. */
static int finish_detached(struct call *call, const struct husk_exec_options *options, int64_t *pid,
			   struct husk_error *err)
{
	cleanup_buf struct buf results = { 0 };
	const char *name = options->argv && options->argv[0] ? options->argv[0] : "/bin/sh";

	if (call_finish(call, -1, &results, err) < 0)
		return -1;
	int64_t exit_code = wire_get_int(results.data, results.size, TAG_EXIT_CODE, 0);
	if (exit_code == 127)
		husk_fail(err, HUSK_NOT_FOUND, "command '%.200s' not found in the sandbox", name);
	else if (exit_code)
		husk_fail(err, HUSK_INVALID, "command '%.200s' cannot be executed in the sandbox", name);
	if (exit_code && err)
		snprintf(err->field, sizeof(err->field), HUSK_FIELD_PROGRAM);
	if (exit_code)
		return -1;
	if (pid)
		*pid = wire_get_int(results.data, results.size, TAG_PID, 0);
	return 0;
}

/* Makes a handle for an opened call, and takes ownership of the call. Reads the opening message into `opening`. If the
 * process ended before any message, its end is held as the first event. */
static int process_new(struct call **call, bool feeds, struct call_event *opening, struct husk_process **out,
		       struct husk_error *err)
{
	struct husk_process *process;

	if (call_next(*call, opening, err) < 0)
		return -1;
	call_be_patient(*call);
	if (opening->type == WIRE_END && wire_end_status(opening->data, opening->size, err) < 0)
		return -1;
	if (opening->type != WIRE_END && opening->type != WIRE_MSG)
		return husk_fail(err, HUSK_PROTOCOL, "the agent sent output before it said what process it is of");
	if (call_make_pollable(*call, err) < 0)
		return -1;
	process = calloc(1, sizeof(*process));
	if (!process)
		return husk_fail_memory(err);
	process->call = steal_pointer(*call);
	process->feeds = feeds;
	process->held = opening->type == WIRE_END;
	process->first = *opening;
	process->pid = wire_get_int(opening->data, opening->size, TAG_PID, 0);
	*out = process;
	return 0;
}

int husk_exec(struct husk *husk, const char *sandbox, const struct husk_exec_options *options,
	      struct husk_process **out, int64_t *pid, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	cleanup_call struct call *call = NULL;
	struct call_event opening;
	bool detach = options->detach || !out;

	if (check_exec(options, err) < 0 || put_exec(&message, options, detach, err) < 0)
		return -1;
	if (call_start(husk, sandbox, METHOD_EXEC, &message, &call, err) < 0)
		return -1;
	if (detach)
		return finish_detached(call, options, pid, err);
	if (process_new(&call, options->keep_stdin, &opening, out, err) < 0)
		return -1;
	if (pid)
		*pid = (*out)->pid;
	return 0;
}

int husk_attach(struct husk *husk, const char *sandbox, int64_t pid, const struct husk_attach_options *options,
		struct husk_process **out, struct husk_attach_result *result, struct husk_error *err)
{
	static const struct husk_attach_options whole = { .offset_stdout = -1, .offset_stderr = -1 };
	cleanup_buf struct buf message = { 0 };
	cleanup_call struct call *call = NULL;
	struct call_event opening;
	int bad = 0;

	if (!options)
		options = &whole;
	if (pid <= 0)
		return husk_fail_field(err, "pid", "process %lld: a process number is positive", (long long)pid);
	bad |= wire_put_int(&message, TAG_PID, pid);
	if (options->offset_stdout >= 0)
		bad |= wire_put_int(&message, TAG_OFFSET_OUT, options->offset_stdout);
	if (options->offset_stderr >= 0)
		bad |= wire_put_int(&message, TAG_OFFSET_ERR, options->offset_stderr);
	bad |= wire_put_int(&message, TAG_FLAGS, options->keep_stdin ? EXEC_STDIN : 0);
	if (check_arguments(bad, err) < 0 || call_start(husk, sandbox, METHOD_ATTACH, &message, &call, err) < 0)
		return -1;
	if (process_new(&call, options->keep_stdin, &opening, out, err) < 0)
		return -1;
	if (result) {
		result->offset_stdout = wire_get_int(opening.data, opening.size, TAG_OFFSET_OUT, 0);
		result->offset_stderr = wire_get_int(opening.data, opening.size, TAG_OFFSET_ERR, 0);
		result->dropped_stdout = wire_get_int(opening.data, opening.size, TAG_DROPPED_OUT, 0);
		result->dropped_stderr = wire_get_int(opening.data, opening.size, TAG_DROPPED_ERR, 0);
	}
	return 0;
}

/* ---- following ---- */

static int read_exit(const struct call_event *from, struct husk_process_event *event, struct husk_error *err)
{
	if (wire_end_status(from->data, from->size, err) < 0)
		return -1;
	int64_t code = wire_get_int(from->data, from->size, TAG_EXIT_CODE, -1);
	int64_t number = wire_get_int(from->data, from->size, TAG_SIGNAL, 0);
	if (code < 0 || code > 255 || number < 0 || number > 127)
		return husk_fail(err, HUSK_PROTOCOL,
				 "the agent reported an exit that cannot be (code %lld, signal %lld)", (long long)code,
				 (long long)number);
	*event = (struct husk_process_event){
		.kind = HUSK_EXIT,
		.exit_code = (int)code,
		.signal = (int)number,
		.timed_out = wire_get_int(from->data, from->size, TAG_TIMED_OUT, 0) != 0,
		.out_of_memory = wire_get_int(from->data, from->size, TAG_OOM, 0) != 0,
		.duration_ms = MAX(0, wire_get_int(from->data, from->size, TAG_DURATION_MS, 0)),
	};
	return 0;
}

int husk_process_next(struct husk_process *process, struct husk_process_event *event, struct husk_error *err)
{
	struct call_event from = process->first;

	if (process->finished)
		return husk_fail(err, HUSK_GONE, "process %lld has ended; there are no more events",
				 (long long)process->pid);
	do {
		if (!process->held && call_next(process->call, &from, err) < 0)
			return -1;
		process->held = false;
	} while (from.type != WIRE_DATA && from.type != WIRE_END);
	if (from.type == WIRE_END) {
		process->finished = true;
		return read_exit(&from, event, err);
	}
	*event = (struct husk_process_event){
		.kind = from.stream == STREAM_ERR ? HUSK_STDERR : HUSK_STDOUT,
		.data = from.data,
		.size = from.size,
	};
	return 0;
}

int husk_process_fd(struct husk_process *process)
{
	return call_poll_fd(process->call);
}

bool husk_process_pending(struct husk_process *process)
{
	return process->held || process->finished || call_wait(process->call, 0) > 0;
}

/* ---- feeding and signalling ---- */

static int check_feeds(const struct husk_process *process, struct husk_error *err)
{
	if (!process->feeds)
		return husk_fail(err, HUSK_INVALID, "process %lld was not given a stdin; ask for keep_stdin",
				 (long long)process->pid);
	if (process->fed)
		return husk_fail(err, HUSK_INVALID, "stdin of process %lld is closed already", (long long)process->pid);
	return 0;
}

int husk_process_write(struct husk_process *process, const void *data, size_t size, struct husk_error *err)
{
	if (check_feeds(process, err) < 0)
		return -1;
	if (call_write(process->call, data, size, err) < 0)
		return husk_wrap(err, "writing to process %lld", (long long)process->pid);
	return 0;
}

ssize_t husk_process_write_some(struct husk_process *process, const void *data, size_t size, struct husk_error *err)
{
	if (check_feeds(process, err) < 0)
		return -1;
	ssize_t count = call_write_some(process->call, data, size, err);
	return count < 0 ? husk_wrap(err, "writing to process %lld", (long long)process->pid) : count;
}

size_t husk_process_unread(struct husk_process *process)
{
	return call_unread(process->call);
}

int husk_process_close_stdin(struct husk_process *process, struct husk_error *err)
{
	if (!process->feeds || process->fed)
		return 0;
	process->fed = true;
	return call_write_eof(process->call, err);
}

static int check_signal(int number, struct husk_error *err)
{
	if (number < 1 || number > SIGRTMAX)
		return husk_fail_field(err, "signal", "signal %d does not exist; 1 to %d do", number, SIGRTMAX);
	return 0;
}

int husk_process_signal(struct husk_process *process, int signal, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };

	if (check_signal(signal, err) < 0)
		return -1;
	if (wire_put_int(&message, TAG_SIGNAL, signal) < 0)
		return husk_fail_memory(err);
	return call_message(process->call, &message, err);
}

int husk_process_resize(struct husk_process *process, uint16_t rows, uint16_t columns, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };

	if (!rows || !columns)
		return husk_fail_field(err, "rows", "a terminal of %u rows and %u columns cannot be", rows, columns);
	if (wire_put_int(&message, TAG_ROWS, rows) < 0 || wire_put_int(&message, TAG_COLUMNS, columns) < 0)
		return husk_fail_memory(err);
	return call_message(process->call, &message, err);
}

int husk_process_detach(struct husk_process *process, struct husk_error *err)
{
	if (call_cancel(process->call, err) < 0)
		return -1;
	return call_finish(process->call, time_monotonic_ms() + DETACH_MS, NULL, err);
}

void husk_process_free(struct husk_process *process)
{
	if (!process)
		return;
	call_free(process->call);
	free(process);
}

/* ---- husk_run ---- */

static void process_cleanup(struct husk_process **process)
{
	husk_process_free(*process);
}

static int collect(struct buf *to, uint64_t *lost, const struct husk_process_event *event, struct husk_error *err)
{
	size_t kept = MIN(event->size, OUTPUT_MAX - to->size);

	if (kept && buf_append(to, event->data, kept) < 0)
		return husk_fail_memory(err);
	*lost += event->size - kept;
	return 0;
}

void husk_result_free(struct husk_result *result)
{
	free(result->output);
	free(result->error_output);
	*result = (struct husk_result){ 0 };
}

int husk_run(struct husk *husk, const char *sandbox, const struct husk_exec_options *options, struct husk_result *out,
	     struct husk_error *err)
{
	cleanup(process_cleanup) struct husk_process *process = NULL;
	cleanup_buf struct buf output = { 0 }, error_output = { 0 };
	struct husk_exec_options followed = *options;
	struct husk_process_event event = { 0 };

	followed.detach = followed.keep_stdin = false;
	*out = (struct husk_result){ 0 };
	if (husk_exec(husk, sandbox, &followed, &process, NULL, err) < 0)
		return -1;
	while (event.kind != HUSK_EXIT) {
		if (husk_process_next(process, &event, err) < 0)
			return -1;
		if (event.kind == HUSK_STDOUT && collect(&output, &out->output_lost, &event, err) < 0)
			return -1;
		if (event.kind == HUSK_STDERR && collect(&error_output, &out->error_output_lost, &event, err) < 0)
			return -1;
	}
	out->exit_code = event.exit_code;
	out->signal = event.signal;
	out->timed_out = event.timed_out;
	out->out_of_memory = event.out_of_memory;
	out->duration_ms = event.duration_ms;
	out->output_size = output.size;
	out->error_output_size = error_output.size;
	out->output = buf_steal(&output);
	out->error_output = buf_steal(&error_output);
	if (out->output && out->error_output)
		return 0;
	husk_result_free(out);
	return husk_fail_memory(err);
}

/* ---- the list ---- */

static void process_info_clear(struct husk_process_info *info)
{
	free(info->label);
	strv_free(info->argv);
	free(info->cwd);
	free(info->user);
}

void husk_process_list_free(struct husk_process_info *list, size_t count)
{
	for (size_t i = 0; list && i < count; i++)
		process_info_clear(&list[i]);
	free(list);
}

static int read_info(const struct call_event *from, struct husk_process_info *info, struct husk_error *err)
{
	int64_t code = wire_get_int(from->data, from->size, TAG_EXIT_CODE, 0);

	*info = (struct husk_process_info){
		.pid = wire_get_int(from->data, from->size, TAG_PID, 0),
		.label = wire_get_string(from->data, from->size, TAG_NAME),
		.argv = wire_get_strings(from->data, from->size, TAG_ARG),
		.cwd = wire_get_string(from->data, from->size, TAG_CWD),
		.user = wire_get_string(from->data, from->size, TAG_USER),
		.started_ms = wire_get_int(from->data, from->size, TAG_STARTED_MS, 0),
		.running = wire_get_int(from->data, from->size, TAG_RUNNING, 0) != 0,
		.timed_out = wire_get_int(from->data, from->size, TAG_TIMED_OUT, 0) != 0,
		.out_of_memory = wire_get_int(from->data, from->size, TAG_OOM, 0) != 0,
		.terminal = wire_get_int(from->data, from->size, TAG_ROWS, 0) > 0,
		.exit_code = code < 0 || code > 255 ? 255 : (int)code,
		.stdout_bytes = MAX(0, wire_get_int(from->data, from->size, TAG_OFFSET_OUT, 0)),
		.stderr_bytes = MAX(0, wire_get_int(from->data, from->size, TAG_OFFSET_ERR, 0)),
	};
	if (info->pid > 0 && info->argv)
		return 0;
	process_info_clear(info);
	return husk_fail(err, HUSK_PROTOCOL, "the agent listed a process without a number or with a broken argv");
}

int husk_process_list(struct husk *husk, const char *sandbox, struct husk_process_info **out, size_t *count,
		      struct husk_error *err)
{
	cleanup_call struct call *call = NULL;
	struct husk_process_info *list = NULL;
	struct call_event event = { 0 };
	size_t used = 0, bytes = 0;
	int result = call_start(husk, sandbox, METHOD_PROCESS_LIST, NULL, &call, err);

	while (result == 0 && (result = call_next(call, &event, err)) == 0 && event.type != WIRE_END) {
		if (event.type != WIRE_MSG)
			continue;
		bytes += event.size;
		if (used == LIST_MAX || bytes > LIST_BYTES_MAX) {
			result = husk_fail(err, HUSK_LIMIT, "more than %u processes in the list", LIST_MAX);
			break;
		}
		struct husk_process_info *grown = reallocarray(list, used + 1, sizeof(*list));
		if (!grown) {
			result = husk_fail_memory(err);
			break;
		}
		list = grown;
		result = read_info(&event, &list[used], err);
		used += result == 0;
	}
	if (result == 0)
		result = wire_end_status(event.data, event.size, err);
	if (result < 0) {
		husk_process_list_free(list, used);
		return -1;
	}
	*out = list;
	*count = used;
	return 0;
}

int husk_process_kill(struct husk *husk, const char *sandbox, int64_t pid, int signal, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };

	if (check_signal(signal, err) < 0)
		return -1;
	if (wire_put_int(&message, TAG_PID, pid) < 0 || wire_put_int(&message, TAG_SIGNAL, signal) < 0)
		return husk_fail_memory(err);
	return husk_call(husk, sandbox, METHOD_PROCESS_SIGNAL, &message, NULL, err);
}
