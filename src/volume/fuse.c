/*
 * The part of the FUSE protocol (version 7.31) that a volume needs; see fuse.h. Requests come from the kernel of a
 * guest and are not trusted. Only this file, serve_*.c and nodes.c read their bytes. Sizes are checked against the
 * bytes received. Files are opened only through volume.h. A restored guest can continue without any state that is kept
 * here.
 */
#include <sys/vfs.h>

#include "volume/serve_call.h"

#define MINOR 31
#define MINOR_LEAST 23 /* the answer to INIT has its present form since this version */

static ssize_t do_statfs(struct call *call)
{
	struct fuse_statfs_out *out = (struct fuse_statfs_out *)call->out;
	const struct volume *volume = &call->server->volume;
	uint64_t used = volume_used(volume), left = used < volume->limit ? (volume->limit - used) / VOLUME_BLOCK : 0;
	struct statfs host;

	/* The kernel counts, and does not report it here: what the host has free is the best answer. */
	if (!volume->count && fstatfs(volume->root, &host) == 0)
		left = MIN(left, host.f_bavail);

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

static ssize_t do_init(struct call *call)
{
	const uint32_t wanted = FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES;
	struct fuse_init_out *out = (struct fuse_init_out *)call->out;
	uint32_t in[4] = { 0 }; /* major, minor, max_readahead, flags: the same in every version */

	memcpy(in, call->data, MIN(call->size, sizeof(in)));
	if (in[0] != FUSE_KERNEL_VERSION || in[1] < MINOR_LEAST)
		return -EPROTO;
	*out = (struct fuse_init_out){
		.major = FUSE_KERNEL_VERSION,
		.minor = MIN(in[1], (uint32_t)MINOR),
		.max_readahead = MIN(in[2], SERVE_DATA_MAX),
		.flags = (in[3] & wanted) |
			 FUSE_BIG_WRITES, /* gVisor does not offer it, but would write 4 KiB at a time without it */
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
	ssize_t (*run)(struct call *call); /* returns the size of the answer, or a negative errno */
	uint16_t least;                    /* bytes required after the header */
	bool changes;                      /* refused on a read-only mount */
	bool silent;                       /* has no answer */
};

static const struct operation operations[] = {
	[FUSE_LOOKUP] = { serve_lookup, 2, .changes = false },
	[FUSE_FORGET] = { serve_forget, sizeof(struct fuse_forget_in), .silent = true },
	[FUSE_GETATTR] = { serve_getattr, sizeof(struct fuse_getattr_in), .changes = false },
	[FUSE_SETATTR] = { serve_setattr, sizeof(struct fuse_setattr_in), .changes = true },
	[FUSE_READLINK] = { serve_readlink, 0, .changes = false },
	[FUSE_SYMLINK] = { serve_symlink, 4, .changes = true },
	[FUSE_MKNOD] = { serve_mknod, sizeof(struct fuse_mknod_in), .changes = true },
	[FUSE_MKDIR] = { serve_mkdir, sizeof(struct fuse_mkdir_in), .changes = true },
	[FUSE_UNLINK] = { serve_remove, 2, .changes = true },
	[FUSE_RMDIR] = { serve_remove, 2, .changes = true },
	[FUSE_RENAME] = { serve_rename, sizeof(struct fuse_rename_in), .changes = true },
	[FUSE_LINK] = { serve_link, sizeof(struct fuse_link_in), .changes = true },
	[FUSE_OPEN] = { serve_open, sizeof(struct fuse_open_in), .changes = false },
	[FUSE_READ] = { serve_read, sizeof(struct fuse_read_in), .changes = false },
	[FUSE_WRITE] = { serve_write, sizeof(struct fuse_write_in), .changes = true },
	[FUSE_STATFS] = { do_statfs, 0, .changes = false },
	[FUSE_RELEASE] = { serve_release, sizeof(struct fuse_release_in), .changes = false },
	/* No writes are buffered here. A current gVisor treats "not implemented" as a failure of close. */
	[FUSE_FLUSH] = { do_nothing, 0, .changes = false },
	[FUSE_FSYNC] = { serve_fsync, sizeof(struct fuse_fsync_in), .changes = false },
	[FUSE_INIT] = { do_init, 16, .changes = false },
	[FUSE_OPENDIR] = { serve_open, sizeof(struct fuse_open_in), .changes = false },
	[FUSE_READDIR] = { serve_readdir, sizeof(struct fuse_read_in), .changes = false },
	[FUSE_RELEASEDIR] = { serve_release, sizeof(struct fuse_release_in), .changes = false },
	[FUSE_FSYNCDIR] = { serve_fsync, sizeof(struct fuse_fsync_in), .changes = false },
	[FUSE_CREATE] = { serve_create, sizeof(struct fuse_create_in), .changes = true },
	[FUSE_DESTROY] = { do_nothing, 0, .changes = false },
	[FUSE_BATCH_FORGET] = { serve_batch_forget, sizeof(struct fuse_batch_forget_in), .silent = true },
	[FUSE_RENAME2] = { serve_rename2, sizeof(struct fuse_rename2_in), .changes = true },
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
	nodes_sweep(&server->nodes); /* safe here: no request holds a pointer to a node */
	call.data = request + sizeof(call.header);
	call.size = size - sizeof(call.header);
	const struct operation *operation =
		call.header.opcode < ARRAY_SIZE(operations) ? &operations[call.header.opcode] : NULL;
	ssize_t result = -ENOSYS; /* the kernel remembers this and stops asking: locks, extended attributes, access */
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

int volume_server_open(struct volume *volume, bool read_only, size_t nodes_max, struct volume_server **out,
		       struct husk_error *err)
{
	struct volume_server *server = calloc(1, sizeof(*server));
	struct stat status;

	if (!server || random_bytes(&server->generation, sizeof(server->generation)) < 0 ||
	    fstat(volume->root, &status) < 0 || nodes_open(&server->nodes, status.st_ino, nodes_max) < 0) {
		free(server);
		return husk_fail_memory(err);
	}
	server->volume = *volume;
	*volume = (struct volume){ .root = -1, .tree = -1, .count_fd = -1 };
	server->read_only = read_only;
	*out = server;
	return 0;
}

int volume_server_join(struct volume_server *server, struct husk_error *err)
{
	return volume_join(&server->volume, err);
}

void volume_server_free(struct volume_server *server)
{
	if (!server)
		return;
	for (size_t i = 0; i < SERVE_HANDLES_MAX; i++)
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
