/*
 * Long file work (trees, tar streams) in a forked child, so that the event loop never waits for a disk. The child writes
 * frames to a pipe and may block; the agent relays the frames against credit, and feeds the child what the host sends.
 * Called by remove.c, tar_pack.c and tar_unpack.c. The child must close all descriptors of the agent, or it would keep
 * pipes of other processes open.
 */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "agent/follow.h"

#define PENDING_MAX (64u * 1024u)
#define WORKER_BUFFER (2u * CHUNK_SIZE)

struct worker {
	struct channel channel;
	pid_t pid; /* 0: over */
	struct source out, in;
	struct buf input;
	bool input_ended;
	bool follows; /* follow_end is due */
	size_t filled;
	char frames[WORKER_BUFFER];
};

/* ---- in the child ---- */

int job_data(struct job *job, const void *data, size_t size, struct husk_error *err)
{
	return wire_send(job->out, job->channel, WIRE_DATA, STREAM_OUT, data, size, err);
}

static int job_flush(struct job *job, struct husk_error *err)
{
	if (job->pending.size && write_full(job->out, job->pending.data, job->pending.size) < 0)
		return husk_fail_errno(err, "cannot send a message");
	job->pending.size = 0;
	return 0;
}

int job_message(struct job *job, enum wire_type type, const struct buf *message, struct husk_error *err)
{
	struct wire_header header = { .size = (uint32_t)message->size,
				      .channel = type == WIRE_HELLO ? 0 : job->channel,
				      .type = (uint8_t)type };
	uint8_t bytes[WIRE_HEADER_SIZE];

	wire_header_encode(&header, bytes);
	if (buf_append(&job->pending, bytes, sizeof(bytes)) < 0 ||
	    buf_append(&job->pending, message->data, message->size) < 0)
		return husk_fail_memory(err);
	return job->pending.size < PENDING_MAX ? 0 : job_flush(job, err);
}

/* Moves a descriptor that the child keeps above the numbers that it will get. */
static int worker_keep(int fd)
{
	return fd < 0 ? -1 : fcntl(fd, F_DUPFD, 16);
}

/* The pipes become 3 and 4, the layers 5 and 6, inotify 7, and all higher descriptors are closed. */
static int worker_descriptors(struct job *job)
{
	int in = worker_keep(job->in), out = worker_keep(job->out);
	int upper = worker_keep(job->layers.upper), lower = worker_keep(job->layers.lower);
	int events = job->follow ? worker_keep(job->follow->source.fd) : -1;
	bool layered = upper >= 0 && lower >= 0;

	if (in < 0 || out < 0 || dup2(in, 3) < 0 || dup2(out, 4) < 0)
		return -1;
	if (layered && (dup2(upper, 5) < 0 || dup2(lower, 6) < 0))
		return -1;
	if (job->follow && (events < 0 || dup2(events, 7) < 0))
		return -1;
	if (job->follow)
		job->follow->source.fd = 7;
	job->in = 3;
	job->out = 4;
	job->layers.upper = layered ? 5 : -1;
	job->layers.lower = layered ? 6 : -1;
	return (int)syscall(SYS_close_range, job->follow ? 8u : layered ? 7u : 5u, (unsigned)INT_MAX, 0u);
}

static void worker_main(struct job *job, job_function run) __attribute__((noreturn));
static void worker_main(struct job *job, job_function run)
{
	struct husk_error err = { 0 }, lost;

	signal(SIGCHLD, SIG_DFL);
	if (worker_descriptors(job) < 0)
		husk_fail_errno(&err, "cannot start the file worker");
	else if (run(job, &err) == 0 && job_flush(job, &err) == 0)
		err.code = HUSK_OK;
	/* If the link has ended, the answer cannot be sent, and no one waits for it. */
	if (wire_send_end(job->out, job->channel, &err, err.code ? NULL : &job->results, &lost) < 0)
		_exit(1);
	_exit(0);
}

/* ---- in the agent ---- */

static void worker_data(struct agent *agent, struct channel *channel, const char *bytes, size_t size)
{
	struct worker *worker = (struct worker *)channel;

	(void)agent;
	if (worker->in.fd < 0) /* the worker reads no more, and its END is on the way */
		channel_consumed(channel, size);
	else if (buf_append(&worker->input, bytes, size) < 0)
		agent_die("out of memory for a file worker");
}

static void worker_eof(struct agent *agent, struct channel *channel)
{
	(void)agent;
	((struct worker *)channel)->input_ended = true;
}

static bool worker_feed(struct agent *agent, struct worker *worker)
{
	if (worker->in.fd < 0)
		return false;
	if (worker->input.size == 0) {
		if (worker->input_ended)
			source_close(agent, &worker->in);
		return false;
	}
	if (!worker->in.writable)
		return false;
	ssize_t count = source_write(&worker->in, worker->input.data, worker->input.size);
	if (count < 0 && errno == EAGAIN)
		return false;
	if (count < 0) {
		count = (ssize_t)worker->input.size;
		source_close(agent, &worker->in);
	}
	channel_consumed(&worker->channel, (size_t)count);
	buf_consume(&worker->input, (size_t)count);
	return true;
}

/* Relays one frame. 1: relayed; 0: no complete frame, or no credit for it; -1: it was the END, and the worker is
 * freed. */
static int worker_relay(struct agent *agent, struct worker *worker)
{
	struct wire_header header;
	struct husk_error err;

	if (worker->filled < WIRE_HEADER_SIZE || !uplink_has_room(agent))
		return 0;
	if (wire_header_decode((const uint8_t *)worker->frames, &header, &err) < 0)
		agent_die("file worker: %s", err.message);
	size_t whole = WIRE_HEADER_SIZE + header.size;
	if (whole > sizeof(worker->frames))
		agent_die("file worker: frame of %u bytes", header.size);
	if (worker->filled < whole)
		return 0;
	if (header.type == WIRE_HELLO) { /* for the agent itself */
		follow_note(agent, worker->frames + WIRE_HEADER_SIZE, header.size);
		worker->filled -= whole;
		memmove(worker->frames, worker->frames + whole, worker->filled);
		return 1;
	}
	if (header.type == WIRE_DATA) {
		if (worker->channel.credit[header.stream] < header.size)
			return 0;
		worker->channel.credit[header.stream] -= header.size;
	}
	uplink_send(agent, header.channel, header.type, header.stream, worker->frames + WIRE_HEADER_SIZE, header.size);
	worker->filled -= whole;
	memmove(worker->frames, worker->frames + whole, worker->filled);
	return header.type == WIRE_END ? -1 : 1;
}

static void worker_ended_early(struct agent *agent, struct worker *worker)
{
	struct husk_error err;

	husk_fail(&err, HUSK_INTERNAL, "the file worker was killed before it was done");
	channel_end(agent, &worker->channel, &err, NULL);
}

static bool worker_pump(struct agent *agent, struct channel *channel)
{
	struct worker *worker = (struct worker *)channel;
	bool moved = worker_feed(agent, worker);
	int relayed;

	if (worker->out.readable && worker->filled < sizeof(worker->frames)) {
		ssize_t count = source_read(&worker->out, worker->frames + worker->filled,
					    sizeof(worker->frames) - worker->filled);
		if (count > 0) {
			worker->filled += (size_t)count;
			moved = true;
		} else if (count == 0 && worker->filled == 0) {
			worker_ended_early(agent, worker);
			return true;
		}
	}
	while ((relayed = worker_relay(agent, worker)) > 0)
		moved = true;
	if (relayed < 0)
		channel_free(agent, channel);
	return moved;
}

static void worker_release(struct agent *agent, struct channel *channel)
{
	struct worker *worker = (struct worker *)channel;

	if (worker->pid > 0)
		kill(worker->pid, SIGKILL);
	if (worker->follows)
		follow_end(agent);
	source_close(agent, &worker->out);
	source_close(agent, &worker->in);
	buf_free(&worker->input);
}

static const struct channel_ops worker_ops = {
	.data = worker_data,
	.eof = worker_eof,
	.cancel = channel_end_cancelled,
	.pump = worker_pump,
	.release = worker_release,
};

bool worker_exited(struct agent *agent, pid_t pid)
{
	for (struct channel *channel = agent->channels; channel; channel = channel->next) {
		struct worker *worker = (struct worker *)channel;
		if (channel->ops == &worker_ops && worker->pid == pid) {
			worker->pid = 0;
			return true;
		}
	}
	return false;
}

int worker_open(struct agent *agent, uint32_t number, const struct request *request, bool follow, job_function run,
		struct husk_error *err)
{
	int in[2] = { -1, -1 }, out[2] = { -1, -1 };
	struct worker *worker = calloc(1, sizeof(*worker));

	if (!worker)
		return husk_fail_memory(err);
	worker->in.fd = worker->out.fd = -1;
	if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0) {
		husk_fail_errno(err, "cannot start the file worker");
		goto failed;
	}
	worker->pid = fork();
	/* In a virtual machine the worker counts as workload, because only the workload's group limits its page
	 * cache. */
	if (worker->pid == 0 && agent->group_memory >= 0 && write(agent->group_tasks, "0", 1) < 0)
		_exit(1);
	if (worker->pid == 0)
		worker_main(&(struct job){ .request = *request,
					   .channel = number,
					   .layers = agent->layers,
					   .in = in[0],
					   .out = out[1],
					   .follow = follow ? &agent->follow : NULL },
			    run);
	if (worker->pid < 0) {
		husk_fail_errno(err, "cannot start the file worker");
		goto failed;
	}
	fd_close(&in[0]);
	fd_close(&out[1]);
	in[0] = out[1] = -1;
	worker->follows = follow;
	channel_add(agent, &worker->channel, number, &worker_ops);
	if (source_open(agent, &worker->in, in[1], EPOLLOUT | EPOLLET, err) < 0 ||
	    source_open(agent, &worker->out, out[0], EPOLLIN | EPOLLET, err) < 0)
		agent_die("file worker: %s", err->message);
	worker->in.writable = true;
	return 0;
failed:
	for (int i = 0; i < 2; i++) {
		fd_close(&in[i]);
		fd_close(&out[i]);
	}
	free(worker);
	return -1;
}
