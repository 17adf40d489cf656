/*
 * A rootfs tar onto disk, for rootfs.c. The tar may come from anywhere, so nothing in it may reach outside the
 * directory: absolute names and ".." are refused, and no entry is written through a symbolic link. Owners,
 * permissions and times are kept as numbers; what is below /dev is left out, since a sandbox gets its own.
 */
#include <archive.h>
#include <archive_entry.h>
#include <sys/stat.h>

#include "store/rootfs.h"

#define BLOCK (1u << 20)

struct unpack {
	const char *tar, *directory;
	struct archive *in, *out;
	uint64_t entries;
};

static int fail_entry(const struct unpack *unpack, const char *name, const char *problem, struct husk_error *err)
{
	return husk_fail(err, HUSK_INVALID, "'%s': entry '%.200s' %s", unpack->tar, name, problem);
}

static int fail_format(const struct unpack *unpack, struct husk_error *err)
{
	return husk_fail(err, HUSK_INVALID, "'%s' is no tar, or damaged: %s", unpack->tar,
			 archive_error_string(unpack->in));
}

/* The name without leading "./", or NULL when it would lead outside. */
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

/* 1: write it; 0: leave it out. */
static int place_entry(const struct unpack *unpack, struct archive_entry *entry, struct husk_error *err)
{
	const char *given = archive_entry_pathname(entry), *name = safe_name(given),
		   *link = archive_entry_hardlink(entry);
	mode_t type = archive_entry_filetype(entry);
	cleanup_free char *path = NULL, *target = NULL;

	if (!name)
		return fail_entry(unpack, given ? given : "?", "leads outside the root (absolute or with '..')", err);
	if (!name[0] || str_starts(name, "dev/"))
		return 0;
	if (type == AE_IFCHR || type == AE_IFBLK)
		return fail_entry(unpack, name, "is a device outside /dev; take it out of the tar", err);
	if (link) {
		link = safe_name(link);
		if (!link || !link[0])
			return fail_entry(unpack, name, "is a link to outside the root", err);
		target = str_format("%s/%s", unpack->directory, link);
	}
	path = str_format("%s/%s", unpack->directory, name);
	if (!path || (link && !target))
		return husk_fail_memory(err);
	/* These free what `name` and `link` point at. */
	archive_entry_copy_pathname(entry, path);
	if (target)
		archive_entry_copy_hardlink(entry, target);
	return 1;
}

static int copy_data(const struct unpack *unpack, const char *name, struct husk_error *err)
{
	const void *data;
	size_t size;
	la_int64_t offset;
	int result;

	while ((result = archive_read_data_block(unpack->in, &data, &size, &offset)) == ARCHIVE_OK)
		if (archive_write_data_block(unpack->out, data, size, offset) < ARCHIVE_WARN)
			return husk_fail(err, HUSK_LIMIT, "cannot write '%s': %s", name,
					 archive_error_string(unpack->out));
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
	unpack->entries++;
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
	if (unpack->entries == 0)
		return husk_fail(err, HUSK_INVALID, "'%s' holds no files", unpack->tar);
	/* Directory times and permissions are set last. */
	if (archive_write_close(unpack->out) < ARCHIVE_WARN)
		return husk_fail(err, HUSK_LIMIT, "cannot unpack '%s': %s", unpack->tar,
				 archive_error_string(unpack->out));
	return 0;
}

int unpack_tar(const char *tar, const char *directory, struct husk_error *err)
{
	struct unpack unpack = {
		.tar = tar, .directory = directory, .in = archive_read_new(), .out = archive_write_disk_new()
	};
	int result = -1;

	if (!unpack.in || !unpack.out) {
		husk_fail_memory(err);
	} else {
		archive_read_support_filter_all(unpack.in);
		archive_read_support_format_tar(unpack.in);
		archive_write_disk_set_options(unpack.out, ARCHIVE_EXTRACT_OWNER | ARCHIVE_EXTRACT_PERM |
								   ARCHIVE_EXTRACT_TIME | ARCHIVE_EXTRACT_UNLINK |
								   ARCHIVE_EXTRACT_SECURE_SYMLINKS |
								   ARCHIVE_EXTRACT_SECURE_NODOTDOT);
		if (archive_read_open_filename(unpack.in, tar, BLOCK) == ARCHIVE_OK)
			result = unpack_all(&unpack, err);
		else
			fail_format(&unpack, err);
	}
	archive_read_free(unpack.in);
	archive_write_free(unpack.out);
	return result;
}
