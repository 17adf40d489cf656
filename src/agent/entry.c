/*
 * The fields of a file on the wire; see entry.h. Used by FILE_STAT and FILE_LIST. The cost of an entry must not depend
 * on the file's size, so only a link target and a bounded list of attributes are read.
 */
#include <limits.h>
#include <sys/xattr.h>

#include "agent/entry.h"
#include "agent/users.h"

int64_t entry_type(mode_t mode)
{
	if (S_ISREG(mode))
		return ENTRY_FILE;
	if (S_ISDIR(mode))
		return ENTRY_DIRECTORY;
	return S_ISLNK(mode) ? ENTRY_SYMLINK : ENTRY_OTHER;
}

/* Extended attributes of a file. A file that vanishes, or has more than is allowed, is reported without attributes. */
static int put_attributes(struct buf *message, const char *path)
{
	char names[ATTRIBUTES_MAX], value[ATTRIBUTES_MAX];
	ssize_t size = llistxattr(path, names, sizeof(names));

	for (ssize_t at = 0; at < size; at += (ssize_t)strlen(names + at) + 1) {
		if (!str_starts(names + at, ATTRIBUTE_PREFIX))
			continue;
		ssize_t length = lgetxattr(path, names + at, value, sizeof(value));
		cleanup_free char *pair =
			length < 0 ? NULL
				   : str_format("%s=%.*s", names + at + strlen(ATTRIBUTE_PREFIX), (int)length, value);
		if (pair && wire_put_string(message, TAG_ATTRIBUTE, pair) < 0)
			return -1;
	}
	return 0;
}

int entry_put(struct buf *message, const char *path, int directory, const char *name, const struct stat *status,
	      struct husk_error *err)
{
	char target[PATH_MAX];
	int64_t mtime_ms = (int64_t)status->st_mtim.tv_sec * 1000 + status->st_mtim.tv_nsec / 1000000;

	if (wire_put_string(message, TAG_PATH, path) < 0 ||
	    wire_put_int(message, TAG_FILE_TYPE, entry_type(status->st_mode)) < 0 ||
	    wire_put_int(message, TAG_SIZE, status->st_size) < 0 ||
	    wire_put_int(message, TAG_MODE, status->st_mode & 07777) < 0 ||
	    wire_put_int(message, TAG_UID, status->st_uid) < 0 || wire_put_int(message, TAG_GID, status->st_gid) < 0 ||
	    wire_put_string(message, TAG_USER, user_name(status->st_uid)) < 0 ||
	    wire_put_string(message, TAG_GROUP, group_name(status->st_gid)) < 0 ||
	    wire_put_int(message, TAG_MTIME_MS, mtime_ms) < 0)
		return husk_fail_memory(err);
	if (S_ISREG(status->st_mode) && put_attributes(message, path) < 0)
		return husk_fail_memory(err);
	if (S_ISLNK(status->st_mode)) {
		ssize_t size = readlinkat(directory, name, target, sizeof(target));
		if (size >= 0 && wire_put_bytes(message, TAG_TARGET, target, (size_t)size) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}
