/*
 * The files of a volume, from outside any sandbox. Part of the public API (husk.h has the contracts). The caller may be a
 * tenant. The content may come from a hostile guest, which may change it at the same time. So every file is opened through
 * volume/volume.h.
 */
#include <fcntl.h>

#include "client/volume_manage.h"

#define CHUNK (192u * 1024u)
#define LIST_MAX 1000000u
#define LIST_BYTES_MAX (256u << 20)
#define DEPTH_MAX 256u
#define REMOVE_MS (20 * 60 * 1000) /* a guest may make new files as fast as they are removed */

static void drop_volume(struct volume *volume)
{
	if (volume->root >= 0)
		volume_close(volume);
}
#define cleanup_volume cleanup(drop_volume)
#define NO_VOLUME                                                                                                      \
	{                                                                                                              \
		.root = -1, .count_fd = -1                                                                             \
	}

/* Converts a path of the caller to the form of volume_at: relative, without empty parts. Caller frees. */
static char *plain_path(const char *path, struct husk_error *err)
{
	cleanup_buf struct buf out = { 0 };
	int bad = buf_append_string(&out, "");

	for (const char *at = path ? path : ""; *at && !bad;) {
		size_t length = strcspn(at, "/");
		if ((length == 2 && strncmp(at, "..", 2) == 0) || length > 255) {
			husk_fail_field(
				err, "path",
				"path '%.200s' is not one in a volume: no part may be .. or longer than 255 bytes",
				path);
			return NULL;
		}
		if (length && !(length == 1 && *at == '.')) {
			if (out.size)
				bad |= buf_append_string(&out, "/");
			bad |= buf_append(&out, at, length);
		}
		at += length + (at[length] == '/');
	}
	if (!bad && out.size >= VOLUME_PATH_MAX) {
		husk_fail_field(err, "path", "the path is longer than %u bytes", VOLUME_PATH_MAX - 1);
		return NULL;
	}
	char *plain = bad ? NULL : buf_steal(&out);
	if (!plain)
		husk_fail_memory(err);
	return plain;
}

static int fail_at(struct husk_error *err, const char *what, const char *path)
{
	if (errno == ELOOP)
		return husk_fail(err, HUSK_INVALID, "cannot %s '/%s': a symbolic link of a volume is not followed",
				 what, path);
	if (errno == EISDIR || errno == ENOTDIR || errno == EEXIST || errno == ENOTEMPTY) {
		enum husk_code code = errno == EEXIST || errno == ENOTEMPTY ? HUSK_CONFLICT : HUSK_INVALID;
		return husk_fail(err, code, "cannot %s '/%s': %s", what, path, strerror(errno));
	}
	if (errno == ENOSPC || errno == EDQUOT)
		return husk_fail(err, HUSK_LIMIT, "cannot %s '/%s': the volume is full", what, path);
	return husk_fail_errno(err, "cannot %s '/%s'", what, path);
}

/* Opens the volume and converts the path, for every function below. */
static int begin(struct husk *husk, const char *name, const char *path, struct volume *volume, char **plain,
		 struct husk_error *err)
{
	*plain = plain_path(path, err);
	return *plain ? volume_find(husk, name, volume, err) : -1;
}

/* ---- looking ---- */

static int64_t to_ms(struct timespec at)
{
	return (int64_t)at.tv_sec * 1000 + at.tv_nsec / 1000000;
}

/* Describes the file of an O_PATH descriptor. */
static int describe(int fd, const char *path, struct husk_file *out, struct husk_error *err)
{
	char target[VOLUME_PATH_MAX];
	struct stat status;

	if (fstat(fd, &status) < 0)
		return fail_at(err, "look at", path);
	ssize_t size = S_ISLNK(status.st_mode) ? readlinkat(fd, "", target, sizeof(target) - 1) : -1;
	*out = (struct husk_file){
		.path = str_format("/%s", path),
		.type = S_ISREG(status.st_mode)   ? HUSK_FILE
			: S_ISDIR(status.st_mode) ? HUSK_DIRECTORY
			: S_ISLNK(status.st_mode) ? HUSK_SYMLINK
						  : HUSK_OTHER,
		.size = (uint64_t)status.st_size,
		.mode = status.st_mode & 07777,
		.uid = status.st_uid,
		.gid = status.st_gid,
		.target = size >= 0 ? strndup(target, (size_t)size) : NULL,
		.mtime_ms = to_ms(status.st_mtim),
		.atime_ms = to_ms(status.st_atim),
		.ctime_ms = to_ms(status.st_ctim),
	};
	if (out->path && (size < 0 || out->target))
		return 0;
	husk_file_free(out);
	return husk_fail_memory(err);
}

int husk_volume_file_stat(struct husk *husk, const char *name, const char *path, struct husk_file *out,
			  struct husk_error *err)
{
	if (husk->remote)
		return remote_volume_file_stat(husk->remote, name, path, out, err);
	cleanup_volume struct volume volume = NO_VOLUME;
	cleanup_free char *plain = NULL;

	if (begin(husk, name, path, &volume, &plain, err) < 0)
		return -1;
	cleanup_close int fd = volume_at(&volume, plain, O_PATH, 0);
	return fd < 0 ? fail_at(err, "look at", plain) : describe(fd, plain, out, err);
}

/* The content is a guest's: names, paths and targets are bounded in number and in bytes. */
struct listing {
	const struct volume *volume;
	struct husk_file *files;
	size_t count, capacity;
	size_t names, bytes; /* what was read so far */
};

static int account(struct listing *listing, size_t names, size_t bytes, struct husk_error *err)
{
	listing->names += names;
	listing->bytes += bytes;
	if (listing->names <= LIST_MAX && listing->bytes <= LIST_BYTES_MAX)
		return 0;
	return husk_fail(err, HUSK_LIMIT, "more than %u entries or %u MiB; list deeper paths one by one", LIST_MAX,
			 LIST_BYTES_MAX >> 20);
}

static int add_entry(struct listing *listing, const char *path, struct husk_error *err)
{
	cleanup_close int fd = volume_at(listing->volume, path, O_PATH, 0);

	if (fd < 0) /* gone meanwhile */
		return 0;
	if (listing->count == listing->capacity) {
		size_t capacity = listing->capacity ? 2 * listing->capacity : 64;
		struct husk_file *bigger = reallocarray(listing->files, capacity, sizeof(*bigger));
		if (!bigger)
			return husk_fail_memory(err);
		listing->files = bigger;
		listing->capacity = capacity;
	}
	struct husk_file *file = &listing->files[listing->count];
	if (describe(fd, path, file, err) < 0)
		return -1;
	listing->count++;
	return account(listing, 0, sizeof(*file) + strlen(path) + (file->target ? strlen(file->target) : 0), err) < 0
		       ? -1
		       : 1;
}

struct names {
	char **list;
	size_t count, capacity;
};

static void names_free(struct names *names)
{
	for (size_t i = 0; i < names->count; i++)
		free(names->list[i]);
	free(names->list);
}

static int add_name(struct names *names, const char *name, struct husk_error *err)
{
	if (names->count == names->capacity) {
		size_t capacity = names->capacity ? 2 * names->capacity : 64;
		char **bigger = reallocarray(names->list, capacity, sizeof(*bigger));
		if (!bigger)
			return husk_fail_memory(err);
		names->list = bigger;
		names->capacity = capacity;
	}
	if (!(names->list[names->count] = strdup(name)))
		return husk_fail_memory(err);
	names->count++;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int read_names(struct listing *listing, const char *path, struct names *out, struct husk_error *err)
{
	int fd = volume_at(listing->volume, path, O_RDONLY | O_DIRECTORY, 0);
	cleanup_dir DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (!dir) {
		int why = errno;
		fd_close(&fd);
		errno = why;
		return fail_at(err, "list", path);
	}
	for (struct dirent *entry; (entry = readdir(dir));) {
		if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, ".."))
			continue;
		if (account(listing, 1, sizeof(char *) + strlen(entry->d_name), err) < 0 ||
		    add_name(out, entry->d_name, err) < 0)
			return -1;
	}
	if (out->count)
		qsort(out->list, out->count, sizeof(*out->list), by_name);
	return 0;
}

static int list_directory(struct listing *listing, const char *path, uint32_t depth, struct husk_error *err);

/* A directory that is gone meanwhile is no failure. */
static int list_below(struct listing *listing, const char *path, uint32_t depth, struct husk_error *err)
{
	struct husk_error why = { 0 };
	int result = list_directory(listing, path, depth, &why);

	if (result < 0 && why.code == HUSK_NOT_FOUND)
		return 0;
	return result < 0 ? husk_fail(err, why.code, "%s", why.message) : 0;
}

static int list_directory(struct listing *listing, const char *path, uint32_t depth, struct husk_error *err)
{
	cleanup(names_free) struct names names = { 0 };

	if (read_names(listing, path, &names, err) < 0)
		return -1;
	for (size_t i = 0; i < names.count; i++) {
		cleanup_free char *below = str_format("%s%s%s", path, *path ? "/" : "", names.list[i]);
		if (!below)
			return husk_fail_memory(err);
		if (strlen(below) >= VOLUME_PATH_MAX)
			continue;
		int added = add_entry(listing, below, err);
		bool enter = added > 0 && depth > 1 && listing->files[listing->count - 1].type == HUSK_DIRECTORY;
		if (added < 0 || (enter && list_below(listing, below, depth - 1, err) < 0))
			return -1;
	}
	return 0;
}

int husk_volume_file_list(struct husk *husk, const char *name, const char *path, uint32_t depth, struct husk_file **out,
			  size_t *count, struct husk_error *err)
{
	if (husk->remote)
		return remote_volume_file_list(husk->remote, name, path, depth, out, count, err);
	cleanup_volume struct volume volume = NO_VOLUME;
	cleanup_free char *plain = NULL;

	if (begin(husk, name, path, &volume, &plain, err) < 0)
		return -1;
	struct listing listing = { .volume = &volume };
	if (list_directory(&listing, plain, MIN(MAX(depth, 1u), DEPTH_MAX), err) < 0) {
		husk_file_list_free(listing.files, listing.count);
		return -1;
	}
	*out = listing.files;
	*count = listing.count;
	return 0;
}

/* ---- content ---- */

int husk_volume_file_read(struct husk *husk, const char *name, const char *path, uint64_t offset, uint64_t length,
			  husk_sink sink, void *data, struct husk_error *err)
{
	if (husk->remote)
		return remote_volume_file_read(husk->remote, name, path, offset, length, sink, data, err);
	cleanup_volume struct volume volume = NO_VOLUME;
	cleanup_free char *plain = NULL, *chunk = malloc(CHUNK);
	uint64_t left = length ? length : UINT64_MAX;

	if (!chunk)
		return husk_fail_memory(err);
	if (offset > INT64_MAX)
		return husk_fail_field(err, "offset", "the offset is past the largest possible file");
	if (begin(husk, name, path, &volume, &plain, err) < 0)
		return -1;
	int fd = volume_file(&volume, plain, false, 0);
	if (fd < 0)
		return fail_at(err, "read", plain);
	int result = 0;
	for (off_t at = (off_t)offset; left > 0 && result == 0;) {
		ssize_t got = pread(fd, chunk, (size_t)MIN(left, CHUNK), at);
		if (got < 0)
			result = fail_at(err, "read", plain);
		if (got <= 0)
			break;
		if (sink(data, chunk, (size_t)got) != 0)
			result = husk_fail(err, HUSK_INTERNAL, "the receiver stopped the transfer");
		at += got;
		left -= (uint64_t)got;
	}
	volume_drop(&volume, fd);
	return result;
}

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
	return value == HUSK_KEEP ? fallback : value;
}

static const struct husk_file_attributes keep_all = { .mode = HUSK_KEEP, .uid = HUSK_KEEP, .gid = HUSK_KEEP };

static int check_attributes(const struct husk_file_attributes *wanted, struct husk_error *err)
{
	if (wanted->mode != HUSK_KEEP && wanted->mode > 07777)
		return husk_fail_field(err, "mode", "mode 0%o is not one; the bits are 0 to 07777", wanted->mode);
	return 0;
}

/* Splits the last part off; returns a descriptor of its directory. */
static int parent_of(const struct volume *volume, char *plain, const char **last)
{
	char *slash = strrchr(plain, '/');

	*last = slash ? slash + 1 : plain;
	if (!**last) {
		errno = EBUSY; /* the root itself */
		return -1;
	}
	if (slash)
		*slash = '\0';
	int fd = volume_at(volume, slash ? plain : "", O_PATH | O_DIRECTORY, 0);
	if (slash)
		*slash = '/';
	return fd;
}

/* Makes the missing directories of the path up to `end`. */
static int make_directories(struct volume *volume, char *plain, char *end, const struct husk_file_attributes *wanted)
{
	for (char *slash = strchr(plain, '/');; slash = strchr(slash + 1, '/')) {
		char *stop = slash && slash < end ? slash : end, kept = *stop;
		const char *last;
		*stop = '\0';
		cleanup_close int parent = parent_of(volume, plain, &last);
		int failed = parent < 0 || (volume_mkdir(volume, parent, last, or_default(wanted->mode, 0755),
							 or_default(wanted->uid, 0), or_default(wanted->gid, 0)) < 0 &&
					    errno != EEXIST);
		*stop = kept;
		if (failed || stop == end)
			return failed ? -1 : 0;
	}
}

static int make_parents(struct volume *volume, char *plain)
{
	char *slash = strrchr(plain, '/');

	return slash ? make_directories(volume, plain, slash, &keep_all) : 0;
}

static int copy_in(struct volume *volume, int fd, const char *plain, husk_source source, void *data,
		   struct husk_error *err)
{
	cleanup_free char *chunk = malloc(CHUNK);
	off_t at = 0;
	ssize_t got;

	if (!chunk)
		return husk_fail_memory(err);
	while ((got = source(data, chunk, CHUNK)) > 0) {
		for (ssize_t done = 0, count; done < got; done += count) {
			count = volume_write(volume, fd, chunk + done, (size_t)(got - done), at + done, false);
			if (count <= 0)
				return fail_at(err, "write", plain);
		}
		at += got;
	}
	return got < 0 ? husk_fail(err, HUSK_INTERNAL, "the sender stopped the transfer") : 0;
}

/* Writes a file beside the target, then renames it: a reader sees the old or the new content, and a full volume keeps
 * the old. */
static int write_beside(struct volume *volume, char *plain, const struct husk_file_attributes *wanted,
			husk_source source, void *data, struct husk_error *err)
{
	char suffix[16];
	struct stat before = { .st_mode = 0644 };
	const char *last;

	cleanup_close int parent = parent_of(volume, plain, &last);
	if (parent < 0)
		return fail_at(err, "write", plain);
	cleanup_close int old = volume_at(volume, plain, O_PATH, 0);
	if (old >= 0 && fstat(old, &before) == 0 && !S_ISREG(before.st_mode))
		return husk_fail(err, HUSK_INVALID, "cannot write '/%s': it is not a regular file", plain);
	if (old >= 0 && wanted->fresh)
		return husk_fail(err, HUSK_CONFLICT, "cannot write '/%s': it exists already", plain);
	if (random_id(".husk-", 8, suffix) < 0)
		return husk_fail_errno(err, "no random numbers");
	cleanup_free char *beside = str_format("%.*s%s", (int)(last - plain), plain, suffix);
	if (!beside)
		return husk_fail_memory(err);
	int fd = volume_create(volume, beside, or_default(wanted->mode, before.st_mode),
			       or_default(wanted->uid, before.st_uid), or_default(wanted->gid, before.st_gid), 0);
	if (fd < 0)
		return fail_at(err, "write", plain);
	int result = copy_in(volume, fd, plain, source, data, err);
	if (result == 0 && (fsync(fd) < 0 || volume_rename(volume, parent, suffix, parent, last, !wanted->fresh) < 0))
		result = fail_at(err, "write", plain);
	if (result < 0)
		volume_unlink(volume, parent, suffix);
	volume_drop(volume, fd);
	return result;
}

int husk_volume_file_write(struct husk *husk, const char *name, const char *path,
			   const struct husk_file_attributes *attributes, husk_source source, void *data,
			   struct husk_error *err)
{
	if (husk->remote)
		return remote_volume_file_write(husk->remote, name, path, attributes, source, data, err);
	const struct husk_file_attributes *wanted = attributes ? attributes : &keep_all;
	cleanup_volume struct volume volume = NO_VOLUME;
	cleanup_free char *plain = NULL;

	if (check_attributes(wanted, err) < 0 || begin(husk, name, path, &volume, &plain, err) < 0)
		return -1;
	if (!*plain || str_ends(path, "/"))
		return husk_fail_field(err, "path", "cannot write '%s': it names a directory", path);
	if (make_parents(&volume, plain) < 0)
		return fail_at(err, "make the directories of", plain);
	return write_beside(&volume, plain, wanted, source, data, err);
}

/* ---- the rest ---- */

static int apply(int fd, const struct husk_file_attributes *wanted)
{
	if ((wanted->uid != HUSK_KEEP || wanted->gid != HUSK_KEEP) && volume_chown(fd, wanted->uid, wanted->gid) < 0)
		return -1;
	return wanted->mode != HUSK_KEEP ? volume_chmod(fd, wanted->mode) : 0;
}

int husk_volume_file_mkdir(struct husk *husk, const char *name, const char *path,
			   const struct husk_file_attributes *attributes, bool parents, struct husk_error *err)
{
	if (husk->remote)
		return remote_volume_file_mkdir(husk->remote, name, path, attributes, parents, err);
	const struct husk_file_attributes *wanted = attributes ? attributes : &keep_all;
	cleanup_volume struct volume volume = NO_VOLUME;
	cleanup_free char *plain = NULL;
	const char *last;

	if (check_attributes(wanted, err) < 0 || begin(husk, name, path, &volume, &plain, err) < 0)
		return -1;
	if (parents && make_parents(&volume, plain) < 0)
		return fail_at(err, "make the directories of", plain);
	cleanup_close int parent = parent_of(&volume, plain, &last);
	if (parent < 0 && !*plain)
		return parents ? 0 : husk_fail(err, HUSK_CONFLICT, "cannot create '/': it exists");
	if (parent < 0)
		return fail_at(err, "make", plain);
	if (volume_mkdir(&volume, parent, last, or_default(wanted->mode, 0755), or_default(wanted->uid, 0),
			 or_default(wanted->gid, 0)) == 0)
		return 0;
	int why = errno;
	cleanup_close int there = volume_at(&volume, plain, O_PATH | O_DIRECTORY, 0);
	errno = why;
	return parents && why == EEXIST && there >= 0 ? 0 : fail_at(err, "make", plain);
}

int husk_volume_file_change(struct husk *husk, const char *name, const char *path,
			    const struct husk_file_attributes *attributes, struct husk_error *err)
{
	if (husk->remote)
		return remote_volume_file_change(husk->remote, name, path, attributes, err);
	cleanup_volume struct volume volume = NO_VOLUME;
	cleanup_free char *plain = NULL;

	if (check_attributes(attributes, err) < 0 || begin(husk, name, path, &volume, &plain, err) < 0)
		return -1;
	cleanup_close int fd = volume_entry(&volume, plain);
	return fd < 0 || apply(fd, attributes) < 0 ? fail_at(err, "change", plain) : 0;
}

/* If a tree is deeper than DEPTH_MAX, its deep part is moved up first, and the tree is removed from the top. */
static int remove_tree(struct volume *volume, int parent, const char *name, int top, unsigned depth,
		       int64_t deadline_ms)
{
	if (time_monotonic_ms() > deadline_ms) {
		errno = ENOTEMPTY;
		return -1;
	}
	if (volume_unlink(volume, parent, name) == 0)
		return 0;
	if (errno != EISDIR)
		return -1;
	if (depth > DEPTH_MAX) {
		char lifted[24];
		return random_id(".husk-", 12, lifted) < 0 ? -1
							   : volume_rename(volume, parent, name, top, lifted, false);
	}
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	cleanup_dir DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir)
		return -1;
	bool met = true;
	while (met) {
		met = false;
		rewinddir(dir);
		for (struct dirent *entry; (entry = readdir(dir));) {
			if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, ".."))
				continue;
			met = true;
			if (remove_tree(volume, fd, entry->d_name, depth == 0 ? fd : top, depth + 1, deadline_ms) < 0 &&
			    errno != ENOENT)
				return -1;
		}
	}
	return volume_rmdir(volume, parent, name);
}

int husk_volume_file_remove(struct husk *husk, const char *name, const char *path, struct husk_error *err)
{
	if (husk->remote)
		return remote_volume_file_remove(husk->remote, name, path, err);
	cleanup_volume struct volume volume = NO_VOLUME;
	cleanup_free char *plain = NULL;
	const char *last;

	if (begin(husk, name, path, &volume, &plain, err) < 0)
		return -1;
	if (!*plain)
		return husk_fail_field(err, "path", "the root of a volume stays; remove what is in it, or the volume");
	cleanup_close int parent = parent_of(&volume, plain, &last);
	return parent < 0 || remove_tree(&volume, parent, last, parent, 0, time_monotonic_ms() + REMOVE_MS) < 0
		       ? fail_at(err, "remove", plain)
		       : 0;
}
