/*
 * Volumes on the supervisor's side: a channel of the agent link per volume, whose frames are the FUSE requests of the
 * guest's kernel, and a thread per volume that answers them (volume/serve.c, where the guest's bytes are read). The link's
 * reader only queues; what can be queued is bounded by the credit of the channel. A guest whose bytes are no requests
 * loses the volume, and nothing else.
 */
#include "sandbox/volumes.h"

#include <pthread.h>
#include <sys/resource.h>

#include "sandbox/mounts.h"
#include "volume/serve.h"

#define TIMEOUT_MS 30000
#define DESCRIPTORS 32768u
#define NODES_FILE "%s/volume-%zu" /* in an image; by the order in which they are mounted */
#define NODES_BYTES_MAX (64u * 1024u * 1024u)

struct pending {
	struct pending *next;
	size_t size;
	char request[];
};

struct served {
	struct link *link;
	uint32_t channel;
	struct volume_server *server;
	char *path; /* in the guest, for what is logged */
	pthread_t thread;
	bool started;

	pthread_mutex_t lock; /* what is below */
	pthread_cond_t changed;
	struct pending *first, **last;
	uint32_t credit; /* what we may send */
	bool told;       /* a MSG came: it is mounted, or it is held */
	bool ended;
	struct husk_error reason;
};

struct volumes {
	struct served *list;
	size_t count;
};

/* ---- on the link's reader ---- */

/* What is shorter than a header is refused here, or it could be queued without end: credit counts bytes. */
static void take_request(struct served *served, const char *payload, size_t size)
{
	struct pending *pending = size < SERVE_REQUEST_MIN ? NULL : malloc(sizeof(*pending) + size);

	if (served->ended || !pending) {
		if (!served->ended)
			husk_fail(&served->reason, HUSK_PROTOCOL, "the guest sent what is no request for a volume");
		served->ended = true;
		free(pending);
		return;
	}
	*pending = (struct pending){ .size = size };
	memcpy(pending->request, payload, size);
	*served->last = pending;
	served->last = &pending->next;
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
		}
		break;
	case WIRE_MSG:
		served->told = true;
		break;
	case WIRE_END:
		served->ended = true;
		if (wire_end_status(payload, header->size, &served->reason) == 0)
			husk_fail(&served->reason, HUSK_GONE, "the volume at '%s' was unmounted", served->path);
		break;
	default:
		break;
	}
	pthread_cond_broadcast(&served->changed);
	pthread_mutex_unlock(&served->lock);
}

/* ---- on the volume's thread ---- */

static struct pending *next_request(struct served *served)
{
	pthread_mutex_lock(&served->lock);
	while (!served->first && !served->ended)
		pthread_cond_wait(&served->changed, &served->lock);
	struct pending *pending = served->ended ? NULL : served->first;
	if (pending) {
		served->first = pending->next;
		if (!served->first)
			served->last = &served->first;
	}
	pthread_mutex_unlock(&served->lock);
	return pending;
}

static bool wait_for_credit(struct served *served, size_t size)
{
	pthread_mutex_lock(&served->lock);
	while (served->credit < size && !served->ended)
		pthread_cond_wait(&served->changed, &served->lock);
	bool ended = served->ended;
	if (!ended)
		served->credit -= (uint32_t)size;
	pthread_mutex_unlock(&served->lock);
	return !ended;
}

static int answer(struct served *served, const struct pending *pending, char *out)
{
	ssize_t size = volume_serve(served->server, pending->request, pending->size, out);

	if (size < 0)
		log_line(LOG_WARN, "volume at '%s': the guest sent what is no request", served->path);
	if (size <= 0)
		return (int)size;
	if (!wait_for_credit(served, (size_t)size))
		return -1;
	return link_reply(served->link, served->channel, served, WIRE_DATA, STREAM_IN, out, (size_t)size, NULL);
}

static void *serve_volume(void *argument)
{
	struct served *served = argument;
	cleanup_free char *out = malloc(SERVE_ANSWER_MAX);
	uint32_t consumed = 0;
	struct pending *pending;

	while (out && (pending = next_request(served))) {
		int result = answer(served, pending, out);
		consumed += (uint32_t)pending->size;
		free(pending);
		if (result < 0)
			break;
		if (consumed >= WIRE_WINDOW / 4) {
			link_reply(served->link, served->channel, served, WIRE_CREDIT, STREAM_OUT, &consumed,
				   sizeof(consumed), NULL);
			consumed = 0;
		}
	}
	/* Whoever still waits for an answer there must not wait for ever. */
	link_reply(served->link, served->channel, served, WIRE_CANCEL, 0, NULL, 0, NULL);
	return NULL;
}

/* ---- for the supervisor ---- */

/* Until the agent has told what it was asked for. */
static int wait_until_told(struct served *served, const char *what, struct husk_error *err)
{
	int64_t end = time_monotonic_ms() + TIMEOUT_MS;
	struct timespec at = { .tv_sec = end / 1000, .tv_nsec = end % 1000 * 1000000 };
	int waited = 0;

	pthread_mutex_lock(&served->lock);
	while (!served->told && !served->ended && waited == 0)
		waited = pthread_cond_timedwait(&served->changed, &served->lock, &at);
	bool told = served->told;
	served->told = false;
	if (!told && served->ended && err)
		*err = served->reason;
	else if (!told)
		husk_fail(err, HUSK_TIMEOUT, "the guest did not %s the volume at '%s' within %d ms", what, served->path,
			  TIMEOUT_MS);
	pthread_mutex_unlock(&served->lock);
	return told ? 0 : -1;
}

static void prepare(struct served *served, struct link *link)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_mutex_init(&served->lock, NULL);
	pthread_cond_init(&served->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	served->link = link;
	served->last = &served->first;
	served->credit = WIRE_WINDOW;
}

static int open_server(struct supervisor *s, struct served *served, const struct mount_row *row, struct husk_error *err)
{
	cleanup_free char *directory = path_volume(&s->husk.paths, row->id);
	struct catalog_volume *known = NULL;
	struct volume volume;

	if (!directory || !(served->path = strdup(row->path)))
		return husk_fail_memory(err);
	if (catalog_volume_get(s->husk.catalog, row->id, &known, err) < 0)
		return -1;
	uint64_t limit = known->limit_bytes;
	catalog_volume_free(known);
	if (volume_make(directory, err) < 0 || volume_open(directory, limit, &volume, err) < 0)
		return -1;
	if (volume_server_open(&volume, row->read_only, &served->server, err) == 0)
		return 0;
	volume_close(&volume);
	return -1;
}

/* What a past life of the guest knows; an image without it is one that never had the volume. */
static int load_nodes(struct supervisor *s, struct served *served, size_t index, struct husk_error *err)
{
	cleanup_free char *path = s->image ? str_format(NODES_FILE, s->image, index) : NULL;
	size_t size = 0;

	if (!path || access(path, F_OK) < 0)
		return 0;
	cleanup_free char *bytes = file_read(path, NODES_BYTES_MAX, &size, err);
	if (!bytes)
		return -1;
	if (volume_server_load(served->server, bytes, size) < 0)
		return husk_fail(err, HUSK_INTERNAL, "'%s' is damaged", path);
	return 0;
}

static int mount_one(struct served *served, const struct mount_row *row, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	int bad = wire_put_int(&message, TAG_METHOD, METHOD_VOLUME);

	bad |= wire_put_string(&message, TAG_PATH, row->path);
	bad |= wire_put_int(&message, TAG_FLAGS, row->read_only ? VOLUME_READ_ONLY : 0);
	if (bad)
		return husk_fail_memory(err);
	if (link_open(served->link, message.data, message.size, from_agent, served, &served->channel, err) < 0)
		return -1;
	served->started = pthread_create(&served->thread, NULL, serve_volume, served) == 0;
	if (!served->started)
		return husk_fail(err, HUSK_INTERNAL, "cannot start a thread for a volume");
	return wait_until_told(served, "mount", err);
}

/* Open files of the guest are descriptors of ours; a part of what we may have is the volumes' (serve.c). */
static void raise_descriptors(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur >= DESCRIPTORS)
		return;
	files.rlim_cur = DESCRIPTORS;
	files.rlim_max = MAX(files.rlim_max, DESCRIPTORS);
	if (setrlimit(RLIMIT_NOFILE, &files) < 0)
		log_line(LOG_WARN, "volumes get few open files: %s", strerror(errno));
}

int volumes_begin(struct supervisor *s, const char *mounts, struct husk_error *err)
{
	struct mount_row *rows = NULL;
	size_t count = 0;

	if (!mounts)
		return 0;
	raise_descriptors();
	if (mounts_parse(mounts, &rows, &count, err) < 0)
		return -1;
	s->volumes = calloc(1, sizeof(*s->volumes));
	if (s->volumes)
		s->volumes->list = calloc(count, sizeof(*s->volumes->list));
	int result = s->volumes && s->volumes->list ? 0 : husk_fail_memory(err);
	for (size_t i = 0; i < count && result == 0; i++) {
		struct served *served = &s->volumes->list[i];
		prepare(served, s->link);
		s->volumes->count++;
		result = open_server(s, served, &rows[i], err);
		if (result == 0)
			result = load_nodes(s, served, i, err);
		if (result == 0)
			result = mount_one(served, &rows[i], err);
	}
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
	for (size_t i = 0; s->volumes && i < s->volumes->count; i++) {
		struct served *served = &s->volumes->list[i];
		pthread_mutex_lock(&served->lock);
		bool ended = served->ended; /* the guest has unmounted it */
		served->told = false;
		pthread_mutex_unlock(&served->lock);
		if (!ended && (tell(served, VOLUME_HOLD) < 0 || wait_until_told(served, "hold", err) < 0))
			return husk_wrap(err, "cannot freeze the guest");
	}
	return 0;
}

void volumes_go_on(struct supervisor *s)
{
	for (size_t i = 0; s->volumes && i < s->volumes->count; i++)
		tell(&s->volumes->list[i], 0);
}

/* The threads have nothing to do while held, so the tables stand still. */
int volumes_save(struct supervisor *s, const char *image, struct husk_error *err)
{
	for (size_t i = 0; s->volumes && i < s->volumes->count; i++) {
		cleanup_free char *path = str_format(NODES_FILE, image, i);
		cleanup_buf struct buf bytes = { 0 };
		if (!path || volume_server_save(s->volumes->list[i].server, &bytes) < 0)
			return husk_fail_memory(err);
		if (file_write_atomic(path, bytes.data, bytes.size, 0600, err) < 0)
			return -1;
	}
	return 0;
}

static void end_one(struct served *served)
{
	pthread_mutex_lock(&served->lock);
	served->ended = true; /* also when its channel was never opened */
	pthread_cond_broadcast(&served->changed);
	pthread_mutex_unlock(&served->lock);
	if (served->started)
		pthread_join(served->thread, NULL);
	for (struct pending *next; served->first; served->first = next) {
		next = served->first->next;
		free(served->first);
	}
	volume_server_free(served->server);
	free(served->path);
}

void volumes_end(struct supervisor *s)
{
	for (size_t i = 0; s->volumes && i < s->volumes->count; i++)
		end_one(&s->volumes->list[i]);
	/* The list itself stays: a made-up END may still be on its way to a handler. It goes with the process. */
}
