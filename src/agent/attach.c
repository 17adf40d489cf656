/*
 * METHOD_ATTACH, and the channels that follow a process, of EXEC and ATTACH alike. Such a channel sends output from its
 * own offset, passes input and signals on to the process, and sends END when the process is over. Detaching (CANCEL, or
 * a dropped channel) must never touch the process: the process continues, and a later ATTACH can follow it again.
 */
#include "agent/attach.h"

static void attachment_data(struct agent *agent, struct channel *channel, const char *bytes, size_t size)
{
	struct attachment *at = (struct attachment *)channel;

	(void)agent;
	if (!at->feeds)
		channel_consumed(channel, size);
	else if (buf_append(&at->input, bytes, size) < 0)
		agent_die("out of memory for the input of process %d", at->process->pid);
}

static void attachment_eof(struct agent *agent, struct channel *channel)
{
	struct attachment *at = (struct attachment *)channel;

	(void)agent;
	at->input_ended = at->feeds;
}

static void attachment_message(struct agent *agent, struct channel *channel, const struct request *request)
{
	struct process *process = ((struct attachment *)channel)->process;
	struct wire_field field;
	struct husk_error err;

	(void)agent;
	/* Both kinds of channel follow a process, so EXEC's arguments hold for ATTACH too. */
	int failed = wire_check(METHOD_EXEC, WIRE_MSG, request->data, request->size, &err);
	if (!failed && wire_find(request->data, request->size, TAG_SIGNAL, &field))
		failed = process_signal(process, request_int(request, TAG_SIGNAL, 0), &err);
	if (!failed && wire_find(request->data, request->size, TAG_ROWS, &field))
		failed = process_resize(process, request_int(request, TAG_ROWS, 0),
					request_int(request, TAG_COLUMNS, 0), &err);
	/* A message has no answer, and a signal may arrive just after its process ended: not an error. */
	if (failed)
		log_line(LOG_DEBUG, "%s", err.message);
}

static void attachment_release(struct agent *agent, struct channel *channel)
{
	struct attachment *gone = (struct attachment *)channel;
	struct attachment **at = &gone->process->attachments;

	(void)agent;
	while (*at != gone)
		at = &(*at)->next;
	*at = gone->next;
	process_adopt_input(gone->process, gone);
	buf_free(&gone->input);
}

static void attachment_end(struct agent *agent, struct attachment *at)
{
	cleanup_buf struct buf results = { 0 };

	if (process_put_end(at->process, &results) < 0)
		agent_die("out of memory for an answer");
	channel_end(agent, &at->channel, NULL, &results);
}

static void attachment_cancel(struct agent *agent, struct channel *channel)
{
	attachment_end(agent, (struct attachment *)channel);
}

static void attachment_announce(struct agent *agent, struct attachment *at)
{
	cleanup_buf struct buf message = { 0 };
	int failed = wire_put_int(&message, TAG_PID, at->process->pid);

	if (at->from_attach) {
		failed |= wire_put_int(&message, TAG_OFFSET_OUT, (int64_t)at->offset[0]);
		failed |= wire_put_int(&message, TAG_OFFSET_ERR, (int64_t)at->offset[1]);
		failed |= wire_put_int(&message, TAG_DROPPED_OUT, (int64_t)at->dropped[0]);
		failed |= wire_put_int(&message, TAG_DROPPED_ERR, (int64_t)at->dropped[1]);
	}
	if (failed)
		agent_die("out of memory for a message");
	channel_message(agent, &at->channel, &message);
	at->announced = true;
}

static bool attachment_send(struct agent *agent, struct attachment *at, int index)
{
	struct ring *ring = &at->process->output[index].ring;
	uint8_t stream = index == 0 ? STREAM_OUT : STREAM_ERR;

	at->offset[index] = MAX(at->offset[index], ring->start);
	size_t size = MIN((size_t)(ring->end - at->offset[index]), channel_allowance(agent, &at->channel, stream));
	if (size == 0)
		return false;
	size = ring_read(ring, at->offset[index], uplink_data_begin(agent, size), size);
	if (size > 0)
		uplink_data_commit(agent, &at->channel, stream, size);
	at->offset[index] += size;
	return true;
}

static bool attachment_pump(struct agent *agent, struct channel *channel)
{
	struct attachment *at = (struct attachment *)channel;
	const struct process *process = at->process;

	if (!at->announced)
		attachment_announce(agent, at);
	bool moved = attachment_send(agent, at, 0);
	moved |= attachment_send(agent, at, 1);
	if (process->settled && at->offset[0] == process->output[0].ring.end &&
	    at->offset[1] == process->output[1].ring.end)
		attachment_end(agent, at);
	return moved;
}

static const struct channel_ops attachment_ops = {
	.data = attachment_data,
	.eof = attachment_eof,
	.message = attachment_message,
	.cancel = attachment_cancel,
	.pump = attachment_pump,
	.release = attachment_release,
};

struct attachment *attachment_new(struct agent *agent, uint32_t number, struct process *process, bool feeds,
				  struct husk_error *err)
{
	struct attachment *at = calloc(1, sizeof(*at));

	if (!at) {
		husk_fail_memory(err);
		return NULL;
	}
	at->process = process;
	at->feeds = feeds;
	at->next = process->attachments;
	process->attachments = at;
	channel_add(agent, &at->channel, number, &attachment_ops);
	return at;
}

/* ---- ATTACH ---- */

/* Sets where an ATTACH starts: the wanted offset, or the oldest byte that is still held. */
static int attachment_seek(struct attachment *at, int index, int64_t wanted, struct husk_error *err)
{
	const struct ring *ring = &at->process->output[index].ring;

	if (wanted > 0 && (uint64_t)wanted > ring->end)
		return husk_fail(err, HUSK_INVALID, "offset %lld is past the %llu bytes written so far",
				 (long long)wanted, (unsigned long long)ring->end);
	uint64_t from = wanted < 0 ? 0 : (uint64_t)wanted;
	at->offset[index] = MAX(from, ring->start);
	at->dropped[index] = at->offset[index] - from;
	return 0;
}

int attach_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	struct process *process = process_named(agent, request, err);
	bool feeds = request_int(request, TAG_FLAGS, 0) & EXEC_STDIN;

	if (!process)
		return -1;
	if (feeds && process->running && !process->terminal && !(process->flags & EXEC_STDIN))
		return husk_fail(err, HUSK_CONFLICT, "process %d was started without stdin", process->pid);
	struct attachment probe = { .process = process };
	if (attachment_seek(&probe, 0, request_int(request, TAG_OFFSET_OUT, -1), err) < 0 ||
	    attachment_seek(&probe, 1, request_int(request, TAG_OFFSET_ERR, -1), err) < 0)
		return -1;
	struct attachment *at = attachment_new(agent, number, process, feeds, err);
	if (!at)
		return -1;
	at->from_attach = true;
	memcpy(at->offset, probe.offset, sizeof(at->offset));
	memcpy(at->dropped, probe.dropped, sizeof(at->dropped));
	return 0;
}
