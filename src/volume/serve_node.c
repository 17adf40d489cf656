/*
 * Maps the node numbers and names of a guest's request to files of the volume, and reads attributes without opening; see
 * serve_call.h. A name is one component, never "." or "..". A file that is no longer the one its node was made for is
 * ESTALE.
 */
#include <fcntl.h>

#include "volume/serve_call.h"

/* ---- reading the request ---- */

const char *call_text(const struct call *call, size_t *at)
{
	const char *text = call->data + *at;
	const char *end = *at < call->size ? memchr(text, 0, call->size - *at) : NULL;

	if (!end || end == text)
		return NULL;
	*at += (size_t)(end - text) + 1;
	return text;
}

const char *call_name(const struct call *call, size_t *at)
{
	const char *name = call_text(call, at);

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

struct node *call_node(const struct call *call, uint64_t id)
{
	struct node *node = nodes_find(&call->server->nodes, id);

	if (!node)
		errno = ESTALE;
	return node;
}

/* ---- from nodes to files ---- */

/* Checks that `fd`, opened by the node's path, is still the node's file. A missing component is stale too: the kernel
 * looks it up again. */
static int check_same(int fd, const struct node *node)
{
	struct stat status;

	if (fd >= 0 && fstat(fd, &status) == 0 && status.st_ino == node->inode)
		return fd;
	int why = fd < 0 && errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != EXDEV ? errno : ESTALE;
	fd_close(&fd);
	errno = why;
	return -1;
}

int call_node_fd(const struct call *call, const struct node *node, int flags)
{
	char path[VOLUME_PATH_MAX];

	if (node->dead) {
		for (size_t i = 0; i < SERVE_HANDLES_MAX; i++)
			if (call->server->handles[i].id && call->server->handles[i].node == node)
				return fcntl(call->server->handles[i].fd, F_DUPFD_CLOEXEC, 0);
	}
	if (nodes_path(node, NULL, path) < 0)
		return -1;
	return check_same(volume_at(&call->server->volume, path, O_PATH | flags, 0), node);
}

int call_directory(const struct call *call, uint64_t id)
{
	struct node *node = call_node(call, id);

	return node ? call_node_fd(call, node, O_DIRECTORY) : -1;
}

int call_open_node(const struct call *call, const struct node *node, bool directory, bool writable, bool append)
{
	struct volume *volume = &call->server->volume;
	char path[VOLUME_PATH_MAX];

	if (nodes_path(node, NULL, path) < 0)
		return -1;
	int fd = directory ? volume_at(volume, path, O_RDONLY | O_DIRECTORY, 0)
			   : volume_file(volume, path, writable, append ? O_APPEND : 0);
	return fd < 0 && errno == EISDIR ? -1 : check_same(fd, node);
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
	/* Valid for no time, because other sandboxes write here too. */
	*out = (struct fuse_attr_out){ 0 };
	fill_attributes(&out->attr, &status);
	return sizeof(*out);
}

ssize_t call_answer_entry(const struct call *call, struct node *parent, const char *name, int fd)
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

ssize_t call_look_up(const struct call *call, struct node *parent, const char *name)
{
	char path[VOLUME_PATH_MAX];

	if (nodes_path(parent, name, path) < 0)
		return -errno;
	cleanup_close int fd = volume_at(&call->server->volume, path, O_PATH, 0);
	return fd < 0 ? -errno : call_answer_entry(call, parent, name, fd);
}

ssize_t serve_lookup(struct call *call)
{
	size_t at = 0;
	const char *name = call_name(call, &at);
	struct node *parent = name ? call_node(call, call->header.nodeid) : NULL;

	return parent ? call_look_up(call, parent, name) : -errno;
}

ssize_t serve_forget(struct call *call)
{
	struct fuse_forget_in in;

	memcpy(&in, call->data, sizeof(in));
	nodes_forget(&call->server->nodes, call->header.nodeid, in.nlookup);
	return 0;
}

ssize_t serve_batch_forget(struct call *call)
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

/* ---- attributes ---- */

ssize_t serve_getattr(struct call *call)
{
	struct fuse_getattr_in in;

	memcpy(&in, call->data, sizeof(in));
	struct node *node = call_node(call, call->header.nodeid);
	struct handle *handle = node && in.getattr_flags & FUSE_GETATTR_FH ? handle_find(call->server, in.fh) : NULL;
	if (!node)
		return -errno;
	if (handle && handle->node == node)
		return answer_attributes(call, handle->fd);
	cleanup_close int fd = call_node_fd(call, node, 0);
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
	struct handle *handle = in->valid & FATTR_FH ? handle_find(call->server, in->fh) : NULL;
	bool own = !handle || handle->node != node;
	int fd = own ? call_open_node(call, node, false, true, false) : handle->fd;

	if (fd < 0)
		return -1;
	int result = in->size > INT64_MAX ? (errno = EFBIG, -1) : volume_truncate(volume, fd, (off_t)in->size);
	int why = errno;
	if (own)
		volume_drop(volume, fd);
	errno = why;
	return result;
}

/* A descriptor to change attributes: a change of mode requires one that is open for reading. */
static int attributes_fd(const struct call *call, const struct node *node, bool mode)
{
	char path[VOLUME_PATH_MAX];

	if (!mode || node->dead)
		return call_node_fd(call, node, 0);
	return nodes_path(node, NULL, path) < 0 ? -1 : check_same(volume_entry(&call->server->volume, path), node);
}

ssize_t serve_setattr(struct call *call)
{
	struct fuse_setattr_in in;

	memcpy(&in, call->data, sizeof(in));
	struct node *node = call_node(call, call->header.nodeid);
	cleanup_close int fd = node ? attributes_fd(call, node, in.valid & FATTR_MODE) : -1;
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

ssize_t serve_readlink(struct call *call)
{
	struct node *node = call_node(call, call->header.nodeid);
	cleanup_close int fd = node ? call_node_fd(call, node, 0) : -1;

	if (fd < 0)
		return -errno;
	ssize_t size = readlinkat(fd, "", call->out, VOLUME_PATH_MAX - 1);
	return size < 0 ? (errno == ENOENT ? -EINVAL : -errno) : size;
}
