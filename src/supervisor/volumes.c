/*
 * The supervisor's side of volumes. A share (volumes.h) needs one call to the agent. Any other volume has a channel on
 * the agent link, whose frames are FUSE requests of the guest's kernel, and a jailed process that answers them
 * (volume/process.h). This file passes requests and answers on and reads neither.
 *
 *     request:   link's reader ── from_agent ──> socket ──> process
 *     answer:    process ──> socket ──> thread of the volume ── link_reply ──> guest
 *
 * The link's reader never waits: what the socket does not accept at once is queued, bounded by the channel's credit (each
 * request has at least a header, so bytes also bound the number of requests). The volume's thread waits only in poll, where
 * the end of the volume wakes it. A guest that sends no valid requests, or a process that dies or breaks the rules, loses
 * this volume and nothing else.
 */
#include "supervisor/volumes.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/thread.h"
#include "instance/mounts.h"
#include "instance/spawn.h"
#include "instance/volume_home.h"
#include "supervisor/supervisor.h"
#include "volume/process.h"

#define TIMEOUT_MS 30000
#define GRACE_MS 500                        /* for a process to close its volume properly */
#define NODES_FILE "%s/volume-%zu"          /* in an image; numbered in the order of the mounts */
#define QUEUE_MAX (2u * WIRE_WINDOW)        /* the largest size of a window of minimal requests, with headers */
#define RECEIVE_MAX (4u * SERVE_ANSWER_MAX) /* of answers at a time */

struct served {
	struct link *link;
	uint32_t channel;
	char *path; /* in the guest, for log lines */
	char *program, *directory, *table, *subpath;
	int root; /* the files, if the kernel limits them; otherwise -1 */
	struct volume_spec spec;
	pthread_t thread;
	bool started;
	bool share;          /* the engine shows it to the guest; nothing below is used */
	int wake;            /* eventfd: makes the thread check again */
	struct buf received; /* received from the process; used by the thread only */

	pthread_mutex_t lock; /* what is below */
	pthread_cond_t changed;
	struct volume_process process;
	struct buf queue;  /* messages that the socket has not accepted yet */
	uint32_t queued;   /* bytes of the guest in the queue */
	uint32_t consumed; /* bytes to be given back as credit */
	uint32_t credit;   /* what we may send */
	bool starved;      /* the thread has an answer and no credit to send it */
	bool ready;        /* the process accepts requests */
	bool told;         /* a MSG arrived: the volume is mounted or held */
	bool saving, saved;
	struct buf saved_table;
	bool ended;
	struct husk_error reason;
};

struct volumes {
	struct served *list;
	size_t count;
};

static void wake_thread(struct served *served)
{
	const uint64_t one = 1;

	(void)!write(served->wake, &one, sizeof(one)); /* a full counter wakes as well */
}

/* Ends the volume, with the lock held. The first reason stays. */
static void end_locked(struct served *served, const struct husk_error *reason)
{
	if (!served->ended)
		served->reason = *reason;
	served->ended = true;
	pthread_cond_broadcast(&served->changed);
	wake_thread(served);
}

static void end_served(struct served *served, const struct husk_error *reason)
{
	pthread_mutex_lock(&served->lock);
	end_locked(served, reason);
	pthread_mutex_unlock(&served->lock);
}

/* ---- to the process; lock held ---- */

static void took_all(struct served *served)
{
	served->consumed += served->queued;
	served->queued = 0;
}

/* Sends what the socket accepts now and queues the rest for the thread. The thread notices a closed socket. */
static int put_message(struct served *served, enum volume_kind kind, const char *payload, size_t size)
{
	struct volume_message head = { kind, (uint32_t)size };
	struct iovec parts[2] = { { &head, sizeof(head) }, { (void *)payload, size } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	bool now = !served->queue.size && served->process.socket >= 0;
	ssize_t sent = now ? sendmsg(served->process.socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;

	if (sent == (ssize_t)(sizeof(head) + size))
		return 0;
	size_t of_head = sent > 0 ? MIN((size_t)sent, sizeof(head)) : 0;
	size_t of_rest = sent > 0 ? (size_t)sent - of_head : 0;
	if (served->queue.size > QUEUE_MAX ||
	    buf_append(&served->queue, (char *)&head + of_head, sizeof(head) - of_head) < 0 ||
	    buf_append(&served->queue, payload + of_rest, size - of_rest) < 0)
		return -1;
	wake_thread(served);
	return 0;
}

static void send_queue(struct served *served)
{
	ssize_t sent =
		send(served->process.socket, served->queue.data, served->queue.size, MSG_DONTWAIT | MSG_NOSIGNAL);

	if (sent > 0)
		buf_consume(&served->queue, (size_t)sent);
	if (!served->queue.size)
		took_all(served);
}

/* ---- on the link's reader ---- */

/* A message shorter than a header is refused here. Credit counts bytes, so empty messages could be queued without
 * end. */
static void take_request(struct served *served, const char *payload, size_t size)
{
	struct husk_error why = { 0 };

	if (served->ended)
		return;
	served->queued += (uint32_t)size;
	if (size < SERVE_REQUEST_MIN || size > SERVE_REQUEST_MAX)
		husk_fail(&why, HUSK_PROTOCOL, "the guest sent an invalid request for a volume");
	else if (put_message(served, VOLUME_REQUEST, payload, size) < 0)
		husk_fail(&why, HUSK_LIMIT, "no room for the requests of the guest");
	if (why.code != HUSK_OK)
		end_locked(served, &why);
	if (!served->queue.size)
		took_all(served);
	if (served->consumed >= WIRE_WINDOW / 4)
		wake_thread(served);
}

static void take_end(struct served *served, const char *payload, size_t size)
{
	struct husk_error why = { 0 };

	if (wire_end_status(payload, size, &why) == 0)
		husk_fail(&why, HUSK_GONE, "the volume at '%s' was unmounted", served->path);
	end_locked(served, &why);
}

static void from_agent(void *data, const struct wire_header *header, const char *payload)
{
	struct served *served = data;
	uint32_t more;

	pthread_mutex_lock(&served->lock);
	switch (header->type) {
	case WIRE_DATA:
		take_request(served, payload, header->size);
		break;
	case WIRE_CREDIT:
		if (header->size == sizeof(more)) {
			memcpy(&more, payload, sizeof(more));
			served->credit = served->credit > UINT32_MAX - more ? UINT32_MAX : served->credit + more;
			if (served->starved)
				wake_thread(served);
		}
		break;
	case WIRE_MSG:
		served->told = true;
		pthread_cond_broadcast(&served->changed);
		break;
	case WIRE_END:
		take_end(served, payload, header->size);
		break;
	default:
		break;
	}
	pthread_mutex_unlock(&served->lock);
}

/* ---- on the volume's thread: messages of the process, which a guest may have taken over ---- */

/* 0: the guest has given no credit yet; otherwise as take_message. */
static int pass_answer(struct served *served, const char *answer, uint32_t size, struct husk_error *err)
{
	pthread_mutex_lock(&served->lock);
	served->starved = served->credit < size;
	if (!served->starved)
		served->credit -= size;
	bool may = !served->starved;
	pthread_mutex_unlock(&served->lock);
	if (!may)
		return 0;
	return link_reply(served->link, served->channel, served, WIRE_DATA, STREAM_IN, answer, size, err) < 0 ? -1 : 1;
}

static int take_table(struct served *served, const char *part, uint32_t size)
{
	pthread_mutex_lock(&served->lock);
	bool wanted = served->saving && !served->saved && served->saved_table.size + size <= VOLUME_TABLE_MAX &&
		      buf_append(&served->saved_table, part, size) == 0;
	if (wanted && size == 0) {
		served->saved = true;
		pthread_cond_broadcast(&served->changed);
	}
	pthread_mutex_unlock(&served->lock);
	return wanted ? 0 : -1;
}

static void take_ready(struct served *served)
{
	pthread_mutex_lock(&served->lock);
	served->ready = true;
	pthread_cond_broadcast(&served->changed);
	pthread_mutex_unlock(&served->lock);
}

/* 1: handled; 0: not possible now; -1 with err: the process is not usable any more. */
static int take_message(struct served *served, const struct volume_message *head, const char *bytes,
			struct husk_error *err)
{
	switch (head->kind) {
	case VOLUME_READY:
		take_ready(served);
		return 1;
	case VOLUME_ANSWER:
		if (head->size >= SERVE_ANSWER_MIN)
			return pass_answer(served, bytes, head->size, err);
		break;
	case VOLUME_TABLE:
		if (take_table(served, bytes, head->size) == 0)
			return 1;
		break;
	case VOLUME_FAILED:
		return husk_fail(err, HUSK_INTERNAL, "its server: %.*s", (int)MIN(head->size, 400u), bytes);
	default:
		break;
	}
	return husk_fail(err, HUSK_PROTOCOL, "its server broke the rules (message %u of %u bytes)", head->kind,
			 head->size);
}

static int take_messages(struct served *served, struct husk_error *err)
{
	struct buf *received = &served->received;
	struct volume_message head;
	size_t done = 0;
	int result = 1;

	while (result > 0 && received->size - done >= sizeof(head)) {
		memcpy(&head, received->data + done, sizeof(head));
		if (head.size > SERVE_ANSWER_MAX)
			return husk_fail(err, HUSK_PROTOCOL, "its server sent a message of %u bytes", head.size);
		if (received->size - done < sizeof(head) + head.size)
			break;
		result = take_message(served, &head, received->data + done + sizeof(head), err);
		if (result > 0)
			done += sizeof(head) + head.size;
	}
	buf_consume(received, done);
	return result;
}

static int receive(struct served *served, struct husk_error *err)
{
	struct buf *received = &served->received;
	ssize_t got = recv(served->process.socket, received->data + received->size, RECEIVE_MAX - received->size, 0);

	if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
		return husk_fail(err, HUSK_GONE, "its server has died");
	received->size += (size_t)MAX(got, 0);
	return 0;
}

/* ---- the volume's thread ---- */

static void give_credit(struct served *served, uint32_t consumed)
{
	link_reply(served->link, served->channel, served, WIRE_CREDIT, STREAM_OUT, &consumed, sizeof(consumed), NULL);
}

/* Sets what to wait for; false at the end. *consumed: credit to give back first. */
static bool look(struct served *served, struct pollfd *socket, uint32_t *consumed)
{
	pthread_mutex_lock(&served->lock);
	if (served->queue.size)
		send_queue(served);
	*consumed = served->consumed >= WIRE_WINDOW / 4 ? served->consumed : 0;
	served->consumed -= *consumed;
	*socket = (struct pollfd){ .fd = served->process.socket };
	socket->events =
		(short)((served->starved && served->received.size ? 0 : POLLIN) | (served->queue.size ? POLLOUT : 0));
	bool on = !served->ended;
	pthread_mutex_unlock(&served->lock);
	return on;
}

static int turn(struct served *served, struct husk_error *err)
{
	struct pollfd wait[2] = { { 0 }, { .fd = served->wake, .events = POLLIN } };
	uint32_t consumed;
	uint64_t ignored;

	if (!look(served, &wait[0], &consumed))
		return -1;
	if (consumed)
		give_credit(served, consumed);
	if (poll(wait, 2, -1) < 0)
		return errno == EINTR ? 0 : husk_fail_errno(err, "cannot wait for its server");
	if (wait[1].revents)
		(void)!read(served->wake, &ignored, sizeof(ignored));
	/* The process is dead, and the guest does not accept its last answer: do not wait. */
	if (wait[0].revents && (!(wait[0].events & POLLIN) && wait[0].revents & (POLLHUP | POLLERR)))
		return husk_fail(err, HUSK_GONE, "its server has died");
	if (wait[0].revents & (POLLIN | POLLHUP | POLLERR) && receive(served, err) < 0)
		return -1;
	return take_messages(served, err) < 0 ? -1 : 0;
}

/* On this thread, because the process ends with the thread that started it. */
static int start_process(struct served *served, struct husk_error *err)
{
	struct volume_process process;

	if (buf_reserve(&served->received, RECEIVE_MAX) < 0)
		return husk_fail_memory(err);
	if (volume_process_start(&served->spec, &process, err) < 0)
		return -1;
	pthread_mutex_lock(&served->lock);
	served->process = process;
	pthread_mutex_unlock(&served->lock);
	return 0;
}

static void *serve_volume(void *argument)
{
	struct served *served = argument;
	struct husk_error err = { 0 };

	if (start_process(served, &err) == 0)
		while (turn(served, &err) == 0)
			;
	if (err.code != HUSK_OK) {
		log_line(LOG_WARN, "volume at '%s': %s", served->path, err.message);
		end_served(served, &err);
	}
	/* Programs in the guest that still wait for an answer must not wait for ever. */
	link_reply(served->link, served->channel, served, WIRE_CANCEL, 0, NULL, 0, NULL);
	pthread_mutex_lock(&served->lock);
	struct volume_process process = served->process;
	served->process = (struct volume_process){ .socket = -1, .pidfd = -1 };
	pthread_mutex_unlock(&served->lock);
	volume_process_end(&process, GRACE_MS);
	return NULL;
}

/* ---- for the supervisor ---- */

/* Waits for *happened (which is then reset), the end of the volume, or the deadline. */
static int wait_until(struct served *served, bool *happened, const char *what, int64_t end, struct husk_error *err)
{
	int waited = 0;

	pthread_mutex_lock(&served->lock);
	while (!*happened && !served->ended && waited == 0)
		waited = cond_wait_until(&served->changed, &served->lock, end);
	bool yes = *happened;
	*happened = false;
	if (!yes && served->ended && err)
		*err = served->reason;
	else if (!yes)
		husk_fail(err, HUSK_TIMEOUT, "%s the volume at '%s' took longer than %d ms", what, served->path,
			  TIMEOUT_MS);
	pthread_mutex_unlock(&served->lock);
	return yes ? 0 : -1;
}

static int prepare(struct served *served, struct link *link, struct husk_error *err)
{
	pthread_mutex_init(&served->lock, NULL);
	cond_open(&served->changed);
	served->link = link;
	served->root = -1;
	served->process = (struct volume_process){ .socket = -1, .pidfd = -1 };
	served->credit = WIRE_WINDOW;
	served->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return served->wake < 0 ? husk_fail_errno(err, "cannot make an event for a volume") : 0;
}

/* The arguments for the start of the process. If the image has no table, its machine never had this volume. */
static int describe(struct supervisor *s, struct served *served, const struct mount_row *row, size_t index,
		    struct husk_error *err)
{
	struct catalog_volume *known = NULL;

	const struct engine_shares *shares = NULL;

	served->path = strdup(row->path);
	served->program = husk_program(err);
	served->table = s->image ? str_format(NODES_FILE, s->image, index) : NULL;
	if (!served->program)
		return -1;
	served->subpath = row->subpath ? strdup(row->subpath) : NULL;
	if (!served->path || (row->subpath && !served->subpath))
		return husk_fail_memory(err);
	if (catalog_volume_get(s->husk.catalog, row->id, &known, err) < 0)
		return -1;
	int result = volume_home(&s->husk, known, &served->directory, &shares, err);
	if (result == 0 && shares)
		result = served->root = shares->open(served->directory, err);
	served->spec = (struct volume_spec){
		.program = served->program,
		.directory = served->directory,
		.root = served->root,
		.limit = known->limit_bytes,
		.read_only = row->read_only,
		.uid = VOLUME_UID_BASE + s->slot,
		.subpath = served->subpath,
		.table = served->table && access(served->table, F_OK) == 0 ? served->table : NULL,
	};
	catalog_volume_free(known);
	return result < 0 ? -1 : 0;
}

static int start_one(struct supervisor *s, struct served *served, const struct mount_row *row, size_t index,
		     struct husk_error *err)
{
	if (prepare(served, s->link, err) < 0 || describe(s, served, row, index, err) < 0)
		return -1;
	served->started = pthread_create(&served->thread, NULL, serve_volume, served) == 0;
	return served->started ? 0 : husk_fail(err, HUSK_INTERNAL, "cannot start a thread for a volume");
}

static int mount_one(struct served *served, const struct mount_row *row, int64_t end, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	int bad = wire_put_int(&message, TAG_METHOD, METHOD_VOLUME);

	bad |= wire_put_string(&message, TAG_PATH, row->path);
	bad |= wire_put_int(&message, TAG_FLAGS, row->read_only ? VOLUME_READ_ONLY : 0);
	if (bad)
		return husk_fail_memory(err);
	if (wait_until(served, &served->ready, "starting the server of", end, err) < 0 ||
	    link_open(served->link, message.data, message.size, from_agent, served, &served->channel, err) < 0)
		return -1;
	return wait_until(served, &served->told, "mounting", end, err);
}

/* ---- shares ---- */

/* Shows one volume to the machine, if the engine keeps its files. 1: it is shown; 0: it is no share. */
static int show_one(struct supervisor *s, const struct mount_row *row, size_t index, struct husk_error *err)
{
	const struct engine_shares *shares = NULL;
	struct catalog_volume *known = NULL;
	cleanup_free char *directory = NULL;

	if (catalog_volume_get(s->husk.catalog, row->id, &known, err) < 0)
		return -1;
	int result = volume_home(&s->husk, known, &directory, &shares, err);
	catalog_volume_free(known);
	if (result < 0 || !shares || shares != s->engine->shares)
		return result;
	return shares->add(s->machine, (unsigned)index, directory, row->read_only, err) < 0 ? -1 : 1;
}

int volumes_show(struct supervisor *s, const char *image, const char *mounts, struct husk_error *err)
{
	const struct engine_shares *shares = s->engine->shares;
	struct mount_row *rows = NULL;
	size_t count = 0;
	int result = 0;

	if (!mounts || !shares)
		return 0;
	if (mounts_parse(mounts, &rows, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count && result >= 0; i++)
		if (shares->in_image(image, (unsigned)i) && (result = show_one(s, &rows[i], i, err)) == 0)
			result = husk_fail(err, HUSK_INVALID, "its place on the disk is gone");
	if (result < 0)
		husk_wrap(err, "volumes");
	mounts_free(rows, count);
	return result < 0 ? -1 : 0;
}

static int ask_to_mount(struct supervisor *s, const struct mount_row *row, size_t index, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };
	int bad = wire_put_string(&arguments, TAG_PATH, row->path);

	bad |= wire_put_int(&arguments, TAG_VOLUME, (int64_t)index);
	bad |= wire_put_int(&arguments, TAG_FLAGS, row->read_only ? VOLUME_READ_ONLY : 0);
	if (bad)
		return husk_fail_memory(err);
	return link_call(s->link, METHOD_MOUNT, &arguments, NULL, TIMEOUT_MS, err);
}

/* The volume as a share: 1; 0: it must be mounted over the link, as a part of a volume is. In the image it stays what it was. */
static int begin_share(struct supervisor *s, const struct mount_row *row, size_t index, struct husk_error *err)
{
	const struct engine_shares *shares = s->engine->shares;
	cleanup_free char *table = s->image ? str_format(NODES_FILE, s->image, index) : NULL;
	struct husk_error why = { 0 };

	if (!shares || row->subpath || (table && access(table, F_OK) == 0))
		return 0;
	if (s->image && shares->in_image(s->image, (unsigned)index))
		return 1;
	if (!shares->ready(s->machine))
		return 0;
	int shown = show_one(s, row, index, err);
	if (shown <= 0)
		return shown;
	if (ask_to_mount(s, row, index, &why) == 0)
		return 1;
	/* The agent of a template that an older husk built. */
	return why.code == HUSK_UNAVAILABLE ? 0 : husk_fail(err, why.code, "%s", why.message);
}

static int begin_one(struct supervisor *s, struct served *served, const struct mount_row *row, size_t index,
		     struct husk_error *err)
{
	int share = begin_share(s, row, index, err);

	served->share = share != 0; /* also after a failure: nothing was started */
	return share < 0 ? -1 : share ? 0 : start_one(s, served, row, index, err);
}

int volumes_begin(struct supervisor *s, const char *mounts, struct husk_error *err)
{
	int64_t end = time_monotonic_ms() + TIMEOUT_MS;
	struct mount_row *rows = NULL;
	size_t count = 0;

	if (!mounts)
		return 0;
	if (mounts_parse(mounts, &rows, &count, err) < 0)
		return -1;
	s->volumes = calloc(1, sizeof(*s->volumes));
	if (s->volumes)
		s->volumes->list = calloc(count, sizeof(*s->volumes->list));
	int result = s->volumes && s->volumes->list ? 0 : husk_fail_memory(err);
	/* Start all volumes first, so that they come up in parallel. */
	for (size_t i = 0; i < count && result == 0; i++) {
		s->volumes->count++;
		result = begin_one(s, &s->volumes->list[i], &rows[i], i, err);
	}
	for (size_t i = 0; i < count && result == 0; i++)
		if (!s->volumes->list[i].share)
			result = mount_one(&s->volumes->list[i], &rows[i], end, err);
	mounts_free(rows, count);
	return result < 0 ? husk_wrap(err, "volumes") : 0;
}

static int tell(struct served *served, int64_t flags)
{
	cleanup_buf struct buf message = { 0 };

	if (wire_put_int(&message, TAG_FLAGS, flags) < 0)
		return -1;
	return link_send(served->link, served->channel, served, WIRE_MSG, 0, message.data, message.size, NULL);
}

int volumes_hold(struct supervisor *s, struct husk_error *err)
{
	int64_t end = time_monotonic_ms() + TIMEOUT_MS;

	for (size_t i = 0; s->volumes && i < s->volumes->count; i++) {
		struct served *served = &s->volumes->list[i];
		if (served->share)
			continue;
		pthread_mutex_lock(&served->lock);
		bool ended = served->ended; /* the guest has unmounted it, or its process died */
		served->told = false;
		pthread_mutex_unlock(&served->lock);
		if (!ended &&
		    (tell(served, VOLUME_HOLD) < 0 || wait_until(served, &served->told, "holding", end, err) < 0))
			return husk_wrap(err, "cannot freeze the guest");
	}
	return 0;
}

void volumes_go_on(struct supervisor *s)
{
	for (size_t i = 0; s->volumes && i < s->volumes->count; i++)
		if (!s->volumes->list[i].share)
			tell(&s->volumes->list[i], 0);
}

/* Asks the process for its table. False: the volume has ended, and there is no table. */
static bool ask_for_table(struct served *served)
{
	pthread_mutex_lock(&served->lock);
	bool asked = !served->ended && put_message(served, VOLUME_SAVE, "", 0) == 0;
	served->saving = asked;
	served->saved = false;
	served->saved_table.size = 0;
	pthread_mutex_unlock(&served->lock);
	return asked;
}

static int save_table(struct served *served, const char *path, int64_t end, struct husk_error *err)
{
	int result = wait_until(served, &served->saved, "saving", end, err);

	pthread_mutex_lock(&served->lock);
	served->saving = false;
	struct buf table = served->saved_table;
	served->saved_table = (struct buf){ 0 };
	pthread_mutex_unlock(&served->lock);
	if (result == 0)
		result = file_write_atomic(path, table.data, table.size, 0600, err);
	buf_free(&table);
	return result;
}

/* While held, the processes have no work, so the tables do not change. */
int volumes_save(struct supervisor *s, const char *image, struct husk_error *err)
{
	int64_t end = time_monotonic_ms() + TIMEOUT_MS;

	for (size_t i = 0; s->volumes && i < s->volumes->count; i++) {
		cleanup_free char *path = str_format(NODES_FILE, image, i);
		if (!path)
			return husk_fail_memory(err);
		if (!s->volumes->list[i].share && ask_for_table(&s->volumes->list[i]) &&
		    save_table(&s->volumes->list[i], path, end, err) < 0)
			return husk_wrap(err, "volumes");
	}
	return 0;
}

/* Frees what only the volume's thread used. */
static void close_one(struct served *served)
{
	if (served->started)
		pthread_join(served->thread, NULL);
	pthread_mutex_lock(&served->lock);
	buf_free(&served->queue);
	buf_free(&served->received);
	fd_close(&served->wake);
	fd_close(&served->root);
	pthread_mutex_unlock(&served->lock);
	free(steal_pointer(served->program));
	free(steal_pointer(served->directory));
	free(steal_pointer(served->subpath));
	free(steal_pointer(served->table));
}

void volumes_end(struct supervisor *s)
{
	struct husk_error over = { .code = HUSK_GONE, .message = "the machine has ended" };

	/* End all volumes first, so that their grace periods run in parallel. */
	for (size_t i = 0; s->volumes && i < s->volumes->count; i++)
		if (!s->volumes->list[i].share)
			end_served(&s->volumes->list[i], &over);
	for (size_t i = 0; s->volumes && i < s->volumes->count; i++)
		if (!s->volumes->list[i].share)
			close_one(&s->volumes->list[i]);
	/* The list itself stays: an END may still be on its way to a handler, and a checkpoint may still ask what to
	 * hold. The list is freed with the process. */
}
