/*
 * The client's end of one channel; call.h has the contract and how threads may share a call.
 *
 * There are two locks. `send_lock` is held while one frame is sent, so that frames never mix. `lock` guards all state and
 * is never held during a system call that may block. send_lock is taken before lock, never inside it.
 *
 * No byte from the connection is trusted: file_frame is the one place that takes frames in, and it checks order, credit and
 * form first.
 */
#include "client/call.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "base/thread.h"
#include "instance/contact.h"

#define CALL_CHANNEL 1u
#define SEND_CHUNK (192u * 1024u)
/* Credit is given back in steps: this needs fewer frames, and the peer still has room for a frame of the usual size. */
#define CREDIT_STEP (WIRE_WINDOW / 4)
/* With more queued events than this, output is joined to the last queued output of its stream. If a peer sends small
 * pieces and nobody reads, this saves memory, but the order between the two streams is lost. */
#define QUEUE_EVENTS 4096
/* Messages need no credit, and no method sends many messages without a request in between: more than this is an
 * attack. */
#define QUEUE_MESSAGES 1024

#define PATIENCE_MS                                                                                                    \
	45000 /* how long a call waits for a silent peer, unless call_be_patient was called, and for the rest of a frame */

struct queued {
	struct queued *next;
	enum wire_type type;
	enum wire_stream stream;
	struct buf data;
};

struct call {
	int fd;
	char *server;  /* the URL of the server in between; NULL: none */
	int poll_fd;   /* readable when the connection or queued_fd is; -1: not requested */
	int queued_fd; /* an eventfd, readable while events are queued */
	pthread_mutex_t send_lock;
	pthread_mutex_t lock; /* everything below */
	pthread_cond_t changed;
	bool patient;  /* the peer may be silent without a limit */
	bool pumping;  /* a thread is receiving a frame and owns `payload` */
	char *payload; /* WIRE_PAYLOAD_MAX bytes */
	struct queued *head, *tail;
	size_t events, messages;
	struct queued *last_data[STREAM_COUNT]; /* the last queued DATA of each stream */
	struct queued *current;                 /* handed out by call_next */
	uint32_t may_send;                      /* our credit on STREAM_IN */
	uint32_t may_receive[STREAM_COUNT];     /* the peer's credit */
	uint32_t owed[STREAM_COUNT];            /* consumed, and not yet given back as credit */
	bool peer_eof[STREAM_COUNT];
	bool ended;    /* END was received: nothing after it is read */
	bool finished; /* END was handed out */
	bool deaf;     /* the peer accepts nothing any more; frames that it sent may still be waiting */
	bool failed;   /* `failure` says why */
	struct husk_error failure;
};

/* ---- receiving frames ---- */

static void fail(struct call *call, const struct husk_error *why)
{
	if (call->failed)
		return;
	call->failed = call->deaf = true;
	call->failure = *why;
	shutdown(call->fd, SHUT_RDWR); /* wakes a thread that is blocked on it */
}

static void queued_free(struct queued *item)
{
	if (!item)
		return;
	buf_free(&item->data);
	free(item);
}

/* With `lock` held. Another thread may have received the frame that a thread in poll(2) is waiting for. */
static void announce_queue(struct call *call)
{
	eventfd_t count;

	if (call->queued_fd < 0)
		return;
	if (call->head || call->finished)
		eventfd_write(call->queued_fd, 1);
	else
		eventfd_read(call->queued_fd, &count);
}

static int enqueue(struct call *call, const struct wire_header *header, struct husk_error *why)
{
	bool is_data = header->type == WIRE_DATA;
	struct queued *item = is_data ? call->last_data[header->stream] : NULL;

	if (header->type == WIRE_MSG && ++call->messages > QUEUE_MESSAGES)
		return husk_fail(why, HUSK_PROTOCOL, "the agent sent messages that were not requested");
	if (item && (item == call->tail || call->events >= QUEUE_EVENTS))
		return buf_append(&item->data, call->payload, header->size) < 0 ? husk_fail_memory(why) : 0;
	item = calloc(1, sizeof(*item));
	if (!item)
		return husk_fail_memory(why);
	item->type = (enum wire_type)header->type;
	item->stream = (enum wire_stream)header->stream;
	if (header->size && buf_append(&item->data, call->payload, header->size) < 0) {
		free(item);
		return husk_fail_memory(why);
	}
	if (call->tail)
		call->tail->next = item;
	else
		call->head = item;
	call->tail = item;
	call->events++;
	if (is_data)
		call->last_data[header->stream] = item;
	if (call->head == item)
		announce_queue(call);
	return 0;
}

static int file_credit(struct call *call, const struct wire_header *header, struct husk_error *why)
{
	const uint8_t *bytes = (const uint8_t *)call->payload;

	if (header->stream != STREAM_IN || header->size != 4)
		return husk_fail(why, HUSK_PROTOCOL, "the agent gave credit for a stream it sends on itself");
	uint32_t credit =
		(uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
	if (credit > WIRE_WINDOW - call->may_send)
		return husk_fail(why, HUSK_PROTOCOL, "the agent gave credit for %u bytes it was never sent", credit);
	call->may_send += credit;
	return 0;
}

static int file_output(struct call *call, const struct wire_header *header, struct husk_error *why)
{
	if (header->stream == STREAM_IN || call->peer_eof[header->stream])
		return husk_fail(why, HUSK_PROTOCOL, "the agent sent data on stream %u, which is %s", header->stream,
				 header->stream == STREAM_IN ? "ours" : "at its end");
	if (header->type == WIRE_EOF) {
		call->peer_eof[header->stream] = true;
		return header->size ? husk_fail(why, HUSK_PROTOCOL, "the agent sent an end of stream with content")
				    : enqueue(call, header, why);
	}
	if (header->size > call->may_receive[header->stream])
		return husk_fail(why, HUSK_PROTOCOL, "the agent sent more on stream %u than it had credit for",
				 header->stream);
	call->may_receive[header->stream] -= header->size;
	return header->size ? enqueue(call, header, why) : 0;
}

/* Checks the frame in call->payload and keeps its content. Called with `lock` held. */
static int file_frame(struct call *call, const struct wire_header *header, struct husk_error *why)
{
	if (header->channel != CALL_CHANNEL)
		return husk_fail(why, HUSK_PROTOCOL, "frame for channel %u on a connection of one", header->channel);
	switch ((enum wire_type)header->type) {
	case WIRE_CREDIT:
		return file_credit(call, header, why);
	case WIRE_DATA:
	case WIRE_EOF:
		return file_output(call, header, why);
	case WIRE_MSG:
	case WIRE_END:
		if (!wire_valid(call->payload, header->size))
			return husk_fail(why, HUSK_PROTOCOL, "the agent sent a malformed message");
		call->ended = header->type == WIRE_END;
		return enqueue(call, header, why);
	default:
		return husk_fail(why, HUSK_PROTOCOL, "the agent sent a frame of type %u, which is not its to send",
				 header->type);
	}
}

static int poll_until(int fd, short events, int64_t deadline_ms)
{
	struct pollfd p = { .fd = fd, .events = events };

	for (;;) {
		int64_t left = deadline_ms < 0 ? -1 : MAX(0, deadline_ms - time_monotonic_ms());
		int n = poll(&p, 1, left < 0 ? -1 : (int)MIN(left, INT_MAX));
		if (n >= 0)
			return n == 0 ? 0 : p.revents;
		if (errno != EINTR)
			return -1;
	}
}

/* Waits until a frame arrives, and files it. Also returns when the peer accepts bytes again, if `also` is POLLOUT;
 * returns 0 at the deadline. Called with `lock` held and no thread pumping; releases the lock while it waits. */
static int pump(struct call *call, short also, int64_t deadline_ms)
{
	struct husk_error why = { 0 };
	struct wire_header header = { 0 };
	int received = 2;

	call->pumping = true;
	pthread_mutex_unlock(&call->lock);
	int seen = poll_until(call->fd, (short)(POLLIN | also), deadline_ms);
	if (seen < 0)
		received = husk_fail_errno(&why, "cannot wait for the sandbox");
	else if (seen & ~POLLOUT)
		received =
			wire_receive_until(call->fd, &header, call->payload, time_monotonic_ms() + PATIENCE_MS, &why);
	pthread_mutex_lock(&call->lock);
	call->pumping = false;

	if (received == 0)
		received = call->server ? husk_fail(&why, HUSK_GONE,
						    "the connection to %s was lost, or the sandbox ended, during a "
						    "call; a process continues (husk ps, husk attach)",
						    call->server)
					: husk_fail(&why, HUSK_GONE, "the sandbox ended during the call");
	if (received == 1 && file_frame(call, &header, &why) < 0)
		received = -1;
	if (received < 0)
		fail(call, &why);
	pthread_cond_broadcast(&call->changed);
	return seen;
}

static bool can_read(const struct call *call)
{
	return call->head || call->failed || call->finished;
}

static bool can_write(const struct call *call)
{
	return call->may_send > 0 || call->ended || call->deaf;
}

/* With `lock` held: the deadline of a wait that has none of its own. */
static int64_t give_up_at(const struct call *call)
{
	return call->patient ? -1 : time_monotonic_ms() + PATIENCE_MS;
}

/* With `lock` held. */
static void fail_silent(struct call *call)
{
	struct husk_error why = { 0 };

	husk_fail(&why, HUSK_TIMEOUT, "the sandbox did not answer within %d s", PATIENCE_MS / 1000);
	fail(call, &why);
	pthread_cond_broadcast(&call->changed);
}

/* With `lock` held: receives frames, or waits for the thread that does, until `met` is true or the deadline passes. */
static bool wait_by(struct call *call, bool (*met)(const struct call *), int64_t deadline_ms)
{
	while (!met(call)) {
		if (!call->pumping) {
			if (pump(call, 0, deadline_ms) == 0)
				return met(call);
		} else if (cond_wait_until(&call->changed, &call->lock, deadline_ms) == ETIMEDOUT) {
			return met(call);
		}
	}
	return true;
}

/* The same; without a deadline (-1) the call fails if the peer is silent for too long. */
static bool wait_until(struct call *call, bool (*met)(const struct call *), int64_t deadline_ms)
{
	if (deadline_ms >= 0)
		return wait_by(call, met, deadline_ms);
	if (!wait_by(call, met, give_up_at(call)))
		fail_silent(call);
	return true;
}

/* ---- sending ---- */

/* The socket is full. Receives what the peer sends, so that two full directions cannot block each other. If another
 * thread is receiving, waits for a short time only, because that thread may stop. False: the call is over. */
static bool make_room(struct call *call)
{
	pthread_mutex_lock(&call->lock);
	bool over = call->failed || call->ended;
	bool pumped = !over && !call->pumping;
	if (pumped && pump(call, POLLOUT, give_up_at(call)) == 0)
		fail_silent(call);
	pthread_mutex_unlock(&call->lock);
	if (!over && !pumped)
		poll_until(call->fd, POLLOUT, time_monotonic_ms() + 20);
	return !over;
}

static bool send_parts(struct call *call, struct iovec parts[2])
{
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

	while (parts[0].iov_len + parts[1].iov_len > 0) {
		ssize_t n = sendmsg(call->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN && make_room(call))
			continue;
		if (n < 0)
			return false;
		for (size_t i = 0; i < 2; i++) {
			size_t used = MIN((size_t)n, parts[i].iov_len);
			parts[i].iov_base = (char *)parts[i].iov_base + used;
			parts[i].iov_len -= used;
			n -= (ssize_t)used;
		}
	}
	return true;
}

/* The reason why nothing can be sent any more. Called with `lock` held. */
static int fail_deaf(const struct call *call, struct husk_error *err)
{
	if (call->failed)
		return husk_fail(err, call->failure.code, "%s", call->failure.message);
	return husk_fail(err, HUSK_GONE, "the other side has ended the call");
}

static int send_frame(struct call *call, enum wire_type type, uint8_t stream, const void *payload, size_t size,
		      struct husk_error *err)
{
	uint8_t bytes[WIRE_HEADER_SIZE];
	struct iovec parts[2] = { { bytes, sizeof(bytes) }, { (void *)payload, size } };
	int result = 0;

	if (size > WIRE_PAYLOAD_MAX)
		return husk_fail(err, HUSK_LIMIT, "message of %zu bytes: the limit is %u", size, WIRE_PAYLOAD_MAX);
	wire_header_encode(&(struct wire_header){ (uint32_t)size, CALL_CHANNEL, (uint8_t)type, stream }, bytes);

	pthread_mutex_lock(&call->send_lock);
	pthread_mutex_lock(&call->lock);
	bool deaf = call->deaf || call->ended;
	pthread_mutex_unlock(&call->lock);
	if (!deaf)
		deaf = !send_parts(call, parts);
	if (deaf) {
		pthread_mutex_lock(&call->lock);
		call->deaf = true;
		result = fail_deaf(call, err);
		pthread_cond_broadcast(&call->changed);
		pthread_mutex_unlock(&call->lock);
	}
	pthread_mutex_unlock(&call->send_lock);
	return result;
}

/* Sends one frame, as far as there is credit; `wait`: until there is some. Returns the count; 0: no credit. */
static ssize_t write_chunk(struct call *call, const char *bytes, size_t size, bool wait, struct husk_error *err)
{
	pthread_mutex_lock(&call->lock);
	if (wait)
		wait_until(call, can_write, -1);
	if (call->ended || call->deaf) {
		int result = fail_deaf(call, err);
		pthread_mutex_unlock(&call->lock);
		return result;
	}
	size_t chunk = MIN(size, MIN(call->may_send, SEND_CHUNK));
	call->may_send -= (uint32_t)chunk;
	pthread_mutex_unlock(&call->lock);
	if (chunk > 0 && send_frame(call, WIRE_DATA, STREAM_IN, bytes, chunk, err) < 0)
		return -1;
	return (ssize_t)chunk;
}

int call_write(struct call *call, const void *data, size_t size, struct husk_error *err)
{
	const char *bytes = data;

	while (size > 0) {
		ssize_t count = write_chunk(call, bytes, size, true, err);
		if (count < 0)
			return -1;
		bytes += count;
		size -= (size_t)count;
	}
	return 0;
}

ssize_t call_write_some(struct call *call, const void *data, size_t size, struct husk_error *err)
{
	size_t written = 0;

	while (written < size) {
		ssize_t count = write_chunk(call, (const char *)data + written, size - written, false, err);
		if (count < 0)
			return -1;
		if (count == 0)
			break;
		written += (size_t)count;
	}
	return (ssize_t)written;
}

size_t call_unread(struct call *call)
{
	pthread_mutex_lock(&call->lock);
	size_t unread = WIRE_WINDOW - call->may_send;
	pthread_mutex_unlock(&call->lock);
	return unread;
}

int call_write_eof(struct call *call, struct husk_error *err)
{
	return send_frame(call, WIRE_EOF, STREAM_IN, NULL, 0, err);
}

int call_message(struct call *call, const struct buf *fields, struct husk_error *err)
{
	return send_frame(call, WIRE_MSG, 0, fields->data, fields->size, err);
}

int call_cancel(struct call *call, struct husk_error *err)
{
	return send_frame(call, WIRE_CANCEL, 0, NULL, 0, err);
}

/* ---- reading ---- */

int call_wait(struct call *call, int64_t deadline_ms)
{
	pthread_mutex_lock(&call->lock);
	bool ready = wait_until(call, can_read, deadline_ms);
	pthread_mutex_unlock(&call->lock);
	return ready;
}

/* With `lock` held: takes the first event off the queue. */
static struct queued *dequeue(struct call *call)
{
	struct queued *item = call->head;

	if (!item)
		return NULL;
	call->head = item->next;
	if (!call->head)
		call->tail = NULL;
	item->next = NULL;
	call->events--;
	if (item->type == WIRE_MSG)
		call->messages--;
	if (call->last_data[item->stream] == item)
		call->last_data[item->stream] = NULL;
	if (item->type == WIRE_END)
		call->finished = true;
	if (!call->head)
		announce_queue(call);
	return item;
}

/* With `lock` held: how much credit to give back, now that this event leaves the queue. The credit is counted before
 * the frame is sent, because another thread may receive the answer at once. */
static uint32_t settle_credit(struct call *call, const struct queued *item)
{
	enum wire_stream stream = item->stream;

	if (item->type != WIRE_DATA)
		return 0;
	call->owed[stream] += (uint32_t)item->data.size;
	if (call->owed[stream] < CREDIT_STEP || call->peer_eof[stream] || call->ended)
		return 0;
	uint32_t credit = call->owed[stream];
	call->owed[stream] = 0;
	call->may_receive[stream] += credit;
	return credit;
}

/* Credit is given when an event is returned, not at the next call. In between, the caller may wait in poll(2) for bytes
 * that the peer could not send otherwise. */
int call_next(struct call *call, struct call_event *event, struct husk_error *err)
{
	uint32_t credit = 0;
	int result = 0;

	queued_free(steal_pointer(call->current));
	pthread_mutex_lock(&call->lock);
	wait_until(call, can_read, -1);
	call->current = dequeue(call);
	if (call->current) {
		*event = (struct call_event){ call->current->type, call->current->stream, call->current->data.data,
					      call->current->data.size };
		credit = settle_credit(call, call->current);
	} else {
		result = fail_deaf(call, err);
	}
	pthread_mutex_unlock(&call->lock);
	if (credit > 0) {
		uint8_t bytes[4] = { (uint8_t)credit, (uint8_t)(credit >> 8), (uint8_t)(credit >> 16),
				     (uint8_t)(credit >> 24) };
		/* If the peer does not accept it, the peer has sent END or is gone: the next read shows which. */
		send_frame(call, WIRE_CREDIT, (uint8_t)event->stream, bytes, sizeof(bytes), NULL);
	}
	return result;
}

int call_finish(struct call *call, int64_t deadline_ms, struct buf *results, struct husk_error *err)
{
	struct call_event event;

	do {
		if (!call_wait(call, deadline_ms))
			return husk_fail(err, HUSK_TIMEOUT, "the sandbox did not answer in time");
		if (call_next(call, &event, err) < 0)
			return -1;
	} while (event.type != WIRE_END);
	if (wire_end_status(event.data, event.size, err) < 0)
		return -1;
	if (results && event.size && buf_append(results, event.data, event.size) < 0)
		return husk_fail_memory(err);
	return 0;
}

void call_be_patient(struct call *call)
{
	pthread_mutex_lock(&call->lock);
	call->patient = true;
	pthread_mutex_unlock(&call->lock);
}

int call_first_message(struct call *call, struct call_event *event, struct husk_error *err)
{
	if (call_next(call, event, err) < 0)
		return -1;
	call_be_patient(call);
	if (event->type == WIRE_MSG)
		return 0;
	if (event->type == WIRE_END && wire_end_status(event->data, event->size, err) < 0)
		return -1;
	return husk_fail(err, HUSK_PROTOCOL, "the agent did not say how the call began");
}

/* ---- making and freeing ---- */

static struct call *call_new(int fd)
{
	struct call *call = calloc(1, sizeof(*call));

	if (!call)
		return NULL;
	call->fd = fd;
	call->poll_fd = call->queued_fd = -1;
	call->payload = malloc(WIRE_PAYLOAD_MAX);
	if (!call->payload) {
		free(call);
		return NULL;
	}
	cond_open(&call->changed);
	pthread_mutex_init(&call->lock, NULL);
	pthread_mutex_init(&call->send_lock, NULL);
	call->may_send = WIRE_WINDOW;
	for (size_t i = 0; i < STREAM_COUNT; i++)
		call->may_receive[i] = WIRE_WINDOW;
	return call;
}

int call_open(int fd, enum wire_method method, const struct buf *arguments, struct call **out, struct husk_error *err)
{
	cleanup_close int owned = fd;
	cleanup_buf struct buf message = { 0 };
	cleanup_call struct call *call = NULL;

	if (wire_put_open(&message, (uint16_t)method, arguments) < 0)
		return husk_fail_memory(err);
	call = call_new(owned);
	if (!call)
		return husk_fail_memory(err);
	steal_fd(&owned);
	if (send_frame(call, WIRE_OPEN, 0, message.data, message.size, err) < 0)
		return -1;
	*out = steal_pointer(call);
	return 0;
}

int call_start(struct husk *husk, const char *sandbox, enum wire_method method, const struct buf *arguments,
	       struct call **out, struct husk_error *err)
{
	const char *server = husk && husk->remote ? remote_url(husk->remote) : NULL;
	int fd = husk_connect(husk, sandbox, err);

	if (fd < 0 || call_open(fd, method, arguments, out, err) < 0)
		return -1;
	if (server)
		(*out)->server = strdup(server); /* only for the text of errors, which works without it */
	return 0;
}

void call_free(struct call *call)
{
	if (!call)
		return;
	/* Closing the connection is enough: the supervisor cancels the call at the agent. */
	fd_close(&call->fd);
	fd_close(&call->poll_fd);
	fd_close(&call->queued_fd);
	while (call->head)
		queued_free(dequeue(call));
	queued_free(call->current);
	pthread_cond_destroy(&call->changed);
	pthread_mutex_destroy(&call->lock);
	pthread_mutex_destroy(&call->send_lock);
	free(call->payload);
	free(call->server);
	free(call);
}

void call_cleanup(struct call **call)
{
	call_free(*call);
}

int call_make_pollable(struct call *call, struct husk_error *err)
{
	struct epoll_event event = { .events = EPOLLIN };
	cleanup_close int queued_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	cleanup_close int poll_fd = epoll_create1(EPOLL_CLOEXEC);

	if (queued_fd < 0 || poll_fd < 0 || epoll_ctl(poll_fd, EPOLL_CTL_ADD, call->fd, &event) < 0 ||
	    epoll_ctl(poll_fd, EPOLL_CTL_ADD, queued_fd, &event) < 0)
		return husk_fail_errno(err, "cannot make a descriptor to poll");
	pthread_mutex_lock(&call->lock);
	call->queued_fd = steal_fd(&queued_fd);
	call->poll_fd = steal_fd(&poll_fd);
	announce_queue(call);
	pthread_mutex_unlock(&call->lock);
	return 0;
}

int call_poll_fd(const struct call *call)
{
	return call->poll_fd;
}

/* ---- checks that callers share ---- */

int check_path(const char *field, const char *path, struct husk_error *err)
{
	if (!path || !*path)
		return husk_fail_field(err, field, "%s is empty; give an absolute path inside the sandbox", field);
	if (*path != '/')
		return husk_fail_field(err, field, "%s '%.200s' is not absolute; start it with '/'", field, path);
	if (strlen(path) >= 4096)
		return husk_fail_field(err, field, "%s has %zu bytes; the limit is 4095", field, strlen(path));
	return 0;
}

int check_arguments(int failed, struct husk_error *err)
{
	if (!failed)
		return 0;
	return husk_fail(err, HUSK_LIMIT, "the arguments do not fit in one message of %u KiB; write a file and name it",
			 WIRE_PAYLOAD_MAX / 1024);
}
