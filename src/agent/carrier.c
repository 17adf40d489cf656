/*
 * METHOD_VOLUME: directories of the host, mounted in the guest by FUSE. Each request of the guest's kernel travels over the
 * link as one frame, and its answer comes back the same way. The agent does not interpret requests: they are between kernel
 * and supervisor.
 *
 * The agent may itself wait for such an answer, for example when it reads a file in a volume. So these frames cannot pass
 * through the agent's event loop. Once a volume is mounted, a second thread, the carrier, owns the link. The carrier serves
 * the channels of volumes and passes all other frames to the event loop over a socket pair. The carrier must never wait for
 * the loop: frames that the loop has not read are queued, bounded by the host's credit on each channel. The carrier touches
 * `struct carrier` and no other state of the agent.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "agent/agent.h"
#include "base/thread.h"

#define VOLUMES_MAX 16
#define REQUEST_MAX (132u * 1024u) /* the kernel's limit: 128 KiB of data and a header */
#define REQUESTS_PER_TURN 16
#define FRAME_MAX (WIRE_HEADER_SIZE + WIRE_PAYLOAD_MAX)
#define REQUEST_MIN 40u /* a header: u32 size, u32 opcode, u64 number, … */
#define OPCODE_FORGET 2u
#define OPCODE_BATCH_FORGET 42u

struct mounted {
	char *path;
	int fd;           /* of /dev/fuse; -1: dead */
	uint32_t channel; /* 0: from before a restore, and no channel serves it yet */
	uint32_t credit, consumed;
	uint64_t *asked; /* the numbers of requests without an answer */
	size_t waiting, room;
	bool held, hold_asked;
};

struct carrier {
	int in, out; /* the link */
	bool socket;
	int loop;             /* this side of the socket pair; the loop has the other */
	int wake[2];          /* a byte here means: look at the volumes again */
	pthread_mutex_t lock; /* guards the volumes, which the loop adds */
	struct mounted volumes[VOLUMES_MAX];
	size_t count;
	struct buf from_link, from_loop, to_loop;
	char frame[WIRE_HEADER_SIZE + REQUEST_MAX];
};

/* ---- sending ---- */

static void link_write(struct carrier *carrier, const char *bytes, size_t size)
{
	while (size > 0) {
		ssize_t count = write(carrier->out, bytes, size);
		if (count > 0) {
			bytes += count;
			size -= (size_t)count;
		} else if (errno == EAGAIN) {
			poll(&(struct pollfd){ carrier->out, POLLOUT, 0 }, 1, -1);
		} else if (errno != EINTR) {
			return; /* the link has ended; the next read notices it */
		}
	}
}

static void link_frame(struct carrier *carrier, uint32_t channel, enum wire_type type, uint8_t stream,
		       const void *payload, size_t size)
{
	char head[WIRE_HEADER_SIZE + 64];
	const struct wire_header header = { (uint32_t)size, channel, (uint8_t)type, stream };

	wire_header_encode(&header, (uint8_t *)head);
	if (size)
		memcpy(head + WIRE_HEADER_SIZE, payload, MIN(size, sizeof(head) - WIRE_HEADER_SIZE));
	link_write(carrier, head, WIRE_HEADER_SIZE + size);
}

/* ---- one volume; called with the lock held ---- */

static void volume_kill(struct mounted *volume)
{
	fd_close(&volume->fd); /* from now on the kernel fails every call on the mount */
	volume->fd = -1;
	volume->channel = 0;
}

static void volume_refuse(struct mounted *volume, uint64_t number)
{
	struct {
		uint32_t size;
		int32_t error;
		uint64_t number;
	} answer = { sizeof(answer), -EIO, number };

	(void)!write(volume->fd, &answer, sizeof(answer)); /* the asking process may be gone */
}

/* Answers every open request with an error. gVisor leaves processes waiting for an answer when the descriptor is
 * closed. */
static void volume_refuse_all(struct carrier *carrier, struct mounted *volume)
{
	char *request = carrier->frame + WIRE_HEADER_SIZE;
	uint64_t number;

	while (volume->waiting)
		volume_refuse(volume, volume->asked[--volume->waiting]);
	while (read(volume->fd, request, REQUEST_MAX) >= (ssize_t)REQUEST_MIN) {
		memcpy(&number, request + 8, sizeof(number));
		volume_refuse(volume, number);
	}
}

static void volume_end(struct carrier *carrier, struct mounted *volume)
{
	cleanup_buf struct buf status = { 0 };

	volume_refuse_all(carrier, volume);
	if (wire_put_int(&status, TAG_STATUS, HUSK_OK) < 0)
		agent_die("out of memory for an answer");
	link_frame(carrier, volume->channel, WIRE_END, 0, status.data, status.size);
	volume_kill(volume);
}

static void volume_tell_held(struct carrier *carrier, struct mounted *volume)
{
	if (volume->hold_asked && volume->waiting == 0) {
		volume->hold_asked = false;
		link_frame(carrier, volume->channel, WIRE_MSG, 0, NULL, 0);
	}
}

static void volume_await(struct mounted *volume, uint64_t number)
{
	if (volume->waiting == volume->room) {
		volume->room = MAX(volume->room * 2, 64u);
		volume->asked = reallocarray(volume->asked, volume->room, sizeof(*volume->asked));
		if (!volume->asked)
			agent_die("out of memory for a volume");
	}
	volume->asked[volume->waiting++] = number;
}

static void volume_answered(struct mounted *volume, const char *answer, size_t size)
{
	uint64_t number = 0;

	if (size >= 16)
		memcpy(&number, answer + 8, sizeof(number));
	for (size_t i = 0; i < volume->waiting; i++) {
		if (volume->asked[i] == number) {
			volume->asked[i] = volume->asked[--volume->waiting];
			return;
		}
	}
}

/* Sends one request to the host. False: there is no request, or no credit. */
static bool volume_take_request(struct carrier *carrier, struct mounted *volume)
{
	char *request = carrier->frame + WIRE_HEADER_SIZE;
	uint32_t opcode;
	uint64_t number;

	if (!volume->channel || volume->held || volume->credit < REQUEST_MAX)
		return false;
	ssize_t size = read(volume->fd, request, REQUEST_MAX);
	if (size < 0 && errno == ENODEV) /* unmounted */
		volume_end(carrier, volume);
	if (size < (ssize_t)REQUEST_MIN)
		return size < 0 &&
		       (errno == EINTR || errno == ENOENT); /* ENOENT: the request was interrupted meanwhile */
	memcpy(&opcode, request + 4, sizeof(opcode));
	memcpy(&number, request + 8, sizeof(number));
	if (opcode != OPCODE_FORGET && opcode != OPCODE_BATCH_FORGET)
		volume_await(volume, number);
	volume->credit -= (uint32_t)size;
	const struct wire_header header = { (uint32_t)size, volume->channel, WIRE_DATA, STREAM_OUT };
	wire_header_encode(&header, (uint8_t *)carrier->frame);
	link_write(carrier, carrier->frame, WIRE_HEADER_SIZE + (size_t)size);
	return true;
}

static void volume_take_answer(struct carrier *carrier, struct mounted *volume, const char *answer, size_t size)
{
	/* If the asking process is gone, the kernel refuses the answer, and nothing is lost. */
	if (write(volume->fd, answer, size) < 0 && errno != ENOENT && errno != EINVAL)
		log_line(LOG_WARN, "volume '%s': an answer was refused: %s", volume->path, strerror(errno));
	volume_answered(volume, answer, size);
	volume->consumed += (uint32_t)size;
	if (volume->consumed >= WIRE_WINDOW / 4) {
		uint32_t given = volume->consumed;
		uint8_t bytes[4] = { (uint8_t)given, (uint8_t)(given >> 8), (uint8_t)(given >> 16),
				     (uint8_t)(given >> 24) };
		link_frame(carrier, volume->channel, WIRE_CREDIT, STREAM_IN, bytes, sizeof(bytes));
		volume->consumed = 0;
	}
	volume_tell_held(carrier, volume);
}

static void volume_take_frame(struct carrier *carrier, struct mounted *volume, const struct wire_header *header,
			      const char *payload)
{
	const uint8_t *b = (const uint8_t *)payload;

	switch (header->type) {
	case WIRE_DATA:
		volume_take_answer(carrier, volume, payload, header->size);
		break;
	case WIRE_CREDIT:
		if (header->size == 4)
			volume->credit +=
				(uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
		break;
	case WIRE_MSG:
		volume->held = volume->hold_asked = wire_get_int(payload, header->size, TAG_FLAGS, 0) & VOLUME_HOLD;
		volume_tell_held(carrier, volume);
		break;
	case WIRE_CANCEL:
		volume_end(carrier, volume);
		break;
	default:
		break;
	}
}

/* ---- passing on ---- */

static struct mounted *volume_of(struct carrier *carrier, uint32_t channel)
{
	for (size_t i = 0; channel && i < carrier->count; i++)
		if (carrier->volumes[i].channel == channel)
			return &carrier->volumes[i];
	return NULL;
}

/* True if the frame was for a volume. If a channel is opened again, its volume is from before a restore. */
static bool carrier_serve(struct carrier *carrier, const struct wire_header *header, const char *payload)
{
	pthread_mutex_lock(&carrier->lock);
	struct mounted *volume = volume_of(carrier, header->channel);
	if (volume && header->type == WIRE_OPEN) {
		volume->channel = 0;
		volume = NULL;
	}
	if (volume)
		volume_take_frame(carrier, volume, header, payload);
	pthread_mutex_unlock(&carrier->lock);
	return volume != NULL;
}

/* Acts on the complete frames in a buffer, and keeps the rest. */
static void carrier_frames(struct carrier *carrier, struct buf *from, bool of_link)
{
	struct wire_header header;
	struct husk_error err;
	size_t done = 0;

	while (from->size - done >= WIRE_HEADER_SIZE) {
		if (wire_header_decode((const uint8_t *)from->data + done, &header, &err) < 0)
			agent_die("link: %s", err.message);
		size_t whole = WIRE_HEADER_SIZE + header.size;
		if (from->size - done < whole)
			break;
		const char *frame = from->data + done;
		if (!of_link)
			link_write(carrier, frame, whole);
		else if (!carrier_serve(carrier, &header, frame + WIRE_HEADER_SIZE) &&
			 buf_append(&carrier->to_loop, frame, whole) < 0)
			agent_die("out of memory for the link");
		done += whole;
	}
	buf_consume(from, done);
}

/* False at the end of the stream. */
static bool carrier_read(int fd, struct buf *into)
{
	if (buf_reserve(into, FRAME_MAX) < 0)
		agent_die("out of memory for the link");
	ssize_t count = read(fd, into->data + into->size, FRAME_MAX);
	if (count > 0)
		into->size += (size_t)count;
	return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

/* A restored machine finds its connection ended, makes a new one, and continues at a frame boundary. */
static void carrier_renew(struct carrier *carrier)
{
	struct husk_error err = { 0 };

	if (!carrier->socket) {
		shutdown(carrier->loop, SHUT_RDWR); /* ends the loop, and with it the agent */
		pause();
	}
	fd_close(&carrier->in);
	fd_close(&carrier->out);
	carrier->in = kernel_connect(&err);
	carrier->out = carrier->in < 0 ? -1 : fcntl(carrier->in, F_DUPFD_CLOEXEC, 64);
	if (carrier->out < 0 || fd_set_nonblocking(carrier->in, true) < 0)
		agent_die("the link cannot be made again: %s", err.message);
	carrier->from_link.size = 0;
	pthread_mutex_lock(&carrier->lock);
	for (size_t i = 0; i < carrier->count; i++)
		carrier->volumes[i].channel = 0;
	pthread_mutex_unlock(&carrier->lock);
}

static void carrier_feed_loop(struct carrier *carrier)
{
	ssize_t count = write(carrier->loop, carrier->to_loop.data, carrier->to_loop.size);

	if (count > 0)
		buf_consume(&carrier->to_loop, (size_t)count);
}

static void carrier_turn(struct carrier *carrier)
{
	enum { LINK, LOOP, WAKE, VOLUMES };
	struct pollfd wait[VOLUMES + VOLUMES_MAX];
	char bytes[64];
	size_t count;

	wait[LINK] = (struct pollfd){ carrier->in, POLLIN, 0 };
	wait[LOOP] = (struct pollfd){ carrier->loop, (short)(POLLIN | (carrier->to_loop.size ? POLLOUT : 0)), 0 };
	wait[WAKE] = (struct pollfd){ carrier->wake[0], POLLIN, 0 };
	pthread_mutex_lock(&carrier->lock);
	count = carrier->count;
	for (size_t i = 0; i < count; i++) {
		const struct mounted *volume = &carrier->volumes[i];
		bool ready = volume->channel && !volume->held && volume->credit >= REQUEST_MAX;
		wait[VOLUMES + i] = (struct pollfd){ ready ? volume->fd : -1, POLLIN, 0 };
	}
	pthread_mutex_unlock(&carrier->lock);
	if (poll(wait, VOLUMES + count, -1) < 0)
		return;
	if (wait[WAKE].revents && read(carrier->wake[0], bytes, sizeof(bytes)) < 0 && errno != EAGAIN)
		agent_die("carrier: %s", strerror(errno));
	if (wait[LINK].revents && !carrier_read(carrier->in, &carrier->from_link))
		carrier_renew(carrier);
	carrier_frames(carrier, &carrier->from_link, true);
	if (wait[LOOP].revents & (POLLIN | POLLHUP) && carrier_read(carrier->loop, &carrier->from_loop))
		carrier_frames(carrier, &carrier->from_loop, false);
	if (carrier->to_loop.size)
		carrier_feed_loop(carrier);
	pthread_mutex_lock(&carrier->lock);
	for (size_t i = 0; i < count; i++) {
		int turns = wait[VOLUMES + i].revents ? REQUESTS_PER_TURN : 0;
		while (turns-- > 0 && volume_take_request(carrier, &carrier->volumes[i]))
			;
	}
	pthread_mutex_unlock(&carrier->lock);
}

static void *carrier_run(void *argument)
{
	for (;;)
		carrier_turn(argument);
	return NULL;
}

/* ---- for the loop ---- */

void carrier_take_link(struct agent *agent)
{
	struct carrier *carrier = agent->carrier;
	struct uplink *link = &agent->link;
	int pair[2];

	link->wants_carrier = false;
	carrier->in = link->in.fd;
	carrier->out = link->out.fd;
	carrier->socket = link->socket;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0 ||
	    pipe2(carrier->wake, O_CLOEXEC | O_NONBLOCK) < 0)
		agent_die("cannot start the carrier: %s", strerror(errno));
	int in = fcntl(pair[0], F_DUPFD_CLOEXEC, 64), out = fcntl(pair[0], F_DUPFD_CLOEXEC, 64);
	carrier->loop = fcntl(pair[1], F_DUPFD_CLOEXEC, 64);
	fd_close(&pair[0]);
	fd_close(&pair[1]);
	/* Queued frames are sent first, complete. The received part of the next frame moves with the link. */
	link_write(carrier, link->queue.data + link->sent, link->queue.size - link->sent);
	link->queue.size = link->sent = 0;
	if (in < 0 || out < 0 || carrier->loop < 0 ||
	    buf_append(&carrier->from_link, link->input, link->input_size) < 0)
		agent_die("cannot start the carrier: %s", strerror(errno));
	uplink_replace(agent, in, out);
	if (thread_quiet(NULL, 0, carrier_run, carrier) != 0)
		agent_die("cannot start the carrier");
}

int make_mount_point(char *path, struct husk_error *err)
{
	for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
		if (slash)
			*slash = '\0';
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return husk_fail_errno(err, "cannot make '%s' for a volume", path);
		if (!slash)
			return 0;
		*slash = '/';
	}
}

static int mount_volume(char *path, bool read_only, struct husk_error *err)
{
	char options[160];
	cleanup_close int low = open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	cleanup_close int fd = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, 64);

	if (fd < 0)
		return husk_fail_errno(err, "cannot open /dev/fuse for the volume at '%s'", path);
	if (make_mount_point(path, err) < 0)
		return -1;
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
		 fd);
	unsigned long flags = MS_NOSUID | MS_NODEV | (read_only ? MS_RDONLY : 0);
	if (mount("husk", path, "fuse", flags, options) < 0)
		return husk_fail_errno(err, "cannot mount the volume at '%s'", path);
	return steal_fd(&fd);
}

/* The volume at this path: one from before a restore, or a new one. */
static struct mounted *volume_at(struct carrier *carrier, char *path, bool read_only, struct husk_error *err)
{
	for (size_t i = 0; i < carrier->count; i++)
		if (carrier->volumes[i].fd >= 0 && str_equal(carrier->volumes[i].path, path))
			return &carrier->volumes[i];
	size_t place = 0; /* the slot of a volume that the guest has unmounted, or a new slot */
	while (place < carrier->count && carrier->volumes[place].fd >= 0)
		place++;
	if (place == VOLUMES_MAX) {
		husk_fail(err, HUSK_LIMIT, "no more than %d volumes", VOLUMES_MAX);
		return NULL;
	}
	int fd = mount_volume(path, read_only, err);
	if (fd < 0)
		return NULL;
	struct mounted *volume = &carrier->volumes[place];
	free(volume->path);
	free(volume->asked);
	*volume = (struct mounted){ .path = strdup(path), .fd = fd };
	if (!volume->path)
		agent_die("out of memory for a volume");
	carrier->count = MAX(carrier->count, place + 1);
	return volume;
}

int volume_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	bool first = !agent->carrier, read_only = request_int(request, TAG_FLAGS, 0) & VOLUME_READ_ONLY;
	cleanup_free char *path = NULL;

	if (request_string(request, TAG_PATH, &path, err) < 0)
		return -1;
	if (first && !(agent->carrier = calloc(1, sizeof(*agent->carrier))))
		return husk_fail_memory(err);
	struct carrier *carrier = agent->carrier;
	if (first) {
		pthread_mutex_init(&carrier->lock, NULL);
		agent->link.wants_carrier = true;
	}
	pthread_mutex_lock(&carrier->lock);
	struct mounted *volume = volume_at(carrier, path, read_only, err);
	if (volume) {
		volume->channel = number;
		volume->credit = WIRE_WINDOW;
		volume->consumed = 0;
		volume->waiting = 0;
		volume->held = volume->hold_asked = false;
	}
	pthread_mutex_unlock(&carrier->lock);
	if (!volume)
		return -1;
	if (!first && write(carrier->wake[1], "", 1) < 0 && errno != EAGAIN)
		return husk_fail_errno(err, "cannot wake the carrier");
	uplink_send(agent, number, WIRE_MSG, 0, NULL, 0);
	return 0;
}
