/*
 * TAR_READ: a file or tree of the guest as a tar stream, in a worker. Names are relative to the parent of the path, so
 * that unpacking creates one entry of the same name. It must never follow a link or leave the filesystem of the path (a
 * tar of / contains no /proc).
 */
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "agent/agent.h"
#include "agent/tar.h"
#include "agent/users.h"

#define PACK_DEPTH_MAX 256
#define BUNDLE_MAX (4u << 20)

struct hard_link {
	ino_t inode;
	char *name;
};

struct pack {
	struct job *job;
	bool image; /* TAR_OF_IMAGE */
	dev_t device;
	struct hard_link *links; /* files with several names, with the first name of each */
	size_t link_count;
	size_t filled;
	char buffer[CHUNK_SIZE];
};

static int pack_flush(struct pack *pack, struct husk_error *err)
{
	if (pack->filled > 0 && job_data(pack->job, pack->buffer, pack->filled, err) < 0)
		return -1;
	pack->filled = 0;
	return 0;
}

static int pack_bytes(struct pack *pack, const char *data, size_t size, struct husk_error *err)
{
	while (size > 0) {
		size_t part = MIN(size, sizeof(pack->buffer) - pack->filled);
		memcpy(pack->buffer + pack->filled, data, part);
		pack->filled += part;
		data += part;
		size -= part;
		if (pack->filled == sizeof(pack->buffer) && pack_flush(pack, err) < 0)
			return -1;
	}
	return 0;
}

static int pack_zeros(struct pack *pack, size_t size, struct husk_error *err)
{
	static const char zeros[2 * TAR_BLOCK];
	return pack_bytes(pack, zeros, size, err);
}

static int pack_header(struct pack *pack, struct tar_header *header, struct husk_error *err)
{
	memcpy(header->magic, "ustar  ", 8); /* GNU's magic, including the version */
	snprintf(header->checksum, sizeof(header->checksum), "%06o", tar_checksum(header) & 0777777);
	header->checksum[7] = ' ';
	return pack_bytes(pack, (const char *)header, sizeof(*header), err);
}

/* A name or link target that does not fit the header is sent before it, as the content of an entry of its own. */
static int pack_long(struct pack *pack, char type, const char *text, char field[static 100], struct husk_error *err)
{
	struct tar_header header = { .type = type };
	size_t size = strlen(text) + 1;

	memcpy(field, text, MIN(size - 1, 100));
	if (size - 1 <= 100)
		return 0;
	snprintf(header.name, sizeof(header.name), "././@LongLink");
	tar_number_write(header.mode, sizeof(header.mode), 0);
	tar_number_write(header.uid, sizeof(header.uid), 0);
	tar_number_write(header.gid, sizeof(header.gid), 0);
	tar_number_write(header.mtime, sizeof(header.mtime), 0);
	tar_number_write(header.size, sizeof(header.size), size);
	if (pack_header(pack, &header, err) < 0 || pack_bytes(pack, text, size, err) < 0)
		return -1;
	return pack_zeros(pack, tar_padding((int64_t)size), err);
}

static void header_name(char *field, size_t size, const char *name)
{
	snprintf(field, size, "%s", name ? name : "");
}

static int pack_entry(struct pack *pack, char type, const char *name, const char *link, const struct stat *status,
		      struct husk_error *err)
{
	struct tar_header header = { .type = type };

	if (pack_long(pack, TAR_LONG_NAME, name, header.name, err) < 0 ||
	    pack_long(pack, TAR_LONG_LINK, link ? link : "", header.link, err) < 0)
		return -1;
	tar_number_write(header.mode, sizeof(header.mode), status->st_mode & 07777);
	tar_number_write(header.uid, sizeof(header.uid), status->st_uid);
	tar_number_write(header.gid, sizeof(header.gid), status->st_gid);
	tar_number_write(header.size, sizeof(header.size), type == TAR_FILE ? (uint64_t)status->st_size : 0);
	tar_number_write(header.mtime, sizeof(header.mtime), (uint64_t)MAX(status->st_mtim.tv_sec, 0));
	header_name(header.user, sizeof(header.user), user_name(status->st_uid));
	header_name(header.group, sizeof(header.group), group_name(status->st_gid));
	return pack_header(pack, &header, err);
}

/* The name under which this file was packed before. NULL: this is the first time, and the name is remembered. */
static const char *pack_seen(struct pack *pack, const struct stat *status, const char *name)
{
	for (size_t i = 0; i < pack->link_count; i++) {
		if (pack->links[i].inode == status->st_ino)
			return pack->links[i].name;
	}
	struct hard_link *bigger = reallocarray(pack->links, pack->link_count + 1, sizeof(*bigger));
	char *copy = strdup(name);
	if (bigger)
		pack->links = bigger;
	if (bigger && copy)
		pack->links[pack->link_count++] = (struct hard_link){ status->st_ino, copy };
	else
		free(copy); /* without memory, the file is packed again: a larger tar, but a correct one */
	return NULL;
}

/* The header has declared the size: a file that shrinks meanwhile is padded with zeros, one that grows is cut. */
static int pack_content(struct pack *pack, int fd, const char *name, int64_t size, struct husk_error *err)
{
	char data[32 * 1024];

	for (int64_t left = size; left > 0;) {
		ssize_t count = read(fd, data, (size_t)MIN(left, (int64_t)sizeof(data)));
		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0)
			return husk_fail_errno(err, "cannot read '%s'", name);
		if (count == 0) {
			count = (ssize_t)MIN(left, (int64_t)sizeof(data));
			memset(data, 0, (size_t)count);
		}
		if (pack_bytes(pack, data, (size_t)count, err) < 0)
			return -1;
		left -= count;
	}
	return pack_zeros(pack, tar_padding(size), err);
}

static int pack_file(struct pack *pack, int directory, const char *base, const char *name, struct husk_error *err)
{
	cleanup_close int fd = openat(directory, base, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat status;

	if (fd < 0)
		return errno == ENOENT ? 0 : husk_fail_errno(err, "cannot read '%s'", name);
	if (fstat(fd, &status) < 0)
		return husk_fail_errno(err, "cannot read '%s'", name);
	if (!S_ISREG(status.st_mode)) /* replaced meanwhile */
		return 0;
	const char *first = status.st_nlink > 1 ? pack_seen(pack, &status, name) : NULL;
	if (first)
		return pack_entry(pack, TAR_HARD_LINK, name, first, &status, err);
	if (pack_entry(pack, TAR_FILE, name, NULL, &status, err) < 0)
		return -1;
	return pack_content(pack, fd, name, status.st_size, err);
}

static int pack_symlink(struct pack *pack, int directory, const char *base, const char *name, const struct stat *status,
			struct husk_error *err)
{
	char target[PATH_MAX];
	ssize_t size = readlinkat(directory, base, target, sizeof(target) - 1);

	if (size < 0)
		return errno == ENOENT ? 0 : husk_fail_errno(err, "cannot read link '%s'", name);
	target[size] = '\0';
	return pack_entry(pack, TAR_SYMLINK, name, target, status, err);
}

static int pack_any(struct pack *pack, int directory, const char *base, const char *name, int depth,
		    struct husk_error *err);

static int pack_directory(struct pack *pack, int directory, const char *base, const char *name, int depth,
			  const struct stat *status, struct husk_error *err)
{
	cleanup_free char *with_slash = str_format("%s/", name);
	const struct dirent *entry;

	if (!with_slash)
		return husk_fail_memory(err);
	if (depth >= PACK_DEPTH_MAX)
		return husk_fail(err, HUSK_LIMIT, "'%s' is more than %d directories deep", name, PACK_DEPTH_MAX);
	int fd = openat(directory, base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : husk_fail_errno(err, "cannot read directory '%s'", name);
	cleanup_dir DIR *stream = fdopendir(fd);
	if (!stream) {
		fd_close(&fd);
		return husk_fail_errno(err, "cannot read directory '%s'", name);
	}
	if (pack_entry(pack, TAR_DIRECTORY, with_slash, NULL, status, err) < 0)
		return -1;
	if (status->st_dev != pack->device) /* a mount point: the directory is packed, its content is not */
		return 0;
	while ((errno = 0, entry = readdir(stream))) {
		if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, ".."))
			continue;
		cleanup_free char *path = str_format("%s%s", with_slash, entry->d_name);
		if (!path)
			return husk_fail_memory(err);
		if (pack_any(pack, fd, entry->d_name, path, depth + 1, err) < 0)
			return -1;
	}
	return errno ? husk_fail_errno(err, "cannot read directory '%s'", name) : 0;
}

/* The host's certificate authority is this sandbox's alone: what holds it is packed without it. */
static int pack_bundle(struct pack *pack, int directory, const char *base, const char *name, struct husk_error *err)
{
	cleanup_free char *own = file_read(NETWORK_OWN_FILE, BUNDLE_MAX, NULL, NULL);
	cleanup_free char *bundle = own && *own ? file_read(NETWORK_BUNDLE, BUNDLE_MAX, NULL, NULL) : NULL;
	char *at = bundle ? strstr(bundle, own) : NULL;
	struct stat status;

	if (!at || fstatat(directory, base, &status, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(status.st_mode))
		return pack_file(pack, directory, base, name, err);
	memmove(at, at + strlen(own), strlen(at + strlen(own)) + 1);
	status.st_size = (off_t)strlen(bundle);
	if (pack_entry(pack, TAR_FILE, name, NULL, &status, err) < 0 ||
	    pack_bytes(pack, bundle, strlen(bundle), err) < 0)
		return -1;
	return pack_zeros(pack, tar_padding(status.st_size), err);
}

/* Is this path ("./etc/hosts") left out of an image? */
static bool is_left_out(int directory, const char *base, const char *name)
{
	char target[PATH_MAX] = "";

	if (str_equal(name + 1, NETWORK_BUNDLE))
		return false;
	if (str_equal(name + 1, "/dev")) /* a mount point, of which the directory stays */
		return false;
	if (str_starts(name, "./etc/ssl/certs/") && readlinkat(directory, base, target, sizeof(target) - 1) > 0 &&
	    str_equal(target, NETWORK_OWN_FILE))
		return true;
	return changes_is_identity(name + 1);
}

static int pack_any(struct pack *pack, int directory, const char *base, const char *name, int depth,
		    struct husk_error *err)
{
	struct stat status;

	if (pack->image && depth > 0 && is_left_out(directory, base, name))
		return 0;
	if (pack->image && str_equal(name + 1, NETWORK_BUNDLE))
		return pack_bundle(pack, directory, base, name, err);
	if (fstatat(directory, base, &status, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT && depth > 0 ? 0 : husk_fail_errno(err, "cannot read '%s'", name);
	if (depth == 0)
		pack->device = status.st_dev;
	if (S_ISDIR(status.st_mode))
		return pack_directory(pack, directory, base, name, depth, &status, err);
	if (S_ISREG(status.st_mode))
		return pack_file(pack, directory, base, name, err);
	if (S_ISLNK(status.st_mode))
		return pack_symlink(pack, directory, base, name, &status, err);
	if (S_ISFIFO(status.st_mode))
		return pack_entry(pack, TAR_FIFO, name, NULL, &status, err);
	/* Sockets and devices are useless elsewhere, so a tree is packed without them. An explicit request for one
	 * fails. */
	return depth > 0 ? 0 : husk_fail(err, HUSK_INVALID, "cannot pack '%s': it is a socket or a device", name);
}

static int pack_run(struct job *job, struct husk_error *err)
{
	static struct pack pack; /* of this worker alone; too large for a stack */
	cleanup_free char *path = NULL;

	if (request_string(&job->request, TAG_PATH, &path, err) < 0)
		return -1;
	pack.image = request_int(&job->request, TAG_FLAGS, 0) & TAR_OF_IMAGE;
	if (pack.image && !str_equal(path, "/"))
		return husk_fail(err, HUSK_INVALID, "an image is made of '/', not of '%s'", path);
	for (size_t size = strlen(path); size > 1 && path[size - 1] == '/'; size--)
		path[size - 1] = '\0';
	const char *name = strrchr(path, '/') + 1;
	pack.job = job;
	/* The path itself may be a link to a directory, as in `cp -r link/`: then its content is packed. */
	cleanup_free char *real = realpath(path, NULL);
	if (!real)
		return husk_fail_errno(err, "cannot read '%s'", path);
	bool no_name = name[0] == '\0' || str_equal(name, ".") || str_equal(name, "..");
	if (pack_any(&pack, AT_FDCWD, real, no_name ? "." : name, 0, err) < 0 ||
	    pack_zeros(&pack, 2 * TAR_BLOCK, err) < 0 || pack_flush(&pack, err) < 0)
		return -1;
	return wire_send(job->out, job->channel, WIRE_EOF, STREAM_OUT, NULL, 0, err);
}

int tar_read_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	return worker_open(agent, number, request, false, pack_run, err);
}
