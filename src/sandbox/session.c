/*
 * One client of a supervisor. Two threads: the first reads the client's frames and either answers itself (METHOD_SANDBOX_*)
 * or passes them on to the guest agent; the second writes to the client what has been queued for it. The link's reader
 * thread only ever queues, so a client that does not read stalls itself alone. What is queued is bounded: data by the
 * credit the client gave, everything else by QUEUE_MAX, past which the client is dropped.
 *
 * Clients are the same user or root (checked by the kernel's word); they are careless, not hostile.
 */
#include <sys/socket.h>
#include <sys/syscall.h>

#include "sandbox/egress.h"
#include "sandbox/supervisor.h"

#define RELAYS_MAX 32
#define QUEUE_MAX (RELAYS_MAX * 2u * WIRE_WINDOW) /* both output streams of every call, unread */

struct frame {
	struct frame *next;
	struct wire_header header;
	char payload[];
};

struct session;

/* A client's channel that lives on the agent link. */
struct relay {
	struct session *session;
	uint32_t client_channel, agent_channel;
	bool used, ended; /* ended: END was queued; under the session's lock */
};

struct session {
	struct supervisor *supervisor;
	int fd;
	pid_t peer;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct frame *first, **last;
	size_t queued;
	bool closing, overrun;
	struct relay relays[RELAYS_MAX];
};

static void queue_frame(struct session *session, const struct wire_header *header, const void *payload)
{
	struct frame *frame = malloc(sizeof(*frame) + header->size);

	pthread_mutex_lock(&session->lock);
	if (!frame || session->queued + header->size > QUEUE_MAX) {
		session->overrun = true;
		shutdown(session->fd, SHUT_RDWR); /* both threads notice and finish */
		free(frame);
	} else {
		frame->next = NULL;
		frame->header = *header;
		if (header->size)
			memcpy(frame->payload, payload, header->size);
		*session->last = frame;
		session->last = &frame->next;
		session->queued += header->size;
	}
	pthread_cond_signal(&session->changed);
	pthread_mutex_unlock(&session->lock);
}

static void *write_frames(void *argument)
{
	struct session *session = argument;
	bool broken = false;

	for (;;) {
		pthread_mutex_lock(&session->lock);
		while (!session->first && !session->closing)
			pthread_cond_wait(&session->changed, &session->lock);
		struct frame *frame = session->first;
		if (frame) {
			session->first = frame->next;
			if (!session->first)
				session->last = &session->first;
			session->queued -= frame->header.size;
		}
		pthread_mutex_unlock(&session->lock);
		if (!frame)
			return NULL;
		if (!broken)
			broken = wire_send(session->fd, frame->header.channel, frame->header.type, frame->header.stream,
					   frame->payload, frame->header.size, NULL) < 0;
		free(frame);
	}
}

/* An END of our own, queued like everything else. */
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

/* A slot whose channel is over, or was never used. */
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

static void open_relay(struct session *session, const struct wire_header *header, const char *payload)
{
	struct supervisor *s = session->supervisor;
	struct husk_error err = { 0 };
	struct relay *relay = take_relay(session);

	pthread_mutex_lock(&s->lock);
	bool paused = s->state == CATALOG_PAUSED, running = s->state == CATALOG_RUNNING && s->link;
	pthread_mutex_unlock(&s->lock);
	if (paused)
		husk_fail(&err, HUSK_CONFLICT, "sandbox %s is paused; resume it first (husk resume %s)", s->id, s->id);
	else if (!running)
		husk_fail(&err, HUSK_CONFLICT, "sandbox %s is not running", s->id);
	else if (!relay)
		husk_fail(&err, HUSK_LIMIT, "too many calls at once on one connection (%d)", RELAYS_MAX);
	if (err.code) {
		answer(session, header->channel, -1, &err, NULL);
		return;
	}
	*relay = (struct relay){ .session = session, .client_channel = header->channel, .used = true };
	if (link_open(s->link, payload, header->size, from_agent, relay, &relay->agent_channel, &err) < 0) {
		relay->used = false;
		answer(session, header->channel, -1, &err, NULL);
	}
}

/* ---- what the supervisor answers itself ---- */

/* The sandbox's lock of a client that wakes it, taken over without ever being let go. */
static int take_lock_of_peer(struct session *session, int64_t their_fd, struct husk_error *err)
{
	if (their_fd < 0)
		return -1;
	cleanup_close int pidfd = (int)syscall(SYS_pidfd_open, session->peer, 0);
	int fd = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, (int)their_fd, 0);
	return fd < 0 ? husk_fail_errno(err, "cannot take over the lock of the sandbox") : fd;
}

static int claim(struct session *session, const char *payload, size_t size, struct husk_error *err)
{
	struct supervisor *s = session->supervisor;
	cleanup_free char *id = wire_get_string(payload, size, TAG_NAME);
	cleanup_free char *image = wire_get_string(payload, size, TAG_PATH);
	int64_t their_lock = wire_get_int(payload, size, TAG_FLAGS, -1);
	int lock_fd = take_lock_of_peer(session, their_lock, err);

	if (their_lock >= 0 && lock_fd < 0)
		return -1;
	return machine_claim(s, id ? id : s->id, lock_fd, image, err);
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
		if (s->state == CATALOG_POOL)
			machine_abort(s);
		else
			machine_end(s, "killed");
		return 0;
	case METHOD_SANDBOX_EXTEND:
		result = machine_extend(s, wire_get_int(payload, size, TAG_TTL_SECONDS, 0),
					wire_get_int(payload, size, TAG_PERSISTENT, 0) != 0, &number, err);
		return result < 0 ? result : wire_put_int(results, TAG_EXPIRES_MS, number);
	case METHOD_SANDBOX_CHECKPOINT: {
		cleanup_free char *image = wire_get_string(payload, size, TAG_PATH);
		if (!image)
			return husk_fail(err, HUSK_INVALID, "checkpoint without a path");
		result = machine_checkpoint(s, image, &number, err);
		return result < 0 ? result : wire_put_int(results, TAG_DURATION_MS, number);
	}
	case METHOD_SANDBOX_EGRESS: {
		cleanup_free char *policy = wire_get_string(payload, size, TAG_JSON);
		cleanup_secrets char *secrets = wire_get_string(payload, size, TAG_SECRETS);
		return machine_egress(s, policy, secrets, err);
	}
	case METHOD_SANDBOX_EGRESS_VIEW: {
		cleanup_free char *text =
			machine_egress_view(s, (size_t)MAX(0, wire_get_int(payload, size, TAG_COUNT, 0)));
		return text && wire_put_string(results, TAG_JSON, text) == 0 ? 0 : husk_fail_memory(err);
	}
	case METHOD_SANDBOX_HIBERNATE:
		return machine_hibernate(s, err);
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
	if (method >= METHOD_IDENTITY && method < METHOD_SANDBOX_INFO) {
		husk_fail(&err, HUSK_INVALID, "method %lld is not for clients", (long long)method);
		answer(session, header->channel, -1, &err, NULL);
		return 0;
	}
	int result = serve(session, method, payload, header->size, &results, &err);
	if (result == 1)
		open_relay(session, header, payload);
	else
		answer(session, header->channel, result, &err, &results);
	return 0;
}

static int greet(struct session *session, char *payload)
{
	cleanup_buf struct buf hello = { 0 };
	struct wire_header header;

	if (wire_receive(session->fd, &header, payload, NULL) <= 0 || header.type != WIRE_HELLO ||
	    wire_get_int(payload, header.size, TAG_VERSION, 0) != WIRE_VERSION)
		return -1;
	if (wire_put_int(&hello, TAG_VERSION, WIRE_VERSION) < 0)
		return -1;
	return wire_send(session->fd, 0, WIRE_HELLO, 0, hello.data, hello.size, NULL);
}

static void read_frames(struct session *session, char *payload)
{
	struct supervisor *s = session->supervisor;
	struct wire_header header;

	while (wire_receive(session->fd, &header, payload, NULL) > 0) {
		if (header.type == WIRE_OPEN) {
			if (handle_open(session, &header, payload) < 0)
				return;
			continue;
		}
		struct relay *relay = find_relay(session, header.channel);
		if (relay && s->link &&
		    link_send(s->link, relay->agent_channel, relay, header.type, header.stream, payload, header.size,
			      NULL) < 0)
			return;
	}
}

static void count_session(struct supervisor *s, bool begins)
{
	pthread_mutex_lock(&s->activity_lock);
	s->sessions += begins ? 1 : (size_t)-1;
	s->idle_since_ms = time_monotonic_ms();
	pthread_mutex_unlock(&s->activity_lock);
	supervisor_nudge(s);
}

static void *run_session(void *argument)
{
	struct session *session = argument;
	struct supervisor *s = session->supervisor;
	cleanup_free char *payload = malloc(WIRE_PAYLOAD_MAX);
	pthread_t writer;

	count_session(s, true);
	if (payload && greet(session, payload) == 0 && pthread_create(&writer, NULL, write_frames, session) == 0) {
		read_frames(session, payload);
		for (size_t i = 0; i < RELAYS_MAX; i++)
			if (session->relays[i].used && s->link)
				link_abandon(s->link, session->relays[i].agent_channel, &session->relays[i]);
		pthread_mutex_lock(&session->lock);
		session->closing = true;
		pthread_cond_signal(&session->changed);
		pthread_mutex_unlock(&session->lock);
		pthread_join(writer, NULL);
	}
	close(session->fd);
	pthread_mutex_destroy(&session->lock);
	pthread_cond_destroy(&session->changed);
	free(session);
	count_session(s, false);
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
		close(fd);
		return;
	}
	struct session *session = calloc(1, sizeof(*session));
	if (!session) {
		close(fd);
		return;
	}
	session->supervisor = s;
	session->fd = fd;
	session->peer = peer.pid;
	session->last = &session->first;
	pthread_mutex_init(&session->lock, NULL);
	pthread_cond_init(&session->changed, NULL);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&detached, 256 * 1024);
	if (pthread_create(&thread, &detached, run_session, session) != 0) {
		close(fd);
		free(session);
	}
	pthread_attr_destroy(&detached);
}
