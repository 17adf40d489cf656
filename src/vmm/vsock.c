/*
 * The virtio socket device; see vsock.h. All of it runs in the main event loop. The guest is hostile: it may send any
 * packet at any time, send more data than it has credit for, or never read. The data buffered for the guest is bounded.
 * A malformed packet resets its connection.
 */
#include "vmm/vsock.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define HOST_CID 2
#define TYPE_STREAM 1
#define CHUNK (64u * 1024u)

enum { QUEUE_RECEIVE, QUEUE_SEND, QUEUE_EVENT }; /* as the guest sees it */
enum {
	OP_REQUEST = 1,
	OP_RESPONSE = 2,
	OP_RESET = 3,
	OP_SHUTDOWN = 4,
	OP_DATA = 5,
	OP_CREDIT_UPDATE = 6,
	OP_CREDIT_REQUEST = 7
};
enum { SHUTDOWN_RECEIVE = 1, SHUTDOWN_SEND = 2 };

static void fill_guest(struct vsock *vsock);

/* ---- connections ---- */

static struct vsock_connection *find(struct vsock *vsock, uint32_t host_port, uint32_t guest_port)
{
	for (size_t i = 0; i < VSOCK_CONNECTIONS; i++) {
		struct vsock_connection *c = &vsock->connections[i];

		if (c->stage == VSOCK_CONNECTED && c->host_port == host_port && c->guest_port == guest_port)
			return c;
	}
	return NULL;
}

static struct vsock_connection *find_stage(struct vsock *vsock, enum vsock_stage stage, uint32_t host_port)
{
	for (size_t i = 0; i < VSOCK_CONNECTIONS; i++) {
		struct vsock_connection *c = &vsock->connections[i];

		if (c->stage == stage && (stage == VSOCK_FREE || c->host_port == host_port))
			return c;
	}
	return NULL;
}

static void drop(struct vsock_connection *c)
{
	int fd = c->watch.fd;

	if (c->stage == VSOCK_FREE)
		return;
	loop_unwatch(c->vsock->loop, &c->watch);
	fd_close(&fd);
	buf_free(&c->waiting);
	*c = (struct vsock_connection){ .vsock = c->vsock, .watch.fd = -1 };
}

/* The events to wait for: data if the guest has room for it, room if data waits for the socket. */
static void watch_socket(struct vsock_connection *c)
{
	uint32_t events = c->waiting.size > 0 ? EPOLLOUT : 0;
	uint32_t room = c->guest_buffer - (c->sent - c->guest_consumed);

	if (c->stage == VSOCK_CONNECTED && !c->host_finished && room > 0 && room <= c->guest_buffer)
		events |= EPOLLIN;
	/* With no events wanted, epoll would still report a hang-up again and again. */
	if (events == 0)
		events = EPOLLET;
	loop_change(c->vsock->loop, &c->watch, events);
}

/* ---- packets without data ---- */

static void reply(struct vsock *vsock, uint32_t host_port, uint32_t guest_port, uint16_t operation, uint32_t flags,
		  struct vsock_connection *c)
{
	/* A guest that sends without receiving loses answers, which harms only itself. */
	if (vsock->reply_count == VSOCK_REPLIES)
		return;
	vsock->replies[vsock->reply_count++] = (struct vsock_header){
		.source_cid = HOST_CID,
		.target_cid = VSOCK_GUEST_CID,
		.source_port = host_port,
		.target_port = guest_port,
		.type = TYPE_STREAM,
		.operation = operation,
		.flags = flags,
		.buffer_size = c ? VSOCK_BUFFER : 0,
		.consumed = c ? c->consumed : 0,
	};
	if (c)
		c->told = c->consumed;
}

static void reset_connection(struct vsock_connection *c)
{
	reply(c->vsock, c->host_port, c->guest_port, OP_RESET, 0, NULL);
	drop(c);
}

/* ---- from the guest to the host ---- */

/* Writes waiting data to the socket; false if the host side has closed. */
static bool pass_on(struct vsock_connection *c)
{
	while (c->waiting.size > 0) {
		ssize_t put = send(c->watch.fd, c->waiting.data, c->waiting.size, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return errno == EAGAIN;
		buf_consume(&c->waiting, (size_t)put);
		c->consumed += (uint32_t)put;
	}
	if (c->guest_finished)
		shutdown(c->watch.fd, SHUT_WR);
	return true;
}

/* Informs the guest of room before it runs out. */
static void tell_credit(struct vsock_connection *c)
{
	if (c->consumed - c->told >= VSOCK_BUFFER / 4)
		reply(c->vsock, c->host_port, c->guest_port, OP_CREDIT_UPDATE, 0, c);
}

static void take_data(struct vsock_connection *c, const struct chain *chain, uint32_t size)
{
	size_t before = c->waiting.size;

	if (size > chain->readable_bytes - sizeof(struct vsock_header) || size > VSOCK_BUFFER - before ||
	    c->guest_finished || buf_reserve(&c->waiting, size) < 0) {
		reset_connection(c);
		return;
	}
	if (size > 0 && chain_read(chain, sizeof(struct vsock_header), c->waiting.data + before, size) < 0) {
		reset_connection(c);
		return;
	}
	c->waiting.size += size;
	if (!pass_on(c)) {
		reset_connection(c);
		return;
	}
	tell_credit(c);
	watch_socket(c);
}

static void take_request(struct vsock *vsock, const struct vsock_header *header)
{
	struct vsock_connection *c = find_stage(vsock, VSOCK_WAITING, header->target_port);

	if (!c || header->source_port == 0) {
		reply(vsock, header->target_port, header->source_port, OP_RESET, 0, NULL);
		return;
	}
	c->stage = VSOCK_CONNECTED;
	c->guest_port = header->source_port;
	c->guest_buffer = header->buffer_size;
	c->guest_consumed = header->consumed;
	reply(vsock, c->host_port, c->guest_port, OP_RESPONSE, 0, c);
	watch_socket(c);
}

static void take_shutdown(struct vsock_connection *c, uint32_t flags)
{
	if (flags & SHUTDOWN_SEND)
		c->guest_finished = true;
	if (flags & SHUTDOWN_RECEIVE)
		c->host_finished = true;
	if (!pass_on(c) || (c->guest_finished && c->host_finished && c->waiting.size == 0))
		reset_connection(c);
	else
		watch_socket(c);
}

static void take_packet(struct vsock *vsock, struct vsock_connection *c, const struct vsock_header *header,
			const struct chain *chain)
{
	c->guest_buffer = header->buffer_size;
	c->guest_consumed = header->consumed;
	switch (header->operation) {
	case OP_DATA:
		take_data(c, chain, header->size);
		break;
	case OP_SHUTDOWN:
		take_shutdown(c, header->flags);
		break;
	case OP_CREDIT_REQUEST:
		reply(vsock, c->host_port, c->guest_port, OP_CREDIT_UPDATE, 0, c);
		break;
	case OP_CREDIT_UPDATE:
		watch_socket(c);
		break;
	case OP_RESET:
		drop(c);
		break;
	default:
		reset_connection(c);
	}
}

void vsock_packet(struct vsock *vsock, const struct chain *chain)
{
	struct vsock_header header;
	struct vsock_connection *c;

	if (chain_read(chain, 0, &header, sizeof(header)) < 0 || header.target_cid != HOST_CID ||
	    header.source_cid != VSOCK_GUEST_CID)
		return;
	if (header.type != TYPE_STREAM) {
		reply(vsock, header.target_port, header.source_port, OP_RESET, 0, NULL);
		return;
	}
	c = find(vsock, header.target_port, header.source_port);
	if (c)
		take_packet(vsock, c, &header, chain);
	else if (header.operation == OP_REQUEST)
		take_request(vsock, &header);
	else if (header.operation != OP_RESET)
		reply(vsock, header.target_port, header.source_port, OP_RESET, 0, NULL);
}

/* ---- from the host to the guest ---- */

static void put_packet(struct vsock *vsock, struct chain *chain, const struct vsock_header *header)
{
	struct queue *queue = &vsock->device.state.queues[QUEUE_RECEIVE];
	bool fits = chain_write(chain, 0, header, sizeof(*header)) == 0;

	queue_push(queue, vsock->device.memory, chain->head, fits ? (uint32_t)sizeof(*header) + header->size : 0);
}

/* Reads from the socket straight into the chain. True when the chain was used. */
static bool put_data(struct vsock_connection *c, struct chain *chain)
{
	struct iovec vector[CHAIN_MAX];
	uint32_t room = c->guest_buffer - (c->sent - c->guest_consumed);
	size_t space = chain->writable_bytes > sizeof(struct vsock_header)
			       ? chain->writable_bytes - sizeof(struct vsock_header)
			       : 0;
	int count;

	/* A guest with inconsistent counters gets nothing. */
	if (room > c->guest_buffer)
		room = 0;
	space = MIN(MIN(space, room), CHUNK);
	count = chain_slice(chain, true, sizeof(struct vsock_header), space, vector);
	if (space == 0 || count <= 0)
		return false;
	ssize_t got = readv(c->watch.fd, vector, count);
	if (got < 0)
		return false;
	struct vsock_header header = { .source_cid = HOST_CID,
				       .target_cid = VSOCK_GUEST_CID,
				       .source_port = c->host_port,
				       .target_port = c->guest_port,
				       .size = (uint32_t)got,
				       .type = TYPE_STREAM,
				       .operation = got > 0 ? OP_DATA : OP_SHUTDOWN,
				       .flags = got > 0 ? 0 : SHUTDOWN_SEND | SHUTDOWN_RECEIVE,
				       .buffer_size = VSOCK_BUFFER,
				       .consumed = c->consumed };
	c->told = c->consumed;
	c->sent += (uint32_t)got;
	if (got == 0)
		c->host_finished = true;
	put_packet(c->vsock, chain, &header);
	return true;
}

static bool readable(const struct vsock_connection *c)
{
	char byte;

	return c->stage == VSOCK_CONNECTED && !c->host_finished && c->watch.events & EPOLLIN &&
	       (recv(c->watch.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN);
}

static struct vsock_connection *next_readable(struct vsock *vsock)
{
	for (size_t i = 0; i < VSOCK_CONNECTIONS; i++)
		if (readable(&vsock->connections[i]))
			return &vsock->connections[i];
	return NULL;
}

/* Gives the guest the waiting data, as far as it has buffers. */
static void fill_guest(struct vsock *vsock)
{
	struct virtio_device *device = &vsock->device;
	struct queue *queue = &device->state.queues[QUEUE_RECEIVE];
	struct vsock_connection *c = NULL;
	struct chain chain;

	if (!virtio_running(device) || vsock->reset_pending)
		return;
	while (vsock->reply_count > 0 || (c = next_readable(vsock))) {
		if (queue_pop(queue, device->memory, &chain) <= 0)
			break;
		if (vsock->reply_count > 0) {
			put_packet(vsock, &chain, &vsock->replies[0]);
			vsock->reply_count--;
			memmove(&vsock->replies[0], &vsock->replies[1], vsock->reply_count * sizeof(vsock->replies[0]));
		} else if (c && put_data(c, &chain)) {
			watch_socket(c);
		} else if (c) {
			queue_unpop(queue);
			reset_connection(c);
		}
	}
	/* No buffers: the sockets would report the same again and again; the guest's next buffer continues. */
	if (c)
		for (size_t i = 0; i < VSOCK_CONNECTIONS; i++)
			if (vsock->connections[i].stage == VSOCK_CONNECTED &&
			    vsock->connections[i].watch.events & EPOLLIN)
				loop_change(vsock->loop, &vsock->connections[i].watch,
					    vsock->connections[i].watch.events & ~(uint32_t)EPOLLIN);
	virtio_signal(device, queue);
}

static void socket_ready(struct watch *watch, uint32_t events)
{
	struct vsock_connection *c = watch->data;
	struct vsock *vsock = c->vsock;

	pthread_mutex_lock(&vsock->device.lock);
	if (c->stage == VSOCK_WAITING && events & (EPOLLHUP | EPOLLERR)) {
		drop(c);
	} else if (c->stage == VSOCK_CONNECTED) {
		if (events & EPOLLOUT && !pass_on(c)) {
			reset_connection(c);
		} else {
			tell_credit(c);
			watch_socket(c);
		}
		fill_guest(vsock);
	}
	pthread_mutex_unlock(&vsock->device.lock);
}

int vsock_offer(struct vsock *vsock, uint32_t port, int fd, struct husk_error *err)
{
	struct vsock_connection *c = find_stage(vsock, VSOCK_WAITING, port);
	int result = 0;

	if (c)
		drop(c);
	c = find_stage(vsock, VSOCK_FREE, 0);
	if (!c)
		return husk_fail(err, HUSK_LIMIT, "more than %d sockets to the guest", VSOCK_CONNECTIONS);
	if (fd_set_nonblocking(fd, true) < 0)
		return husk_fail_errno(err, "cannot set up the socket of port %u", port);
	pthread_mutex_lock(&vsock->device.lock);
	result = loop_watch(vsock->loop, &c->watch, fd, EPOLLET, socket_ready, c, err);
	if (result == 0) {
		c->stage = VSOCK_WAITING;
		c->host_port = port;
	}
	pthread_mutex_unlock(&vsock->device.lock);
	return result;
}

/* ---- the device ---- */

static void deliver_reset(struct vsock *vsock)
{
	struct virtio_device *device = &vsock->device;
	struct queue *queue = &device->state.queues[QUEUE_EVENT];
	const uint32_t transport_reset = 0;
	struct chain chain;

	if (!vsock->reset_pending || queue_pop(queue, device->memory, &chain) <= 0)
		return;
	bool fits = chain_write(&chain, 0, &transport_reset, sizeof(transport_reset)) == 0;
	queue_push(queue, device->memory, chain.head, fits ? sizeof(transport_reset) : 0);
	vsock->reset_pending = false;
	virtio_signal(device, queue);
}

static void vsock_work(struct virtio_device *device, size_t index)
{
	struct vsock *vsock = (struct vsock *)device;
	struct queue *queue = &device->state.queues[index];
	struct chain chain;

	if (index == QUEUE_EVENT)
		deliver_reset(vsock);
	/* Packets from before the copy belong to the original machine. */
	while (index == QUEUE_SEND && queue_pop(queue, device->memory, &chain) > 0) {
		if (!vsock->reset_pending)
			vsock_packet(vsock, &chain);
		queue_push(queue, device->memory, chain.head, 0);
	}
	if (index == QUEUE_SEND)
		virtio_signal(device, queue);
	for (size_t i = 0; index == QUEUE_RECEIVE && i < VSOCK_CONNECTIONS; i++)
		if (vsock->connections[i].stage == VSOCK_CONNECTED)
			watch_socket(&vsock->connections[i]);
	fill_guest(vsock);
}

static void vsock_reset(struct virtio_device *device)
{
	struct vsock *vsock = (struct vsock *)device;

	for (size_t i = 0; i < VSOCK_CONNECTIONS; i++)
		if (vsock->connections[i].stage == VSOCK_CONNECTED)
			drop(&vsock->connections[i]);
	vsock->reply_count = 0;
	vsock->reset_pending = false;
}

static void vsock_start(struct virtio_device *device)
{
	(void)device; /* nothing to do before the guest connects */
}

static void vsock_restored(struct virtio_device *device)
{
	struct vsock *vsock = (struct vsock *)device;

	vsock->reset_pending = virtio_running(device);
	deliver_reset(vsock);
}

static const struct virtio_ops vsock_ops = {
	.name = "socket",
	.number = 19,
	.queue_count = 3,
	.queue_size = 128,
	.start = vsock_start,
	.work = vsock_work,
	.reset = vsock_reset,
	.restored = vsock_restored,
};

int vsock_create(struct vsock *vsock, const struct memory *memory, struct loop *loop, struct husk_error *err)
{
	const uint64_t cid = VSOCK_GUEST_CID;

	vsock->loop = loop;
	for (size_t i = 0; i < VSOCK_CONNECTIONS; i++)
		vsock->connections[i] = (struct vsock_connection){ .vsock = vsock, .watch.fd = -1 };
	memcpy(vsock->device.state.config, &cid, sizeof(cid));
	vsock->device.config_size = sizeof(cid);
	return virtio_create(&vsock->device, &vsock_ops, memory, loop, err);
}
