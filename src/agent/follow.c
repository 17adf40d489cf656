/*
 * Directories whose changes are noted. A listing by time (changes.c) looks at every file that was ever written, and where a system
 * call takes ten microseconds (gVisor), ten thousand files take a tenth of a second. So each directory that such a listing has seen
 * is followed by inotify from then on, and the next listing looks only at the names that were noted:
 *
 *     listing 1    /work: 900 files, all looked at; the watch was added first    noted: a, b (changed since the time asked for)
 *     later        a program writes /work/c
 *     listing 2    a, b and c are looked at
 *
 * The notes are memory of the machine: forks have them, and a rewind brings the older ones back. A directory is trusted if every
 * directory above is, and none was moved, removed or made since: what is followed is the directory, what is asked for is a path.
 *
 * What inotify does not report is looked at each time: files with several names, since a write shows only under the name that was
 * used. A new such file makes one listing look at everything. A file that a program has opened and emptied is found once it is written or closed.
 *
 * Not in a virtual machine: there a look costs less than a note, and writes through a mapping change the time without an event.
 */
#include "agent/follow.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/inotify.h>

#define FOLLOW_MASK (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE)
#define FOLLOWED_MAX 8192u   /* directories */
#define NOTED_MAX 500u       /* names of one directory; one with more is looked at as a whole */
#define NOTED_ALL_MAX 50000u /* names of all */
#define FOLLOW_PACE_MS 1000  /* between two readings of the events, however many there are */

enum note_flags { NOTE_WHOLE = 1, NOTE_LEAF = 2, NOTE_YOUNG = 4 };

/* ---- the lists ---- */

static int by_number(const void *a, const void *b)
{
	const struct followed *left = *(struct followed *const *)a, *right = *(struct followed *const *)b;

	return (left->number > right->number) - (left->number < right->number);
}

static int by_path(const void *a, const void *b)
{
	return strcmp((*(struct followed *const *)a)->path, (*(struct followed *const *)b)->path);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct noted *)a)->name, ((const struct noted *)b)->name);
}

const struct noted *follow_noted(const struct followed *at, const char *name)
{
	const struct noted key = { .name = (char *)name };

	return at->count ? bsearch(&key, at->names, at->count, sizeof(key), by_name) : NULL;
}

static struct followed **find_number(const struct follow *follow, int number)
{
	const struct followed key = { .number = number }, *pointer = &key;

	return follow->count ? bsearch(&pointer, follow->list, follow->count, sizeof(pointer), by_number) : NULL;
}

static void drop_names(struct follow *follow, struct followed *at)
{
	for (size_t i = 0; i < at->count; i++)
		free(at->names[i].name);
	follow->names -= at->count;
	free(at->names);
	at->names = NULL;
	at->count = 0;
}

/* The directory is no longer followed, and with it nothing below is trusted. */
static void drop(struct follow *follow, struct followed **slot)
{
	struct followed *at = *slot;
	size_t after = follow->count - (size_t)(slot - follow->list) - 1;

	if (inotify_rm_watch(follow->source.fd, at->number) < 0)
		log_line(LOG_DEBUG, "'%s' is followed no more", at->path);
	memmove(slot, slot + 1, after * sizeof(*slot));
	follow->count--;
	drop_names(follow, at);
	free(at->path);
	free(at);
}

static void drop_all(struct agent *agent)
{
	struct follow *follow = &agent->follow;

	while (follow->count)
		drop(follow, &follow->list[follow->count - 1]);
	source_close(agent, &follow->source);
}

/* -1: too many, or no memory. */
static int add_name(struct follow *follow, struct followed *at, const char *name)
{
	struct noted *known = (struct noted *)follow_noted(at, name);

	if (known) {
		known->turn = follow->turn;
		return 0;
	}
	if (at->count == NOTED_MAX || follow->names == NOTED_ALL_MAX)
		return -1;
	struct noted *grown = reallocarray(at->names, at->count + 1, sizeof(*grown));
	if (!grown)
		return -1;
	at->names = grown;
	char *copy = strdup(name);
	if (!copy)
		return -1;
	size_t place = at->count;
	for (; place > 0 && strcmp(at->names[place - 1].name, name) > 0; place--)
		at->names[place] = at->names[place - 1];
	at->names[place] = (struct noted){ .name = copy, .turn = follow->turn };
	at->count++;
	follow->names++;
	return 0;
}

/* ---- in the agent ---- */

static void take_event(struct agent *agent, const struct inotify_event *event)
{
	struct follow *follow = &agent->follow;
	struct followed **slot = find_number(follow, event->wd);

	if (!slot)
		return;
	if (event->mask & IN_IGNORED || (event->len && event->name[0] && add_name(follow, *slot, event->name) < 0))
		drop(follow, slot);
}

static void take_events(struct agent *agent)
{
	struct follow *follow = &agent->follow;
	ssize_t count;

	follow->source.readable = false;
	while (follow->source.fd >= 0 && (count = source_read(&follow->source, agent->chunk, sizeof(agent->chunk))) > 0)
		for (size_t at = 0; at + sizeof(struct inotify_event) <= (size_t)count;) {
			struct inotify_event event;
			memcpy(&event, agent->chunk + at, sizeof(event));
			if (event.mask & IN_Q_OVERFLOW) {
				drop_all(agent);
				return;
			}
			take_event(agent, (const struct inotify_event *)(agent->chunk + at));
			at += sizeof(event) + event.len;
		}
}

/* The next event wakes the loop once; those after it wait until they are read. */
static void arm(struct agent *agent)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.ptr = &agent->follow.source };

	if (agent->follow.source.fd >= 0 && epoll_ctl(agent->epoll, EPOLL_CTL_MOD, agent->follow.source.fd, &event) < 0)
		drop_all(agent);
}

bool follow_begin(struct agent *agent)
{
	struct follow *follow = &agent->follow;
	struct husk_error err;

	if (kernel_is_ours() || follow->walks || agent->layers.upper < 0)
		return false;
	if (follow->source.fd < 0) {
		int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
		if (fd < 0)
			return false;
		if (source_open(agent, &follow->source, fd, EPOLLIN | EPOLLONESHOT, &err) < 0) {
			fd_close(&fd);
			return false;
		}
	}
	follow->turn++;
	take_events(agent);
	if (follow->source.fd < 0)
		return false;
	follow->walks = 1;
	return true;
}

void follow_end(struct agent *agent)
{
	agent->follow.walks = 0;
	arm(agent);
}

int64_t follow_next_ms(const struct agent *agent)
{
	return agent->follow.source.readable && !agent->follow.walks ? agent->follow.next_ms : 0;
}

void follow_work(struct agent *agent)
{
	struct follow *follow = &agent->follow;

	/* A worker may follow directories that the agent was not told of yet: their events stay in the queue. */
	if (!follow->source.readable || follow->walks || time_monotonic_ms() < follow->next_ms)
		return;
	/* As events of after the last listing. */
	follow->turn++;
	take_events(agent);
	follow->next_ms = time_monotonic_ms() + FOLLOW_PACE_MS;
	arm(agent);
}

static struct followed *add(struct follow *follow, int number, char *path)
{
	struct followed **grown = reallocarray(follow->list, follow->count + 1, sizeof(*grown));
	struct followed *at = grown ? calloc(1, sizeof(*at)) : NULL;
	size_t place = follow->count;

	if (grown)
		follow->list = grown;
	if (!at)
		return NULL;
	*at = (struct followed){ .number = number, .path = path };
	for (; place > 0 && follow->list[place - 1]->number > number; place--)
		follow->list[place] = follow->list[place - 1];
	follow->list[place] = at;
	follow->count++;
	return at;
}

void follow_note(struct agent *agent, const char *message, size_t size)
{
	struct follow *follow = &agent->follow;
	char *path = wire_get_string(message, size, TAG_PATH);
	int number = (int)wire_get_int(message, size, TAG_COUNT, -1);
	int64_t flags = wire_get_int(message, size, TAG_FLAGS, 0);
	struct followed **slot = find_number(follow, number);
	struct wire_field field;
	size_t cursor = 0;

	if (slot) /* seen again, perhaps by another name */
		drop_names(follow, *slot);
	if (slot && path) {
		free((*slot)->path);
		(*slot)->path = path;
	}
	struct followed *at = slot ? *slot : path ? add(follow, number, path) : NULL;
	if (!at) {
		free(path);
		drop_all(agent);
		return;
	}
	at->turn = follow->turn;
	at->whole = flags & NOTE_WHOLE;
	at->leaf = flags & NOTE_LEAF;
	at->young = flags & NOTE_YOUNG;
	at->since_ns = wire_get_int(message, size, TAG_CTIME_NS, INT64_MAX);
	bool lost = false;
	while (wire_next(message, size, &cursor, &field) > 0)
		if (field.tag == TAG_NAME && !lost) {
			cleanup_free char *name = strndup(field.data, field.size);
			lost = !name || add_name(follow, at, name) < 0;
		}
	if (lost)
		drop(follow, find_number(follow, number));
}

/* ---- in the worker ---- */

void follow_sort(struct follow *follow)
{
	if (follow->count)
		qsort(follow->list, follow->count, sizeof(*follow->list), by_path);
}

const struct followed *follow_find(const struct follow *follow, const struct followed *above, const char *name,
				   const char *path)
{
	const struct followed key = { .path = (char *)path }, *pointer = &key;
	struct followed **slot =
		follow->count ? bsearch(&pointer, follow->list, follow->count, sizeof(pointer), by_path) : NULL;
	const struct noted *noted = slot && above ? follow_noted(above, name) : NULL;

	/* Made, moved or removed since: it is another directory. */
	if (!slot || (noted && noted->turn > (*slot)->turn) || (above && (*slot)->turn < above->turn))
		return NULL;
	return *slot;
}

void note_free(struct note *note)
{
	buf_free(&note->message);
}

void note_begin(struct job *job, const char *path, struct note *note)
{
	*note = (struct note){ .number = -1, .leaf = true };
	if (job->follow->count + job->followed >= FOLLOWED_MAX)
		return;
	note->number = inotify_add_watch(job->follow->source.fd, *path ? path : "/",
					 FOLLOW_MASK | IN_ONLYDIR | IN_DONT_FOLLOW);
}

void note_name(struct note *note, const char *name)
{
	if (note->number >= 0 && (++note->count > NOTED_MAX || wire_put_string(&note->message, TAG_NAME, name) < 0))
		note->number = -1;
}

bool note_end(struct job *job, struct note *note, const char *path, bool whole, int64_t since_ns)
{
	int bad = 0;

	if (note->number < 0)
		return false;
	bad |= wire_put_string(&note->message, TAG_PATH, path);
	bad |= wire_put_int(&note->message, TAG_COUNT, note->number);
	bad |= wire_put_int(&note->message, TAG_CTIME_NS, since_ns);
	bad |= wire_put_int(&note->message, TAG_FLAGS,
			    (whole ? NOTE_WHOLE : 0) | (note->leaf ? NOTE_LEAF : 0) | (note->young ? NOTE_YOUNG : 0));
	if (bad || job_message(job, WIRE_HELLO, &note->message, NULL) < 0)
		return false;
	job->followed++;
	return true;
}
