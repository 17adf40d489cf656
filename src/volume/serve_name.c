/*
 * Requests that make, move and remove names in a volume; see serve_call.h. No device, FIFO or socket is ever made.
 */
#include <fcntl.h>

#include "volume/serve_call.h"

/* The directory for a new file, whose name is at `at` in the request. NULL with errno. */
static struct node *new_path(struct call *call, size_t at, const char **name, char path[static VOLUME_PATH_MAX])
{
	*name = call_name(call, &at);
	struct node *parent = *name ? call_node(call, call->header.nodeid) : NULL;

	return parent && nodes_path(parent, *name, path) == 0 ? parent : NULL;
}

ssize_t serve_create(struct call *call)
{
	struct fuse_create_in in;
	char path[VOLUME_PATH_MAX];
	const char *name;

	memcpy(&in, call->data, sizeof(in));
	struct node *parent = new_path(call, sizeof(in), &name, path);
	if (!parent)
		return -errno;
	struct volume *volume = &call->server->volume;
	bool append = in.flags & O_APPEND;
	int fd = volume_create(volume, path, in.mode, call->header.uid, call->header.gid, append ? O_APPEND : 0);
	if (fd < 0 && errno == EEXIST && !(in.flags & O_EXCL))
		fd = volume_file(volume, path, true, append ? O_APPEND : 0);
	if (fd < 0)
		return -errno;
	ssize_t entry = call_answer_entry(call, parent, name, fd);
	if (entry < 0) {
		volume_drop(volume, fd);
		return entry;
	}
	uint64_t id = ((struct fuse_entry_out *)call->out)->nodeid;
	ssize_t opened = call_answer_open(call, nodes_find(&call->server->nodes, id), fd, append,
					  (struct fuse_open_out *)(call->out + entry));
	return opened < 0 ? opened : entry + opened;
}

/* No device, no FIFO, no socket: only types that have no effect outside this directory. */
ssize_t serve_mknod(struct call *call)
{
	struct fuse_mknod_in in;
	char path[VOLUME_PATH_MAX];
	const char *name;

	memcpy(&in, call->data, sizeof(in));
	struct node *parent = new_path(call, sizeof(in), &name, path);
	if (!parent)
		return -errno;
	if (in.mode & S_IFMT && !S_ISREG(in.mode))
		return -EPERM;
	int fd = volume_create(&call->server->volume, path, in.mode, call->header.uid, call->header.gid, 0);
	if (fd < 0)
		return -errno;
	ssize_t size = call_answer_entry(call, parent, name, fd);
	volume_drop(&call->server->volume, fd);
	return size;
}

ssize_t serve_mkdir(struct call *call)
{
	struct fuse_mkdir_in in;
	size_t at = sizeof(in);

	memcpy(&in, call->data, sizeof(in));
	const char *name = call_name(call, &at);
	cleanup_close int parent = name ? call_directory(call, call->header.nodeid) : -1;
	if (parent < 0 ||
	    volume_mkdir(&call->server->volume, parent, name, in.mode, call->header.uid, call->header.gid) < 0)
		return -errno;
	return call_look_up(call, call_node(call, call->header.nodeid), name);
}

ssize_t serve_symlink(struct call *call)
{
	size_t at = 0;
	const char *name = call_name(call, &at), *target = name ? call_text(call, &at) : NULL;

	if (!target || strlen(target) >= VOLUME_PATH_MAX)
		return name ? -EINVAL : -errno;
	cleanup_close int parent = call_directory(call, call->header.nodeid);
	if (parent < 0 ||
	    volume_symlink(&call->server->volume, parent, name, target, call->header.uid, call->header.gid) < 0)
		return -errno;
	return call_look_up(call, call_node(call, call->header.nodeid), name);
}

ssize_t serve_link(struct call *call)
{
	struct fuse_link_in in;
	size_t at = sizeof(in);

	memcpy(&in, call->data, sizeof(in));
	const char *name = call_name(call, &at);
	struct node *old = name ? call_node(call, in.oldnodeid) : NULL;
	if (!old)
		return -errno;
	if (!old->parent) /* the root */
		return -EPERM;
	if (old->dead)
		return -ESTALE;
	cleanup_close int from = call_node_fd(call, old->parent, O_DIRECTORY);
	cleanup_close int parent = from >= 0 ? call_directory(call, call->header.nodeid) : -1;
	if (parent < 0 || volume_link(&call->server->volume, from, old->name, old->inode, parent, name) < 0)
		return -errno;
	return call_look_up(call, call_node(call, call->header.nodeid), name);
}

ssize_t serve_remove(struct call *call)
{
	bool directory = call->header.opcode == FUSE_RMDIR;
	size_t at = 0;
	const char *name = call_name(call, &at);
	cleanup_close int parent = name ? call_directory(call, call->header.nodeid) : -1;

	if (parent < 0 || (directory ? volume_rmdir : volume_unlink)(&call->server->volume, parent, name) < 0)
		return -errno;
	nodes_removed(&call->server->nodes, call_node(call, call->header.nodeid), name);
	return 0;
}

static ssize_t move(struct call *call, uint64_t new_parent, uint32_t flags, size_t at)
{
	const char *old_name = call_name(call, &at), *new_name = old_name ? call_name(call, &at) : NULL;
	cleanup_close int from = new_name ? call_directory(call, call->header.nodeid) : -1;
	cleanup_close int to = from >= 0 ? call_directory(call, new_parent) : -1;

	if (to < 0)
		return -errno;
	if (flags & ~(uint32_t)RENAME_NOREPLACE)
		return -EINVAL;
	if (volume_rename(&call->server->volume, from, old_name, to, new_name, !flags) < 0)
		return -errno;
	nodes_renamed(&call->server->nodes, call_node(call, call->header.nodeid), old_name, call_node(call, new_parent),
		      new_name);
	return 0;
}

ssize_t serve_rename(struct call *call)
{
	struct fuse_rename_in in;

	memcpy(&in, call->data, sizeof(in));
	return move(call, in.newdir, 0, sizeof(in));
}

ssize_t serve_rename2(struct call *call)
{
	struct fuse_rename2_in in;

	memcpy(&in, call->data, sizeof(in));
	return move(call, in.newdir, in.flags, sizeof(in));
}
