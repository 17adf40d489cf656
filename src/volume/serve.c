/*
 * The FUSE protocol (version 7.31) as far as a volume needs it; see serve.h. Requests come from the kernel of a guest,
 * which is hostile: this file and nodes.c are all that reads their bytes. Names are one component, never "." or "..";
 * sizes are checked against what really came; what was opened is bounded. It must never open anything but through
 * volume.h, nor keep state that a restored guest could not do without: a handle it does not know is opened again by its
 * node.
 */
#include "volume/serve.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "volume/nodes.h"

#define HANDLES_MAX 1024u
#define HANDLES_SHARE 32u /* of the process's descriptors one volume may take this part: there may be 16 */
#define MINOR 31
#define MINOR_LEAST 23 /* where the answer to INIT got its present form */
#define NAME_LENGTH_MAX 255u

struct handle {
	uint64_t id; /* 0: free */
	int fd;
	struct node *node;
	bool append;
};

struct volume_server {
	struct volume volume;
	bool read_only;
	struct nodes nodes;
	struct handle handles[HANDLES_MAX];
	size_t handle_limit; /* of them: a guest must not use up the descriptors of the process that answers it */
	uint32_t generation; /* upper half of the numbers of handles, so that those of a past life are told apart */
};

struct call {
	struct volume_server *server;
	struct fuse_in_header header;
	const char *data; /* behind the header */
	size_t size;
	char *out; /* behind the header of the answer */
};

/* ---- reading the request ---- */

/* The next name in the request, NUL-terminated: any text, or one component of a path. */
static const char *take_text(const struct call *call, size_t *at)
{
	const char *text = call->data + *at;
	const char *end = *at < call->size ? memchr(text, 0, call->size - *at) : NULL;

	if (!end || end == text)
		return NULL;
	*at += (size_t)(end - text) + 1;
	return text;
}

static const char *take_name(const struct call *call, size_t *at)
{
	const char *name = take_text(call, at);

	if (!name || strchr(name, '/') || str_equal(name, ".") || str_equal(name, "..")) {
		errno = EINVAL;
		return NULL;
	}
	if (strlen(name) > NAME_LENGTH_MAX) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	return name;
}

static struct node *find_node(const struct call *call, uint64_t id)
{
	struct node *node = nodes_find(&call->server->nodes, id);

	if (!node)
		errno = ESTALE;
	return node;
}

/* ---- from nodes to files ---- */

/* What is where the node's name was, if it still is the same. Missing on the way reads as stale: the kernel looks again. */
static int check_same(int fd, const struct node *node)
{
	struct stat status;

	if (fd >= 0 && fstat(fd, &status) == 0 && status.st_ino == node->inode)
		return fd;
	int why = fd < 0 && errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != EXDEV ? errno : ESTALE;
	if (fd >= 0)
		close(fd);
	errno = why;
	return -1;
}

/* O_PATH, for everything but content. A file without a name is still there for who has it open. */
static int node_path_fd(const struct call *call, const struct node *node, int flags)
{
	char path[VOLUME_PATH_MAX];

	if (node->dead) {
		for (size_t i = 0; i < HANDLES_MAX; i++)
			if (call->server->handles[i].id && call->server->handles[i].node == node)
				return fcntl(call->server->handles[i].fd, F_DUPFD_CLOEXEC, 0);
	}
	if (nodes_path(node, NULL, path) < 0)
		return -1;
	return check_same(volume_at(&call->server->volume, path, O_PATH | flags, 0), node);
}

static int directory_fd(const struct call *call, uint64_t id)
{
	struct node *node = find_node(call, id);

	return node ? node_path_fd(call, node, O_DIRECTORY) : -1;
}

static void fill_attributes(struct fuse_attr *out, const struct stat *status)
{
	*out = (struct fuse_attr){
		.ino = status->st_ino,
		.size = (uint64_t)status->st_size,
		.blocks = (uint64_t)status->st_blocks,
		.atime = (uint64_t)status->st_atim.tv_sec,
		.mtime = (uint64_t)status->st_mtim.tv_sec,
		.ctime = (uint64_t)status->st_ctim.tv_sec,
		.atimensec = (uint32_t)status->st_atim.tv_nsec,
		.mtimensec = (uint32_t)status->st_mtim.tv_nsec,
		.ctimensec = (uint32_t)status->st_ctim.tv_nsec,
		.mode = status->st_mode & (S_IFMT | 01777),
		.nlink = (uint32_t)status->st_nlink,
		.uid = status->st_uid,
		.gid = status->st_gid,
		.blksize = VOLUME_BLOCK,
	};
}

static ssize_t answer_attributes(const struct call *call, int fd)
{
	struct fuse_attr_out *out = (struct fuse_attr_out *)call->out;
	struct stat status;

	if (fstat(fd, &status) < 0)
		return -errno;
	/* Valid for no time at all: other sandboxes write here too. */
	*out = (struct fuse_attr_out){ 0 };
	fill_attributes(&out->attr, &status);
	return sizeof(*out);
}

/* An entry that the guest will know by its node from now on. */
static ssize_t answer_entry(const struct call *call, struct node *parent, const char *name, int fd)
{
	struct fuse_entry_out *out = (struct fuse_entry_out *)call->out;
	struct stat status;

	if (fstat(fd, &status) < 0)
		return -errno;
	if (!volume_holds(&status))
		return -ENOENT;
	struct node *node = nodes_take(&call->server->nodes, parent, name, status.st_ino);
	if (!node)
		return -ENFILE;
	node->lookups++;
	*out = (struct fuse_entry_out){ .nodeid = node->id };
	fill_attributes(&out->attr, &status);
	return sizeof(*out);
}

static ssize_t look_up(const struct call *call, struct node *parent, const char *name)
{
	char path[VOLUME_PATH_MAX];

	if (nodes_path(parent, name, path) < 0)
		return -errno;
	cleanup_close int fd = volume_at(&call->server->volume, path, O_PATH, 0);
	return fd < 0 ? -errno : answer_entry(call, parent, name, fd);
}

static ssize_t do_lookup(struct call *call)
{
	size_t at = 0;
	const char *name = take_name(call, &at);
	struct node *parent = name ? find_node(call, call->header.nodeid) : NULL;

	return parent ? look_up(call, parent, name) : -errno;
}

static ssize_t do_forget(struct call *call)
{
	struct fuse_forget_in in;

	memcpy(&in, call->data, sizeof(in));
	nodes_forget(&call->server->nodes, call->header.nodeid, in.nlookup);
	return 0;
}

static ssize_t do_batch_forget(struct call *call)
{
	struct fuse_batch_forget_in in;
	struct fuse_forget_one one;

	memcpy(&in, call->data, sizeof(in));
	for (size_t i = 0; i < in.count && sizeof(in) + (i + 1) * sizeof(one) <= call->size; i++) {
		memcpy(&one, call->data + sizeof(in) + i * sizeof(one), sizeof(one));
		nodes_forget(&call->server->nodes, one.nodeid, one.nlookup);
	}
	return 0;
}

/* ---- handles ---- */

static struct handle *find_handle(struct volume_server *server, uint64_t id)
{
	struct handle *likely = &server->handles[id % HANDLES_MAX];

	if (!id || likely->id == id)
		return id ? likely : NULL;
	for (size_t i = 0; i < HANDLES_MAX; i++)
		if (server->handles[i].id == id)
			return &server->handles[i];
	return NULL;
}

/* Keeps the descriptor under a number: a new one, or the one that a restored guest has. Closes it when there is no room. */
static struct handle *keep_handle(struct volume_server *server, uint64_t id, int fd, struct node *node, bool append)
{
	for (size_t i = 0; i < server->handle_limit; i++) {
		struct handle *handle = &server->handles[i];
		if (handle->id)
			continue;
		uint64_t number = (uint64_t)++server->generation << 32 | i;
		*handle = (struct handle){ .id = id ? id : number, .fd = fd, .node = node, .append = append };
		node->handles++;
		return handle;
	}
	volume_drop(&server->volume, fd);
	errno = ENFILE;
	return NULL;
}

static int open_node(const struct call *call, const struct node *node, bool directory, bool writable, bool append)
{
	struct volume *volume = &call->server->volume;
	char path[VOLUME_PATH_MAX];

	if (nodes_path(node, NULL, path) < 0)
		return -1;
	int fd = directory ? volume_at(volume, path, O_RDONLY | O_DIRECTORY, 0)
			   : volume_file(volume, path, writable, append ? O_APPEND : 0);
	return fd < 0 && errno == EISDIR ? -1 : check_same(fd, node);
}

/* The handle a request names; one of a past life is opened again, by the node that the request names beside it. */
static struct handle *take_handle(const struct call *call, uint64_t id, bool directory)
{
	struct volume_server *server = call->server;
	struct handle *handle = find_handle(server, id);
	struct node *node = find_node(call, call->header.nodeid);

	if (!node || (handle && handle->node == node))
		return node ? handle : NULL;
	if (handle || !id) { /* of another file: not what an honest kernel asks for */
		errno = EBADF;
		return NULL;
	}
	int fd = open_node(call, node, directory, !server->read_only, false);
	return fd < 0 ? NULL : keep_handle(server, id, fd, node, false);
}

static ssize_t answer_open(const struct call *call, struct node *node, int fd, bool append, struct fuse_open_out *out)
{
	struct handle *handle = keep_handle(call->server, 0, fd, node, append);

	if (!handle)
		return -errno;
	*out = (struct fuse_open_out){ .fh = handle->id };
	return sizeof(*out);
}

static ssize_t do_open(struct call *call)
{
	bool directory = call->header.opcode == FUSE_OPENDIR;
	struct node *node = find_node(call, call->header.nodeid);
	struct fuse_open_in in;

	memcpy(&in, call->data, sizeof(in));
	bool writable = !directory && (in.flags & O_ACCMODE) != O_RDONLY, append = in.flags & O_APPEND;
	if (!node)
		return -errno;
	if (writable && call->server->read_only)
		return -EROFS;
	int fd = open_node(call, node, directory, writable, append);
	if (fd < 0)
		return -errno;
	if (writable && in.flags & O_TRUNC && volume_truncate(&call->server->volume, fd, 0) < 0) {
		int why = errno;
		volume_drop(&call->server->volume, fd);
		return -why;
	}
	return answer_open(call, node, fd, append, (struct fuse_open_out *)call->out);
}

static void close_handle(struct volume_server *server, struct handle *handle)
{
	struct node *node = handle->node;

	volume_drop(&server->volume, handle->fd);
	*handle = (struct handle){ 0 };
	nodes_release(&server->nodes, node);
}

static ssize_t do_release(struct call *call)
{
	struct fuse_release_in in;

	memcpy(&in, call->data, sizeof(in));
	struct handle *handle = find_handle(call->server, in.fh);
	if (handle)
		close_handle(call->server, handle);
	return 0;
}

/* ---- content ---- */

static ssize_t do_read(struct call *call)
{
	struct fuse_read_in in;

	memcpy(&in, call->data, sizeof(in));
	struct handle *handle = take_handle(call, in.fh, false);
	if (!handle)
		return -errno;
	if (in.offset > INT64_MAX)
		return -EINVAL;
	ssize_t count = pread(handle->fd, call->out, MIN(in.size, SERVE_DATA_MAX), (off_t)in.offset);
	return count < 0 ? -errno : count;
}

static ssize_t do_write(struct call *call)
{
	struct fuse_write_in in;
	struct fuse_write_out *out = (struct fuse_write_out *)call->out;

	memcpy(&in, call->data, sizeof(in));
	if (in.size > call->size - sizeof(in) || in.offset > INT64_MAX)
		return -EINVAL;
	struct handle *handle = take_handle(call, in.fh, false);
	if (!handle)
		return -errno;
	ssize_t count = volume_write(&call->server->volume, handle->fd, call->data + sizeof(in), in.size,
				     (off_t)in.offset, handle->append);
	if (count < 0)
		return -errno;
	*out = (struct fuse_write_out){ .size = (uint32_t)count };
	return sizeof(*out);
}

static ssize_t do_fsync(struct call *call)
{
	bool directory = call->header.opcode == FUSE_FSYNCDIR;
	struct fuse_fsync_in in;

	memcpy(&in, call->data, sizeof(in));
	struct handle *handle = take_handle(call, in.fh, directory);
	if (!handle)
		return -errno;
	bool data_only = in.fsync_flags & FUSE_FSYNC_FDATASYNC;
	return (data_only ? fdatasync(handle->fd) : fsync(handle->fd)) < 0 ? -errno : 0;
}

/* As getdents64 fills it; the C library has no name for it. */
struct host_entry {
	uint64_t inode;
	int64_t next;
	uint16_t size;
	uint8_t type;
	char name[];
};

/* Appends what of the host's run of entries fits; the size of the answer. */
static size_t put_entries(char *out, size_t room, const char *entries, size_t size)
{
	size_t filled = 0;

	for (size_t at = 0; at < size;) {
		const struct host_entry *entry = (const struct host_entry *)(entries + at);
		size_t length = strlen(entry->name), whole = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length);
		if (filled + whole > room)
			break;
		struct fuse_dirent head = { .ino = entry->inode,
					    .off = (uint64_t)entry->next,
					    .namelen = (uint32_t)length,
					    .type = entry->type };
		memset(out + filled, 0, whole);
		memcpy(out + filled, &head, FUSE_NAME_OFFSET);
		memcpy(out + filled + FUSE_NAME_OFFSET, entry->name, length);
		filled += whole;
		at += entry->size;
	}
	return filled;
}

static ssize_t do_readdir(struct call *call)
{
	char entries[16384] __attribute__((aligned(8)));
	struct fuse_read_in in;

	memcpy(&in, call->data, sizeof(in));
	struct handle *handle = take_handle(call, in.fh, true);
	if (!handle)
		return -errno;
	if (lseek(handle->fd, (off_t)in.offset, SEEK_SET) < 0)
		return -errno;
	/* No more than the answer holds, or the rest would have to be read again. */
	size_t room = MIN(in.size, SERVE_DATA_MAX);
	long count = syscall(SYS_getdents64, handle->fd, entries, MIN(room, sizeof(entries)));
	if (count < 0)
		return errno == EINVAL ? 0 : -errno;
	return (ssize_t)put_entries(call->out, room, entries, (size_t)count);
}

/* ---- attributes ---- */

static ssize_t do_getattr(struct call *call)
{
	struct fuse_getattr_in in;

	memcpy(&in, call->data, sizeof(in));
	struct node *node = find_node(call, call->header.nodeid);
	struct handle *handle = node && in.getattr_flags & FUSE_GETATTR_FH ? find_handle(call->server, in.fh) : NULL;
	if (!node)
		return -errno;
	if (handle && handle->node == node)
		return answer_attributes(call, handle->fd);
	cleanup_close int fd = node_path_fd(call, node, 0);
	return fd < 0 ? -errno : answer_attributes(call, fd);
}

static struct timespec time_wanted(uint32_t valid, uint32_t set, uint32_t now, uint64_t seconds, uint32_t nanoseconds)
{
	if (!(valid & set))
		return (struct timespec){ .tv_nsec = UTIME_OMIT };
	if (valid & now)
		return (struct timespec){ .tv_nsec = UTIME_NOW };
	return (struct timespec){ .tv_sec = (time_t)seconds, .tv_nsec = (long)MIN(nanoseconds, 999999999u) };
}

static int set_size(const struct call *call, struct node *node, const struct fuse_setattr_in *in)
{
	struct volume *volume = &call->server->volume;
	struct handle *handle = in->valid & FATTR_FH ? find_handle(call->server, in->fh) : NULL;
	bool own = !handle || handle->node != node;
	int fd = own ? open_node(call, node, false, true, false) : handle->fd;

	if (fd < 0)
		return -1;
	int result = in->size > INT64_MAX ? (errno = EFBIG, -1) : volume_truncate(volume, fd, (off_t)in->size);
	int why = errno;
	if (own)
		volume_drop(volume, fd);
	errno = why;
	return result;
}

static ssize_t do_setattr(struct call *call)
{
	struct fuse_setattr_in in;

	memcpy(&in, call->data, sizeof(in));
	struct node *node = find_node(call, call->header.nodeid);
	cleanup_close int fd = node ? node_path_fd(call, node, 0) : -1;
	if (fd < 0 || (in.valid & FATTR_SIZE && set_size(call, node, &in) < 0))
		return -errno;
	const struct timespec times[2] = {
		time_wanted(in.valid, FATTR_ATIME, FATTR_ATIME_NOW, in.atime, in.atimensec),
		time_wanted(in.valid, FATTR_MTIME, FATTR_MTIME_NOW, in.mtime, in.mtimensec),
	};
	if (in.valid & (FATTR_UID | FATTR_GID) &&
	    volume_chown(fd, in.valid & FATTR_UID ? in.uid : (uid_t)-1, in.valid & FATTR_GID ? in.gid : (gid_t)-1) < 0)
		return -errno;
	if ((in.valid & FATTR_MODE && volume_chmod(fd, in.mode) < 0) ||
	    (in.valid & (FATTR_ATIME | FATTR_MTIME) && volume_utimes(fd, times) < 0))
		return -errno;
	return answer_attributes(call, fd);
}

static ssize_t do_readlink(struct call *call)
{
	struct node *node = find_node(call, call->header.nodeid);
	cleanup_close int fd = node ? node_path_fd(call, node, 0) : -1;

	if (fd < 0)
		return -errno;
	ssize_t size = readlinkat(fd, "", call->out, VOLUME_PATH_MAX - 1);
	return size < 0 ? (errno == ENOENT ? -EINVAL : -errno) : size;
}

static ssize_t do_statfs(struct call *call)
{
	struct fuse_statfs_out *out = (struct fuse_statfs_out *)call->out;
	const struct volume *volume = &call->server->volume;
	uint64_t used = volume_used(volume), left = used < volume->limit ? (volume->limit - used) / VOLUME_BLOCK : 0;

	*out = (struct fuse_statfs_out){ .st = { .blocks = volume->limit / VOLUME_BLOCK,
						 .bfree = left,
						 .bavail = left,
						 .files = volume->limit / VOLUME_BLOCK,
						 .ffree = left,
						 .bsize = VOLUME_BLOCK,
						 .frsize = VOLUME_BLOCK,
						 .namelen = NAME_LENGTH_MAX } };
	return sizeof(*out);
}

/* ---- names ---- */

static ssize_t do_create(struct call *call)
{
	struct fuse_create_in in;
	char path[VOLUME_PATH_MAX];
	size_t at = sizeof(in);

	memcpy(&in, call->data, sizeof(in));
	const char *name = take_name(call, &at);
	struct node *parent = name ? find_node(call, call->header.nodeid) : NULL;
	if (!parent || nodes_path(parent, name, path) < 0)
		return -errno;
	struct volume *volume = &call->server->volume;
	bool append = in.flags & O_APPEND;
	int fd = volume_create(volume, path, in.mode, call->header.uid, call->header.gid, append ? O_APPEND : 0);
	if (fd < 0 && errno == EEXIST && !(in.flags & O_EXCL))
		fd = volume_file(volume, path, true, append ? O_APPEND : 0);
	if (fd < 0)
		return -errno;
	ssize_t entry = answer_entry(call, parent, name, fd);
	if (entry < 0) {
		volume_drop(volume, fd);
		return entry;
	}
	uint64_t id = ((struct fuse_entry_out *)call->out)->nodeid;
	ssize_t opened = answer_open(call, nodes_find(&call->server->nodes, id), fd, append,
				     (struct fuse_open_out *)(call->out + entry));
	return opened < 0 ? opened : entry + opened;
}

/* No device, no FIFO, no socket: only what means nothing outside of this directory. */
static ssize_t do_mknod(struct call *call)
{
	struct fuse_mknod_in in;
	char path[VOLUME_PATH_MAX];
	size_t at = sizeof(in);

	memcpy(&in, call->data, sizeof(in));
	const char *name = take_name(call, &at);
	struct node *parent = name ? find_node(call, call->header.nodeid) : NULL;
	if (!parent || nodes_path(parent, name, path) < 0)
		return -errno;
	if (in.mode & S_IFMT && !S_ISREG(in.mode))
		return -EPERM;
	int fd = volume_create(&call->server->volume, path, in.mode, call->header.uid, call->header.gid, 0);
	if (fd < 0)
		return -errno;
	ssize_t size = answer_entry(call, parent, name, fd);
	volume_drop(&call->server->volume, fd);
	return size;
}

static ssize_t do_mkdir(struct call *call)
{
	struct fuse_mkdir_in in;
	size_t at = sizeof(in);

	memcpy(&in, call->data, sizeof(in));
	const char *name = take_name(call, &at);
	cleanup_close int parent = name ? directory_fd(call, call->header.nodeid) : -1;
	if (parent < 0 ||
	    volume_mkdir(&call->server->volume, parent, name, in.mode, call->header.uid, call->header.gid) < 0)
		return -errno;
	return look_up(call, find_node(call, call->header.nodeid), name);
}

static ssize_t do_symlink(struct call *call)
{
	size_t at = 0;
	const char *name = take_name(call, &at), *target = name ? take_text(call, &at) : NULL;

	if (!target || strlen(target) >= VOLUME_PATH_MAX)
		return name ? -EINVAL : -errno;
	cleanup_close int parent = directory_fd(call, call->header.nodeid);
	if (parent < 0 ||
	    volume_symlink(&call->server->volume, parent, name, target, call->header.uid, call->header.gid) < 0)
		return -errno;
	return look_up(call, find_node(call, call->header.nodeid), name);
}

static ssize_t do_link(struct call *call)
{
	struct fuse_link_in in;
	size_t at = sizeof(in);

	memcpy(&in, call->data, sizeof(in));
	const char *name = take_name(call, &at);
	struct node *old = name ? find_node(call, in.oldnodeid) : NULL;
	cleanup_close int fd = old ? node_path_fd(call, old, 0) : -1;
	cleanup_close int parent = fd >= 0 ? directory_fd(call, call->header.nodeid) : -1;
	if (parent < 0 || volume_link(&call->server->volume, fd, parent, name) < 0)
		return -errno;
	return look_up(call, find_node(call, call->header.nodeid), name);
}

static ssize_t do_remove(struct call *call)
{
	bool directory = call->header.opcode == FUSE_RMDIR;
	size_t at = 0;
	const char *name = take_name(call, &at);
	cleanup_close int parent = name ? directory_fd(call, call->header.nodeid) : -1;

	if (parent < 0 || (directory ? volume_rmdir : volume_unlink)(&call->server->volume, parent, name) < 0)
		return -errno;
	nodes_removed(&call->server->nodes, find_node(call, call->header.nodeid), name);
	return 0;
}

static ssize_t move(struct call *call, uint64_t new_parent, uint32_t flags, size_t at)
{
	const char *old_name = take_name(call, &at), *new_name = old_name ? take_name(call, &at) : NULL;
	cleanup_close int from = new_name ? directory_fd(call, call->header.nodeid) : -1;
	cleanup_close int to = from >= 0 ? directory_fd(call, new_parent) : -1;

	if (to < 0)
		return -errno;
	if (flags & ~(uint32_t)RENAME_NOREPLACE)
		return -EINVAL;
	if (volume_rename(&call->server->volume, from, old_name, to, new_name, !flags) < 0)
		return -errno;
	nodes_renamed(&call->server->nodes, find_node(call, call->header.nodeid), old_name, find_node(call, new_parent),
		      new_name);
	return 0;
}

static ssize_t do_rename(struct call *call)
{
	struct fuse_rename_in in;

	memcpy(&in, call->data, sizeof(in));
	return move(call, in.newdir, 0, sizeof(in));
}

static ssize_t do_rename2(struct call *call)
{
	struct fuse_rename2_in in;

	memcpy(&in, call->data, sizeof(in));
	return move(call, in.newdir, in.flags, sizeof(in));
}

/* ---- the connection ---- */

static ssize_t do_init(struct call *call)
{
	const uint32_t wanted = FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES;
	struct fuse_init_out *out = (struct fuse_init_out *)call->out;
	uint32_t in[4] = { 0 }; /* major, minor, max_readahead, flags: as it was in every version */

	memcpy(in, call->data, MIN(call->size, sizeof(in)));
	if (in[0] != FUSE_KERNEL_VERSION || in[1] < MINOR_LEAST)
		return -EPROTO;
	*out = (struct fuse_init_out){
		.major = FUSE_KERNEL_VERSION,
		.minor = MIN(in[1], (uint32_t)MINOR),
		.max_readahead = MIN(in[2], SERVE_DATA_MAX),
		.flags = (in[3] & wanted) |
			 FUSE_BIG_WRITES, /* gVisor does not offer it, and writes 4 KiB at a time without */
		.max_background = 16,
		.congestion_threshold = 12,
		.max_write = SERVE_DATA_MAX,
		.time_gran = 1,
		.max_pages = SERVE_DATA_MAX / 4096,
	};
	return sizeof(*out);
}

static ssize_t do_nothing(struct call *call)
{
	(void)call;
	return 0;
}

struct operation {
	ssize_t (*run)(struct call *call); /* the size of the answer, or an errno below zero */
	uint16_t least;                    /* bytes behind the header */
	bool changes;                      /* refused on what is mounted read-only */
	bool silent;                       /* takes no answer */
};

static const struct operation operations[] = {
	[FUSE_LOOKUP] = { do_lookup, 2, .changes = false },
	[FUSE_FORGET] = { do_forget, sizeof(struct fuse_forget_in), .silent = true },
	[FUSE_GETATTR] = { do_getattr, sizeof(struct fuse_getattr_in), .changes = false },
	[FUSE_SETATTR] = { do_setattr, sizeof(struct fuse_setattr_in), .changes = true },
	[FUSE_READLINK] = { do_readlink, 0, .changes = false },
	[FUSE_SYMLINK] = { do_symlink, 4, .changes = true },
	[FUSE_MKNOD] = { do_mknod, sizeof(struct fuse_mknod_in), .changes = true },
	[FUSE_MKDIR] = { do_mkdir, sizeof(struct fuse_mkdir_in), .changes = true },
	[FUSE_UNLINK] = { do_remove, 2, .changes = true },
	[FUSE_RMDIR] = { do_remove, 2, .changes = true },
	[FUSE_RENAME] = { do_rename, sizeof(struct fuse_rename_in), .changes = true },
	[FUSE_LINK] = { do_link, sizeof(struct fuse_link_in), .changes = true },
	[FUSE_OPEN] = { do_open, sizeof(struct fuse_open_in), .changes = false },
	[FUSE_READ] = { do_read, sizeof(struct fuse_read_in), .changes = false },
	[FUSE_WRITE] = { do_write, sizeof(struct fuse_write_in), .changes = true },
	[FUSE_STATFS] = { do_statfs, 0, .changes = false },
	[FUSE_RELEASE] = { do_release, sizeof(struct fuse_release_in), .changes = false },
	[FUSE_FSYNC] = { do_fsync, sizeof(struct fuse_fsync_in), .changes = false },
	[FUSE_INIT] = { do_init, 16, .changes = false },
	[FUSE_OPENDIR] = { do_open, sizeof(struct fuse_open_in), .changes = false },
	[FUSE_READDIR] = { do_readdir, sizeof(struct fuse_read_in), .changes = false },
	[FUSE_RELEASEDIR] = { do_release, sizeof(struct fuse_release_in), .changes = false },
	[FUSE_FSYNCDIR] = { do_fsync, sizeof(struct fuse_fsync_in), .changes = false },
	[FUSE_CREATE] = { do_create, sizeof(struct fuse_create_in), .changes = true },
	[FUSE_DESTROY] = { do_nothing, 0, .changes = false },
	[FUSE_BATCH_FORGET] = { do_batch_forget, sizeof(struct fuse_batch_forget_in), .silent = true },
	[FUSE_RENAME2] = { do_rename2, sizeof(struct fuse_rename2_in), .changes = true },
};

ssize_t volume_serve(struct volume_server *server, const char *request, size_t size, char *answer)
{
	struct fuse_out_header *head = (struct fuse_out_header *)answer;
	struct call call = { .server = server, .out = answer + sizeof(*head) };

	if (size < sizeof(call.header) || size > SERVE_REQUEST_MAX)
		return -1;
	memcpy(&call.header, request, sizeof(call.header));
	if (call.header.len != size)
		return -1;
	call.data = request + sizeof(call.header);
	call.size = size - sizeof(call.header);
	const struct operation *operation =
		call.header.opcode < ARRAY_SIZE(operations) ? &operations[call.header.opcode] : NULL;
	ssize_t result = -ENOSYS; /* the kernel remembers, and does without: locks, attributes by name, flush, access */
	if (operation && operation->run)
		result = call.size < operation->least              ? -EINVAL
			 : operation->changes && server->read_only ? -EROFS
								   : operation->run(&call);
	if (operation && operation->silent)
		return 0;
	*head = (struct fuse_out_header){
		.len = (uint32_t)(sizeof(*head) + (size_t)MAX(result, 0)),
		.error = (int32_t)MIN(result, 0),
		.unique = call.header.unique,
	};
	return head->len;
}

int volume_server_open(struct volume *volume, bool read_only, struct volume_server **out, struct husk_error *err)
{
	struct volume_server *server = calloc(1, sizeof(*server));
	struct stat status;

	if (!server || random_bytes(&server->generation, sizeof(server->generation)) < 0 ||
	    fstat(volume->root, &status) < 0 || nodes_open(&server->nodes, status.st_ino) < 0) {
		free(server);
		return husk_fail_memory(err);
	}
	server->volume = *volume;
	*volume = (struct volume){ .root = -1, .count_fd = -1 };
	server->read_only = read_only;
	struct rlimit files = { .rlim_cur = 1024 };
	getrlimit(RLIMIT_NOFILE, &files);
	server->handle_limit = MIN(HANDLES_MAX, (size_t)files.rlim_cur / HANDLES_SHARE);
	*out = server;
	return 0;
}

void volume_server_free(struct volume_server *server)
{
	if (!server)
		return;
	for (size_t i = 0; i < HANDLES_MAX; i++)
		if (server->handles[i].id)
			volume_drop(&server->volume, server->handles[i].fd);
	nodes_close(&server->nodes);
	volume_close(&server->volume);
	free(server);
}

int volume_server_save(const struct volume_server *server, struct buf *out)
{
	return nodes_save(&server->nodes, out);
}

int volume_server_load(struct volume_server *server, const char *bytes, size_t size)
{
	return nodes_load(&server->nodes, bytes, size);
}
