/*
 * The host's end of the agent link; see link.h. Every incoming byte comes from an attacker until this file has checked
 * it. In the supervisor, only this file and src/wire/ parse these bytes.
 *
 * Example: two clients run `echo hi` and `cat` at the same time. Both call their channel 1; here they are 7 and 8.
 *
 *     host -> guest   7 OPEN EXEC     8 OPEN EXEC                    link_open: the numbers are ours
 *     guest -> host   7 MSG PID 41    8 MSG PID 42    7 DATA "hi\n"   each to the handler of its channel
 *     host -> guest   7 CREDIT 3      8 DATA "abc"                   at most 2 MiB of DATA without credit, each way
 *     guest -> host   7 END           7 DATA "more"                  7 is over: the link goes down with PROTOCOL
 *
 * After the last frame the link of this guest goes down: every channel ends with HUSK_PROTOCOL. The supervisor
 * continues.
 */
#include "link/link.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include "base/thread.h"

#define CHANNELS_MAX 4096
#define WAKE_PAUSE_MS 1000           /* a woken machine stays awake for longer than this */
#define OUT_MAX (4u * 1024u * 1024u) /* bytes that may wait for a guest that does not read */
#define IN_SIZE (2u * (WIRE_HEADER_SIZE + WIRE_PAYLOAD_MAX))

struct channel {
	bool open;
	bool abandoned;   /* has no owner any more; the number is free again after END */
	bool owes_cancel; /* the agent still has to get a CANCEL */
	link_handler handler;
	void *data;
	uint32_t credit[STREAM_COUNT]; /* bytes the guest may still send */
};

struct link {
	int to_agent, from_agent; /* non-blocking: no thread ever waits in a read or a write */
	int nudge_fd;             /* eventfd: makes the thread check its work again */
	pthread_t thread;
	bool closed;   /* the thread was joined; touched by the owner only */
	struct buf in; /* incomplete incoming frames; used by the thread only */

	/* Taken in this order. */
	pthread_mutex_t dispatch_lock; /* held while a handler runs, so that link_abandon can wait for the handler */
	pthread_mutex_t lock;          /* the channel table and the state below */
	pthread_cond_t changed;
	bool greeted, down;
	struct husk_error reason;
	struct channel *channels; /* index is the channel number; 0 unused */
	size_t count;             /* of open ones */
	size_t owed;              /* abandoned channels whose CANCEL was not sent yet */
	uint32_t next;

	/* Outgoing frames. out_lock is the last lock in the order, and is never held while a thread waits for the
	 * guest. */
	pthread_mutex_t out_lock;
	pthread_cond_t room;
	struct buf out; /* whole frames, except the first: `out_sent` bytes of it are sent */
	size_t out_sent;
	bool shut;         /* nothing is sent any more; the thread has to end */
	char parting[160]; /* why; "": nobody said */
	bool held;         /* only `holder` and link_reply may send */
	pthread_t holder;
	int wake_fd; /* -1: nothing to wake */
	int64_t woken_ms;
};

static void nudge(struct link *link)
{
	uint64_t one = 1;

	(void)!write(link->nudge_fd, &one, sizeof(one)); /* the counter cannot be full: its reader empties it */
}

/* ---- going down ---- */

/* From now on, every thread that waits to send fails. */
static void shut(struct link *link)
{
	pthread_mutex_lock(&link->out_lock);
	link->shut = true;
	pthread_cond_broadcast(&link->room);
	pthread_mutex_unlock(&link->out_lock);
	nudge(link);
}

/* Sends an END to every open channel, because the link is gone. Called once, without locks held. */
static void go_down(struct link *link, const struct husk_error *reason)
{
	cleanup_buf struct buf end = { 0 };

	pthread_mutex_lock(&link->lock);
	link->down = true;
	link->reason = *reason;
	pthread_mutex_unlock(&link->lock);
	shut(link);
	if (wire_put_int(&end, TAG_STATUS, (int64_t)reason->code) < 0 ||
	    wire_put_string(&end, TAG_MESSAGE, reason->message) < 0)
		end.size = 0; /* an END without a status is read as a protocol error, which also ends the channel */
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
		if (header->size == 0) { /* an empty frame costs no credit, so it must not be queued */
			out->open = false;
			return 0;
		}
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
		link->owed -= channel->owes_cancel;
		*channel = (struct channel){ 0 };
		link->count--;
	}
	return 0;
}

/* Passes one whole frame to the handler of its channel. */
static int dispatch(struct link *link, const struct wire_header *header, const char *payload, struct husk_error *err)
{
	struct channel channel = { 0 };

	pthread_mutex_lock(&link->dispatch_lock);
	pthread_mutex_lock(&link->lock);
	int admitted = admit(link, header, payload, &channel, err);
	pthread_mutex_unlock(&link->lock);
	if (admitted == 0 && channel.open && !channel.abandoned)
		channel.handler(channel.data, header, payload);
	pthread_mutex_unlock(&link->dispatch_lock);
	return admitted;
}

/* ---- the link's thread ---- */

/* Reads the available bytes and passes on every complete frame. */
static int take_in(struct link *link, struct husk_error *err)
{
	struct wire_header header;
	size_t used = 0;

	ssize_t got = read(link->from_agent, link->in.data + link->in.size, IN_SIZE - link->in.size);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (got == 0 || (got < 0 && errno == ECONNRESET))
		return link->in.size ? husk_fail(err, HUSK_GONE, "the machine ended inside a frame")
				     : husk_fail(err, HUSK_GONE, "the machine has ended");
	if (got < 0)
		return husk_fail_errno(err, "cannot read from the guest agent");
	link->in.size += (size_t)got;
	while (link->in.size - used >= WIRE_HEADER_SIZE) {
		const char *frame = link->in.data + used;
		if (wire_header_decode((const uint8_t *)frame, &header, err) < 0)
			return -1;
		if (link->in.size - used < WIRE_HEADER_SIZE + header.size)
			break;
		if (dispatch(link, &header, frame + WIRE_HEADER_SIZE, err) < 0)
			return -1;
		used += WIRE_HEADER_SIZE + header.size;
	}
	buf_consume(&link->in, used);
	return 0;
}

/* With out_lock held: sends as much as the guest accepts at once. */
static int flush_out(struct link *link, struct husk_error *err)
{
	while (link->out_sent < link->out.size) {
		ssize_t put = write(link->to_agent, link->out.data + link->out_sent, link->out.size - link->out_sent);
		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0 && errno == EAGAIN)
			break;
		if (put < 0)
			return husk_fail(err, HUSK_GONE, "the guest agent has closed the link");
		link->out_sent += (size_t)put;
	}
	if (link->out_sent < MIN(link->out.size, OUT_MAX / 4))
		return 0; /* the rest is moved to the front only now and then */
	buf_consume(&link->out, link->out_sent);
	link->out_sent = 0;
	pthread_cond_broadcast(&link->room);
	return 0;
}

bool link_is_down(struct link *link)
{
	pthread_mutex_lock(&link->lock);
	bool down = link->down;
	pthread_mutex_unlock(&link->lock);
	return down;
}

int link_wait_hello(struct link *link, int timeout_ms, struct husk_error *err)
{
	int64_t end = time_monotonic_ms() + timeout_ms;
	int result = 0, waited = 0;

	pthread_mutex_lock(&link->lock);
	while (!link->greeted && !link->down && waited == 0)
		waited = cond_wait_until(&link->changed, &link->lock, end);
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

/* ---- sending ---- */

/* With out_lock held: waits until this thread may send and the queue has room. */
static int wait_to_send(struct link *link, bool past_hold, size_t size, int64_t end, struct husk_error *err)
{
	int waited = 0;

	while (!link->shut && waited == 0) {
		bool theirs = link->held && !past_hold && !pthread_equal(link->holder, pthread_self());
		bool full = link->out.size > 0 && link->out.size - link->out_sent + size > OUT_MAX;
		if (!theirs && !full)
			return 0;
		waited = cond_wait_until(&link->room, &link->out_lock, end);
	}
	if (link->shut)
		return husk_fail(err, HUSK_GONE, "the link to the guest agent is down");
	return husk_fail(err, HUSK_TIMEOUT, "the guest agent does not take what it is sent");
}

/* With out_lock held. The link's thread sends the bytes that the guest does not accept at once. */
static int put_frame(struct link *link, const struct wire_header *header, const void *payload, struct husk_error *err)
{
	uint8_t bytes[WIRE_HEADER_SIZE];
	struct iovec parts[2] = { { bytes, sizeof(bytes) }, { (void *)payload, header->size } };
	size_t done = 0;

	wire_header_encode(header, bytes);
	if (link->out.size == 0) {
		ssize_t put = writev(link->to_agent, parts, 2);
		if (put < 0 && errno != EAGAIN && errno != EINTR)
			return husk_fail(err, HUSK_GONE, "the guest agent has closed the link");
		done = put > 0 ? (size_t)put : 0;
		if (done == sizeof(bytes) + header->size)
			return 0;
	}
	if (buf_reserve(&link->out, sizeof(bytes) + header->size) < 0) {
		link->shut |= done > 0; /* half a frame was sent: nothing can follow it */
		nudge(link);
		return husk_fail_memory(err);
	}
	for (size_t i = 0; i < 2; i++) {
		size_t gone = MIN(done, parts[i].iov_len);
		buf_append(&link->out, (char *)parts[i].iov_base + gone, parts[i].iov_len - gone);
		done -= gone;
	}
	nudge(link);
	return 0;
}

static int send_frame(struct link *link, bool past_hold, int timeout_ms, const struct wire_header *header,
		      const void *payload, struct husk_error *err)
{
	int64_t end = time_monotonic_ms() + timeout_ms;

	if (header->size > WIRE_PAYLOAD_MAX)
		return husk_fail(err, HUSK_INVALID, "message of %u bytes: the limit is %u", header->size,
				 WIRE_PAYLOAD_MAX);
	pthread_mutex_lock(&link->out_lock);
	int result = wait_to_send(link, past_hold, WIRE_HEADER_SIZE + header->size, end, err);
	int64_t now = time_monotonic_ms();
	if (result == 0 && link->wake_fd >= 0 && now - link->woken_ms >= WAKE_PAUSE_MS) {
		(void)!write(link->wake_fd, "w", 1); /* only a hint: without it the machine reacts later */
		link->woken_ms = now;
	}
	if (result == 0)
		result = put_frame(link, header, payload, err);
	pthread_mutex_unlock(&link->out_lock);
	return result;
}

/* A number is used again after END, which its last owner may not have seen yet. `data` identifies the owner of a
 * channel. */
static bool owns(struct link *link, uint32_t channel, const void *owner)
{
	return channel > 0 && channel < CHANNELS_MAX && link->channels[channel].open &&
	       link->channels[channel].data == owner;
}

/* Closes a channel whose OPEN could not be sent. False: the channel has had its END already, because the link went down
 * or the guest sent one for a channel that it was never told of. When this call returns, the handler does not run. */
static bool give_back(struct link *link, uint32_t number, const void *owner)
{
	pthread_mutex_lock(&link->dispatch_lock);
	pthread_mutex_lock(&link->lock);
	bool open = owns(link, number, owner);
	if (open) {
		link->channels[number].open = false;
		link->count--;
	}
	pthread_mutex_unlock(&link->lock);
	pthread_mutex_unlock(&link->dispatch_lock);
	return open;
}

static int open_channel(struct link *link, const void *payload, size_t size, int timeout_ms, link_handler handler,
			void *data, uint32_t *channel, struct husk_error *err)
{
	pthread_mutex_lock(&link->lock);
	uint32_t number = take_channel(link, handler, data, err);
	if (number)
		*channel = number; /* set before the first answer can arrive */
	pthread_mutex_unlock(&link->lock);
	if (!number)
		return -1;
	struct wire_header header = { (uint32_t)size, number, WIRE_OPEN, 0 };
	if (send_frame(link, false, timeout_ms, &header, payload, err) == 0 || !give_back(link, number, data))
		return 0;
	return -1;
}

int link_open(struct link *link, const void *payload, size_t size, link_handler handler, void *data, uint32_t *channel,
	      struct husk_error *err)
{
	return open_channel(link, payload, size, LINK_SEND_MS, handler, data, channel, err);
}

/* Frames for a channel that has ended are dropped: they were sent before their sender saw END. */
static int send_on(struct link *link, bool past_hold, int timeout_ms, const struct wire_header *header,
		   const void *owner, const void *payload, struct husk_error *err)
{
	pthread_mutex_lock(&link->lock);
	bool open = owns(link, header->channel, owner) && !link->down;
	if (open && header->type == WIRE_CREDIT && header->size == 4 && header->stream < STREAM_COUNT) {
		uint32_t more;
		memcpy(&more, payload, sizeof(more));
		uint32_t *credit = &link->channels[header->channel].credit[header->stream];
		if (__builtin_add_overflow(*credit, more, credit))
			*credit = UINT32_MAX;
	}
	pthread_mutex_unlock(&link->lock);
	return open ? send_frame(link, past_hold, timeout_ms, header, payload, err) : 0;
}

int link_reply(struct link *link, uint32_t channel, const void *owner, enum wire_type type, uint8_t stream,
	       const void *payload, size_t size, struct husk_error *err)
{
	struct wire_header header = { (uint32_t)size, channel, (uint8_t)type, stream };

	return send_on(link, true, LINK_REPLY_MS, &header, owner, payload, err);
}

int link_send(struct link *link, uint32_t channel, const void *owner, enum wire_type type, uint8_t stream,
	      const void *payload, size_t size, struct husk_error *err)
{
	struct wire_header header = { (uint32_t)size, channel, (uint8_t)type, stream };

	return send_on(link, false, LINK_SEND_MS, &header, owner, payload, err);
}

void link_abandon(struct link *link, uint32_t channel, const void *owner)
{
	pthread_mutex_lock(&link->dispatch_lock);
	pthread_mutex_lock(&link->lock);
	if (owns(link, channel, owner)) {
		link->channels[channel].abandoned = link->channels[channel].owes_cancel = true;
		link->owed++;
	}
	pthread_mutex_unlock(&link->lock);
	pthread_mutex_unlock(&link->dispatch_lock);
	nudge(link);
}

/* On the link's thread. A CANCEL that cannot be sent now (queue full, link held) is tried again when that has
 * changed. */
static void send_cancels(struct link *link)
{
	pthread_mutex_lock(&link->lock);
	for (uint32_t i = 1; i < CHANNELS_MAX && link->owed > 0; i++) {
		struct channel *channel = &link->channels[i];
		if (!channel->open || !channel->owes_cancel)
			continue;
		if (send_frame(link, false, 0, &(struct wire_header){ 0, i, WIRE_CANCEL, 0 }, "", NULL) < 0)
			break;
		channel->owes_cancel = false;
		link->owed--;
	}
	pthread_mutex_unlock(&link->lock);
}

static void *run_link(void *argument)
{
	struct link *link = argument;
	struct husk_error err = { 0 };
	uint64_t ignored;
	int result = 0;

	while (result == 0) {
		pthread_mutex_lock(&link->out_lock);
		bool over = link->shut;
		if (!over)
			result = flush_out(link, &err);
		else
			husk_fail(&err, HUSK_GONE, "%s",
				  *link->parting ? link->parting : "the link to the guest agent was closed");
		bool full = link->out.size > 0;
		pthread_mutex_unlock(&link->out_lock);
		if (over)
			break;
		send_cancels(link);
		struct pollfd wait[3] = { { link->nudge_fd, POLLIN, 0 },
					  { link->from_agent, POLLIN, 0 },
					  { full ? link->to_agent : -1, POLLOUT, 0 } };
		if (result < 0 || (poll(wait, 3, -1) < 0 && errno != EINTR))
			break;
		if (wait[0].revents)
			(void)!read(link->nudge_fd, &ignored, sizeof(ignored));
		if (wait[1].revents)
			result = take_in(link, &err);
	}
	if (err.code == HUSK_OK)
		husk_fail(&err, HUSK_INTERNAL, "cannot wait for the guest agent");
	go_down(link, &err);
	return NULL;
}

/* ---- start and end ---- */

static void set_up(struct link *link)
{
	pthread_mutex_init(&link->dispatch_lock, NULL);
	pthread_mutex_init(&link->lock, NULL);
	pthread_mutex_init(&link->out_lock, NULL);
	cond_open(&link->changed);
	cond_open(&link->room);
}

static void free_all(struct link *link)
{
	fd_close(&link->nudge_fd);
	fd_close(&link->wake_fd);
	pthread_cond_destroy(&link->room);
	pthread_cond_destroy(&link->changed);
	pthread_mutex_destroy(&link->out_lock);
	pthread_mutex_destroy(&link->lock);
	pthread_mutex_destroy(&link->dispatch_lock);
	buf_free(&link->in);
	buf_free(&link->out);
	free(link->channels);
	free(link);
}

int link_start(int to_agent, int from_agent, bool expect_hello, struct link **out, struct husk_error *err)
{
	struct link *link = calloc(1, sizeof(*link));

	if (!link)
		return husk_fail_memory(err);
	*link = (struct link){ .to_agent = to_agent,
			       .from_agent = from_agent,
			       .wake_fd = -1,
			       .nudge_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
			       .greeted = !expect_hello,
			       .next = 1 };
	set_up(link);
	link->channels = calloc(CHANNELS_MAX, sizeof(*link->channels));
	if (!link->channels || buf_reserve(&link->in, IN_SIZE) < 0) {
		free_all(link);
		return husk_fail_memory(err);
	}
	if (link->nudge_fd < 0 || fd_set_nonblocking(to_agent, true) < 0 || fd_set_nonblocking(from_agent, true) < 0 ||
	    pthread_create(&link->thread, NULL, run_link, link) != 0) {
		husk_fail_errno(err, "cannot start the agent link");
		free_all(link);
		return -1;
	}
	*out = link;
	return 0;
}

void link_wake_with(struct link *link, int fd)
{
	pthread_mutex_lock(&link->out_lock);
	link->wake_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	pthread_mutex_unlock(&link->out_lock);
}

void link_close(struct link *link)
{
	if (!link || link->closed)
		return;
	link->closed = true;
	shut(link);
	pthread_join(link->thread, NULL);
}

void link_close_because(struct link *link, const char *reason)
{
	pthread_mutex_lock(&link->out_lock);
	snprintf(link->parting, sizeof(link->parting), "%s", reason);
	pthread_mutex_unlock(&link->out_lock);
	link_close(link);
}

void link_free(struct link *link)
{
	if (!link)
		return;
	link_close(link);
	free_all(link);
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
	int64_t end = time_monotonic_ms() + timeout_ms;
	uint32_t channel = 0;
	int waited = 0;

	if (wire_put_int(&message, TAG_METHOD, (int64_t)method) < 0 ||
	    (arguments && arguments->size && buf_append(&message, arguments->data, arguments->size) < 0))
		return husk_fail_memory(err);
	if (open_channel(link, message.data, message.size, timeout_ms, take_answer, &answer, &channel, err) < 0)
		return -1;

	pthread_mutex_lock(&link->lock);
	while (!answer.done && waited == 0)
		waited = cond_wait_until(&link->changed, &link->lock, end);
	bool timed_out = !answer.done;
	pthread_mutex_unlock(&link->lock);
	if (timed_out)
		link_abandon(link, channel, &answer); /* no handler runs after this, so `answer` may go out of scope */

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
	pthread_mutex_lock(&link->out_lock);
	link->held = true;
	link->holder = pthread_self();
	pthread_mutex_unlock(&link->out_lock);
}

void link_release(struct link *link)
{
	pthread_mutex_lock(&link->out_lock);
	link->held = false;
	pthread_cond_broadcast(&link->room);
	pthread_mutex_unlock(&link->out_lock);
	nudge(link);
}

size_t link_channels(struct link *link)
{
	pthread_mutex_lock(&link->lock);
	size_t count = link->count;
	pthread_mutex_unlock(&link->lock);
	return count;
}
