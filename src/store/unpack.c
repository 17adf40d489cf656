/*
 * Unpacks a root filesystem tar, or the layers of a container image one over the other, for rootfs.c. The tar is untrusted,
 * so nothing in it may reach outside the directory: absolute names and ".." are refused, and no entry is written through a
 * symbolic link. Owners, permissions and times are kept as numbers. Entries below /dev are left out, because a sandbox gets
 * its own /dev.
 *
 * A layer is read twice: first for what it removes from the layers below (".wh.name", ".wh..wh..opq"), then for what it
 * adds. So the order of its entries does not matter. Links of lower layers are followed inside the directory only.
 */
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "store/rootfs.h"

#define BLOCK (1u << 20)
#define WHITEOUT ".wh."
#define OPAQUE ".wh..wh..opq"

/* The largest path in an image. A path in a guest has 4,096 bytes with its slash and its NUL; tools that write images
 * add a few. */
#define PATH_LONGEST (PATH_MAX - 64)
#define PART_LONGEST 255
#define DEEPEST 512
#define OWNER_LAST 65535
#define ENTRIES_MAX (8ull << 20)
#define BYTES_MAX (256ull << 30)
#define ENTRY_BYTES 512 /* of the disk, for a file without content */

struct unpack {
	const char *tar, *field, *directory;
	enum { WHOLE, TAKES_AWAY, BRINGS } pass;
	struct archive *in, *out;
	uint64_t entries, bytes, limit;
};

static int fail_entry(const struct unpack *unpack, const char *name, const char *problem, struct husk_error *err)
{
	bool cut = strlen(name) > 200;

	return husk_fail_field(err, unpack->field, "'%s': entry '%.200s%s' %s", unpack->tar, name, cut ? "…" : "",
			       problem);
}

static int fail_format(const struct unpack *unpack, struct husk_error *err)
{
	return husk_fail_field(err, unpack->field, "'%s' is not a tar, or is damaged: %s", unpack->tar,
			       archive_error_string(unpack->in));
}

/* The name without leading "./", or NULL if it would lead outside. */
static const char *safe_name(const char *name)
{
	if (!name || name[0] == '/')
		return NULL;
	while (str_starts(name, "./"))
		for (name += 2; *name == '/';)
			name++;
	for (const char *part = name; part; part = strchr(part, '/')) {
		part += *part == '/';
		size_t length = strcspn(part, "/");
		if (length == 2 && part[0] == '.' && part[1] == '.')
			return NULL;
	}
	return str_equal(name, ".") ? "" : name;
}

/* Checks that every tool and every guest supports this path below the root. */
static int check_path(const struct unpack *unpack, const char *name, const char *path, struct husk_error *err)
{
	size_t depth = 0;

	if (strlen(path) > PATH_LONGEST)
		return fail_entry(unpack, name, "has a path of more than 4032 bytes; make it shorter", err);
	for (const char *part = path; *part; depth++) {
		size_t length = strcspn(part, "/");
		if (length > PART_LONGEST)
			return fail_entry(unpack, name,
					  "has a name of more than 255 bytes in its path; make it shorter", err);
		part += length;
		part += strspn(part, "/");
	}
	return depth > DEEPEST ? fail_entry(unpack, name, "lies more than 512 directories deep; make that less", err)
			       : 0;
}

static int check_owner(const struct unpack *unpack, const char *name, struct archive_entry *entry,
		       struct husk_error *err)
{
	la_int64_t uid = archive_entry_uid(entry), gid = archive_entry_gid(entry);

	if (uid < 0 || uid > OWNER_LAST || gid < 0 || gid > OWNER_LAST)
		return fail_entry(unpack, name, "has an owner or a group outside 0 to 65535; change it (chown)", err);
	return 0;
}

/* ---- layers ---- */

/* The path of an open directory. /proc cannot be used: the cell has none. */
static ssize_t path_of(int fd, char path[static PATH_MAX])
{
	cleanup_close int here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (here < 0 || fchdir(fd) < 0)
		return -1;
	/* If the path does not begin with a slash, the directory is not reachable by any path. */
	bool known = getcwd(path, PATH_MAX) && path[0] == '/';
	return fchdir(here) < 0 || !known ? -1 : (ssize_t)strlen(path);
}

/* The path of a layer's name on disk. Links in its parents belong to the image and are resolved inside of it. *missing
 * points at the components that do not exist as directories yet; NULL: only the last one. A file or link with such a
 * name must not be followed. */
static char *resolve(const struct unpack *unpack, const char *name, const char **missing, struct husk_error *err)
{
	struct open_how how = { .flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
				.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS };
	cleanup_close int top = open(unpack->directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	cleanup_free char *parent = str_format("./%s", name);
	char real[PATH_MAX];

	for (char *slash = parent ? strrchr(parent, '/') : NULL; slash && top >= 0; slash = strrchr(parent, '/')) {
		*slash = '\0';
		cleanup_close int fd = (int)syscall(SYS_openat2, top, parent, &how, sizeof(how));
		if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
			continue;
		if (fd < 0 || path_of(fd, real) < 0)
			break;
		const char *rest = name + strlen(parent) + 1 - strlen("./");
		char *path = str_format("%s/%s", real, rest);
		if (!path)
			husk_fail_memory(err);
		*missing = strchr(rest, '/') ? rest : NULL;
		return path;
	}
	if (parent)
		fail_entry(unpack, name, "has no place in the root: the links on its way lead nowhere", err);
	else
		husk_fail_memory(err);
	return NULL;
}

/* Removes the content of a directory, from the layers below. */
static int empty(const char *path, struct husk_error *err)
{
	cleanup_dir DIR *dir = NULL;
	struct dirent *entry;
	struct stat status;

	if (lstat(path, &status) < 0 || !S_ISDIR(status.st_mode))
		return 0;
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		cleanup_free char *inner = str_format("%s/%s", path, entry->d_name);
		if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, ".."))
			continue;
		if (!inner || dir_remove(inner, err) < 0)
			return inner ? -1 : husk_fail_memory(err);
	}
	return dir ? 0 : husk_fail_errno(err, "cannot read '%s'", path);
}

/* "a/.wh.b" removes a/b, "a/.wh..wh..opq" removes the content of a. */
static int take_away(const struct unpack *unpack, const char *name, struct husk_error *err)
{
	const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
	bool all = str_equal(base, OPAQUE);
	cleanup_free char *victim = NULL;

	if (!str_starts(base, WHITEOUT) || (!all && str_starts(base, WHITEOUT WHITEOUT)))
		return 0;
	if (!all && (!base[strlen(WHITEOUT)] || str_equal(base, ".wh..") || str_equal(base, ".wh...")))
		return fail_entry(unpack, name, "takes away what has no name", err);
	if (all)
		victim = strndup(name, slash ? (size_t)(slash - name) : 0);
	else
		victim = str_format("%.*s%s", (int)(base - name), name, base + strlen(WHITEOUT));
	if (!victim)
		return husk_fail_memory(err);
	const char *missing = NULL;
	cleanup_free char *path = *victim ? resolve(unpack, victim, &missing, err) : strdup(unpack->directory);
	if (!path || missing)
		return path ? 0 : -1;
	return all ? empty(path, err) : dir_remove(path, err);
}

/* Removes an existing file at the path of an entry. Two directories are merged. */
static int make_way(const char *path, mode_t type, struct husk_error *err)
{
	struct stat status;

	if (lstat(path, &status) < 0 || (S_ISDIR(status.st_mode) && type == AE_IFDIR))
		return 0;
	return dir_remove(path, err);
}

/* The path for an entry of a layer. A parent that is a file, or a link to nowhere, is replaced by a directory. */
static char *clear_place(const struct unpack *unpack, const char *name, mode_t type, struct husk_error *err)
{
	const char *missing = NULL;
	cleanup_free char *path = resolve(unpack, name, &missing, err);
	cleanup_free char *first = NULL;

	if (path && missing)
		first = strndup(path, strlen(path) - strlen(missing) + strcspn(missing, "/"));
	if (!path || (missing && !first)) {
		if (path)
			husk_fail_memory(err);
		return NULL;
	}
	return make_way(first ? first : path, first ? AE_IFDIR : type, err) < 0 ? NULL : steal_pointer(path);
}

static bool is_whiteout(const char *name)
{
	const char *slash = strrchr(name, '/');

	return str_starts(slash ? slash + 1 : name, WHITEOUT);
}

/* ---- entries ---- */

/* `type` 0: the path is the target of a link, and is not changed. */
static char *place_of(const struct unpack *unpack, const char *name, mode_t type, struct husk_error *err)
{
	const char *missing = NULL;

	if (unpack->pass == BRINGS && type)
		return clear_place(unpack, name, type, err);
	cleanup_free char *path = unpack->pass == BRINGS ? resolve(unpack, name, &missing, err)
							 : str_format("%s/%s", unpack->directory, name);
	if (missing)
		fail_entry(unpack, name, "is linked to, and not there", err);
	else if (!path && unpack->pass != BRINGS)
		husk_fail_memory(err);
	return missing ? NULL : steal_pointer(path);
}

/* 1: write it; 0: leave it out. */
static int place_entry(const struct unpack *unpack, struct archive_entry *entry, struct husk_error *err)
{
	const char *given = archive_entry_pathname(entry), *safe = safe_name(given),
		   *link = archive_entry_hardlink(entry);
	mode_t type = archive_entry_filetype(entry);
	cleanup_free char *path = NULL, *target = NULL, *name = strdup(safe ? safe : "");

	if (!name)
		return husk_fail_memory(err);
	for (size_t size = strlen(name); size > 0 && name[size - 1] == '/';) /* a directory's */
		name[--size] = '\0';
	if (!safe)
		return fail_entry(unpack, given ? given : "?", "leads outside the root (absolute or with '..')", err);
	if (!name[0] || str_starts(name, "dev/"))
		return 0;
	if (check_path(unpack, name, name, err) < 0)
		return -1;
	if (unpack->pass == TAKES_AWAY)
		return take_away(unpack, name, err);
	if (unpack->pass == BRINGS && is_whiteout(name))
		return 0;
	if (type == AE_IFCHR || type == AE_IFBLK)
		return fail_entry(unpack, name, "is a device outside /dev; remove it from the tar", err);
	if (check_owner(unpack, name, entry, err) < 0)
		return -1;
	if (link) {
		link = safe_name(link);
		if (!link || !link[0])
			return fail_entry(unpack, name, "is a link to outside the root", err);
		if (check_path(unpack, name, link, err) < 0)
			return -1;
		target = place_of(unpack, link, 0, err);
		type = AE_IFREG;
	}
	path = place_of(unpack, name, type, err);
	if (!path || (link && !target))
		return -1;
	/* Links of lower layers may have made the path longer. */
	if (check_path(unpack, name, path + strlen(unpack->directory), err) < 0)
		return -1;
	/* This frees the memory of `link`. */
	archive_entry_copy_pathname(entry, path);
	if (target)
		archive_entry_copy_hardlink(entry, target);
	return 1;
}

static int count_bytes(struct unpack *unpack, uint64_t size, struct husk_error *err)
{
	unpack->bytes += size;
	if (unpack->bytes <= unpack->limit)
		return 0;
	return husk_fail(err, HUSK_LIMIT, "'%s' holds more than %llu bytes", unpack->tar,
			 (unsigned long long)unpack->limit);
}

static int copy_data(struct unpack *unpack, const char *name, struct husk_error *err)
{
	const void *data;
	size_t size;
	la_int64_t offset;
	int result;

	while ((result = archive_read_data_block(unpack->in, &data, &size, &offset)) == ARCHIVE_OK) {
		if (count_bytes(unpack, size, err) < 0)
			return -1;
		if (archive_write_data_block(unpack->out, data, size, offset) < ARCHIVE_WARN)
			return husk_fail(err, HUSK_LIMIT, "cannot write '%s': %s", name,
					 archive_error_string(unpack->out));
	}
	if (result != ARCHIVE_EOF)
		return fail_format(unpack, err);
	return 0;
}

static int unpack_entry(struct unpack *unpack, struct archive_entry *entry, struct husk_error *err)
{
	int place = place_entry(unpack, entry, err);
	const char *name = archive_entry_pathname(entry);

	if (place <= 0)
		return place;
	if (++unpack->entries > ENTRIES_MAX)
		return husk_fail(err, HUSK_LIMIT, "'%s' holds more than %llu files", unpack->tar, ENTRIES_MAX);
	if (count_bytes(unpack, ENTRY_BYTES, err) < 0)
		return -1;
	if (archive_write_header(unpack->out, entry) < ARCHIVE_WARN)
		return husk_fail(err, HUSK_INVALID, "'%s': cannot unpack: %s", unpack->tar,
				 archive_error_string(unpack->out));
	if (archive_entry_size(entry) > 0 && copy_data(unpack, name, err) < 0)
		return -1;
	if (archive_write_finish_entry(unpack->out) < ARCHIVE_WARN)
		return husk_fail(err, HUSK_LIMIT, "cannot write '%s': %s", name, archive_error_string(unpack->out));
	return 0;
}

static int unpack_all(struct unpack *unpack, struct husk_error *err)
{
	struct archive_entry *entry;
	int result;

	while ((result = archive_read_next_header(unpack->in, &entry)) == ARCHIVE_OK || result == ARCHIVE_WARN)
		if (unpack_entry(unpack, entry, err) < 0)
			return -1;
	if (result != ARCHIVE_EOF)
		return fail_format(unpack, err);
	if (unpack->entries == 0 && unpack->pass == WHOLE)
		return husk_fail_field(err, unpack->field, "'%s' holds no files", unpack->tar);
	/* Directory times and permissions are set last. */
	if (archive_write_close(unpack->out) < ARCHIVE_WARN)
		return husk_fail(err, HUSK_LIMIT, "cannot unpack '%s': %s", unpack->tar,
				 archive_error_string(unpack->out));
	return 0;
}

static int run(struct unpack *unpack, int fd, struct husk_error *err)
{
	int result = -1;

	unpack->in = archive_read_new();
	unpack->out = archive_write_disk_new();
	if (!unpack->in || !unpack->out) {
		husk_fail_memory(err);
	} else {
		archive_read_support_filter_all(unpack->in);
		archive_read_support_format_tar(unpack->in);
		archive_read_support_format_empty(unpack->in);
		archive_write_disk_set_options(unpack->out, ARCHIVE_EXTRACT_OWNER | ARCHIVE_EXTRACT_PERM |
								    ARCHIVE_EXTRACT_TIME | ARCHIVE_EXTRACT_UNLINK |
								    ARCHIVE_EXTRACT_SECURE_SYMLINKS |
								    ARCHIVE_EXTRACT_SECURE_NODOTDOT);
		if (archive_read_open_fd(unpack->in, fd, BLOCK) == ARCHIVE_OK)
			result = unpack_all(unpack, err);
		else
			fail_format(unpack, err);
	}
	archive_read_free(unpack->in);
	archive_write_free(unpack->out);
	return result;
}

int unpack_tar(int fd, const char *name, const char *field, uint64_t limit, const char *directory,
	       struct husk_error *err)
{
	struct unpack unpack = {
		.tar = name, .field = field, .directory = directory, .limit = limit ? limit : BYTES_MAX
	};

	return run(&unpack, fd, err);
}

int unpack_layer(int fd, const char *name, const char *directory, struct husk_error *err)
{
	struct unpack first = {
		.tar = name, .field = "image", .directory = directory, .pass = TAKES_AWAY, .limit = BYTES_MAX
	};
	struct unpack second = {
		.tar = name, .field = "image", .directory = directory, .pass = BRINGS, .limit = BYTES_MAX
	};

	if (run(&first, fd, err) < 0)
		return -1;
	if (lseek(fd, 0, SEEK_SET) < 0)
		return husk_fail_errno(err, "cannot read '%s' again", name);
	return run(&second, fd, err);
}
