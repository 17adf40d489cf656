/*
 * Operations beneath the directory of a volume; see volume.h. Paths are chosen by an attacker, and another sandbox may
 * change the same directory at the same time. So every step works on descriptors that openat2 opened beneath the root,
 * never on a path that may have become a link meanwhile.
 */
#include "volume/volume.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define DEPTH_MAX 400    /* one open directory per level; a deeper tree counts as full, never as smaller than it is */
#define MODE_BITS 01777u /* set-uid and set-gid have no effect here, and must have none on the host */

#define LOCK_PAUSE_MS 20
#define COUNT_LOCK_MS 60000 /* another process counts the volume */
#define FILE_LOCK_MS 5000   /* another process removes a name */

struct volume_count {
	_Atomic uint64_t used;
	_Atomic uint32_t clean; /* the last process closed it cleanly */
};

/* Another process holds the lock for a moment. A process that a guest has taken over may hold it for ever: EBUSY. */
static int lock_shared(int fd, int timeout_ms)
{
	for (int waited = 0; flock(fd, LOCK_SH | LOCK_NB) < 0; waited += LOCK_PAUSE_MS) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return -1;
		if (waited >= timeout_ms) {
			errno = EBUSY;
			return -1;
		}
		poll(NULL, 0, LOCK_PAUSE_MS);
	}
	return 0;
}

/* ---- the count ---- */

static uint64_t data_charge(const struct stat *status)
{
	uint64_t size = S_ISREG(status->st_mode) && status->st_size > 0 ? (uint64_t)status->st_size : 0;

	return (size + VOLUME_BLOCK - 1) / VOLUME_BLOCK * VOLUME_BLOCK;
}

static int charge(struct volume *volume, uint64_t more)
{
	if (!volume->count)
		return 0;
	uint64_t used = atomic_load(&volume->count->used);

	do {
		if (more > volume->limit || used > volume->limit - more) {
			errno = ENOSPC;
			return -1;
		}
	} while (!atomic_compare_exchange_weak(&volume->count->used, &used, used + more));
	return 0;
}

static void refund(struct volume *volume, uint64_t less)
{
	if (!volume->count)
		return;
	uint64_t used = atomic_load(&volume->count->used);

	while (!atomic_compare_exchange_weak(&volume->count->used, &used, used > less ? used - less : 0))
		;
}

/* Keeps errno, for the clean-up after a failure. */
static int refund_failed(struct volume *volume, uint64_t less)
{
	int why = errno;

	refund(volume, less);
	errno = why;
	return -1;
}

uint64_t volume_used(const struct volume *volume)
{
	return volume->count ? atomic_load(&volume->count->used) : 0;
}

/* Counts everything below a directory, and closes its descriptor. A tree that changes meanwhile is counted as found. */
static uint64_t count_tree(int fd, int depth)
{
	cleanup_dir DIR *dir = fdopendir(fd);
	uint64_t sum = 0;
	struct stat status;

	if (!dir)
		fd_close(&fd);
	if (!dir || depth > DEPTH_MAX)
		return UINT64_MAX / 2;
	for (struct dirent *entry; (entry = readdir(dir));) {
		if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, "..") ||
		    fstatat(dirfd(dir), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		/* A file with several names counts a share for each. */
		sum += VOLUME_BLOCK + data_charge(&status) / MAX(status.st_nlink, 1u);
		int below = S_ISDIR(status.st_mode)
				    ? openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
				    : -1;
		uint64_t more = below >= 0 ? count_tree(below, depth + 1) : 0;
		sum = MIN(sum + more, UINT64_MAX / 2);
	}
	return sum;
}

int volume_adopt(int root, int count_fd, uint64_t limit, struct volume *out, struct husk_error *err)
{
	*out = (struct volume){ .root = root, .tree = -1, .count_fd = count_fd, .limit = limit };
	if (ftruncate(count_fd, sizeof(*out->count)) == 0)
		out->count = mmap(NULL, sizeof(*out->count), PROT_READ | PROT_WRITE, MAP_SHARED, count_fd, 0);
	if (out->count && out->count != MAP_FAILED)
		return 0;
	husk_fail_errno(err, "cannot map the count of a volume");
	out->count = NULL;
	volume_close(out);
	return -1;
}

void volume_open_limited(int root, uint64_t limit, struct volume *out)
{
	*out = (struct volume){ .root = root, .tree = -1, .count_fd = -1, .limit = limit };
}

int volume_join(struct volume *volume, struct husk_error *err)
{
	if (!volume->count)
		return 0;
	/* With the exclusive lock: a killed process may have left a wrong count. Other processes wait for the shared
	 * lock meanwhile. */
	if (flock(volume->count_fd, LOCK_EX | LOCK_NB) == 0 && !atomic_exchange(&volume->count->clean, 0)) {
		int fd = openat(volume->tree >= 0 ? volume->tree : volume->root, ".",
				O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0)
			return husk_fail_errno(err, "cannot read the volume");
		atomic_store(&volume->count->used, count_tree(fd, 0));
	}
	if (lock_shared(volume->count_fd, COUNT_LOCK_MS) < 0)
		return husk_fail_errno(err, "cannot lock the count of a volume");
	atomic_store(&volume->count->clean, 0);
	volume->joined = true;
	return 0;
}

int volume_make(const char *directory, struct husk_error *err)
{
	cleanup_free char *data = volume_data(directory);

	if (!data)
		return husk_fail_memory(err);
	/* Only the owner of the instance can pass the outer directory. Inside a guest the volume is writable for
	 * everyone, as a shared disk is. */
	if (dir_make(directory, 0700, err) < 0 || dir_make(data, 0777, err) < 0)
		return -1;
	return chmod(data, 0777) < 0 ? husk_fail_errno(err, "cannot open '%s' to everybody", data) : 0;
}

char *volume_data(const char *directory)
{
	return str_format("%s/data", directory);
}

int volume_count_open(const char *directory, struct husk_error *err)
{
	cleanup_free char *usage = str_format("%s/usage", directory);

	if (!usage)
		return husk_fail_memory(err);
	int fd = open(usage, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd < 0 ? husk_fail_errno(err, "cannot open '%s'", usage) : fd;
}

int volume_open(const char *directory, uint64_t limit, struct volume *out, struct husk_error *err)
{
	cleanup_free char *data = volume_data(directory);
	cleanup_close int root = data ? open(data, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;

	*out = (struct volume){ .root = -1, .tree = -1, .count_fd = -1 };
	if (root < 0)
		return husk_fail_errno(err, "cannot open the volume's directory '%s/data'", directory);
	int count_fd = volume_count_open(directory, err);
	if (count_fd < 0 || volume_adopt(steal_fd(&root), count_fd, limit, out, err) < 0)
		return -1;
	if (volume_join(out, err) == 0)
		return 0;
	volume_close(out);
	return -1;
}

void volume_close(struct volume *volume)
{
	if (volume->count) {
		/* The last process: the count is right until the next change. */
		if (volume->joined && flock(volume->count_fd, LOCK_EX | LOCK_NB) == 0)
			atomic_store(&volume->count->clean, 1);
		munmap(volume->count, sizeof(*volume->count));
	}
	fd_close(&volume->count_fd);
	fd_close(&volume->root);
	fd_close(&volume->tree);
	*volume = (struct volume){ .root = -1, .tree = -1, .count_fd = -1 };
}

/* ---- opening ---- */

bool volume_holds(const struct stat *status)
{
	return S_ISREG(status->st_mode) || S_ISDIR(status->st_mode) || S_ISLNK(status->st_mode);
}

int volume_at(const struct volume *volume, const char *path, int flags, mode_t mode)
{
	struct open_how how = {
		.flags = (uint64_t)(unsigned)(flags | O_NOFOLLOW | O_CLOEXEC),
		.mode = flags & O_CREAT ? mode & MODE_BITS : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
	};
	int fd;

	/* EAGAIN: a concurrent rename happened on the way, and the kernel could not rule out that the path led
	 * outside. */
	for (int tries = 0; tries < 100; tries++) {
		fd = (int)syscall(SYS_openat2, volume->root, *path ? path : ".", &how, sizeof(how));
		if (fd >= 0 || errno != EAGAIN)
			break;
	}
	return fd;
}

int volume_entry(const struct volume *volume, const char *path)
{
	cleanup_close int fd = volume_at(volume, path, O_PATH, 0);
	struct stat status, again;

	if (fd < 0 || fstat(fd, &status) < 0)
		return -1;
	if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
		return steal_fd(&fd);
	cleanup_close int open_fd = volume_at(volume, path, O_RDONLY | O_NONBLOCK, 0);
	if (open_fd < 0 || fstat(open_fd, &again) < 0)
		return -1;
	if (again.st_ino == status.st_ino)
		return steal_fd(&open_fd);
	errno = ESTALE;
	return -1;
}

/* The shared lock marks the file as in use for the process that removes the last name. If the file was removed before,
 * the open fails. */
static int take_in_use(int fd)
{
	struct stat status = { 0 };

	if (fd < 0)
		return -1;
	bool file = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
	bool locked = file && lock_shared(fd, FILE_LOCK_MS) == 0;
	if (locked && fstat(fd, &status) == 0 && status.st_nlink > 0)
		return fd;
	fd_close(&fd);
	errno = S_ISDIR(status.st_mode) ? EISDIR : file && !locked ? EBUSY : ENOENT;
	return -1;
}

int volume_file(const struct volume *volume, const char *path, bool writable, int more_flags)
{
	return take_in_use(volume_at(volume, path, (writable ? O_RDWR : O_RDONLY) | O_NONBLOCK | more_flags, 0));
}

void volume_drop(struct volume *volume, int fd)
{
	struct stat status;

	/* If several processes used the file after its last name was removed, only one gets the exclusive lock. */
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 0 &&
	    flock(fd, LOCK_EX | LOCK_NB) == 0)
		refund(volume, VOLUME_BLOCK + data_charge(&status));
	fd_close(&fd);
}

int volume_create(struct volume *volume, const char *path, mode_t mode, uid_t uid, gid_t gid, int more_flags)
{
	if (charge(volume, VOLUME_BLOCK) < 0)
		return -1;
	int fd = volume_at(volume, path, O_RDWR | O_CREAT | O_EXCL | O_NONBLOCK | more_flags, mode);
	if (fd < 0)
		return refund_failed(volume, VOLUME_BLOCK);
	/* Mode after owner. The mode is set again because open applied the umask. */
	if (fchown(fd, uid, gid) < 0 || fchmod(fd, mode & MODE_BITS) < 0)
		log_line(LOG_WARN, "volume: owner or mode of a new file: %s", strerror(errno));
	return take_in_use(fd);
}

/* ---- content ---- */

/* Charges the room for a file to grow to `size`; *more is the amount charged. */
static int charge_growth(struct volume *volume, int fd, off_t size, uint64_t *more)
{
	struct stat before, after;

	if (fstat(fd, &before) < 0)
		return -1;
	after = before;
	after.st_size = MAX(size, before.st_size);
	*more = data_charge(&after) - data_charge(&before);
	return *more ? charge(volume, *more) : 0;
}

ssize_t volume_write(struct volume *volume, int fd, const void *data, size_t size, off_t offset, bool append)
{
	struct stat status;
	uint64_t more;
	off_t end;

	if (append && fstat(fd, &status) == 0)
		offset = status.st_size;
	if (offset < 0 || __builtin_add_overflow(offset, (off_t)size, &end)) {
		errno = EFBIG;
		return -1;
	}
	if (charge_growth(volume, fd, end, &more) < 0)
		return -1;
	ssize_t count = pwrite(fd, data, size, offset);
	/* The disk may be full before the volume is: bytes that were not written are refunded. */
	if (count < 0)
		return refund_failed(volume, more);
	return count;
}

int volume_truncate(struct volume *volume, int fd, off_t size)
{
	struct stat before, after;
	uint64_t more;

	if (size < 0) {
		errno = EINVAL;
		return -1;
	}
	if (fstat(fd, &before) < 0 || charge_growth(volume, fd, size, &more) < 0)
		return -1;
	if (ftruncate(fd, size) < 0)
		return refund_failed(volume, more);
	after = before;
	after.st_size = size;
	if (data_charge(&before) > data_charge(&after))
		refund(volume, data_charge(&before) - data_charge(&after));
	return 0;
}

/* ---- names ---- */

int volume_mkdir(struct volume *volume, int parent, const char *name, mode_t mode, uid_t uid, gid_t gid)
{
	if (charge(volume, VOLUME_BLOCK) < 0)
		return -1;
	if (mkdirat(parent, name, mode & MODE_BITS) < 0)
		return refund_failed(volume, VOLUME_BLOCK);
	cleanup_close int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	/* If the open fails, another process has replaced the directory, and its version stays. */
	if (fd >= 0 && (volume_chown(fd, uid, gid) < 0 || volume_chmod(fd, mode) < 0))
		log_line(LOG_WARN, "volume: owner or mode of a new directory: %s", strerror(errno));
	return 0;
}

/* One step down: *at becomes the directory of this name below it. */
static int descend(struct volume *volume, int *at, const char *name, bool make)
{
	struct volume here = { .root = *at };
	int fd = volume_at(&here, name, O_PATH | O_DIRECTORY, 0);

	if (fd < 0 && errno == ENOENT && make) {
		/* As the root of a volume: writable for everyone in the guest. */
		if (volume_mkdir(volume, *at, name, 0777, 0, 0) < 0 && errno != EEXIST)
			return -1;
		fd = volume_at(&here, name, O_PATH | O_DIRECTORY, 0);
	}
	if (fd < 0)
		return -1;
	fd_close(at);
	*at = fd;
	return 0;
}

int volume_descend(struct volume *volume, const char *path, bool make, struct husk_error *err)
{
	cleanup_free char *copy = strdup(path);
	cleanup_close int at = fcntl(volume->root, F_DUPFD_CLOEXEC, 3);

	if (!copy)
		return husk_fail_memory(err);
	for (char *rest = copy, *name; at >= 0 && (name = strsep(&rest, "/"));)
		if (descend(volume, &at, name, make) < 0)
			return husk_fail_errno(err, "cannot open the directory '%s' of the volume", path);
	if (at < 0)
		return husk_fail_errno(err, "cannot open the volume");
	volume->tree = volume->root;
	volume->root = steal_fd(&at);
	return 0;
}

int volume_symlink(struct volume *volume, int parent, const char *name, const char *target, uid_t uid, gid_t gid)
{
	if (charge(volume, VOLUME_BLOCK) < 0)
		return -1;
	if (symlinkat(target, parent, name) < 0)
		return refund_failed(volume, VOLUME_BLOCK);
	if (fchownat(parent, name, uid, gid, AT_SYMLINK_NOFOLLOW) < 0)
		log_line(LOG_WARN, "volume: owner of a new link: %s", strerror(errno));
	return 0;
}

/* Uses the name: if the file is replaced at this moment, the new one is in the same volume, and a link is not
 * followed. */
int volume_link(struct volume *volume, int from, const char *old_name, ino_t inode, int parent, const char *name)
{
	struct stat status;

	if (fstatat(from, old_name, &status, AT_SYMLINK_NOFOLLOW) < 0 || status.st_ino != inode) {
		errno = ESTALE;
		return -1;
	}
	if (!S_ISREG(status.st_mode)) {
		errno = EPERM;
		return -1;
	}
	if (charge(volume, VOLUME_BLOCK) < 0)
		return -1;
	if (linkat(from, old_name, parent, name, 0) < 0)
		return refund_failed(volume, VOLUME_BLOCK);
	return 0;
}

/* What removing a name will refund. The descriptor is locked if no process uses the file; otherwise it is -1. */
struct last_name {
	int fd;
	uint64_t bytes;
	ino_t inode;
};

static void examine_name(int parent, const char *name, struct last_name *out)
{
	struct stat status;

	*out = (struct last_name){ .fd = -1 };
	if (fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	out->inode = status.st_ino;
	out->bytes = VOLUME_BLOCK;
	if (!S_ISREG(status.st_mode) || status.st_nlink > 1)
		return;
	out->fd = openat(parent, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	/* In use: the last user of the file refunds all of it. */
	if (out->fd < 0 || fstat(out->fd, &status) < 0 || flock(out->fd, LOCK_EX | LOCK_NB) < 0)
		out->bytes = 0;
	else
		out->bytes += data_charge(&status);
}

static int end_name(struct volume *volume, struct last_name *last, int result)
{
	int why = errno;

	if (result == 0)
		refund(volume, last->bytes);
	fd_close(&last->fd);
	errno = why;
	return result;
}

int volume_unlink(struct volume *volume, int parent, const char *name)
{
	struct last_name last;

	examine_name(parent, name, &last);
	return end_name(volume, &last, unlinkat(parent, name, 0));
}

int volume_rmdir(struct volume *volume, int parent, const char *name)
{
	if (unlinkat(parent, name, AT_REMOVEDIR) < 0)
		return -1;
	refund(volume, VOLUME_BLOCK);
	return 0;
}

int volume_rename(struct volume *volume, int from, const char *old_name, int to, const char *new_name, bool replace)
{
	struct last_name last;
	struct stat moved;

	if (!replace)
		return renameat2(from, old_name, to, new_name, RENAME_NOREPLACE);
	if (fstatat(from, old_name, &moved, AT_SYMLINK_NOFOLLOW) < 0)
		return -1;
	examine_name(to, new_name, &last);
	if (last.inode == moved.st_ino) /* two names of one file: nothing is changed and nothing is refunded */
		last.bytes = 0;
	return end_name(volume, &last, renameat(from, old_name, to, new_name));
}

/* ---- attributes ---- */

int volume_chmod(int fd, mode_t mode)
{
	struct stat status;

	if (fstat(fd, &status) < 0)
		return -1;
	return S_ISLNK(status.st_mode) ? 0 : fchmod(fd, mode & MODE_BITS);
}

int volume_chown(int fd, uid_t uid, gid_t gid)
{
	return fchownat(fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW);
}

int volume_utimes(int fd, const struct timespec times[2])
{
	return utimensat(fd, "", times, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW);
}
