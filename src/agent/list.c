/*
 * METHOD_FILE_LIST: the entries of a directory, down to a given depth, as messages. The work uses a stack of open
 * directories and a bounded number of entries per turn of the event loop, because forking a worker costs more than most
 * listings. Symbolic links inside the tree must never be followed.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "agent/agent.h"
#include "agent/entry.h"

#define LIST_DEPTH_MAX 256 /* one open descriptor per level; methods.def refuses more */
#define LIST_PER_TURN 64

struct level {
	int fd;
	char *path;
	char **names;
	size_t next; /* of names */
};

struct list {
	struct channel channel;
	int64_t depth;
	size_t open; /* levels in use */
	struct level levels[LIST_DEPTH_MAX];
};

/* Sorted, so that the order of a listing is stable. */
char **list_names(int fd, const char *path, list_filter wanted, const void *data, struct husk_error *err)
{
	cleanup_strv char **names = calloc(1, sizeof(*names));
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* closedir closes this copy */
	cleanup_dir DIR *directory = copy < 0 ? NULL : fdopendir(copy);
	const struct dirent *entry;
	size_t count = 0, room = 0;

	if (!directory && copy >= 0)
		fd_close(&copy);
	if (!directory || !names) {
		husk_fail_errno(err, "cannot list '%s'", path);
		return NULL;
	}
	while ((errno = 0, entry = readdir(directory))) {
		if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, "..") || (wanted && !wanted(data, entry)))
			continue;
		if (count + 1 >= room) { /* grows by doubling: strv_add walks the list, and directories can be large */
			room = room ? room * 2 : 64;
			char **bigger = reallocarray(names, room, sizeof(*names));
			if (!bigger) {
				husk_fail_memory(err);
				return NULL;
			}
			names = bigger;
		}
		names[count] = strdup(entry->d_name);
		names[count + 1] = NULL;
		if (!names[count++]) {
			husk_fail_memory(err);
			return NULL;
		}
	}
	if (errno) {
		husk_fail_errno(err, "cannot list '%s'", path);
		return NULL;
	}
	strv_sort(names);
	return steal_pointer(names);
}

/* Takes ownership of the descriptor and the path, also if it fails. */
static int level_push(struct list *list, int fd, char *path, struct husk_error *err)
{
	struct level *level = &list->levels[list->open++];

	*level = (struct level){ .fd = fd, .path = path };
	level->names = list_names(fd, path, NULL, NULL, err);
	return level->names ? 0 : -1;
}

static void level_pop(struct list *list)
{
	struct level *level = &list->levels[--list->open];

	fd_close(&level->fd);
	free(level->path);
	strv_free(level->names);
}

/* One entry. A file that vanishes between readdir and stat is left out. */
static int list_entry(struct agent *agent, struct list *list, struct level *level, const char *name,
		      struct husk_error *err)
{
	cleanup_free char *path = str_format("%s%s%s", level->path, str_ends(level->path, "/") ? "" : "/", name);
	cleanup_buf struct buf message = { 0 };
	struct stat status;

	if (!path)
		return husk_fail_memory(err);
	if (fstatat(level->fd, name, &status, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : husk_fail_errno(err, "cannot read the attributes of '%s'", path);
	if (entry_put(&message, path, level->fd, name, &status, err) < 0)
		return -1;
	channel_message(agent, &list->channel, &message);
	if (!S_ISDIR(status.st_mode) || (int64_t)list->open >= list->depth)
		return 0;
	int fd = openat(level->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : husk_fail_errno(err, "cannot list '%s'", path);
	return level_push(list, fd, steal_pointer(path), err);
}

static bool list_pump(struct agent *agent, struct channel *channel)
{
	struct list *list = (struct list *)channel;
	struct husk_error err;

	for (int i = 0; i < LIST_PER_TURN && list->open > 0; i++) {
		struct level *level = &list->levels[list->open - 1];
		if (!uplink_has_room(agent))
			return i > 0;
		const char *name = level->names[level->next];
		if (!name) {
			level_pop(list);
			continue;
		}
		level->next++;
		if (list_entry(agent, list, level, name, &err) < 0) {
			channel_end(agent, channel, &err, NULL);
			return true;
		}
	}
	if (list->open == 0)
		channel_end(agent, channel, NULL, NULL);
	return true;
}

static void list_release(struct agent *agent, struct channel *channel)
{
	struct list *list = (struct list *)channel;

	(void)agent;
	while (list->open > 0)
		level_pop(list);
}

static const struct channel_ops list_ops = {
	.cancel = channel_end_cancelled,
	.pump = list_pump,
	.release = list_release,
};

int file_list_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	cleanup_free char *path = NULL;

	if (request_string(request, TAG_PATH, &path, err) < 0)
		return -1;
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return husk_fail_errno(err, "cannot list '%s'", path);
	struct list *list = calloc(1, sizeof(*list));
	if (!list) {
		fd_close(&fd);
		return husk_fail_memory(err);
	}
	list->depth = MIN(request_int(request, TAG_DEPTH, 1), LIST_DEPTH_MAX);
	channel_add(agent, &list->channel, number, &list_ops);
	if (level_push(list, fd, steal_pointer(path), err) == 0)
		return 0;
	channel_free(agent, &list->channel);
	return -1;
}
