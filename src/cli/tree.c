/*
 * Converts trees to and from tar, with libarchive; see tree.h. Unpacking trusts nothing in the stream. Each name is
 * checked here before libarchive sees it, and libarchive checks the same again, so that a link from one entry cannot
 * lead another entry out of the directory.
 */
#include "cli/tree.h"

#include <archive.h>
#include <archive_entry.h>
#include <sched.h>
#include <sys/stat.h>

#define CHUNK (256u << 10)

static void cleanup_read(struct archive **archive)
{
	archive_read_free(*archive);
}

static void cleanup_write(struct archive **archive)
{
	archive_write_free(*archive);
}

static void cleanup_entry(struct archive_entry **entry)
{
	archive_entry_free(*entry);
}

static int fail_archive(struct husk_error *err, struct archive *archive, const char *doing, const char *name)
{
	const char *text = archive_error_string(archive);

	return husk_fail(err, HUSK_INTERNAL, "cannot %s '%s': %s", doing, name, text ? text : "no reason given");
}

/* ---- names ---- */

/* The depth of a relative name; -1 if it is absolute or climbs out. */
static int name_depth(const char *name)
{
	int depth = 0;

	if (name[0] == '/')
		return -1;
	for (const char *at = name; *at;) {
		size_t length = strcspn(at, "/");
		if (length == 2 && memcmp(at, "..", 2) == 0)
			return -1;
		depth += length > 0 && !(length == 1 && at[0] == '.');
		at += length + strspn(at + length, "/");
	}
	return depth;
}

/* A link may climb with leading ".." up to the root of the tree, because the depth of its parent is known. After a
 * name, ".." could climb out of the target of that name. */
static bool link_stays_inside(const char *name, const char *target)
{
	int depth = name_depth(name) - 1;
	bool descended = false;

	if (target[0] == '/')
		return false;
	for (const char *at = target; *at;) {
		size_t length = strcspn(at, "/");
		if (length == 2 && memcmp(at, "..", 2) == 0) {
			if (descended || --depth < 0)
				return false;
		} else if (length > 0 && !(length == 1 && at[0] == '.')) {
			descended = true;
		}
		at += length + strspn(at + length, "/");
	}
	return true;
}

/* ---- pack ---- */

static int pack_data(struct archive *disk, struct archive *out, const char *name, struct husk_error *err)
{
	cleanup_free char *chunk = malloc(CHUNK);
	la_ssize_t size;

	if (!chunk)
		return husk_fail_memory(err);
	while ((size = archive_read_data(disk, chunk, CHUNK)) > 0)
		if (archive_write_data(out, chunk, (size_t)size) < 0)
			return fail_archive(err, out, "send", name);
	return size < 0 ? fail_archive(err, disk, "read", name) : 0;
}

static int pack_entry(struct archive *disk, struct archive *out, struct archive_entry *entry, size_t prefix,
		      tree_skipped skipped, void *data, struct husk_error *err)
{
	const char *full = archive_entry_pathname(entry);
	const char *name = full && strlen(full) > prefix ? full + prefix + strspn(full + prefix, "/") : ".";
	cleanup_free char *relative = strdup(*name ? name : ".");
	mode_t type = archive_entry_filetype(entry);

	if (!relative)
		return husk_fail_memory(err);
	if (type != AE_IFREG && type != AE_IFDIR && type != AE_IFLNK) {
		skipped(data, relative, "it is a socket, a pipe or a device");
		return 0;
	}
	const char *target = archive_entry_symlink(entry);
	if (type == AE_IFLNK && (!target || !link_stays_inside(relative, target))) {
		skipped(data, relative, "it is a link that leads outside of what is copied");
		return 0;
	}
	archive_entry_set_pathname(entry, relative);
	archive_entry_set_uid(entry, 0);
	archive_entry_set_gid(entry, 0);
	archive_entry_set_uname(entry, NULL);
	archive_entry_set_gname(entry, NULL);
	archive_entry_sparse_clear(entry);
	if (archive_write_header(out, entry) < ARCHIVE_WARN)
		return fail_archive(err, out, "send", relative);
	return type == AE_IFREG ? pack_data(disk, out, relative, err) : 0;
}

int tree_pack(const char *path, int fd, tree_skipped skipped, void *data, struct husk_error *err)
{
	cleanup(cleanup_read) struct archive *disk = archive_read_disk_new();
	cleanup(cleanup_write) struct archive *out = archive_write_new();
	cleanup(cleanup_entry) struct archive_entry *entry = archive_entry_new();
	int status;

	if (!disk || !out || !entry)
		return husk_fail_memory(err);
	archive_read_disk_set_symlink_physical(disk);
	archive_read_disk_set_behavior(disk, ARCHIVE_READDISK_NO_XATTR | ARCHIVE_READDISK_NO_ACL |
						     ARCHIVE_READDISK_NO_FFLAGS);
	/* GNU's format keeps names as bytes; pax would need to know their character set */
	archive_write_set_format_gnutar(out);
	archive_write_set_bytes_per_block(out, CHUNK);
	archive_write_set_bytes_in_last_block(out, 1);
	if (archive_write_open_fd(out, fd) != ARCHIVE_OK)
		return fail_archive(err, out, "pack", path);
	if (archive_read_disk_open(disk, path) != ARCHIVE_OK)
		return fail_archive(err, disk, "read", path);
	while ((status = archive_read_next_header2(disk, entry)) != ARCHIVE_EOF) {
		if (status < ARCHIVE_WARN)
			return fail_archive(err, disk, "read", path);
		if (pack_entry(disk, out, entry, strlen(path), skipped, data, err) < 0)
			return -1;
		archive_read_disk_descend(disk);
		archive_entry_clear(entry);
	}
	return archive_write_close(out) == ARCHIVE_OK ? 0 : fail_archive(err, out, "pack", path);
}

/* ---- unpack ---- */

struct unpack {
	struct archive *in, *disk;
	const char *strip;
	tree_skipped skipped;
	void *data;
};

/* The name after its first component if that is `strip`; "" is the root of the tree. */
static const char *strip_name(const char *name, const char *strip)
{
	size_t size = strip ? strlen(strip) : 0;

	while (name[0] == '.' && name[1] == '/')
		name += 2 + strspn(name + 2, "/");
	if (size && strncmp(name, strip, size) == 0 && (name[size] == '/' || name[size] == '\0'))
		name += size + strspn(name + size, "/");
	return str_equal(name, ".") ? "" : name;
}

/* The checked name, relative to where it goes; NULL with err filled when it is refused. */
static char *checked_name(const struct unpack *unpack, const char *given, struct husk_error *err)
{
	if (!given || name_depth(given) < 0) {
		husk_fail(err, HUSK_PROTOCOL, "refused '%s' from the sandbox: names must be relative, without '..'",
			  given ? given : "");
		return NULL;
	}
	char *name = strdup(strip_name(given, unpack->strip));
	if (!name)
		husk_fail_memory(err);
	return name;
}

/* 1: unpack it; 0: leave it out; -1: refuse it all. */
static int judge(const struct unpack *unpack, struct archive_entry *entry, const char *name, struct husk_error *err)
{
	mode_t type = archive_entry_filetype(entry);
	const char *hardlink = archive_entry_hardlink(entry);

	if (hardlink) {
		cleanup_free char *target = checked_name(unpack, hardlink, err);
		if (!target)
			return -1;
		archive_entry_set_hardlink(entry, target);
		return 1;
	}
	if (type == AE_IFLNK) {
		const char *target = archive_entry_symlink(entry);
		if (target && link_stays_inside(name, target))
			return 1;
		unpack->skipped(unpack->data, name, "it is a link that leads outside of what is copied");
		return 0;
	}
	if (type == AE_IFREG || type == AE_IFDIR)
		return 1;
	unpack->skipped(unpack->data, name, "it is a socket, a pipe or a device");
	return 0;
}

static int unpack_data(const struct unpack *unpack, const char *name, struct husk_error *err)
{
	const void *bytes;
	size_t size;
	la_int64_t offset;
	int status;

	while ((status = archive_read_data_block(unpack->in, &bytes, &size, &offset)) == ARCHIVE_OK)
		if (archive_write_data_block(unpack->disk, bytes, size, offset) < ARCHIVE_WARN)
			return fail_archive(err, unpack->disk, "write", name);
	return status == ARCHIVE_EOF ? 0 : fail_archive(err, unpack->in, "unpack", name);
}

static int unpack_entry(const struct unpack *unpack, struct archive_entry *entry, struct husk_error *err)
{
	cleanup_free char *name = checked_name(unpack, archive_entry_pathname(entry), err);

	if (!name)
		return -1;
	if (*name == '\0') /* the root of the tree exists already */
		return 0;
	int wanted = judge(unpack, entry, name, err);
	if (wanted <= 0)
		return wanted;
	archive_entry_set_pathname(entry, name);
	archive_entry_set_perm(entry, archive_entry_perm(entry) & 0777);
	if (archive_write_header(unpack->disk, entry) < ARCHIVE_WARN)
		return fail_archive(err, unpack->disk, "write", name);
	if (archive_entry_size(entry) > 0 && unpack_data(unpack, name, err) < 0)
		return -1;
	if (archive_write_finish_entry(unpack->disk) < ARCHIVE_WARN)
		return fail_archive(err, unpack->disk, "write", name);
	return 0;
}

int tree_unpack(int fd, int directory, const char *strip, tree_skipped skipped, void *data, struct husk_error *err)
{
	cleanup(cleanup_read) struct archive *in = archive_read_new();
	cleanup(cleanup_write) struct archive *disk = archive_write_disk_new();
	const struct unpack unpack = { in, disk, strip, skipped, data };
	struct archive_entry *entry;
	int status;

	if (!in || !disk)
		return husk_fail_memory(err);
	/* libarchive protects against absolute names only relative to the current directory: this thread gets its
	 * own */
	if (unshare(CLONE_FS) < 0 || fchdir(directory) < 0)
		return husk_fail_errno(err, "cannot enter the target directory");
	archive_write_disk_set_options(disk, ARCHIVE_EXTRACT_TIME | ARCHIVE_EXTRACT_PERM |
						     ARCHIVE_EXTRACT_SECURE_SYMLINKS | ARCHIVE_EXTRACT_SECURE_NODOTDOT |
						     ARCHIVE_EXTRACT_SECURE_NOABSOLUTEPATHS);
	archive_read_support_format_tar(in);
	archive_read_support_format_empty(in);
	if (archive_read_open_fd(in, fd, CHUNK) != ARCHIVE_OK)
		return fail_archive(err, in, "unpack", "the stream");
	while ((status = archive_read_next_header(in, &entry)) != ARCHIVE_EOF) {
		if (status < ARCHIVE_WARN)
			return fail_archive(err, in, "unpack", "the stream");
		if (unpack_entry(&unpack, entry, err) < 0)
			return -1;
	}
	return archive_write_close(disk) < ARCHIVE_WARN ? fail_archive(err, disk, "write", "the directories") : 0;
}
