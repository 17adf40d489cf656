/*
 * One client of a supervisor, with two threads. The first reads the client's frames, and either answers (METHOD_SANDBOX_*)
 * or passes them on to the agent. The second writes queued frames to the client. The link's thread only queues, so a client
 * that does not read stalls nobody else. The queue is bounded by its cost, empty frames included, for each client and for
 * all clients together; a client over a bound is disconnected.
 *
 * Clients have the same uid or are root (the kernel tells which). They may be careless, but they are not hostile. A client that
 * huskd let in for a caller elsewhere (HELLO_LIMITED) may be hostile: only its OPEN frames are read here, the rest is passed
 * on to its own guest.
 */
#include "supervisor/session.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "base/log.h"
#include "instance/egress_policy.h"
#include "supervisor/ending.h"
#include "supervisor/machine.h"
#include "supervisor/rewind.h"
#include "supervisor/supervisor.h"

#define RELAYS_MAX 32
#define QUEUE_MAX (4u * WIRE_WINDOW)      /* both output streams of a call, unread, and as much again */
#define QUEUE_ALL_MAX (32u * WIRE_WINDOW) /* of all clients */
#define QUEUE_JOIN_MAX (64u * 1024u)      /* output joins the previous frame up to this size */
#define FRAME_COST                                                                                                     \
	256 /* of a queued frame in addition to its bytes: more than its real size, including the allocator's overhead */
#define HELLO_SECONDS 10

struct frame {
	struct frame *next;
	struct wire_header header;
	struct buf payload;
};

struct session;

/* A client's channel that lives on the agent link. */
struct relay {
	struct session *session;
	uint32_t client_channel, agent_channel;
	uint16_t port;    /* of the guest: to be connected to; 0: not a visit, or it was counted */
	bool used, ended; /* ended: END was queued; under the session's lock */
};

struct session {
	struct supervisor *supervisor;
	int fd;
	pid_t peer;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct frame *first, *last;
	size_t queued;
	bool closing, overrun;
	bool spare;   /* too many clients: this one may not use the guest */
	bool limited; /* HELLO_LIMITED: methods of the supervisor are not allowed */
	struct relay relays[RELAYS_MAX];
};

/* With the lock held. */
static void drop_client(struct session *session)
{
	session->overrun = true;
	shutdown(session->fd, SHUT_RDWR); /* both threads notice and finish */
}

/* With the lock held: adds the cost to the accounts. */
static bool afford(struct session *session, size_t cost)
{
	size_t all = atomic_fetch_add(&session->supervisor->queued, cost) + cost;

	session->queued += cost;
	return session->queued <= QUEUE_MAX && all <= QUEUE_ALL_MAX;
}

static void pay_back(struct session *session, size_t cost)
{
	atomic_fetch_sub(&session->supervisor->queued, cost);
	session->queued -= cost;
}

/* Small pieces of output are joined into one frame: each frame would cost many times its bytes. */
static bool joins(const struct frame *tail, const struct wire_header *header)
{
	return tail && header->type == WIRE_DATA && tail->header.type == WIRE_DATA &&
	       tail->header.channel == header->channel && tail->header.stream == header->stream &&
	       tail->header.size + header->size <= QUEUE_JOIN_MAX;
}

/* With the lock held: adds an empty frame at the end of the queue. */
static struct frame *add_frame(struct session *session, const struct wire_header *header)
{
	struct frame *frame = calloc(1, sizeof(*frame));

	if (!frame)
		return NULL;
	frame->header = *header;
	frame->header.size = 0;
	if (session->last)
		session->last->next = frame;
	else
		session->first = frame;
	return session->last = frame;
}

static void queue_frame(struct session *session, const struct wire_header *header, const void *payload)
{
	pthread_mutex_lock(&session->lock);
	bool join = joins(session->last, header);
	struct frame *frame = session->overrun ? NULL : join ? session->last : add_frame(session, header);
	if (!frame || !afford(session, header->size + (join ? 0 : FRAME_COST)) ||
	    buf_append(&frame->payload, payload, header->size) < 0)
		drop_client(session);
	else
		frame->header.size += header->size;
	pthread_cond_signal(&session->changed);
	pthread_mutex_unlock(&session->lock);
}

/* The next frame to write; NULL: no more frames come. */
static struct frame *next_frame(struct session *session)
{
	pthread_mutex_lock(&session->lock);
	while (!session->first && !session->closing)
		pthread_cond_wait(&session->changed, &session->lock);
	struct frame *frame = session->first;
	if (frame) {
		session->first = frame->next;
		if (!session->first)
			session->last = NULL;
	}
	pthread_mutex_unlock(&session->lock);
	return frame;
}

static void *write_frames(void *argument)
{
	struct session *session = argument;
	struct frame *frame;
	bool broken = false;

	while ((frame = next_frame(session))) {
		if (!broken)
			broken = wire_send(session->fd, frame->header.channel, frame->header.type, frame->header.stream,
					   frame->payload.data, frame->header.size, NULL) < 0;
		pthread_mutex_lock(&session->lock);
		pay_back(session, frame->header.size + FRAME_COST);
		pthread_mutex_unlock(&session->lock);
		buf_free(&frame->payload);
		free(frame);
	}
	return NULL;
}

/* An END from the supervisor, queued like all other frames. */
static void answer(struct session *session, uint32_t channel, int result, const struct husk_error *err,
		   const struct buf *results)
{
	cleanup_buf struct buf message = { 0 };

	int bad = wire_put_int(&message, TAG_STATUS, result < 0 ? (int64_t)err->code : HUSK_OK);
	if (result < 0)
		bad |= wire_put_string(&message, TAG_MESSAGE, err->message);
	if (results && results->size)
		bad |= buf_append(&message, results->data, results->size);
	if (!bad)
		queue_frame(session, &(struct wire_header){ (uint32_t)message.size, channel, WIRE_END, 0 },
			    message.data);
}

/* ---- relaying ---- */

static void from_agent(void *data, const struct wire_header *header, const char *payload)
{
	struct relay *relay = data;
	struct wire_header renamed = *header;

	renamed.channel = relay->client_channel;
	if (header->type == WIRE_MSG && relay->port) { /* connected */
		network_visit(relay->session->supervisor, relay->port);
		relay->port = 0;
	}
	if (header->type == WIRE_END) {
		pthread_mutex_lock(&relay->session->lock);
		relay->ended = true;
		pthread_mutex_unlock(&relay->session->lock);
	}
	queue_frame(relay->session, &renamed, payload);
}

static struct relay *find_relay(struct session *session, uint32_t client_channel)
{
	for (size_t i = 0; i < RELAYS_MAX; i++)
		if (session->relays[i].used && session->relays[i].client_channel == client_channel)
			return &session->relays[i];
	return NULL;
}

/* A slot whose channel has ended, or was never used. */
static struct relay *take_relay(struct session *session)
{
	struct relay *free_one = NULL;

	pthread_mutex_lock(&session->lock);
	for (size_t i = 0; i < RELAYS_MAX && !free_one; i++)
		if (!session->relays[i].used || session->relays[i].ended)
			free_one = &session->relays[i];
	pthread_mutex_unlock(&session->lock);
	return free_one;
}

/* The guest accepts nothing now: it is frozen for a checkpoint, or does not read. The client waits for as long as it
 * stays connected. */
static bool client_gone(struct session *session)
{
	struct pollfd wait = { session->fd, POLLRDHUP, 0 };

	return poll(&wait, 1, 0) != 0;
}

static void open_relay(struct session *session, const struct wire_header *header, const char *payload)
{
	struct supervisor *s = session->supervisor;
	struct husk_error err = { 0 };
	struct relay *relay = take_relay(session);

	struct life_view now = life_look(&s->life);
	if (now.ending || now.over)
		husk_fail(&err, HUSK_GONE, "sandbox %s has ended", now.id);
	else if (now.state == CATALOG_PAUSED)
		husk_fail(&err, HUSK_CONFLICT, "sandbox %s is paused; resume it first (husk resume %s)", now.id,
			  now.id);
	else if (now.state != CATALOG_RUNNING)
		husk_fail(&err, HUSK_CONFLICT, "sandbox %s is not running", now.id);
	else if (session->spare)
		husk_fail(&err, HUSK_LIMIT, "sandbox %s has too many clients at once; close some", now.id);
	else if (!relay)
		husk_fail(&err, HUSK_LIMIT, "too many calls at once on one connection (%d)", RELAYS_MAX);
	if (err.code || !relay) {
		answer(session, header->channel, -1, &err, NULL);
		return;
	}
	bool dials = wire_get_int(payload, header->size, TAG_METHOD, 0) == METHOD_DIAL;
	*relay = (struct relay){ .session = session,
				 .client_channel = header->channel,
				 .port = dials ? (uint16_t)wire_get_int(payload, header->size, TAG_PORT, 0) : 0,
				 .used = true };
	int result;
	do
		result = link_open(s->link, payload, header->size, from_agent, relay, &relay->agent_channel, &err);
	while (result < 0 && err.code == HUSK_TIMEOUT && !client_gone(session));
	if (result < 0) {
		relay->used = false;
		answer(session, header->channel, -1, &err, NULL);
	}
}

/* ---- methods of the supervisor ---- */

/* Shares a lock of the client: of the sandbox that it wakes, or of the image that it wants. The lock is never released in
 * between. */
static int take_lock_of_peer(struct session *session, int64_t their_fd, struct husk_error *err)
{
	if (their_fd < 0)
		return -1;
	cleanup_close int pidfd = (int)syscall(SYS_pidfd_open, session->peer, 0);
	int fd = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, (int)their_fd, 0);
	return fd < 0 ? husk_fail_errno(err, "cannot take over the lock of the caller") : fd;
}

static int claim(struct session *session, const char *payload, size_t size, struct husk_error *err)
{
	struct supervisor *s = session->supervisor;
	cleanup_free char *id = wire_get_string(payload, size, TAG_NAME);
	cleanup_free char *image = wire_get_string(payload, size, TAG_PATH);
	int64_t their_lock = wire_get_int(payload, size, TAG_FLAGS, -1);
	cleanup_close int lock_fd = take_lock_of_peer(session, their_lock, err);

	if (their_lock >= 0 && lock_fd < 0)
		return -1;
	return machine_claim(s, id ? id : life_id(&s->life), lock_fd, image, err);
}

static int point(struct session *session, const char *payload, size_t size, struct buf *results, struct husk_error *err)
{
	cleanup_free char *label = wire_get_string(payload, size, TAG_NAME);
	int64_t number = 0, pause_ms = 0;

	if (machine_point(session->supervisor, label, &number, &pause_ms, err) < 0)
		return -1;
	int bad = wire_put_int(results, TAG_POINT, number);
	bad |= wire_put_int(results, TAG_DURATION_MS, pause_ms);
	return bad ? husk_fail_memory(err) : 0;
}

/* A client may die before its snapshot is written. The supervisor then keeps the lock of the snapshot, so that no other call
 * removes the snapshot while its image is being written. */
static int checkpoint(struct session *session, const char *payload, size_t size, struct buf *results,
		      struct husk_error *err)
{
	cleanup_free char *image = wire_get_string(payload, size, TAG_PATH);
	int64_t their_lock = wire_get_int(payload, size, TAG_FLAGS, -1), pause_ms = 0, effect = 0;
	cleanup_close int lock = take_lock_of_peer(session, their_lock, err);

	if (their_lock >= 0 && lock < 0)
		return -1;
	if (!image)
		return husk_fail_memory(err);
	if (machine_checkpoint(session->supervisor, image, &pause_ms, &effect, err) < 0)
		return -1;
	return wire_put_int(results, TAG_DURATION_MS, pause_ms) | wire_put_int(results, TAG_EFFECT, effect);
}

/* 1: not one of ours. */
static int serve(struct session *session, int64_t method, const char *payload, size_t size, struct buf *results,
		 struct husk_error *err)
{
	struct supervisor *s = session->supervisor;
	int64_t number = 0;
	int result;

	switch (method) {
	case METHOD_SANDBOX_INFO: {
		cleanup_free char *text = machine_describe(s);
		return text && wire_put_string(results, TAG_JSON, text) == 0 ? 0 : husk_fail_memory(err);
	}
	case METHOD_SANDBOX_CLAIM:
		return claim(session, payload, size, err);
	case METHOD_SANDBOX_KILL:
		return machine_kill(s, err);
	case METHOD_SANDBOX_EXTEND:
		result = machine_extend(s, wire_get_int(payload, size, TAG_TTL_SECONDS, 0),
					wire_get_int(payload, size, TAG_PERSISTENT, 0) != 0, &number, err);
		return result < 0 ? result : wire_put_int(results, TAG_EXPIRES_MS, number);
	case METHOD_SANDBOX_IDLE:
		return machine_set_idle(s, wire_get_int(payload, size, TAG_IDLE_SECONDS, 0), err);
	case METHOD_SANDBOX_RESIZE:
		return machine_resize(s, (uint64_t)wire_get_int(payload, size, TAG_MEMORY, 0),
				      (uint32_t)wire_get_int(payload, size, TAG_CPU_MILLI, 0), err);
	case METHOD_SANDBOX_CHECKPOINT:
		return checkpoint(session, payload, size, results, err);
	case METHOD_SANDBOX_EGRESS: {
		cleanup_free char *policy = wire_get_string(payload, size, TAG_JSON);
		cleanup_wipe char *secrets = wire_get_string(payload, size, TAG_SECRETS);
		return machine_egress(s, policy, secrets, err);
	}
	case METHOD_SANDBOX_EGRESS_VIEW: {
		cleanup_free char *text = network_view(s, (size_t)wire_get_int(payload, size, TAG_COUNT, 0));
		return text && wire_put_string(results, TAG_JSON, text) == 0 ? 0 : husk_fail_memory(err);
	}
	case METHOD_SANDBOX_HIBERNATE:
		return machine_hibernate(s, err);
	case METHOD_SANDBOX_POINT:
		return point(session, payload, size, results, err);
	case METHOD_SANDBOX_REWIND:
		return machine_rewind(s, wire_get_int(payload, size, TAG_POINT, 0), err);
	case METHOD_SANDBOX_EFFECT:
		return machine_send_effect(s, wire_get_int(payload, size, TAG_EFFECT, 0), err);
	case METHOD_SANDBOX_PAUSE:
		return machine_pause(s, true, err);
	case METHOD_SANDBOX_RESUME:
		return machine_pause(s, false, err);
	default:
		return 1;
	}
}

static int handle_open(struct session *session, const struct wire_header *header, const char *payload)
{
	cleanup_buf struct buf results = { 0 };
	struct husk_error err = { 0 };

	struct relay *old = find_relay(session, header->channel);
	if (!wire_valid(payload, header->size) || (old && !old->ended))
		return -1;
	if (old)
		old->used = false;
	int64_t method = wire_get_int(payload, header->size, TAG_METHOD, 0);
	cleanup_free char *request = wire_get_string(payload, header->size, TAG_REQUEST);
	log_set_request(request);
	bool changes = method > METHOD_SANDBOX_INFO && method != METHOD_SANDBOX_EGRESS_VIEW;
	log_line(changes ? LOG_INFO : LOG_DEBUG, "call: %s", wire_method_name(method));
	enum wire_method_kind kind = wire_method_kind(method);
	if (kind == METHOD_PRIVATE || (session->limited && kind != METHOD_AGENT)) {
		husk_fail(&err, HUSK_DENIED, "method %lld is not for this client", (long long)method);
		answer(session, header->channel, -1, &err, NULL);
		return 0;
	}
	bool ours = wire_method_kind(method) == METHOD_SUPERVISOR;
	int result = ours ? wire_check(method, WIRE_OPEN, payload, header->size, &err) : 0;
	if (result == 0)
		result = serve(session, method, payload, header->size, &results, &err);
	if (result == 1)
		result = machine_point_before(session->supervisor, method, payload, header->size, &err) < 0 ? -1 : 1;
	if (result == 1)
		open_relay(session, header, payload);
	else
		answer(session, header->channel, result, &err, &results);
	if (result < 0)
		log_line(LOG_INFO, "%s failed: %s", wire_method_name(method), err.message);
	return 0;
}

static int greet(struct session *session, char *payload)
{
	cleanup_buf struct buf hello = { 0 };
	struct wire_header header;

	if (wire_receive(session->fd, &header, payload, NULL) <= 0 || header.type != WIRE_HELLO ||
	    wire_get_int(payload, header.size, TAG_VERSION, 0) != WIRE_VERSION)
		return -1;
	int64_t flags = wire_get_int(payload, header.size, TAG_FLAGS, 0);
	session->limited = flags & HELLO_LIMITED;
	/* The sandbox is being hibernated. A client that needs the guest has to connect again, and wake the sandbox if
	 * necessary. */
	bool late = flags & HELLO_GUEST && life_look(&session->supervisor->life).sleepy;
	if (wire_put_int(&hello, TAG_VERSION, WIRE_VERSION) < 0 ||
	    wire_put_int(&hello, TAG_FLAGS, (late ? HELLO_LATER : 0) | (flags & HELLO_LIMITED)) < 0)
		return -1;
	int sent = wire_send(session->fd, 0, WIRE_HELLO, 0, hello.data, hello.size, NULL);
	return late ? -1 : sent;
}

static int pass_on(struct session *session, struct relay *relay, const struct wire_header *header, const char *payload)
{
	struct link *link = session->supervisor->link;
	struct husk_error err = { 0 };
	int result;

	do
		result = link_send(link, relay->agent_channel, relay, header->type, header->stream, payload,
				   header->size, &err);
	while (result < 0 && err.code == HUSK_TIMEOUT && !client_gone(session));
	return result;
}

static void read_frames(struct session *session, char *payload)
{
	struct wire_header header;

	while (wire_receive(session->fd, &header, payload, NULL) > 0) {
		if (header.type == WIRE_OPEN) {
			if (handle_open(session, &header, payload) < 0)
				return;
			continue;
		}
		if (header.type == WIRE_HELLO || header.type == WIRE_END) /* not a client's to send */
			return;
		struct relay *relay = find_relay(session, header.channel);
		if (relay && pass_on(session, relay, &header, payload) < 0)
			return;
	}
}

/* The session does not wait for a client that sends nothing at all. */
static void limit_waiting(int fd, int seconds)
{
	struct timeval limit = { .tv_sec = seconds };

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

static void serve_client(struct session *session)
{
	struct supervisor *s = session->supervisor;
	cleanup_free char *payload = malloc(WIRE_PAYLOAD_MAX);
	pthread_t writer;

	limit_waiting(session->fd, HELLO_SECONDS);
	if (!payload || greet(session, payload) < 0 || pthread_create(&writer, NULL, write_frames, session) != 0)
		return;
	limit_waiting(session->fd, 0);
	read_frames(session, payload);
	for (size_t i = 0; i < RELAYS_MAX; i++)
		if (session->relays[i].used && s->link)
			link_abandon(s->link, session->relays[i].agent_channel, &session->relays[i]);
	pthread_mutex_lock(&session->lock);
	session->closing = true;
	pthread_cond_signal(&session->changed);
	pthread_mutex_unlock(&session->lock);
	shutdown(session->fd, SHUT_RDWR); /* the client is gone or broke the protocol: nothing may wait for it */
	pthread_join(writer, NULL);
	pay_back(session, session->queued); /* what was refused */
}

static void *run_session(void *argument)
{
	struct session *session = argument;
	struct supervisor *s = session->supervisor;

	session->spare = life_session(&s->life, true) < 0;
	serve_client(session);
	fd_close(&session->fd);
	pthread_mutex_destroy(&session->lock);
	pthread_cond_destroy(&session->changed);
	free(session);
	life_session(&s->life, false);
	return NULL;
}

void session_start(struct supervisor *s, int fd)
{
	struct ucred peer = { 0 };
	socklen_t size = sizeof(peer);
	pthread_attr_t detached;
	pthread_t thread;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || (peer.uid != geteuid() && peer.uid != 0)) {
		log_line(LOG_WARN, "refused a connection from uid %u", peer.uid);
		fd_close(&fd);
		return;
	}
	struct session *session = calloc(1, sizeof(*session));
	if (!session) {
		fd_close(&fd);
		return;
	}
	session->supervisor = s;
	session->fd = fd;
	session->peer = peer.pid;
	pthread_mutex_init(&session->lock, NULL);
	pthread_cond_init(&session->changed, NULL);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&detached, 256 * 1024);
	if (pthread_create(&thread, &detached, run_session, session) != 0) {
		fd_close(&fd);
		free(session);
	}
	pthread_attr_destroy(&detached);
}
