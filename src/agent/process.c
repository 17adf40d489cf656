/*
 * The table of processes: reads output into rings, feeds input from attachments, handles timeouts and exits, and
 * remembers finished processes. The event loop calls the pump, the timers and the reaper. exec.c starts processes,
 * attach.c follows them. A slow attached reader may block a process; a missing reader never does.
 */
#include <limits.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "agent/process.h"

#define FINISHED_MAX 128
#define FINISHED_BYTES_MAX (32u * 1024u * 1024u)
#define LEFTOVER_MAX (1024u * 1024u) /* input kept for a process whose attachment has ended */
#define LINGER_MS 100
#define OOM_EXPECTED_MS 2000
#define OOM_MARKED_MS 10000 /* from the kill to the end of the process that it belonged to */

struct process *process_find(struct agent *agent, int64_t pid)
{
	struct process *process = agent->processes;

	while (process && (process->pid != pid || process->forgotten))
		process = process->next;
	return process;
}

/* ---- output ---- */

static bool output_held_back(const struct process *process, int index)
{
	const struct ring *ring = &process->output[index].ring;

	for (const struct attachment *at = process->attachments; at; at = at->next) {
		/* Half of the ring: the other half takes bytes in transit, so no unread output is dropped. */
		if (ring->end - MAX(at->offset[index], ring->start) >= RING_MAX / 2)
			return true;
	}
	return false;
}

static bool output_pump(struct agent *agent, struct process *process, int index)
{
	struct process_output *output = &process->output[index];
	/* Only a pipe at its end is sure to stay at its end. */
	bool ended = output->source.drained && !process->terminal;

	if (!output->source.readable || output->ended || (!ended && output_held_back(process, index)))
		return false;
	ssize_t count = ended ? 0 : source_read(&output->source, agent->chunk, sizeof(agent->chunk));
	if (count > 0)
		ring_append(&output->ring, agent->chunk, (size_t)count);
	else if (count == 0 || errno != EAGAIN) /* a terminal without users fails with EIO instead of end of file */
		output->ended = true;
	else
		return false;
	return true;
}

/* Not done when the end is noticed: the END frame should not wait for a close. */
void process_close_ended(struct agent *agent)
{
	for (struct process *process = agent->processes; process; process = process->next) {
		for (int i = 0; i < 2; i++) {
			if (process->output[i].ended)
				source_close(agent, &process->output[i].source);
		}
	}
}

/* The loop may be late: bytes may be in a pipe although no event was seen yet. */
static void output_look(struct agent *agent, struct process *process)
{
	process->looked = true;
	for (int i = 0; i < 2; i++) {
		struct process_output *output = &process->output[i];
		output->source.readable |= output->source.fd >= 0 && !output->ended;
		while (output_pump(agent, process, i))
			;
	}
}

/* Settles a process that has ended and whose output is complete: its streams have ended, or only a background child
 * still holds them. */
static void process_settle(struct agent *agent, struct process *process)
{
	if (process->running || process->settled)
		return;
	bool waited = time_monotonic_ms() >= process->linger_ms;
	if (waited && !process->looked)
		output_look(agent, process);
	for (int i = 0; i < 2; i++) {
		const struct process_output *output = &process->output[i];
		if (output->source.fd >= 0 && !output->ended && (!waited || output->source.readable))
			return;
	}
	process->settled = true;
}

/* ---- input ---- */

static void input_close(struct agent *agent, struct process *process)
{
	source_close(agent, &process->input);
	buf_free(&process->leftover);
}

/* Moves one contiguous piece of input; false if the process takes no more for now. */
static bool input_write(struct agent *agent, struct process *process, struct buf *input, size_t *taken)
{
	ssize_t count = source_write(&process->input, input->data, input->size);

	*taken = 0;
	if (count < 0 && errno == EAGAIN)
		return false;
	if (count < 0) { /* the process has closed its stdin: the rest is discarded */
		*taken = input->size;
		input->size = 0;
		input_close(agent, process);
		return true;
	}
	*taken = (size_t)count;
	buf_consume(input, (size_t)count);
	return true;
}

static void input_end(struct agent *agent, struct process *process)
{
	/* A terminal cannot be half-closed: its end of file is a character, and later input is still accepted. */
	process->input_ended = false;
	if (!process->terminal)
		input_close(agent, process);
	else if (buf_append(&process->leftover, "\x04", 1) < 0)
		agent_die("out of memory for the input of process %d", process->pid);
}

static bool input_pump(struct agent *agent, struct process *process)
{
	bool moved = false;
	size_t taken;

	if (process->input.fd >= 0 && process->leftover.size > 0) {
		if (!process->input.writable || !input_write(agent, process, &process->leftover, &taken))
			return false;
		moved = true;
	}
	for (struct attachment *at = process->attachments; at; at = at->next) {
		if (process->input.fd < 0) { /* no stdin: discard the input, so that the sender is not blocked */
			channel_consumed(&at->channel, at->input.size);
			at->input.size = 0;
			continue;
		}
		if (at->input.size > 0 && process->leftover.size == 0 && process->input.writable) {
			moved |= input_write(agent, process, &at->input, &taken);
			channel_consumed(&at->channel, taken);
		}
		if (at->input_ended && at->input.size == 0) {
			at->input_ended = false;
			process->input_ended = true;
		}
	}
	if (process->input_ended && process->leftover.size == 0) {
		input_end(agent, process);
		moved = true;
	}
	return moved;
}

void process_adopt_input(struct process *process, const struct attachment *at)
{
	if (process->input.fd < 0)
		return;
	process->input_ended |= at->input_ended;
	if (at->input.size == 0)
		return;
	if (process->leftover.size + at->input.size > LEFTOVER_MAX ||
	    buf_append(&process->leftover, at->input.data, at->input.size) < 0)
		log_line(LOG_WARN, "process %d: %zu bytes of input lost with their sender", process->pid,
			 at->input.size);
}

bool process_pump_all(struct agent *agent)
{
	bool moved = false;

	for (struct process *process = agent->processes; process; process = process->next) {
		moved |= input_pump(agent, process);
		moved |= output_pump(agent, process, 0);
		moved |= output_pump(agent, process, 1);
		process_settle(agent, process);
	}
	return moved;
}

/* ---- signals, time and the end ---- */

int process_signal(struct process *process, int64_t signal, struct husk_error *err)
{
	if (!process->running || kill(-process->pid, (int)signal) < 0)
		return husk_fail(err, HUSK_NOT_FOUND, "process %d is over", process->pid);
	return 0;
}

int process_resize(struct process *process, int64_t rows, int64_t columns, struct husk_error *err)
{
	struct winsize size = { .ws_row = (uint16_t)rows, .ws_col = (uint16_t)columns };

	if (!rows || !columns)
		return husk_fail(err, HUSK_INVALID, "a terminal needs both rows and columns");
	if (!process->terminal)
		return husk_fail(err, HUSK_CONFLICT, "process %d has no terminal", process->pid);
	if (process->output[0].source.fd >= 0 && ioctl(process->output[0].source.fd, TIOCSWINSZ, &size) < 0)
		return husk_fail_errno(err, "cannot resize the terminal of process %d", process->pid);
	process->rows = size.ws_row;
	process->columns = size.ws_col;
	return 0;
}

static void process_ended(struct agent *agent, struct process *process, int status)
{
	process->running = false;
	process->duration_ms = (time_monotonic_us() - process->started_us) / 1000;
	process->linger_ms = time_monotonic_ms() + LINGER_MS;
	process->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	process->exit_code = process->signal ? 128 + process->signal : WEXITSTATUS(status);
	/* The process was killed for memory, or it ended because one of its children was, as a shell does. A process
	 * that continued is not marked. */
	process->oom = process->exit_code == 128 + SIGKILL &&
		       MAX(process->oom_ms, agent->oom_expected_ms) > time_monotonic_ms();
	if (process->timed_out)
		process->exit_code = 124;
	/* No known process reads it any more. A terminal's master stays open for its output. */
	if (!process->terminal)
		input_close(agent, process);
}

void process_reap(struct agent *agent)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (worker_exited(agent, pid))
			continue;
		for (struct process *process = agent->processes; process; process = process->next) {
			if (process->pid == pid && process->running)
				process_ended(agent, process, status);
		}
	}
}

static void sooner(int64_t *earliest, int64_t moment)
{
	if (moment && (!*earliest || moment < *earliest))
		*earliest = moment;
}

int64_t process_next_deadline(const struct agent *agent)
{
	int64_t earliest = 0;

	for (const struct process *process = agent->processes; process; process = process->next) {
		if (process->running)
			sooner(&earliest, process->deadline_ms);
		else if (!process->settled && process->linger_ms > time_monotonic_ms())
			sooner(&earliest, process->linger_ms);
	}
	return earliest;
}

void process_run_timers(struct agent *agent)
{
	int64_t now = time_monotonic_ms();

	for (struct process *process = agent->processes; process; process = process->next) {
		if (!process->running || !process->deadline_ms || process->deadline_ms > now)
			continue;
		process->deadline_ms = 0;
		process->timed_out = true;
		if (kill(-process->pid, SIGKILL) < 0)
			log_line(LOG_WARN, "process %d: cannot be killed: %s", process->pid, strerror(errno));
	}
}

bool process_any_running(const struct agent *agent)
{
	for (const struct process *process = agent->processes; process; process = process->next)
		if (process->running)
			return true;
	return false;
}

void process_shift_timers(struct agent *agent, int64_t by_ms)
{
	for (struct process *process = agent->processes; process; process = process->next) {
		if (process->deadline_ms)
			process->deadline_ms += by_ms;
	}
}

void process_mark_oom(struct agent *agent, pid_t pid, pid_t group, pid_t session)
{
	bool found = false;

	for (struct process *process = agent->processes; process; process = process->next) {
		if (process->running && (process->pid == pid || process->pid == group || process->pid == session)) {
			process->oom_ms = time_monotonic_ms() + OOM_MARKED_MS;
			found = true;
		}
	}
	/* A helper's, such as a Python that the zygote forked: the one that asked for it ends next, and as killed. */
	if (!found)
		process_expect_oom(agent);
}

void process_expect_oom(struct agent *agent)
{
	agent->oom_expected_ms = time_monotonic_ms() + OOM_EXPECTED_MS;
}

void process_kill_all(struct agent *agent)
{
	for (struct process *process = agent->processes; process; process = process->next) {
		if (process->running)
			kill(-process->pid, SIGKILL);
	}
}

int process_put_end(const struct process *process, struct buf *message)
{
	if (wire_put_int(message, TAG_PID, process->pid) < 0)
		return -1;
	if (process->running)
		return wire_put_int(message, TAG_RUNNING, 1);
	if (wire_put_int(message, TAG_EXIT_CODE, process->exit_code) < 0 ||
	    wire_put_int(message, TAG_DURATION_MS, process->duration_ms) < 0 ||
	    (process->signal && wire_put_int(message, TAG_SIGNAL, process->signal) < 0) ||
	    (process->timed_out && wire_put_int(message, TAG_TIMED_OUT, 1) < 0))
		return -1;
	return process->oom ? wire_put_int(message, TAG_OOM, 1) : 0;
}

/* ---- the table of processes ---- */

void process_free(struct agent *agent, struct process *process)
{
	input_close(agent, process);
	for (int i = 0; i < 2; i++) {
		source_close(agent, &process->output[i].source);
		ring_free(&process->output[i].ring);
	}
	strv_free(process->argv);
	free(process->name);
	free(process->cwd);
	free(process->user);
	free(process);
}

static bool process_is_kept(const struct process *process)
{
	return process->running || !process->settled || process->attachments;
}

/* The table is in order of start, so the first finished process is the oldest. */
void process_trim(struct agent *agent)
{
	size_t count = 0, bytes = 0;

	for (const struct process *process = agent->processes; process; process = process->next) {
		if (process_is_kept(process))
			continue;
		count++;
		bytes += process->output[0].ring.capacity + process->output[1].ring.capacity;
	}
	for (struct process **at = &agent->processes; *at;) {
		struct process *process = *at;
		bool too_much = count > FINISHED_MAX || bytes > FINISHED_BYTES_MAX;
		if (process_is_kept(process) || !(too_much || process->forgotten)) {
			at = &process->next;
			continue;
		}
		count--;
		bytes -= process->output[0].ring.capacity + process->output[1].ring.capacity;
		*at = process->next;
		process_free(agent, process);
	}
}

/* ---- the methods on processes ---- */

struct process *process_named(struct agent *agent, const struct request *request, struct husk_error *err)
{
	int64_t pid = request_int(request, TAG_PID, 0);
	struct process *process = process_find(agent, pid);

	if (!process)
		husk_fail(err, HUSK_NOT_FOUND,
			  "no process %lld was started here, or it is long over (see the process list)",
			  (long long)pid);
	return process;
}

int process_signal_answer(struct agent *agent, const struct request *request, struct buf *results,
			  struct husk_error *err)
{
	struct process *process = process_named(agent, request, err);

	(void)results;
	return process ? process_signal(process, request_int(request, TAG_SIGNAL, 0), err) : -1;
}

int process_forget_answer(struct agent *agent, const struct request *request, struct buf *results,
			  struct husk_error *err)
{
	struct process *process = process_named(agent, request, err);

	(void)results;
	if (!process)
		return -1;
	if (process->running && kill(-process->pid, SIGKILL) < 0)
		return husk_fail_errno(err, "cannot kill process %d", process->pid);
	process->forgotten = true;
	return 0;
}

static int process_put_entry(const struct process *process, struct buf *message)
{
	if (process_put_end(process, message) < 0 || wire_put_string(message, TAG_NAME, process->name) < 0 ||
	    wire_put_string(message, TAG_CWD, process->cwd) < 0 ||
	    wire_put_string(message, TAG_USER, process->user) < 0 ||
	    wire_put_int(message, TAG_STARTED_MS, process->started_ms) < 0 ||
	    (!process->running && wire_put_int(message, TAG_RUNNING, 0) < 0) ||
	    wire_put_int(message, TAG_OFFSET_OUT, (int64_t)process->output[0].ring.end) < 0 ||
	    wire_put_int(message, TAG_OFFSET_ERR, (int64_t)process->output[1].ring.end) < 0 ||
	    wire_put_int(message, TAG_FLAGS, process->flags) < 0)
		return -1;
	if (process->terminal && (wire_put_int(message, TAG_ROWS, process->rows) < 0 ||
				  wire_put_int(message, TAG_COLUMNS, process->columns) < 0))
		return -1;
	for (char **argument = process->argv; *argument; argument++) {
		/* A command line of almost a whole frame is cut, so that the rest of the entry is not lost. */
		if (wire_put_string(message, TAG_ARG, *argument) < 0)
			break;
	}
	return 0;
}

int process_list_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	(void)request;
	for (const struct process *process = agent->processes; process; process = process->next) {
		cleanup_buf struct buf message = { 0 };
		if (process->forgotten)
			continue;
		if (process_put_entry(process, &message) < 0)
			return husk_fail_memory(err);
		uplink_send(agent, number, WIRE_MSG, 0, message.data, message.size);
	}
	uplink_end(agent, number, NULL, NULL);
	return 0;
}
