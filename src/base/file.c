/*
 * Whole files, directories and descriptors, for the host and the agent. Removing a tree must never follow a link or
 * enter a mount, even in a directory that a hostile guest filled. A reader of a file written by file_write_atomic never
 * sees half of it. After a power cut the old file or no file may be found, because file_write_atomic does not wait for
 * the disk.
 */
#include "base/base.h"

#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* ---- descriptors ---- */

/* Called after a failed read or write. Returns true if it should be repeated; first waits if the descriptor is
 * non-blocking. */
static bool retry_io(int fd, short events)
{
	struct pollfd wait = { .fd = fd, .events = events };

	if (errno == EINTR)
		return true;
	if (errno != EAGAIN)
		return false;
	return poll(&wait, 1, -1) >= 0 || errno == EINTR;
}

void fd_close(int *fd)
{
	int saved = errno;

	if (*fd >= 0 && close(*fd) < 0 && errno == EBADF) {
		log_line(LOG_ERROR, "bug: descriptor %d is not open any more", *fd);
		if (getenv("HUSK_STRICT"))
			abort();
	}
	*fd = -1;
	errno = saved;
}

ssize_t read_full(int fd, void *data, size_t size)
{
	size_t done = 0;

	while (done < size) {
		ssize_t got = read(fd, (char *)data + done, size - done);

		if (got == 0)
			break;
		if (got > 0)
			done += (size_t)got;
		else if (!retry_io(fd, POLLIN))
			return -1;
	}
	return (ssize_t)done;
}

int write_full(int fd, const void *data, size_t size)
{
	size_t done = 0;

	while (done < size) {
		ssize_t put = write(fd, (const char *)data + done, size - done);

		if (put >= 0)
			done += (size_t)put;
		else if (!retry_io(fd, POLLOUT))
			return -1;
	}
	return 0;
}

int fd_set_cloexec(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFD);

	if (flags < 0)
		return -1;
	return fcntl(fd, F_SETFD, on ? flags | FD_CLOEXEC : flags & ~FD_CLOEXEC) < 0 ? -1 : 0;
}

int fd_set_nonblocking(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0)
		return -1;
	return fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) < 0 ? -1 : 0;
}

void fd_set_keepalive(int fd, int idle, int interval, int count)
{
	int on = 1;

	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* ---- files ---- */

char *file_read(const char *path, size_t limit, size_t *size, struct husk_error *err)
{
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	cleanup_buf struct buf content = { 0 };
	char *text;

	if (fd < 0) {
		husk_fail_errno(err, "cannot open %s", path);
		return NULL;
	}
	/* Reads to the end, because the size of a kernel file reads as 0. */
	for (;;) {
		ssize_t got;

		if (buf_reserve(&content, 4096) < 0) {
			husk_fail_memory(err);
			return NULL;
		}
		got = read_full(fd, content.data + content.size, content.capacity - content.size - 1);
		if (got < 0) {
			husk_fail_errno(err, "cannot read %s", path);
			return NULL;
		}
		if (got == 0)
			break;
		content.size += (size_t)got;
		if (content.size > limit) {
			husk_fail(err, HUSK_LIMIT, "%s is larger than the %zu bytes allowed", path, limit);
			return NULL;
		}
	}
	content.data[content.size] = '\0';
	if (size)
		*size = content.size;
	text = buf_steal(&content);
	if (!text)
		husk_fail_memory(err);
	return text;
}

static int write_temporary(int fd, const void *data, size_t size, mode_t mode)
{
	return write_full(fd, data, size) < 0 || fchmod(fd, mode) < 0 ? -1 : 0;
}

int file_write_atomic(const char *path, const void *data, size_t size, mode_t mode, struct husk_error *err)
{
	cleanup_free char *temporary = str_format("%s.XXXXXX", path);
	cleanup_close int fd = -1;

	if (!temporary)
		return husk_fail_memory(err);
	fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0)
		return husk_fail_errno(err, "cannot create a file beside %s", path);
	if (write_temporary(fd, data, size, mode) < 0 || rename(temporary, path) < 0) {
		husk_fail_errno(err, "cannot write %s", path);
		unlink(temporary);
		return -1;
	}
	return 0;
}

int file_poke(const char *path, const char *value, struct husk_error *err)
{
	cleanup_close int fd = open(path, O_WRONLY | O_CLOEXEC);
	size_t size = strlen(value);
	ssize_t put;

	if (fd < 0)
		return husk_fail_errno(err, "cannot open %s", path);
	/* In one write: a kernel file takes each write as a new value. */
	do
		put = write(fd, value, size);
	while (put < 0 && errno == EINTR);
	if (put < 0)
		return husk_fail_errno(err, "cannot write '%s' to %s", value, path);
	if ((size_t)put != size)
		return husk_fail(err, HUSK_INTERNAL, "%s took only %zd bytes of '%s'", path, put, value);
	return 0;
}

/* ---- directories ---- */

static int make_one(const char *path, mode_t mode)
{
	struct stat found;

	if (mkdir(path, mode) == 0)
		return 0;
	if (errno != EEXIST)
		return -1;
	if (stat(path, &found) < 0)
		return -1;
	if (!S_ISDIR(found.st_mode)) {
		errno = ENOTDIR;
		return -1;
	}
	return 0;
}

int dir_make(const char *path, mode_t mode, struct husk_error *err)
{
	cleanup_free char *work = NULL;

	if (make_one(path, mode) == 0)
		return 0;
	if (errno != ENOENT || !*path)
		return husk_fail_errno(err, "cannot make directory '%s'", path);
	work = strdup(path);
	if (!work)
		return husk_fail_memory(err);
	for (char *slash = strchr(work + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		/* Parents get 0755, even if the last directory gets a stricter mode, as with mkdir -p. */
		if (make_one(work, 0755) < 0)
			return husk_fail_errno(err, "cannot make directory '%s'", work);
		*slash = '/';
	}
	if (make_one(path, mode) < 0)
		return husk_fail_errno(err, "cannot make directory '%s'", path);
	return 0;
}

/*
 * A tree is removed depth first through descriptors, so a concurrent rename cannot lead elsewhere. A directory at this
 * depth is moved up into the top directory instead of being entered. That bounds stack and descriptors for trees of any
 * depth.
 */
#define REMOVE_DEEPEST 64

struct removal {
	int top;         /* the directory being removed */
	unsigned lifted; /* names given to the directories that were moved up */
};

static int remove_entry(struct removal *removal, int parent, const char *name, unsigned depth);

static int lift(struct removal *removal, int parent, const char *name)
{
	struct stat taken;
	char lifted[32];

	do
		snprintf(lifted, sizeof(lifted), ".husk-removal-%u", removal->lifted++);
	while (fstatat(removal->top, lifted, &taken, AT_SYMLINK_NOFOLLOW) == 0);
	return renameat(parent, name, removal->top, lifted);
}

/* One pass over a directory. Returns the number of entries found, or -1. */
static long remove_entries(struct removal *removal, int fd, DIR *dir, unsigned depth)
{
	long met = 0;

	for (;;) {
		struct dirent *entry;

		errno = 0;
		entry = readdir(dir);
		if (!entry)
			return errno ? -1 : met;
		if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, ".."))
			continue;
		if (remove_entry(removal, fd, entry->d_name, depth) < 0)
			return -1;
		met++;
	}
}

static int remove_content(struct removal *removal, int parent, const char *name, unsigned depth)
{
	cleanup_close int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	cleanup_dir DIR *dir = NULL;
	long met;
	int own;

	if (fd < 0)
		return -1;
	own = steal_fd(&fd);
	dir = fdopendir(own);
	if (!dir) {
		fd_close(&own);
		return -1;
	}
	if (depth == 0)
		removal->top = own;
	/* Repeated until a pass finds nothing: directories may be moved in meanwhile, and some filesystems skip
	 * names. */
	while ((met = remove_entries(removal, own, dir, depth + 1)) > 0)
		rewinddir(dir);
	return met < 0 ? -1 : 0;
}

static int remove_entry(struct removal *removal, int parent, const char *name, unsigned depth)
{
	if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR)
		return -1;
	/*
	 * rmdir first, before the content is touched: the kernel returns EBUSY for a mount point with any content, and
	 * "not empty" only for a directory of this tree.
	 */
	if (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
		return 0;
	if (errno != ENOTEMPTY && errno != EEXIST)
		return -1;
	if (depth >= REMOVE_DEEPEST)
		return lift(removal, parent, name);
	if (remove_content(removal, parent, name, depth) < 0)
		return errno == ENOENT ? 0 : -1; /* another process has removed it meanwhile */
	return unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : -1;
}

int dir_remove(const char *path, struct husk_error *err)
{
	struct removal removal = { .top = -1 };

	if (remove_entry(&removal, AT_FDCWD, path, 0) < 0)
		return husk_fail_errno(err, "cannot remove '%s'", path);
	return 0;
}

uint64_t dir_bytes(const char *path)
{
	cleanup_dir DIR *dir = opendir(path);
	uint64_t total = 0;
	struct dirent *entry;
	struct stat st;

	if (!dir)
		return 0;
	while ((entry = readdir(dir))) {
		if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, "..") ||
		    fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		cleanup_free char *child = S_ISDIR(st.st_mode) ? str_format("%s/%s", path, entry->d_name) : NULL;
		total += child ? dir_bytes(child) : (uint64_t)st.st_blocks * 512;
	}
	return total;
}
