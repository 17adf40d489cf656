/*
 * Whole trees: FILE_LIST, FILE_REMOVE, and the fields of an entry. The walking runs in a worker (worker.c), so it may
 * block and recurse; it must never follow a symbolic link it meets inside the tree.
 */
#include <fcntl.h>
#include <limits.h>

#include "agent/agent.h"
#include "agent/entry.h"
#include "agent/users.h"

#define LIST_DEPTH_MAX 256 /* a descriptor is open per level */

static int64_t entry_type(mode_t mode)
{
	if (S_ISREG(mode))
		return ENTRY_FILE;
	if (S_ISDIR(mode))
		return ENTRY_DIRECTORY;
	return S_ISLNK(mode) ? ENTRY_SYMLINK : ENTRY_OTHER;
}

int entry_put(struct buf *message, const char *path, int directory, const char *name, const struct stat *status,
	      struct husk_error *err)
{
	char target[PATH_MAX];
	int64_t mtime_ms = (int64_t)status->st_mtim.tv_sec * 1000 + status->st_mtim.tv_nsec / 1000000;

	if (wire_put_string(message, TAG_PATH, path) < 0 ||
	    wire_put_int(message, TAG_FILE_TYPE, entry_type(status->st_mode)) < 0 ||
	    wire_put_int(message, TAG_SIZE, status->st_size) < 0 ||
	    wire_put_int(message, TAG_MODE, status->st_mode & 07777) < 0 ||
	    wire_put_int(message, TAG_UID, status->st_uid) < 0 || wire_put_int(message, TAG_GID, status->st_gid) < 0 ||
	    wire_put_string(message, TAG_USER, user_name(status->st_uid)) < 0 ||
	    wire_put_string(message, TAG_GROUP, group_name(status->st_gid)) < 0 ||
	    wire_put_int(message, TAG_MTIME_MS, mtime_ms) < 0)
		return husk_fail_memory(err);
	if (S_ISLNK(status->st_mode)) {
		ssize_t size = readlinkat(directory, name, target, sizeof(target));
		if (size >= 0 && wire_put_bytes(message, TAG_TARGET, target, (size_t)size) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

/* ---- list ---- */

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a directory, sorted, so that a listing reads the same each time. Takes the descriptor. */
static char **directory_names(int fd, const char *path, struct husk_error *err)
{
	cleanup_strv char **names = calloc(1, sizeof(*names));
	cleanup_dir DIR *directory = fdopendir(fd);
	const struct dirent *entry;
	size_t count = 0, room = 0;

	if (!directory)
		close(fd);
	if (!directory || !names) {
		husk_fail_errno(err, "cannot list '%s'", path);
		return NULL;
	}
	while ((errno = 0, entry = readdir(directory))) {
		if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, ".."))
			continue;
		if (count + 1 >= room) { /* doubling here: strv_add walks the list, and directories can be large */
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
	qsort(names, count, sizeof(*names), by_name);
	return steal_pointer(names);
}

static int list_directory(struct job *job, int fd, const char *path, int64_t depth, struct husk_error *err);

static int list_entry(struct job *job, int directory, const char *parent, const char *name, int64_t depth,
		      struct husk_error *err)
{
	cleanup_free char *path = str_format("%s%s%s", parent, str_ends(parent, "/") ? "" : "/", name);
	cleanup_buf struct buf message = { 0 };
	struct stat status;

	if (!path)
		return husk_fail_memory(err);
	if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : husk_fail_errno(err, "cannot look at '%s'", path); /* gone meanwhile */
	if (entry_put(&message, path, directory, name, &status, err) < 0 || job_message(job, &message, err) < 0)
		return -1;
	if (!S_ISDIR(status.st_mode) || depth <= 1)
		return 0;
	int fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : husk_fail_errno(err, "cannot list '%s'", path);
	return list_directory(job, fd, path, depth - 1, err);
}

static int list_directory(struct job *job, int fd, const char *path, int64_t depth, struct husk_error *err)
{
	cleanup_close int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	cleanup_strv char **names = directory_names(fd, path, err);

	if (own < 0)
		return husk_fail_errno(err, "cannot list '%s'", path);
	for (char **name = names; name && *name; name++) {
		if (list_entry(job, own, path, *name, depth, err) < 0)
			return -1;
	}
	return names ? 0 : -1;
}

static int list_run(struct job *job, struct husk_error *err)
{
	int64_t depth = request_int(&job->request, TAG_DEPTH, 1);
	cleanup_free char *path = NULL;

	if (request_path(&job->request, TAG_PATH, &path, err) < 0)
		return -1;
	if (depth < 1 || depth > LIST_DEPTH_MAX)
		return husk_fail(err, HUSK_INVALID, "depth %lld is not within 1 to %d", (long long)depth, LIST_DEPTH_MAX);
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return husk_fail_errno(err, "cannot list '%s'", path);
	return list_directory(job, fd, path, depth, err);
}

int file_list_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	return worker_open(agent, number, request, list_run, err);
}

/* ---- remove ---- */

static int remove_run(struct job *job, struct husk_error *err)
{
	cleanup_free char *path = NULL;

	if (request_path(&job->request, TAG_PATH, &path, err) < 0)
		return -1;
	return dir_remove(path, err);
}

/* A single file goes at once; only a tree is worth a worker. */
int file_remove_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	cleanup_free char *path = NULL;
	struct stat status;

	if (request_path(request, TAG_PATH, &path, err) < 0)
		return -1;
	if (strspn(path, "/.") == strlen(path))
		return husk_fail(err, HUSK_INVALID, "will not remove '%s'; throw the sandbox away instead", path);
	if (lstat(path, &status) < 0)
		return husk_fail_errno(err, "cannot remove '%s'", path);
	if (S_ISDIR(status.st_mode) && rmdir(path) < 0) {
		if (errno == ENOTEMPTY || errno == EEXIST)
			return worker_open(agent, number, request, remove_run, err);
		return husk_fail_errno(err, "cannot remove '%s'", path);
	}
	if (!S_ISDIR(status.st_mode) && unlink(path) < 0)
		return husk_fail_errno(err, "cannot remove '%s'", path);
	link_end(agent, number, NULL, NULL);
	return 0;
}
