/*
 * Open files and directories of a guest, and their content; see serve_call.h. The number of open files is bounded. A handle
 * from before a restore, which this server never issued, is opened again by its node.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>

#include "volume/serve_call.h"

/* ---- handles ---- */

struct handle *handle_find(struct volume_server *server, uint64_t id)
{
	struct handle *likely = &server->handles[id % SERVE_HANDLES_MAX];

	if (!id || likely->id == id)
		return id ? likely : NULL;
	for (size_t i = 0; i < SERVE_HANDLES_MAX; i++)
		if (server->handles[i].id == id)
			return &server->handles[i];
	return NULL;
}

/* Keeps the descriptor under a number: a new one, or the one that a restored guest has. Closes the descriptor if there
 * is no room. */
static struct handle *keep_handle(struct volume_server *server, uint64_t id, int fd, struct node *node, bool append)
{
	for (size_t i = 0; i < SERVE_HANDLES_MAX; i++) {
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

/* The handle that a request names. A handle from before a restore is opened again, by the node that the request also
 * names. */
static struct handle *take_handle(const struct call *call, uint64_t id, bool directory)
{
	struct volume_server *server = call->server;
	struct handle *handle = handle_find(server, id);
	struct node *node = call_node(call, call->header.nodeid);

	if (!node || (handle && handle->node == node))
		return node ? handle : NULL;
	if (handle || !id) { /* a handle of another file: an honest kernel does not ask for this */
		errno = EBADF;
		return NULL;
	}
	int fd = call_open_node(call, node, directory, !server->read_only, false);
	return fd < 0 ? NULL : keep_handle(server, id, fd, node, false);
}

ssize_t call_answer_open(const struct call *call, struct node *node, int fd, bool append, struct fuse_open_out *out)
{
	struct handle *handle = keep_handle(call->server, 0, fd, node, append);

	if (!handle)
		return -errno;
	*out = (struct fuse_open_out){ .fh = handle->id };
	return sizeof(*out);
}

ssize_t serve_open(struct call *call)
{
	bool directory = call->header.opcode == FUSE_OPENDIR;
	struct node *node = call_node(call, call->header.nodeid);
	struct fuse_open_in in;

	memcpy(&in, call->data, sizeof(in));
	bool writable = !directory && (in.flags & O_ACCMODE) != O_RDONLY, append = in.flags & O_APPEND;
	if (!node)
		return -errno;
	if (writable && call->server->read_only)
		return -EROFS;
	int fd = call_open_node(call, node, directory, writable, append);
	if (fd < 0)
		return -errno;
	if (writable && in.flags & O_TRUNC && volume_truncate(&call->server->volume, fd, 0) < 0) {
		int why = errno;
		volume_drop(&call->server->volume, fd);
		return -why;
	}
	return call_answer_open(call, node, fd, append, (struct fuse_open_out *)call->out);
}

static void close_handle(struct volume_server *server, struct handle *handle)
{
	struct node *node = handle->node;

	volume_drop(&server->volume, handle->fd);
	*handle = (struct handle){ 0 };
	nodes_release(&server->nodes, node);
}

ssize_t serve_release(struct call *call)
{
	struct fuse_release_in in;

	memcpy(&in, call->data, sizeof(in));
	struct handle *handle = handle_find(call->server, in.fh);
	if (handle)
		close_handle(call->server, handle);
	return 0;
}

/* ---- content ---- */

ssize_t serve_read(struct call *call)
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

ssize_t serve_write(struct call *call)
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

ssize_t serve_fsync(struct call *call)
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

/* The layout of getdents64; the C library does not declare it. */
struct host_entry {
	uint64_t inode;
	int64_t next;
	uint16_t size;
	uint8_t type;
	char name[];
};

/* Appends as many of the host's entries as fit; returns the size of the answer. */
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

ssize_t serve_readdir(struct call *call)
{
	char entries[16384] __attribute__((aligned(8)));
	struct fuse_read_in in;

	memcpy(&in, call->data, sizeof(in));
	struct handle *handle = take_handle(call, in.fh, true);
	if (!handle)
		return -errno;
	if (lseek(handle->fd, (off_t)in.offset, SEEK_SET) < 0)
		return -errno;
	/* Reads no more than fits the answer, because the rest would have to be read again. */
	size_t room = MIN(in.size, SERVE_DATA_MAX);
	long count = syscall(SYS_getdents64, handle->fd, entries, MIN(room, sizeof(entries)));
	if (count < 0)
		return errno == EINVAL ? 0 : -errno;
	return (ssize_t)put_entries(call->out, room, entries, (size_t)count);
}
