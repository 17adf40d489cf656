/*
 * The link to the host: incoming and outgoing frames, the table of open channels, and their credit. The event loop calls
 * receive and flush, and every method calls send and end. The host is trusted, but its bytes are checked: a malformed frame
 * ends the agent with a message. The outgoing queue is bounded because every pump asks uplink_has_room first.
 */
#include <fcntl.h>
#include <sys/epoll.h>

#include "agent/agent.h"

#define UPLINK_INPUT_SIZE                                                                                              \
	(4u * (WIRE_HEADER_SIZE + WIRE_PAYLOAD_MAX)) /* several frames per read, so that less is left over to move */
#define UPLINK_QUEUE_HIGH (768u * 1024u)
#define CREDIT_MAX (1u << 30)

static void uplink_watch_room(struct agent *agent, bool on);

int uplink_open(struct agent *agent, int in, int out, struct husk_error *err)
{
	struct uplink *link = &agent->link;
	cleanup_buf struct buf hello = { 0 };

	link->input = malloc(UPLINK_INPUT_SIZE);
	if (!link->input || wire_put_int(&hello, TAG_VERSION, WIRE_VERSION) < 0)
		return husk_fail_memory(err);
	/* Level-triggered: a restore replaces the pipes of the agent, and an edge would be lost. */
	if (source_open(agent, &link->in, in, EPOLLIN, err) < 0)
		return -1;
	if (fd_set_nonblocking(out, true) < 0)
		return husk_fail_errno(err, "link");
	link->out.fd = out;
	uplink_send(agent, 0, WIRE_HELLO, 0, hello.data, hello.size);
	uplink_flush(agent);
	return 0;
}

bool uplink_renew(struct agent *agent)
{
	struct uplink *link = &agent->link;
	struct husk_error err = { 0 };
	int in, out;

	if (!link->socket)
		return false;
	uplink_watch_room(agent, false);
	source_close(agent, &link->in);
	fd_close(&link->out.fd);
	/* A checkpoint is only taken between frames, so leftover bytes have no meaning. */
	link->input_size = link->sent = link->queue.size = 0;
	in = kernel_connect(&err);
	out = in < 0 ? -1 : fcntl(in, F_DUPFD_CLOEXEC, 64);
	if (out < 0 || source_open(agent, &link->in, in, EPOLLIN, &err) < 0)
		agent_die("the link cannot be made again: %s", err.message);
	link->out = (struct source){ .fd = out };
	link->ended = false;
	return true;
}

void uplink_replace(struct agent *agent, int in, int out)
{
	struct uplink *link = &agent->link;
	struct husk_error err = { 0 };

	uplink_watch_room(agent, false);
	if (epoll_ctl(agent->epoll, EPOLL_CTL_DEL, link->in.fd, NULL) < 0 || fd_set_nonblocking(out, true) < 0 ||
	    source_open(agent, &link->in, in, EPOLLIN, &err) < 0)
		agent_die("the link cannot be handed on: %s", strerror(errno));
	link->out = (struct source){ .fd = out };
	link->input_size = 0;
	link->socket = false; /* the carrier renews it from now on */
}

/* ---- out ---- */

bool uplink_has_room(const struct agent *agent)
{
	return agent->link.queue.size - agent->link.sent < UPLINK_QUEUE_HIGH;
}

static void put_header(char *at, uint32_t channel, enum wire_type type, uint8_t stream, size_t size)
{
	const struct wire_header header = {
		.size = (uint32_t)size, .channel = channel, .type = (uint8_t)type, .stream = stream
	};
	wire_header_encode(&header, (uint8_t *)at);
}

char *uplink_data_begin(struct agent *agent, size_t size)
{
	struct buf *queue = &agent->link.queue;

	if (agent->link.sent == queue->size)
		agent->link.sent = queue->size = 0;
	if (buf_reserve(queue, WIRE_HEADER_SIZE + size) < 0)
		agent_die("out of memory for the link");
	return queue->data + queue->size + WIRE_HEADER_SIZE;
}

static void uplink_commit(struct agent *agent, uint32_t channel, enum wire_type type, uint8_t stream, size_t size)
{
	struct buf *queue = &agent->link.queue;

	put_header(queue->data + queue->size, channel, type, stream, size);
	queue->size += WIRE_HEADER_SIZE + size;
}

void uplink_data_commit(struct agent *agent, struct channel *channel, uint8_t stream, size_t size)
{
	uplink_commit(agent, channel->number, WIRE_DATA, stream, size);
	channel->credit[stream] -= (uint32_t)size;
}

void uplink_send(struct agent *agent, uint32_t channel, enum wire_type type, uint8_t stream, const void *payload,
		 size_t size)
{
	char *at = uplink_data_begin(agent, size);

	if (size > 0)
		memcpy(at, payload, size);
	uplink_commit(agent, channel, type, stream, size);
}

static void uplink_watch_room(struct agent *agent, bool on)
{
	struct uplink *link = &agent->link;
	struct epoll_event event = { .events = EPOLLOUT, .data.ptr = &link->out };

	if (link->out_armed == on)
		return;
	if (epoll_ctl(agent->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, link->out.fd, &event) < 0)
		agent_die("epoll: %s", strerror(errno));
	link->out_armed = on;
}

void uplink_flush(struct agent *agent)
{
	struct uplink *link = &agent->link;

	while (link->sent < link->queue.size) {
		ssize_t count = source_write(&link->out, link->queue.data + link->sent, link->queue.size - link->sent);
		if (count < 0 && errno == EAGAIN)
			break;
		if (count < 0) { /* the host is gone */
			log_line(LOG_WARN, "link: %s", strerror(errno));
			link->ended = true;
			return;
		}
		link->sent += (size_t)count;
	}
	if (link->sent > 0) {
		buf_consume(&link->queue, link->sent);
		link->sent = 0;
	}
	uplink_watch_room(agent, link->queue.size > 0);
}

void uplink_end(struct agent *agent, uint32_t number, const struct husk_error *e, const struct buf *results)
{
	cleanup_buf struct buf message = { 0 };
	enum husk_code code = e ? e->code : HUSK_OK;

	if (wire_put_int(&message, TAG_STATUS, code) < 0 ||
	    (code != HUSK_OK && wire_put_string(&message, TAG_MESSAGE, e->message) < 0) ||
	    (results && results->size > 0 && buf_append(&message, results->data, results->size) < 0))
		agent_die("out of memory for an answer");
	uplink_send(agent, number, WIRE_END, 0, message.data, message.size);
}

/* ---- channels ---- */

void channel_add(struct agent *agent, struct channel *channel, uint32_t number, const struct channel_ops *ops)
{
	channel->number = number;
	channel->ops = ops;
	channel->window = WIRE_WINDOW;
	for (int i = 0; i < STREAM_COUNT; i++)
		channel->credit[i] = WIRE_WINDOW;
	channel->next = agent->channels;
	agent->channels = channel;
}

static struct channel *channel_find(struct agent *agent, uint32_t number)
{
	struct channel *channel = agent->channels;

	while (channel && channel->number != number)
		channel = channel->next;
	return channel;
}

size_t channel_allowance(const struct agent *agent, const struct channel *channel, uint8_t stream)
{
	return uplink_has_room(agent) ? MIN(channel->credit[stream], CHUNK_SIZE) : 0;
}

void channel_consumed(struct channel *channel, size_t size)
{
	channel->consumed += (uint32_t)size;
}

void channel_message(struct agent *agent, const struct channel *channel, const struct buf *message)
{
	uplink_send(agent, channel->number, WIRE_MSG, 0, message ? message->data : NULL, message ? message->size : 0);
}

void channel_free(struct agent *agent, struct channel *channel)
{
	struct channel **at = &agent->channels;

	while (*at != channel)
		at = &(*at)->next;
	*at = channel->next;
	channel->ops->release(agent, channel);
	free(channel);
}

void channel_end(struct agent *agent, struct channel *channel, const struct husk_error *e, const struct buf *results)
{
	uplink_end(agent, channel->number, e, results);
	channel_free(agent, channel);
}

void channel_end_cancelled(struct agent *agent, struct channel *channel)
{
	struct husk_error cancelled;

	husk_fail(&cancelled, HUSK_GONE, "cancelled");
	channel_end(agent, channel, &cancelled, NULL);
}

void channel_drop_all(struct agent *agent)
{
	while (agent->channels)
		channel_free(agent, agent->channels);
}

bool channel_pump_all(struct agent *agent)
{
	struct channel *next;
	bool moved = false;

	for (struct channel *channel = agent->channels; channel; channel = next) {
		next = channel->next;
		if (channel->consumed >= WIRE_WINDOW / 4) {
			uint32_t given = channel->consumed;
			uint8_t bytes[4] = { (uint8_t)given, (uint8_t)(given >> 8), (uint8_t)(given >> 16),
					     (uint8_t)(given >> 24) };
			uplink_send(agent, channel->number, WIRE_CREDIT, STREAM_IN, bytes, sizeof(bytes));
			channel->window += given;
			channel->consumed = 0;
		}
		moved |= channel->ops->pump(agent, channel);
	}
	/* If the link is full, work continues when the link has room, without spinning. */
	return moved && uplink_has_room(agent);
}

/* ---- in ---- */

int64_t request_int(const struct request *request, uint16_t tag, int64_t fallback)
{
	return wire_get_int(request->data, request->size, tag, fallback);
}

int request_string(const struct request *request, uint16_t tag, char **out, struct husk_error *err)
{
	struct wire_field field;

	*out = NULL;
	if (!wire_find(request->data, request->size, tag, &field))
		return 0;
	*out = wire_get_string(request->data, request->size, tag);
	return *out ? 0 : husk_fail_memory(err);
}

char **request_strings(const struct request *request, uint16_t tag, struct husk_error *err)
{
	char **list = wire_get_strings(request->data, request->size, tag);

	if (!list)
		husk_fail_memory(err);
	return list;
}

/* Runs a method with checked arguments. Sends END unless the method opened a channel of its own. */
static void uplink_run(struct agent *agent, uint32_t number, const struct method *method, const struct request *request)
{
	cleanup_buf struct buf results = { 0 };
	struct husk_error err = { 0 };

	if (method->open) {
		if (method->open(agent, number, request, &err) < 0)
			uplink_end(agent, number, &err, NULL);
	} else {
		int failed = method->answer(agent, request, &results, &err);
		uplink_end(agent, number, failed ? &err : NULL, failed ? NULL : &results);
	}
}

static void uplink_call(struct agent *agent, uint32_t number, const struct request *request)
{
	int64_t which = request_int(request, TAG_METHOD, 0);
	const struct method *method = method_find(which);
	struct husk_error err = { 0 };

	if (channel_find(agent, number))
		agent_die("link: channel %u was opened twice", number);
	if (!method)
		husk_fail(&err, HUSK_INVALID, WIRE_UNKNOWN_METHOD "%lld", (long long)which);
	if (method && wire_check(which, WIRE_OPEN, request->data, request->size, &err) == 0)
		uplink_run(agent, number, method, request);
	else
		uplink_end(agent, number, &err, NULL);
}

static void channel_take_credit(struct channel *channel, uint8_t stream, const struct request *payload)
{
	const uint8_t *b = (const uint8_t *)payload->data;

	if (payload->size != 4)
		agent_die("link: credit of %zu bytes", payload->size);
	uint32_t given = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
	if (given > CREDIT_MAX || channel->credit[stream] > CREDIT_MAX - given)
		agent_die("link: credit past all bounds on channel %u", channel->number);
	channel->credit[stream] += given;
}

static void channel_take_data(struct agent *agent, struct channel *channel, const struct request *payload)
{
	if (payload->size > channel->window)
		agent_die("link: more data than credit on channel %u", channel->number);
	channel->window -= (uint32_t)payload->size;
	if (channel->ops->data)
		channel->ops->data(agent, channel, payload->data, payload->size);
	else
		channel_consumed(channel, payload->size);
}

/* A frame for an open channel. The call that is answered by the thaw never gets here. */
static void channel_take(struct agent *agent, const struct wire_header *header, const struct request *payload)
{
	struct channel *channel = channel_find(agent, header->channel);

	if (!channel) /* the channel has ended, and the host did not know yet */
		return;
	switch (header->type) {
	case WIRE_DATA:
		channel_take_data(agent, channel, payload);
		break;
	case WIRE_CREDIT:
		channel_take_credit(channel, header->stream, payload);
		break;
	case WIRE_EOF:
		if (channel->ops->eof)
			channel->ops->eof(agent, channel);
		break;
	case WIRE_MSG:
		if (channel->ops->message)
			channel->ops->message(agent, channel, payload);
		break;
	case WIRE_CANCEL:
		channel->ops->cancel(agent, channel);
		break;
	default:
		agent_die("link: frame of type %u on channel %u", header->type, header->channel);
	}
}

static void uplink_hello(const struct request *payload)
{
	int64_t version = request_int(payload, TAG_VERSION, 0);

	if (version != WIRE_VERSION)
		agent_die("the host speaks protocol %lld, this agent %d; bake the template again", (long long)version,
			  WIRE_VERSION);
}

/* While frozen, only frames that end the freeze are acted on; all others wait. */
static bool uplink_must_wait(const struct agent *agent, const struct wire_header *header, const struct request *payload)
{
	if (!agent->frozen || header->channel == 0)
		return false;
	if (header->type != WIRE_OPEN)
		return true;
	int64_t method = request_int(payload, TAG_METHOD, 0);
	return method != METHOD_IDENTITY && method != METHOD_THAW && method != METHOD_FREEZE &&
	       method != METHOD_VOLUME && method != METHOD_MOUNT;
}

static void uplink_act(struct agent *agent, const struct wire_header *header, const char *bytes)
{
	const struct request payload = { .data = bytes, .size = header->size };
	bool fields = header->type == WIRE_HELLO || header->type == WIRE_OPEN || header->type == WIRE_MSG;

	if (fields && !wire_valid(payload.data, payload.size))
		agent_die("link: malformed fields in a frame of type %u", header->type);
	if (uplink_must_wait(agent, header, &payload)) {
		char raw[WIRE_HEADER_SIZE];
		wire_header_encode(header, (uint8_t *)raw);
		if (buf_append(&agent->link.deferred, raw, sizeof(raw)) < 0 ||
		    buf_append(&agent->link.deferred, bytes, header->size) < 0)
			agent_die("out of memory for the link");
	} else if (header->channel == 0) {
		if (header->type != WIRE_HELLO)
			agent_die("link: frame of type %u on channel 0", header->type);
		uplink_hello(&payload);
	} else if (header->type == WIRE_OPEN) {
		uplink_call(agent, header->channel, &payload);
	} else {
		channel_take(agent, header, &payload);
	}
}

/* Acts on every complete frame and returns how many bytes they took. */
static size_t uplink_act_all(struct agent *agent, const char *bytes, size_t size)
{
	struct husk_error err;
	struct wire_header header;
	size_t done = 0;

	while (size - done >= WIRE_HEADER_SIZE) {
		if (wire_header_decode((const uint8_t *)bytes + done, &header, &err) < 0)
			agent_die("link: %s", err.message);
		if (size - done - WIRE_HEADER_SIZE < header.size)
			break;
		uplink_act(agent, &header, bytes + done + WIRE_HEADER_SIZE);
		done += WIRE_HEADER_SIZE + header.size;
	}
	return done;
}

void uplink_replay_deferred(struct agent *agent)
{
	cleanup_buf struct buf waiting = agent->link.deferred;

	agent->link.deferred = (struct buf){ 0 };
	uplink_act_all(agent, waiting.data, waiting.size);
}

void uplink_receive(struct agent *agent)
{
	struct uplink *link = &agent->link;
	ssize_t count = source_read(&link->in, link->input + link->input_size, UPLINK_INPUT_SIZE - link->input_size);

	link->in.readable = false; /* level-triggered: the next wait reports it again */
	if (count < 0 && errno == EAGAIN)
		return;
	if (count <= 0) {
		if (count < 0)
			log_line(LOG_WARN, "link: %s", strerror(errno));
		link->ended = true;
		return;
	}
	link->input_size += (size_t)count;
	size_t done = uplink_act_all(agent, link->input, link->input_size);
	link->input_size -= done;
	memmove(link->input, link->input + done, link->input_size);
	if (link->wants_carrier)
		carrier_take_link(agent);
}
