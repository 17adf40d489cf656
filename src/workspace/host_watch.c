/*
 * See host_watch.h. Directories are found level by level, so that git is asked once for each level of the tree:
 *
 *     ""                       src, docs, node_modules     git ignores node_modules
 *     src, docs                src/a, src/b
 *
 * A directory is watched before its names are read: what comes later is an event.
 */
#include "workspace/host_watch.h"

#include <fcntl.h>
#include <sys/inotify.h>

#define MASK                                                                                                           \
	(IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB | IN_ONLYDIR | IN_EXCL_UNLINK)
#define EVENTS_SIZE (64u << 10)

void host_watch_close(struct host_watch *watch)
{
	for (size_t i = 0; i < watch->room; i++)
		free(watch->paths[i]);
	free(watch->paths);
	free(watch->name);
	fd_close(&watch->fd);
	*watch = (struct host_watch){ .fd = -1 };
}

static int remember(struct host_watch *watch, size_t number, const char *path)
{
	if (number >= watch->room) {
		size_t room = MAX(number + 1, watch->room * 2);
		char **grown = reallocarray(watch->paths, room, sizeof(*grown));
		if (!grown)
			return -1;
		memset(grown + watch->room, 0, (room - watch->room) * sizeof(*grown));
		watch->paths = grown;
		watch->room = room;
	}
	free(watch->paths[number]);
	watch->paths[number] = strdup(path);
	return watch->paths[number] ? 0 : -1;
}

/* Adds the names of directories in this one to `next`. Nothing, if it has gone. */
static int add_directory(struct host_watch *watch, const char *path, struct names *next, struct husk_error *err)
{
	cleanup_close int fd = *path ? host_open(watch->directory, path) : fcntl(watch->directory, F_DUPFD_CLOEXEC, 3);
	char link[64];

	if (fd < 0)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d/.", fd);
	int number = inotify_add_watch(watch->fd, link, MASK);
	if (number < 0 && (errno == ENOTDIR || errno == ENOENT || errno == EACCES))
		return 0;
	if (number < 0 && errno == ENOSPC)
		return husk_fail(err, HUSK_LIMIT,
				 "'%s' has more directories than the system allows one user to watch; raise it: "
				 "sysctl fs.inotify.max_user_watches=1000000",
				 watch->name);
	if (number < 0)
		return husk_fail_errno(err, "cannot watch '%s'", path);
	if (remember(watch, (size_t)number, path) < 0)
		return husk_fail_memory(err);
	/* Opened again: the other descriptor may share its position. */
	cleanup_dir DIR *dir = opendir(link);
	for (struct dirent *entry; dir && (entry = readdir(dir));) {
		cleanup_free char *below = str_format("%s%s%s", path, *path ? "/" : "", entry->d_name);
		if (!below)
			return husk_fail_memory(err);
		if ((entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN) && !name_refused(below) &&
		    names_add(next, below, err) < 0)
			return -1;
	}
	return 0;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Drops the directories that git ignores. */
static int drop_ignored(const struct host_watch *watch, struct names *names, struct husk_error *err)
{
	cleanup_names struct names asked = { 0 }, ignored = { 0 };
	size_t kept = 0;

	if (watch->all)
		return 0;
	for (size_t i = 0; i < names->count; i++) {
		cleanup_free char *name = str_format("%s/", names->items[i]);
		if (!name)
			return husk_fail_memory(err);
		if (names_add(&asked, name, err) < 0)
			return -1;
	}
	if (host_ignored(watch->name, &asked, &ignored, err) < 0)
		return -1;
	if (ignored.count)
		qsort(ignored.items, ignored.count, sizeof(*ignored.items), by_text);
	for (size_t i = 0; i < names->count; i++) {
		if (ignored.count && bsearch(&asked.items[i], ignored.items, ignored.count, sizeof(char *), by_text))
			free(names->items[i]);
		else
			names->items[kept++] = names->items[i];
	}
	names->count = kept;
	return 0;
}

/* The directories and those below. Takes the list. */
static int add_tree(struct host_watch *watch, struct names *level, struct husk_error *err)
{
	while (level->count) {
		cleanup_names struct names next = { 0 };
		for (size_t i = 0; i < level->count; i++)
			if (add_directory(watch, level->items[i], &next, err) < 0)
				return -1;
		if (drop_ignored(watch, &next, err) < 0)
			return -1;
		names_free(level);
		*level = next;
		next = (struct names){ 0 };
	}
	return 0;
}

static int add_top(struct host_watch *watch, const char *path, struct husk_error *err)
{
	cleanup_names struct names level = { 0 };

	if (names_add(&level, path, err) < 0 || (*path && drop_ignored(watch, &level, err) < 0))
		return -1;
	return add_tree(watch, &level, err);
}

int host_watch_open(struct host_watch *watch, const char *name, int directory, bool all, struct husk_error *err)
{
	*watch = (struct host_watch){ .name = strdup(name), .directory = directory, .all = all };
	watch->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (!watch->name || watch->fd < 0)
		return husk_fail_errno(err, "cannot watch '%s'", name);
	return add_top(watch, "", err);
}

/* ---- events ---- */

static void forget_tree(struct host_watch *watch, const char *path)
{
	size_t size = strlen(path);

	for (size_t i = 0; i < watch->room; i++) {
		const char *each = watch->paths[i];
		if (!each || strncmp(each, path, size) != 0 || (each[size] && each[size] != '/'))
			continue;
		inotify_rm_watch(watch->fd, (int)i);
		free(watch->paths[i]);
		watch->paths[i] = NULL;
	}
}

static int take_event(struct host_watch *watch, const struct inotify_event *event, struct names *dirty,
		      bool *everything, struct husk_error *err)
{
	const char *parent = event->wd >= 0 && (size_t)event->wd < watch->room ? watch->paths[event->wd] : NULL;

	if (event->mask & IN_Q_OVERFLOW)
		*everything = true;
	if (!parent)
		return 0;
	if (event->mask & IN_IGNORED) { /* the directory has gone, and with it the watch */
		free(watch->paths[event->wd]);
		watch->paths[event->wd] = NULL;
		return 0;
	}
	if (!event->len)
		return 0;
	cleanup_free char *path = str_format("%s%s%s", parent, *parent ? "/" : "", event->name);
	if (!path)
		return husk_fail_memory(err);
	if (name_refused(path))
		return 0;
	if (str_equal(event->name, ".gitignore") && !watch->all)
		*everything = true;
	if ((event->mask & IN_ISDIR) && (event->mask & (IN_MOVED_FROM | IN_DELETE)))
		forget_tree(watch, path);
	if ((event->mask & IN_ISDIR) && (event->mask & (IN_MOVED_TO | IN_CREATE)) && add_top(watch, path, err) < 0)
		return -1;
	/* The mode of a directory is not carried over. */
	return (event->mask & IN_ISDIR) && (event->mask & IN_ATTRIB) ? 0 : names_add(dirty, path, err);
}

int host_watch_read(struct host_watch *watch, struct names *dirty, bool *everything, struct husk_error *err)
{
	_Alignas(struct inotify_event) char events[EVENTS_SIZE];
	bool again = false;

	for (;;) {
		ssize_t size = read(watch->fd, events, sizeof(events));
		if (size < 0 && errno == EINTR)
			continue;
		if (size < 0 && errno != EAGAIN)
			return husk_fail_errno(err, "cannot watch '%s'", watch->name);
		if (size <= 0)
			break;
		for (char *at = events; at < events + size;) {
			const struct inotify_event *event = (const struct inotify_event *)(void *)at;
			if (take_event(watch, event, dirty, &again, err) < 0)
				return -1;
			at += sizeof(*event) + event->len;
		}
	}
	*everything |= again;
	return again ? add_top(watch, "", err) : 0;
}
