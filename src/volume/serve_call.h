/*
 * One FUSE request on its way through the server: the parsed request, and the functions that the operations share.
 * serve_node.c maps node numbers to files, serve_file.c handles content, serve_name.c changes names.
 *
 * An operation returns the size of its answer after the header, or a negative errno. Everything in the request is
 * untrusted. `least` in fuse.c's table is how many bytes an operation may read without a check.
 */
#ifndef HUSK_VOLUME_SERVE_CALL_H
#define HUSK_VOLUME_SERVE_CALL_H

#include <linux/fuse.h>

#include "volume/fuse.h"
#include "volume/nodes.h"

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
	struct handle handles[SERVE_HANDLES_MAX];
	uint32_t generation; /* upper half of handle numbers, so that handles from before a restore can be recognised */
};

struct call {
	struct volume_server *server;
	struct fuse_in_header header;
	const char *data; /* after the header */
	size_t size;
	char *out; /* after the header of the answer */
};

/* ---- serve_node.c: NULL or -1 with errno ---- */

/* The next name in the request, NUL-terminated: any text, or one component of a path. */
const char *call_text(const struct call *call, size_t *at);
const char *call_name(const struct call *call, size_t *at);
struct node *call_node(const struct call *call, uint64_t id);
/* O_PATH, for all uses except content. A file without a name still exists for a guest that has it open. */
int call_node_fd(const struct call *call, const struct node *node, int flags);
int call_directory(const struct call *call, uint64_t id);
/* For content: of a regular file, opened by volume_file, or of a directory. */
int call_open_node(const struct call *call, const struct node *node, bool directory, bool writable, bool append);
/* The answer for an entry that the guest knows by its node from now on. */
ssize_t call_answer_entry(const struct call *call, struct node *parent, const char *name, int fd);
ssize_t call_look_up(const struct call *call, struct node *parent, const char *name);

ssize_t serve_lookup(struct call *call);
ssize_t serve_forget(struct call *call);
ssize_t serve_batch_forget(struct call *call);
ssize_t serve_getattr(struct call *call);
ssize_t serve_setattr(struct call *call);
ssize_t serve_readlink(struct call *call);

/* ---- serve_file.c ---- */

struct handle *handle_find(struct volume_server *server, uint64_t id);
/* Keeps the descriptor under a new number, and writes the answer. Always takes ownership of the descriptor. */
ssize_t call_answer_open(const struct call *call, struct node *node, int fd, bool append, struct fuse_open_out *out);

ssize_t serve_open(struct call *call);
ssize_t serve_release(struct call *call);
ssize_t serve_read(struct call *call);
ssize_t serve_write(struct call *call);
ssize_t serve_fsync(struct call *call);
ssize_t serve_readdir(struct call *call);

/* ---- serve_name.c ---- */

ssize_t serve_create(struct call *call);
ssize_t serve_mknod(struct call *call);
ssize_t serve_mkdir(struct call *call);
ssize_t serve_symlink(struct call *call);
ssize_t serve_link(struct call *call);
ssize_t serve_remove(struct call *call);
ssize_t serve_rename(struct call *call);
ssize_t serve_rename2(struct call *call);

#endif
