/*
 * The host's end of the agent link; see link.h. What comes in is an attacker's until checked here: this file and
 * src/wire/ are the whole of what parses it in the supervisor.
 */
#include "sandbox/link.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#define CHANNELS_MAX 4096
#define WAKE_PAUSE_MS 1000 /* a machine that was woken stays so for longer */

struct channel {
	bool open;
	bool abandoned; /* nobody listens; waiting for END so that the number can be used again */
	link_handler handler;
	void *data;
	uint32_t credit[STREAM_COUNT]; /* bytes the guest may still send */
};

struct link {
	int to_agent, from_agent;
	int stop_fd; /* eventfd: ends the reader */
	int wake_fd; /* -1: nothing to wake. Its state is the frame_lock's */
	int64_t woken_ms;
	pthread_t reader;
	bool closed; /* the reader was joined; touched by the owner only */
	/* Taken in this order. `write_lock` is recursive: whoever holds the link may still call over it. */
	pthread_mutex_t write_lock;    /* whose turn it is to send; link_reply goes past it */
	pthread_mutex_t frame_lock;    /* frames leave whole */
	pthread_mutex_t dispatch_lock; /* held while a handler runs, so that abandoning can wait for it */
	pthread_mutex_t lock;          /* the channel table and the state below */
	pthread_cond_t changed;
	bool greeted, down;
	struct husk_error reason;
	struct channel *channels; /* index is the channel number; 0 unused */
	size_t count;             /* of open ones */
	uint32_t next;
};

/* Every open channel learns that the link is gone; called once, without locks held. */
static void go_down(struct link *link, const struct husk_error *reason)
{
	cleanup_buf struct buf end = { 0 };

	pthread_mutex_lock(&link->lock);
	link->down = true;
	link->reason = *reason;
	pthread_mutex_unlock(&link->lock);
	if (wire_put_int(&end, TAG_STATUS, (int64_t)reason->code) < 0 ||
	    wire_put_string(&end, TAG_MESSAGE, reason->message) < 0)
		end.size = 0; /* an END without a status reads as a protocol error: still an end */
	for (uint32_t i = 1; i < CHANNELS_MAX; i++) {
		pthread_mutex_lock(&link->dispatch_lock);
		pthread_mutex_lock(&link->lock);
		struct channel channel = link->channels[i];
		if (channel.open) {
			link->channels[i].open = false;
			link->count--;
		}
		pthread_mutex_unlock(&link->lock);
		if (channel.open && !channel.abandoned)
			channel.handler(channel.data, &(struct wire_header){ (uint32_t)end.size, i, WIRE_END, 0 },
					end.data ? end.data : "");
		pthread_mutex_unlock(&link->dispatch_lock);
	}
	pthread_mutex_lock(&link->lock);
	pthread_cond_broadcast(&link->changed);
	pthread_mutex_unlock(&link->lock);
}

/* Checks a frame against the state of its channel; fills *channel with its handler. Called with the lock held. */
static int admit(struct link *link, const struct wire_header *header, const char *payload, struct channel *out,
		 struct husk_error *err)
{
	if (header->type == WIRE_HELLO) {
		if (wire_get_int(payload, header->size, TAG_VERSION, 0) != WIRE_VERSION)
			return husk_fail(err, HUSK_PROTOCOL, "the guest agent speaks another version of the protocol");
		link->greeted = true;
		pthread_cond_broadcast(&link->changed);
		out->open = false;
		return 0;
	}
	if (header->channel >= CHANNELS_MAX || !link->channels[header->channel].open)
		return husk_fail(err, HUSK_PROTOCOL, "the guest agent sent a frame for channel %u, which is not open",
				 header->channel);

	struct channel *channel = &link->channels[header->channel];
	switch (header->type) {
	case WIRE_DATA:
		if (header->size > channel->credit[header->stream])
			return husk_fail(err, HUSK_PROTOCOL, "the guest agent sent more than it was given credit for");
		channel->credit[header->stream] -= header->size;
		break;
	case WIRE_MSG:
	case WIRE_END:
		if (!wire_valid(payload, header->size))
			return husk_fail(err, HUSK_PROTOCOL, "the guest agent sent a malformed message");
		break;
	case WIRE_CREDIT:
	case WIRE_EOF:
		break;
	default:
		return husk_fail(err, HUSK_PROTOCOL, "the guest agent sent a frame of type %u", header->type);
	}
	*out = *channel;
	if (header->type == WIRE_END) {
		channel->open = false;
		link->count--;
	}
	return 0;
}

static void *read_frames(void *argument)
{
	struct link *link = argument;
	struct husk_error err = { .code = HUSK_INTERNAL, .message = "out of memory" };
	cleanup_free char *payload = malloc(WIRE_PAYLOAD_MAX);
	struct wire_header header;

	while (payload) {
		struct pollfd wait[2] = { { link->from_agent, POLLIN, 0 }, { link->stop_fd, POLLIN, 0 } };
		if (poll(wait, 2, -1) < 0 && errno != EINTR)
			break;
		if (wait[1].revents) {
			husk_fail(&err, HUSK_GONE, "the link to the guest agent was closed");
			break;
		}
		if (!wait[0].revents)
			continue;
		int got = wire_receive(link->from_agent, &header, payload, &err);
		if (got == 0)
			husk_fail(&err, HUSK_GONE, "the machine has ended");
		if (got <= 0)
			break;

		struct channel channel = { 0 };
		pthread_mutex_lock(&link->dispatch_lock);
		pthread_mutex_lock(&link->lock);
		int admitted = admit(link, &header, payload, &channel, &err);
		pthread_mutex_unlock(&link->lock);
		if (admitted == 0 && channel.open && !channel.abandoned)
			channel.handler(channel.data, &header, payload);
		pthread_mutex_unlock(&link->dispatch_lock);
		if (admitted < 0)
			break;
	}
	go_down(link, &err);
	return NULL;
}

int link_start(int to_agent, int from_agent, bool expect_hello, struct link **out, struct husk_error *err)
{
	struct link *link = calloc(1, sizeof(*link));

	if (!link || !(link->channels = calloc(CHANNELS_MAX, sizeof(*link->channels)))) {
		free(link);
		return husk_fail_memory(err);
	}
	link->to_agent = to_agent;
	link->from_agent = from_agent;
	link->wake_fd = -1;
	link->greeted = !expect_hello;
	link->next = 1;
	pthread_mutexattr_t recursive;
	pthread_mutexattr_init(&recursive);
	pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&link->write_lock, &recursive);
	pthread_mutexattr_destroy(&recursive);
	pthread_mutex_init(&link->frame_lock, NULL);
	pthread_mutex_init(&link->dispatch_lock, NULL);
	pthread_mutex_init(&link->lock, NULL);
	pthread_condattr_t attributes;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&link->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	link->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (link->stop_fd < 0 || pthread_create(&link->reader, NULL, read_frames, link) != 0) {
		husk_fail_errno(err, "cannot start the agent link");
		base_cleanup_close(&link->stop_fd);
		free(link->channels);
		free(link);
		return -1;
	}
	*out = link;
	return 0;
}

void link_wake_with(struct link *link, int fd)
{
	pthread_mutex_lock(&link->frame_lock);
	link->wake_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	pthread_mutex_unlock(&link->frame_lock);
}

void link_close(struct link *link)
{
	uint64_t one = 1;

	if (!link || link->closed)
		return;
	link->closed = true;
	if (write_full(link->stop_fd, &one, sizeof(one)) == 0)
		pthread_join(link->reader, NULL);
}

void link_free(struct link *link)
{
	if (!link)
		return;
	link_close(link);
	close(link->stop_fd);
	base_cleanup_close(&link->wake_fd);
	pthread_cond_destroy(&link->changed);
	pthread_mutex_destroy(&link->lock);
	pthread_mutex_destroy(&link->dispatch_lock);
	pthread_mutex_destroy(&link->frame_lock);
	pthread_mutex_destroy(&link->write_lock);
	free(link->channels);
	free(link);
}

bool link_is_down(struct link *link)
{
	pthread_mutex_lock(&link->lock);
	bool down = link->down;
	pthread_mutex_unlock(&link->lock);
	return down;
}

static struct timespec deadline_in(int timeout_ms)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	at.tv_sec += timeout_ms / 1000;
	at.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
	if (at.tv_nsec >= 1000000000) {
		at.tv_sec++;
		at.tv_nsec -= 1000000000;
	}
	return at;
}

int link_wait_hello(struct link *link, int timeout_ms, struct husk_error *err)
{
	struct timespec at = deadline_in(timeout_ms);
	int result = 0, waited = 0;

	pthread_mutex_lock(&link->lock);
	while (!link->greeted && !link->down && waited == 0)
		waited = pthread_cond_timedwait(&link->changed, &link->lock, &at);
	if (link->down) {
		*(err ? err : &(struct husk_error){ 0 }) = link->reason;
		result = -1;
	} else if (!link->greeted) {
		result = husk_fail(err, HUSK_TIMEOUT, "the guest agent did not greet within %d ms", timeout_ms);
	}
	pthread_mutex_unlock(&link->lock);
	return result;
}

/* A free channel number, marked open; 0 with err set when there is none. Called with the lock held. */
static uint32_t take_channel(struct link *link, link_handler handler, void *data, struct husk_error *err)
{
	if (link->down) {
		if (err)
			*err = link->reason;
		return 0;
	}
	for (uint32_t tries = 1; tries < CHANNELS_MAX; tries++) {
		uint32_t number = link->next;
		link->next = number + 1 < CHANNELS_MAX ? number + 1 : 1;
		struct channel *channel = &link->channels[number];
		if (channel->open)
			continue;
		*channel = (struct channel){ .open = true, .handler = handler, .data = data };
		for (size_t i = 0; i < STREAM_COUNT; i++)
			channel->credit[i] = WIRE_WINDOW;
		link->count++;
		return number;
	}
	husk_fail(err, HUSK_LIMIT, "too many calls at once on this sandbox (%d)", CHANNELS_MAX - 1);
	return 0;
}

static int send_frame(struct link *link, uint32_t channel, enum wire_type type, uint8_t stream, const void *payload,
		      size_t size, struct husk_error *err)
{
	int64_t now = time_monotonic_ms();

	pthread_mutex_lock(&link->frame_lock);
	if (link->wake_fd >= 0 && now - link->woken_ms >= WAKE_PAUSE_MS) {
		(void)!write(link->wake_fd, "w", 1); /* only a hint: without, it is late */
		link->woken_ms = now;
	}
	int result = wire_send(link->to_agent, channel, type, stream, payload, size, err);
	pthread_mutex_unlock(&link->frame_lock);
	return result;
}

int link_open(struct link *link, const void *payload, size_t size, link_handler handler, void *data, uint32_t *channel,
	      struct husk_error *err)
{
	pthread_mutex_lock(&link->write_lock);
	pthread_mutex_lock(&link->lock);
	uint32_t number = take_channel(link, handler, data, err);
	if (number)
		*channel = number; /* before the first answer can arrive */
	pthread_mutex_unlock(&link->lock);
	int sent = number ? send_frame(link, number, WIRE_OPEN, 0, payload, size, err) : -1;
	pthread_mutex_unlock(&link->write_lock);
	if (number && sent < 0) {
		pthread_mutex_lock(&link->lock);
		if (link->channels[number].open) {
			link->channels[number].open = false;
			link->count--;
		}
		pthread_mutex_unlock(&link->lock);
	}
	return sent;
}

/* Numbers are used again after END, which the owner may not have seen yet: its `data` tells whose channel it is. */
static bool owns(struct link *link, uint32_t channel, const void *owner)
{
	return channel > 0 && channel < CHANNELS_MAX && link->channels[channel].open &&
	       link->channels[channel].data == owner;
}

int link_reply(struct link *link, uint32_t channel, const void *owner, enum wire_type type, uint8_t stream,
	       const void *payload, size_t size, struct husk_error *err)
{
	pthread_mutex_lock(&link->lock);
	bool open = owns(link, channel, owner) && !link->down;
	if (open && type == WIRE_CREDIT && size == 4 && stream < STREAM_COUNT) {
		uint32_t more;
		memcpy(&more, payload, sizeof(more));
		uint32_t *credit = &link->channels[channel].credit[stream];
		if (__builtin_add_overflow(*credit, more, credit))
			*credit = UINT32_MAX;
	}
	pthread_mutex_unlock(&link->lock);
	return open ? send_frame(link, channel, type, stream, payload, size, err) : 0;
}

int link_send(struct link *link, uint32_t channel, const void *owner, enum wire_type type, uint8_t stream,
	      const void *payload, size_t size, struct husk_error *err)
{
	pthread_mutex_lock(&link->write_lock);
	int result = link_reply(link, channel, owner, type, stream, payload, size, err);
	pthread_mutex_unlock(&link->write_lock);
	return result;
}

void link_abandon(struct link *link, uint32_t channel, const void *owner)
{
	pthread_mutex_lock(&link->dispatch_lock);
	pthread_mutex_lock(&link->lock);
	bool open = owns(link, channel, owner);
	if (open)
		link->channels[channel].abandoned = true;
	pthread_mutex_unlock(&link->lock);
	pthread_mutex_unlock(&link->dispatch_lock);
	if (open)
		link_send(link, channel, owner, WIRE_CANCEL, 0, NULL, 0, NULL);
}

/* ---- calls without streams ---- */

struct answer {
	struct link *link;
	bool done;
	struct buf payload;
	bool short_of_memory;
};

static void take_answer(void *data, const struct wire_header *header, const char *payload)
{
	struct answer *answer = data;

	if (header->type != WIRE_END)
		return;
	pthread_mutex_lock(&answer->link->lock);
	answer->short_of_memory = buf_append(&answer->payload, payload, header->size) < 0;
	answer->done = true;
	pthread_cond_broadcast(&answer->link->changed);
	pthread_mutex_unlock(&answer->link->lock);
}

int link_call(struct link *link, enum wire_method method, const struct buf *arguments, struct buf *results,
	      int timeout_ms, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	struct answer answer = { .link = link };
	struct timespec at = deadline_in(timeout_ms);
	uint32_t channel = 0;
	int waited = 0;

	if (wire_put_int(&message, TAG_METHOD, (int64_t)method) < 0 ||
	    (arguments && arguments->size && buf_append(&message, arguments->data, arguments->size) < 0))
		return husk_fail_memory(err);
	if (link_open(link, message.data, message.size, take_answer, &answer, &channel, err) < 0)
		return -1;

	pthread_mutex_lock(&link->lock);
	while (!answer.done && waited == 0)
		waited = pthread_cond_timedwait(&link->changed, &link->lock, &at);
	bool timed_out = !answer.done;
	pthread_mutex_unlock(&link->lock);
	if (timed_out)
		link_abandon(link, channel, &answer); /* no handler runs after this: `answer` may go */

	int result;
	if (!answer.done)
		result = husk_fail(err, HUSK_TIMEOUT, "the guest agent did not answer within %d ms", timeout_ms);
	else if (answer.short_of_memory)
		result = husk_fail_memory(err);
	else
		result = wire_end_status(answer.payload.data, answer.payload.size, err);
	if (results)
		*results = answer.payload;
	else
		buf_free(&answer.payload);
	return result;
}

void link_hold(struct link *link)
{
	pthread_mutex_lock(&link->write_lock);
}

void link_release(struct link *link)
{
	pthread_mutex_unlock(&link->write_lock);
}

size_t link_channels(struct link *link)
{
	pthread_mutex_lock(&link->lock);
	size_t count = link->count;
	pthread_mutex_unlock(&link->lock);
	return count;
}
