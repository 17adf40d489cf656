/*
 * run_command: runs a shell command in the sandbox and reports progress, or starts the command in the background. A
 * cancelled command is killed with its children. If a client only disconnects, its command continues, and the client
 * can come back to it (mcp_resume): the agent keeps the output, so nothing is stored here.
 */
#include <inttypes.h>
#include <signal.h>

#include "mcp/tools.h"

#define TIMEOUT_MS 120000
#define TURNS_PER_CHECK 64u /* a process that writes without pause must not prevent the check for a cancelled call */

struct running {
	struct husk_process *process;
	int64_t pid;
	const char *input;
	size_t input_size;
	bool input_open;
	struct clip output[2]; /* [0] is stdout */
	struct tool_progress progress;
	int64_t started_ms; /* wall clock, to find connections blocked since then */
	unsigned turns;
};

static void running_free(struct running *running)
{
	husk_process_free(running->process);
	clip_free(&running->output[0]);
	clip_free(&running->output[1]);
}

/* Writes as much input as possible without waiting. A process that ended or closed its stdin takes no more; its exit is
 * reported. */
static void feed(struct running *running)
{
	if (running->input_size) {
		ssize_t count = husk_process_write_some(running->process, running->input, running->input_size, NULL);
		size_t taken = count < 0 ? running->input_size : (size_t)count;
		running->input += taken;
		running->input_size -= taken;
	}
	if (running->input_open && !running->input_size) {
		running->input_open = false;
		husk_process_close_stdin(running->process, NULL);
	}
}

static int abandon(struct tool_call *call, struct running *running, struct husk_error *err)
{
	if (atomic_load(&call->call->cancelled))
		husk_process_kill(call->session->husk, call->sandbox, running->pid, SIGKILL, NULL);
	return husk_fail(err, HUSK_GONE, "the client disconnected");
}

/* Waits for the next event; -1: there will be none. */
static int next_event(struct tool_call *call, struct running *running, struct husk_process_event *event,
		      struct husk_error *err)
{
	struct mcp_call *waiter = call->call;

	for (;;) {
		if (++running->turns % TURNS_PER_CHECK == 0 && waiter->wait(waiter->data, -1, 0) < 0)
			return abandon(call, running, err);
		bool pending = husk_process_pending(running->process);
		feed(running); /* after the received frames were read: room that they announced is not announced again */
		tool_progress_tick(call, &running->progress);
		if (pending)
			return husk_process_next(running->process, event, err);
		if (waiter->wait(waiter->data, husk_process_fd(running->process), PROGRESS_MS) < 0)
			return abandon(call, running, err);
	}
}

static int follow(struct tool_call *call, struct running *running, struct husk_process_event *event,
		  struct husk_error *err)
{
	tool_progress_begin(&running->progress);
	do {
		if (next_event(call, running, event, err) < 0)
			return -1;
		if (event->kind == HUSK_EXIT)
			return 0;
		tool_progress_output(&running->progress, event->data, event->size);
	} while (clip_add(&running->output[event->kind == HUSK_STDERR], event->data, event->size, err) == 0);
	return -1;
}

/* ---- the result ---- */

static const char *ending_of(const struct husk_process_event *exit)
{
	if (exit->timed_out)
		return "; it ran out of time and was killed: give a longer timeout_seconds, or run it in the "
		       "background";
	if (exit->out_of_memory)
		return "; the sandbox ran out of memory: use less, or create_sandbox with more memory_mb";
	return "";
}

static int say_streams(struct tool_call *call, int64_t started_ms, const struct buf *out, const struct buf *error,
		       const struct husk_process_event *exit, json_t **blocked, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	int bad = out->size ? buf_append(&text, out->data, out->size) : 0;

	if (text.size && text.data[text.size - 1] != '\n')
		bad |= buf_append_string(&text, "\n");
	if (error->size)
		bad |= buf_append_string(&text, "[stderr]\n") | buf_append(&text, error->data, error->size);
	if (text.size && text.data[text.size - 1] != '\n')
		bad |= buf_append_string(&text, "\n");
	*blocked = exit->exit_code ? denied_add(call, started_ms, error->data, error->size, &text) : json_array();
	bad |= !*blocked;
	bad |= buf_printf(&text, "[exit code %d, %lld ms, sandbox %s%s]", exit->exit_code, (long long)exit->duration_ms,
			  call->sandbox, ending_of(exit));
	return bad ? husk_fail_memory(err) : tool_say(call, text.data, text.size, err);
}

static int give_result(struct tool_call *call, struct running *running, const struct husk_process_event *exit,
		       struct husk_error *err)
{
	cleanup_buf struct buf out = { 0 }, error = { 0 };
	cleanup_json json_t *blocked = NULL;
	uint64_t left_out[2];

	if (clip_text(&running->output[0], &out, &left_out[0], err) < 0 ||
	    clip_text(&running->output[1], &error, &left_out[1], err) < 0 ||
	    say_streams(call, running->started_ms, &out, &error, exit, &blocked, err) < 0)
		return -1;
	call->is_error = exit->timed_out || exit->out_of_memory;
	return tool_give(call,
			 json_pack("{s:I, s:b, s:i, s:o, s:o, s:I, s:I, s:b, s:b, s:I, s:O}", "pid",
				   (json_int_t)running->pid, "background", false, "exit_code", exit->exit_code,
				   "stdout", json_text(out.data ? out.data : "", out.size), "stderr",
				   json_text(error.data ? error.data : "", error.size), "stdout_left_out",
				   (json_int_t)left_out[0], "stderr_left_out", (json_int_t)left_out[1], "timed_out",
				   exit->timed_out, "out_of_memory", exit->out_of_memory, "duration_ms",
				   (json_int_t)exit->duration_ms, "blocked", blocked),
			 err);
}

static int give_background(struct tool_call *call, int64_t pid, struct husk_error *err)
{
	if (tool_sayf(call, err,
		      "started in the background as pid %" PRId64 " in sandbox %s; stop it with: kill %" PRId64, pid,
		      call->sandbox, pid) < 0)
		return -1;
	return tool_give(call,
			 json_pack("{s:I, s:b, s:n, s:s, s:s, s:b}", "pid", (json_int_t)pid, "background", true,
				   "exit_code", "stdout", "", "stderr", "", "timed_out", false),
			 err);
}

/* ---- the tool ---- */

static int run(struct tool_call *call, const struct husk_exec_options *options, struct husk_error *err)
{
	cleanup(running_free) struct running running = { .input = tool_string(call, "stdin"),
							 .input_open = options->keep_stdin };
	struct husk_process_event exit = { 0 };

	running.started_ms = time_wall_ms();
	running.input_size = running.input ? json_string_length(json_object_get(call->arguments, "stdin")) : 0;
	if (husk_exec(call->session->husk, call->sandbox, options, options->detach ? NULL : &running.process,
		      &running.pid, err) < 0)
		return -1;
	if (options->detach)
		return give_background(call, running.pid, err);
	if (call->call->started)
		call->call->started(call->call->data, call->sandbox, running.pid);
	if (follow(call, &running, &exit, err) < 0)
		return -1;
	return give_result(call, &running, &exit, err);
}

int tool_run_command(struct tool_call *call, struct husk_error *err)
{
	cleanup_free struct husk_pair *environment = NULL;
	bool background = tool_bool(call, "background");
	struct husk_exec_options options = {
		.shell = tool_string(call, "command"),
		.cwd = tool_string(call, "cwd"),
		.user = tool_string(call, "user"),
		.label = "mcp",
		.timeout_ms = tool_timeout_ms(call, background ? 0 : TIMEOUT_MS),
		.keep_stdin = !background && tool_string(call, "stdin"),
		.detach = background,
	};

	if (background && tool_string(call, "stdin"))
		return husk_fail_field(err, "stdin",
				       "'stdin' cannot be given to a background command; write a file and "
				       "redirect it");
	if (tool_pairs(call, "env", &environment, &options.environment_count, err) < 0)
		return -1;
	options.environment = environment;
	if (session_sandbox(call, NEED_ANY, options.timeout_ms, err) < 0)
		return -1;
	return run(call, &options, err);
}

/* ---- coming back to one ---- */

static int resume(struct tool_call *call, int64_t pid, struct husk_error *err)
{
	const struct husk_attach_options options = { .offset_stdout = -1, .offset_stderr = -1 };
	cleanup(running_free) struct running running = { .pid = pid, .started_ms = time_wall_ms() };
	struct husk_attach_result lost = { 0 };
	struct husk_process_event exit = { 0 };

	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0 ||
	    husk_attach(call->session->husk, call->sandbox, pid, &options, &running.process, &lost, err) < 0)
		return -1;
	if (call->call->started)
		call->call->started(call->call->data, call->sandbox, pid);
	if (follow(call, &running, &exit, err) < 0)
		return -1;
	/* Output that is no longer kept was at the beginning: it counts as left out. */
	running.output[0].total += (uint64_t)MAX(lost.dropped_stdout, 0);
	running.output[1].total += (uint64_t)MAX(lost.dropped_stderr, 0);
	return give_result(call, &running, &exit, err);
}

json_t *mcp_resume(struct mcp_session *session, struct mcp_call *call, const json_t *id, const char *sandbox,
		   int64_t pid)
{
	cleanup_json json_t *arguments = json_pack("{s:s}", "sandbox", sandbox);
	cleanup(tool_call_free) struct tool_call state = {
		.session = session, .call = call, .arguments = arguments, .shared = true
	};
	struct husk_error failure = { 0 };

	if (!arguments)
		return NULL;
	int status = resume(&state, pid, &failure);
	if (atomic_load(&call->cancelled) ||
	    (status < 0 && failure.code == HUSK_GONE && call->wait(call->data, -1, 0) < 0))
		return NULL;
	return mcp_result(id, tool_result(&state, status, &failure));
}
