/*
 * METHOD_WATCH: changes beneath a path, by inotify, one inotify instance per channel. A recursive watch adds a bounded
 * number of directories per turn of the event loop, and follows new directories. When the host is slow, events wait in the
 * kernel's bounded queue, which reports an overflow; nothing else may accumulate here.
 *
 * A write by the agent itself is reported as one event, at its end. A file that the agent creates is reported as create,
 * chmod (the file gets its owner and mode) and write. Temporary files of the agent are never reported.
 *
 * A MSG from the host asks for EVENT_SETTLED, which follows the events of all changes up to then.
 */
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include "agent/agent.h"

#define WATCH_MASK                                                                                                     \
	(IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF)
#define WATCH_ARM_PER_TURN 64

struct watched {
	int number; /* inotify's number; -1: not armed yet, -2: gone */
	char *path;
	bool fresh; /* appeared during the watch: its existing entries are reported */
};

struct watch {
	struct channel channel;
	struct source source;
	bool recursive, announced;
	struct watched *list; /* [0] is the path of the request */
	size_t count, capacity;
	size_t armed;               /* entries before this index are armed */
	uint64_t seen;              /* on the clock of agent->writes: all changes up to there were read */
	uint64_t told[WRITES_MAX];  /* per slot of agent->writes: the write that was reported last */
	uint64_t given[WRITES_MAX]; /* likewise, the write whose new file got its owner and mode */
	uint32_t asked;             /* EVENT_SETTLED that are due */
};

/* A temporary file of file_write_open: only the target is reported. */
static bool is_our_own(const char *name)
{
	return str_starts(name, FILE_TEMPORARY) &&
	       strspn(name + strlen(FILE_TEMPORARY), "abcdefghijklmnopqrstuvwxyz0123456789") == FILE_TEMPORARY_RANDOM &&
	       strlen(name) == strlen(FILE_TEMPORARY) + FILE_TEMPORARY_RANDOM;
}

static int watch_add(struct watch *watch, const char *path, bool fresh)
{
	if (watch->count == watch->capacity) {
		size_t capacity = watch->capacity ? watch->capacity * 2 : 16;
		struct watched *bigger = reallocarray(watch->list, capacity, sizeof(*bigger));
		if (!bigger)
			return -1;
		watch->list = bigger;
		watch->capacity = capacity;
	}
	char *copy = strdup(path);
	if (!copy)
		return -1;
	watch->list[watch->count++] = (struct watched){ .number = -1, .path = copy, .fresh = fresh };
	return 0;
}

static void watch_tell(struct agent *agent, struct watch *watch, enum wire_event event, const char *path)
{
	cleanup_buf struct buf message = { 0 };

	if (wire_put_int(&message, TAG_EVENT, event) < 0 || wire_put_string(&message, TAG_PATH, path) < 0)
		agent_die("out of memory for a message");
	channel_message(agent, &watch->channel, &message);
}

/* Adds the directories in a directory to the list. The entries of a fresh one are reported, because their creation was
 * missed. */
static void watch_scan(struct agent *agent, struct watch *watch, const char *path, bool fresh)
{
	cleanup_dir DIR *directory = opendir(path);
	const struct dirent *entry;

	while (directory && (entry = readdir(directory))) {
		if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, "..") || is_our_own(entry->d_name))
			continue;
		cleanup_free char *inner = str_format("%s%s%s", path, str_ends(path, "/") ? "" : "/", entry->d_name);
		struct stat status;
		if (!inner)
			agent_die("out of memory for a watch");
		if (fresh)
			watch_tell(agent, watch, EVENT_CREATE, inner);
		bool is_directory = entry->d_type == DT_DIR;
		if (entry->d_type == DT_UNKNOWN)
			is_directory = lstat(inner, &status) == 0 && S_ISDIR(status.st_mode);
		if (is_directory && watch_add(watch, inner, fresh) < 0)
			agent_die("out of memory for a watch");
	}
}

static int watch_arm(struct agent *agent, struct watch *watch, size_t index)
{
	uint32_t mask = WATCH_MASK | (index > 0 ? IN_ONLYDIR | IN_DONT_FOLLOW : 0);
	int number = inotify_add_watch(watch->source.fd, watch->list[index].path, mask);

	if (number < 0)
		return -1;
	watch->list[index].number = number;
	if (watch->recursive) {
		/* The list may move while the scan adds to it. */
		cleanup_free char *path = strdup(watch->list[index].path);
		if (!path)
			agent_die("out of memory for a watch");
		watch_scan(agent, watch, path, watch->list[index].fresh);
	}
	return 0;
}

static struct watched *watch_find(struct watch *watch, int number)
{
	/* From the end: if inotify reuses a number, it belongs to the newer entry. */
	for (size_t i = watch->armed; i-- > 0;) {
		if (watch->list[i].number == number)
			return &watch->list[i];
	}
	return NULL;
}

/* A directory was moved away: the entries below it have paths that are no longer true. */
static void watch_forget_below(struct watch *watch, const char *path)
{
	size_t size = strlen(path);

	for (size_t i = 1; i < watch->armed; i++) {
		struct watched *at = &watch->list[i];
		if (at->number < 0 || !str_starts(at->path, path) || (at->path[size] != '/' && at->path[size] != '\0'))
			continue;
		if (inotify_rm_watch(watch->source.fd, at->number) < 0)
			log_line(LOG_DEBUG, "watch of '%s' was gone already", at->path);
		at->number = -2;
	}
}

static enum wire_event event_of(uint32_t mask)
{
	if (mask & (IN_CREATE | IN_MOVED_TO))
		return EVENT_CREATE;
	if (mask & IN_MODIFY)
		return EVENT_WRITE;
	if (mask & (IN_DELETE | IN_DELETE_SELF))
		return EVENT_REMOVE;
	return mask & (IN_MOVED_FROM | IN_MOVE_SELF) ? EVENT_RENAME : EVENT_CHMOD;
}

/* True for a piece of the agent's own write, except the pieces that are reported: the last one, and the first change of the
 * attributes of a new file. */
static bool is_piece(const struct agent *agent, struct watch *watch, uint32_t mask, const char *path)
{
	if (!(mask & (IN_MODIFY | IN_ATTRIB)) || mask & IN_ISDIR)
		return false;
	const struct own_write *write = writes_find(agent, path, watch->seen);
	if (!write)
		return false;
	bool attributes = mask & IN_ATTRIB;
	uint64_t *told = (attributes ? watch->given : watch->told) + (write - agent->writes.list);
	if (!(attributes ? write->created : write->ended) || *told == write->number)
		return true;
	*told = write->number;
	return false;
}

static void watch_event(struct agent *agent, struct watch *watch, const struct inotify_event *event)
{
	if (event->mask & IN_Q_OVERFLOW) {
		watch_tell(agent, watch, EVENT_OVERFLOW, watch->list[0].path);
		return;
	}
	struct watched *at = watch_find(watch, event->wd);
	if (!at)
		return;
	if (event->mask & IN_IGNORED) {
		at->number = -2;
		return;
	}
	/* A directory's own events come from the watch on its parent; only the first entry has no watched parent. */
	bool self = event->len == 0 || event->name[0] == '\0';
	if (self ? at != &watch->list[0] : is_our_own(event->name))
		return;
	cleanup_free char *path =
		self ? strdup(at->path)
		     : str_format("%s%s%s", at->path, str_ends(at->path, "/") ? "" : "/", event->name);
	if (!path)
		agent_die("out of memory for a watch");
	if (is_piece(agent, watch, event->mask, path))
		return;
	watch_tell(agent, watch, event_of(event->mask), path);
	if (!watch->recursive || self || !(event->mask & IN_ISDIR))
		return;
	if (event->mask & IN_MOVED_FROM)
		watch_forget_below(watch, path);
	if (event->mask & (IN_CREATE | IN_MOVED_TO) && watch_add(watch, path, true) < 0)
		agent_die("out of memory for a watch");
}

static bool watch_read(struct agent *agent, struct watch *watch)
{
	char data[4096] __attribute__((aligned(8)));

	if (!watch->source.readable || !uplink_has_room(agent))
		return false;
	uint64_t now = agent->writes.clock;
	ssize_t count = source_read(&watch->source, data, sizeof(data));
	if (count <= 0) {
		watch->seen = now;
		return false;
	}
	for (size_t at = 0; at + sizeof(struct inotify_event) <= (size_t)count;) {
		const struct inotify_event *event = (const struct inotify_event *)(data + at);
		watch_event(agent, watch, event);
		at += sizeof(*event) + event->len;
	}
	return true;
}

static bool watch_pump(struct agent *agent, struct channel *channel)
{
	struct watch *watch = (struct watch *)channel;
	bool moved = false;

	for (int i = 0; i < WATCH_ARM_PER_TURN && watch->armed < watch->count && uplink_has_room(agent); i++) {
		size_t index = watch->armed++;
		/* A directory that vanished before its turn is not a failure; running out of watches is reported as a
		 * gap. */
		if (watch_arm(agent, watch, index) < 0 && errno == ENOSPC)
			watch_tell(agent, watch, EVENT_OVERFLOW, watch->list[index].path);
		moved = true;
	}
	if (!watch->announced && watch->armed == watch->count) {
		channel_message(agent, channel, NULL);
		watch->announced = true;
		moved = true;
	}
	if (watch->announced)
		moved |= watch_read(agent, watch);
	if (watch->asked && watch->announced && watch->armed == watch->count && !watch->source.readable &&
	    uplink_has_room(agent)) {
		watch_tell(agent, watch, EVENT_SETTLED, watch->list[0].path);
		watch->asked--;
		moved = true;
	}
	return moved;
}

/* The changes up to now are in inotify's queue, even if the loop has not noted it yet. */
static void watch_message(struct agent *agent, struct channel *channel, const struct request *request)
{
	struct watch *watch = (struct watch *)channel;

	(void)agent;
	(void)request;
	watch->source.readable = true;
	if (watch->asked < UINT32_MAX)
		watch->asked++;
}

static void watch_cancel(struct agent *agent, struct channel *channel)
{
	channel_end(agent, channel, NULL, NULL);
}

static void watch_release(struct agent *agent, struct channel *channel)
{
	struct watch *watch = (struct watch *)channel;

	source_close(agent, &watch->source);
	for (size_t i = 0; i < watch->count; i++)
		free(watch->list[i].path);
	free(watch->list);
}

static const struct channel_ops watch_ops = {
	.message = watch_message,
	.cancel = watch_cancel,
	.pump = watch_pump,
	.release = watch_release,
};

int watch_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	cleanup_free char *path = NULL;
	struct watch *watch;

	if (request_string(request, TAG_PATH, &path, err) < 0)
		return -1;
	for (size_t size = strlen(path); size > 1 && path[size - 1] == '/'; size--)
		path[size - 1] = '\0';
	cleanup_close int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (fd < 0)
		return husk_fail_errno(err, "cannot watch '%s'", path);
	watch = calloc(1, sizeof(*watch));
	if (!watch)
		return husk_fail_memory(err);
	watch->source.fd = -1;
	watch->seen = agent->writes.clock;
	watch->recursive = request_int(request, TAG_FLAGS, 0) & WATCH_RECURSIVE;
	channel_add(agent, &watch->channel, number, &watch_ops);
	if (source_open(agent, &watch->source, fd, EPOLLIN | EPOLLET, err) == 0) {
		steal_fd(&fd);
		if (watch_add(watch, path, false) < 0)
			husk_fail_memory(err);
		else if (watch_arm(agent, watch, watch->armed++) == 0)
			return 0;
		else
			husk_fail_errno(err, "cannot watch '%s'", path);
	}
	channel_free(agent, &watch->channel);
	return -1;
}
