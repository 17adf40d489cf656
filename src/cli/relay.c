/*
 * Follows a process of a sandbox; see relay.h. The main thread handles the output and our signals. A second thread
 * feeds our stdin, because a write blocks while the process does not read, and the output must flow meanwhile. In any
 * case the terminal is restored.
 */
#include "cli/relay.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "base/thread.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

#define CAPTURE_MAX (16u << 20)
#define LAST_ERRORS_MAX 1024u
#define KEY_CTRL_P 0x10
#define KEY_CTRL_Q 0x11
/* A feeder that does not end by then is blocked in a write: the program is about to end anyway. */
#define FEEDER_PATIENCE_MS 200
/* How long a process has to end after a signal was passed on; then it is killed. */
#define SIGNAL_GRACE_MS 10000
/* How long the kill and the removal of the sandbox may take: a supervisor may hang. */
#define CLEANUP_SECONDS 15

const struct option_spec process_options[] = {
	OPTION('i', "interactive", OPTION_FLAG, struct process_arguments, interactive, NULL,
	       "pass stdin to the command"),
	OPTION('d', "detach", OPTION_FLAG, struct process_arguments, detach, NULL,
	       "start it in the background (husk attach shows it later)"),
	OPTION('c', "shell", OPTION_STRING, struct process_arguments, shell, "STRING",
	       "run a string with /bin/sh -c instead of a command"),
	OPTION('w', "cwd", OPTION_STRING, struct process_arguments, cwd, "PATH", "where it runs"),
	OPTION('u', "user", OPTION_STRING, struct process_arguments, user, "USER", "the user who runs it (root)"),
	OPTION(0, "timeout", OPTION_MILLISECONDS, struct process_arguments, timeout_ms, "TIME",
	       "kill it and everything that it started after this time; exit status 124", .min = 1,
	       .max = INT64_C(365) * 86400000),
	OPTION(0, "keep-output", OPTION_SIZE, struct process_arguments, keep_output, "SIZE",
	       "how much of each output stream husk attach can show later (1M); more than 1M uses the sandbox's disk",
	       .min = 1, .max = INT64_C(1) << 40),
	{ 0 },
};

struct relay {
	struct cli *cli;
	struct husk_process *process;
	const struct relay_options *options;
	struct relay_result *result;
	int wake; /* the feeder saw the detach keys */
	int stop; /* the feeder is to end */
	bool exited;
	bool abandoned;      /* the feeder did not end, and still uses this structure */
	int signal;          /* the last signal that was passed on; 0: none */
	int64_t deadline_ms; /* with `signal`: when to stop waiting for the process */
};

/* ---- our input ---- */

/* Sends the bytes without the detach keys. *held: a ctrl-p that waits for the next key. True: the user detached. */
static bool feed_keys(struct relay *relay, const char *data, size_t size, bool *held, int *result)
{
	char out[4096 + 1];
	size_t count = 0;
	bool detach = false;

	for (size_t i = 0; i < size && !detach; i++) {
		if (*held && data[i] == KEY_CTRL_Q) {
			detach = true;
			continue;
		}
		if (*held)
			out[count++] = KEY_CTRL_P;
		*held = data[i] == KEY_CTRL_P;
		if (!*held)
			out[count++] = data[i];
	}
	*result = count ? husk_process_write(relay->process, out, count, NULL) : 0;
	return detach;
}

static void *feeder_main(void *data)
{
	struct relay *relay = data;
	struct pollfd fds[2] = { { .fd = STDIN_FILENO, .events = POLLIN }, { .fd = relay->stop, .events = POLLIN } };
	bool keys = relay->options->detachable && relay->options->terminal, held = false;
	char bytes[4096];
	int result = 0;

	while (result == 0) {
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			break;
		if (fds[1].revents)
			return NULL;
		if (!fds[0].revents)
			continue;
		ssize_t size = read(STDIN_FILENO, bytes, sizeof(bytes));
		if (size < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (size <= 0)
			break;
		if (keys && feed_keys(relay, bytes, (size_t)size, &held, &result)) {
			eventfd_write(relay->wake, 1);
			return NULL;
		}
		if (!keys)
			result = husk_process_write(relay->process, bytes, (size_t)size, NULL);
	}
	/* a failed write means that the process has ended or reads no more: its exit has the details */
	husk_process_close_stdin(relay->process, NULL);
	return NULL;
}

static int feeder_start(struct relay *relay, pthread_t *thread, struct husk_error *err)
{
	errno = thread_quiet(thread, 0, feeder_main, relay);
	return errno ? husk_fail_errno(err, "cannot start a thread for stdin") : 0;
}

/* True if it ended, so that its data may be freed. */
static bool feeder_stop(struct relay *relay, pthread_t thread)
{
	struct timespec until;

	eventfd_write(relay->stop, 1);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += FEEDER_PATIENCE_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	return pthread_timedjoin_np(thread, NULL, &until) == 0;
}

/* ---- signals ---- */

static void relay_signals(struct relay *relay)
{
	for (int signal = interrupt_take(); signal; signal = interrupt_take()) {
		if (signal == SIGWINCH) {
			uint16_t rows, columns;
			terminal_size(&rows, &columns);
			if (relay->options->terminal)
				husk_process_resize(relay->process, rows, columns, NULL);
			continue;
		}
		bool again = relay->signal != 0;
		relay->signal = signal;
		if (!again) {
			relay->deadline_ms = time_monotonic_ms() + SIGNAL_GRACE_MS;
			interrupt_deadline(signal, SIGNAL_GRACE_MS / 1000 + CLEANUP_SECONDS);
		}
		/* a second signal, or a closed terminal: do not wait for the process to end itself */
		if (again || signal == SIGHUP || husk_process_signal(relay->process, signal, NULL) < 0)
			relay->result->interrupted = signal;
	}
}

/* The timeout for poll: the remaining time of the process after a signal was passed on; otherwise no limit. */
static int relay_patience(struct relay *relay)
{
	if (!relay->signal)
		return -1;
	int64_t left = relay->deadline_ms - time_monotonic_ms();
	if (left <= 0 && !relay->exited && !relay->result->interrupted)
		relay->result->interrupted = relay->signal;
	return (int)MAX(left, 0);
}

static bool relay_over(const struct relay *relay)
{
	return relay->exited || relay->result->detached || relay->result->interrupted;
}

/* ---- its output ---- */

static int capture(struct relay_capture *into, const char *data, size_t size, struct husk_error *err)
{
	size_t fits = MIN(size, CAPTURE_MAX - into->data.size);

	into->lost += size - fits;
	if (fits && buf_append(&into->data, data, fits) < 0)
		return husk_fail_memory(err);
	return 0;
}

/* As write_full, but a reader that never reads cannot delay signals: PIPE_BUF bytes fit whenever poll says so. */
static int pass_on(struct relay *relay, int fd, const char *data, size_t size, struct husk_error *err)
{
	while (size && !relay->result->interrupted) {
		struct pollfd fds[2] = { { .fd = fd, .events = POLLOUT }, { .fd = interrupt_fd(), .events = POLLIN } };
		int ready = poll(fds, 2, relay_patience(relay));
		if (ready < 0 && errno != EINTR)
			return husk_fail_errno(err, "cannot wait for standard output");
		if (ready > 0 && fds[1].revents & POLLIN)
			relay_signals(relay);
		if (ready <= 0 || !fds[0].revents)
			continue;
		ssize_t written = write(fd, data, MIN(size, (size_t)PIPE_BUF));
		if (written < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (written < 0 && errno == EPIPE) {
			relay->result->interrupted = SIGPIPE; /* the status of a program that dies of SIGPIPE */
			return 0;
		}
		if (written < 0)
			return husk_fail_errno(err, "cannot write the output");
		data += written;
		size -= (size_t)written;
	}
	return 0;
}

static void keep_last(struct buf *last, const char *data, size_t size)
{
	size_t fits = MIN(size, LAST_ERRORS_MAX);

	if (buf_append(last, data + size - fits, fits) == 0 && last->size > LAST_ERRORS_MAX)
		buf_consume(last, last->size - LAST_ERRORS_MAX);
}

static int relay_event(struct relay *relay, const struct husk_process_event *event, struct husk_error *err)
{
	struct relay_result *result = relay->result;
	bool error_output = event->kind == HUSK_STDERR;

	if (event->kind == HUSK_EXIT) {
		relay->exited = true;
		result->exit_code = event->exit_code;
		result->signal = event->signal;
		result->timed_out = event->timed_out;
		result->out_of_memory = event->out_of_memory;
		result->duration_ms = event->duration_ms;
		return 0;
	}
	if (error_output)
		keep_last(&result->last_errors, event->data, event->size);
	if (relay->options->capture)
		return capture(error_output ? &result->error_output : &result->output, event->data, event->size, err);
	return pass_on(relay, error_output ? STDERR_FILENO : STDOUT_FILENO, event->data, event->size, err);
}

static int relay_loop(struct relay *relay, struct husk_error *err)
{
	while (!relay_over(relay)) {
		struct pollfd fds[3] = { { .fd = husk_process_fd(relay->process), .events = POLLIN },
					 { .fd = interrupt_fd(), .events = POLLIN },
					 { .fd = relay->wake, .events = POLLIN } };
		bool pending = husk_process_pending(relay->process);
		int patience = relay_patience(relay), ready = poll(fds, 3, pending ? 0 : patience);
		if (ready < 0 && errno != EINTR)
			return husk_fail_errno(err, "cannot wait for the process");
		if (ready < 0)
			continue; /* the results of poll are not valid */
		if (fds[2].revents & POLLIN)
			relay->result->detached = true;
		if (fds[1].revents & POLLIN)
			relay_signals(relay);
		/* A readable descriptor does not guarantee an event: a credit frame is none, and next would block
		 * through a signal. */
		if (relay_over(relay) || !husk_process_pending(relay->process))
			continue;
		struct husk_process_event event = { 0 };
		if (husk_process_next(relay->process, &event, err) < 0 || relay_event(relay, &event, err) < 0)
			return -1;
	}
	return 0;
}

static int relay_run(struct relay *relay, struct husk_error *err)
{
	cleanup_terminal struct terminal terminal = { 0 };
	pthread_t feeder = 0;

	if (relay->options->terminal && relay->options->input && terminal_raw(&terminal, err) < 0)
		return -1;
	if (relay->options->input && feeder_start(relay, &feeder, err) < 0)
		return -1;
	int result = relay_loop(relay, err);
	relay->abandoned = relay->options->input && !feeder_stop(relay, feeder);
	return result;
}

int relay_process(struct cli *cli, struct husk_process *process, const struct relay_options *options,
		  struct relay_result *result, struct husk_error *err)
{
	/* static: a feeder that is blocked in its last write may outlive this call */
	static struct relay relay;

	relay = (struct relay){ .cli = cli, .process = process, .options = options, .result = result };
	relay.wake = eventfd(0, EFD_CLOEXEC);
	relay.stop = eventfd(0, EFD_CLOEXEC);
	int status = -1;
	if (relay.wake < 0 || relay.stop < 0)
		husk_fail_errno(err, "cannot make an eventfd");
	else if (interrupt_forward(true, err) == 0)
		status = relay_run(&relay, err);
	interrupt_forward(false, NULL);
	interrupt_deadline(result->interrupted, result->interrupted ? CLEANUP_SECONDS : 0);
	if (relay.abandoned) /* freed with the program */
		return status;
	fd_close(&relay.wake);
	fd_close(&relay.stop);
	husk_process_free(process);
	return status;
}

/* ---- from start to end ---- */

int relay_exec_options(const struct cli *cli, const char *sandbox, struct process_arguments *arguments, int argc,
		       char *const *argv, struct husk_exec_options *out, struct husk_error *err)
{
	bool at_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !cli->json && !arguments->detach;

	/* `husk run`, `husk exec box`: on a terminal the user wants a shell */
	if (argc == 0 && !arguments->shell && at_terminal)
		arguments->interactive = arguments->tty = true;
	*out = (struct husk_exec_options){
		.shell = arguments->shell,
		.cwd = arguments->cwd,
		.user = arguments->user,
		.timeout_ms = arguments->timeout_ms,
		.keep_output = arguments->keep_output,
		.keep_stdin = arguments->interactive,
		.detach = arguments->detach,
	};
	if (arguments->shell && argc > 0)
		return husk_fail(err, HUSK_INVALID, "--shell and a command exclude each other; '%s' is one too many",
				 argv[0]);
	out->image_command = argc == 0 && !arguments->shell && arguments->image;
	if (argc > 0)
		out->argv = (const char *const *)argv;
	else if (!arguments->shell && !arguments->tty && !arguments->image)
		return husk_fail(err, HUSK_INVALID,
				 "a command is missing; type husk %s%s%s -- COMMAND, or for a shell husk %s -it%s%s",
				 cli->command->name, sandbox ? " " : "", sandbox ? sandbox : "", cli->command->name,
				 sandbox ? " " : "", sandbox ? sandbox : "");
	else if (!arguments->shell && arguments->tty)
		out->shell = "command -v bash >/dev/null && exec bash -l; exec sh -l";
	if (arguments->tty && arguments->interactive && !isatty(STDIN_FILENO))
		return husk_fail(err, HUSK_INVALID,
				 "stdin is not a terminal, which -it requires; use -i to pass stdin as it is, or --tty "
				 "for a terminal without input");
	if (arguments->tty)
		terminal_size(&out->rows, &out->columns);
	return 0;
}

int relay_exec(struct cli *cli, const char *sandbox, const struct process_arguments *arguments,
	       const struct husk_exec_options *exec, bool detachable, struct relay_result *result, int64_t *pid,
	       struct husk_error *err)
{
	struct husk_process *process = NULL;

	struct progress *progress =
		progress_begin("waking %s", sandbox); /* everything before the start that can take long */
	int started = husk_exec(cli->husk, sandbox, exec, &process, pid, err);
	progress_end(&progress);
	if (started < 0)
		return -1;
	const struct relay_options options = {
		.sandbox = sandbox,
		.pid = *pid,
		.input = arguments->interactive,
		.terminal = arguments->tty,
		.capture = cli->json,
		.detachable = detachable,
	};
	return relay_process(cli, process, &options, result, err);
}

void relay_result_free(struct relay_result *result)
{
	buf_free(&result->output.data);
	buf_free(&result->error_output.data);
	buf_free(&result->last_errors);
}

json_t *relay_json(const struct husk_sandbox *sandbox, int64_t pid, int64_t create_ms, int64_t total_ms,
		   const struct relay_result *result, json_t *denied)
{
	cleanup_json json_t *object =
		json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:I}", "id", sandbox->id, "pid", (json_int_t)pid, "template",
			  json_text0(sandbox->template_name), "isolation", json_text0(sandbox->isolation), "boundary",
			  json_text0(sandbox->boundary), "create_ms",
			  create_ms < 0 ? json_null() : json_integer(create_ms), "total_ms", (json_int_t)total_ms);
	cleanup_json json_t *rest =
		json_pack("{s:i, s:o, s:b, s:b, s:I, s:I, s:I, s:O}", "exit_code", result->exit_code, "signal",
			  result->signal ? json_integer(result->signal) : json_null(), "timed_out", result->timed_out,
			  "out_of_memory", result->out_of_memory, "duration_ms", (json_int_t)result->duration_ms,
			  "stdout_lost", (json_int_t)result->output.lost, "stderr_lost",
			  (json_int_t)result->error_output.lost, "denied", denied);

	if (!object || !rest ||
	    json_set_bytes(object, "stdout", result->output.data.data, result->output.data.size) < 0 ||
	    json_set_bytes(object, "stderr", result->error_output.data.data, result->error_output.data.size) < 0 ||
	    json_object_update(object, rest) < 0)
		return NULL;
	return steal_pointer(object);
}

int relay_status(const struct cli *cli, const struct relay_result *result)
{
	if (result->interrupted)
		return EXIT_SIGNAL_BASE + result->interrupted;
	if (result->out_of_memory && !cli->json)
		output_note("the process was killed: the sandbox ran out of memory (--memory gives it more)");
	else if (result->timed_out && !cli->json)
		output_note("the process was killed: it ran longer than its --timeout");
	return result->detached ? 0 : result->exit_code;
}
