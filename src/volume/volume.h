/*
 * The directory of a volume, and everything that is done beneath it. Two kinds of callers: the server of FUSE requests
 * (fuse.h), whose paths come from a hostile guest, and libhusk, whose paths come from whoever calls it. Both resolve
 * here, and only here: openat2 beneath the volume's root, through no symbolic link, onto no other filesystem. What is in
 * a volume are regular files, directories and symbolic links, the last as text that is never followed.
 *
 * A volume has a limit in bytes. Every entry counts as one block of 4 KiB plus its size in whole blocks (a hole counts as
 * if it were full), so what it may cost the host is bounded whatever the filesystem does. The count is shared by all
 * processes that have the volume open; whoever finds it left behind by a killed one counts again.
 *
 *   <home>/volumes/<id>/data/    what is in it
 *   <home>/volumes/<id>/usage    the count
 */
#ifndef HUSK_VOLUME_H
#define HUSK_VOLUME_H

#include <sys/stat.h>

#include "base/base.h"

#define VOLUME_BLOCK 4096u
#define VOLUME_PATH_MAX 4096u /* with its NUL */

struct volume_count;

struct volume {
	int root;     /* O_PATH */
	int count_fd; /* holds a shared lock while it is open */
	struct volume_count *count;
	bool joined;    /* the count holds */
	uint64_t limit; /* bytes */
};

/* Makes the directory of a new volume, and removes one with all that is in it. */
int volume_make(const char *directory, struct husk_error *err);
int volume_open(const char *directory, uint64_t limit, struct volume *out, struct husk_error *err);
/* The same in steps, for two processes: where its files are (caller frees) and a descriptor of its count; then the other
 * takes descriptors of both (in any case), and joins. Until then the count may be wrong. Joining may take as long as reading
 * the whole tree. */
char *volume_data(const char *directory);
int volume_count_open(const char *directory, struct husk_error *err);
int volume_adopt(int root, int count_fd, uint64_t limit, struct volume *out, struct husk_error *err);
int volume_join(struct volume *volume, struct husk_error *err);
void volume_close(struct volume *volume);
uint64_t volume_used(const struct volume *volume);

/* ---- beneath it: descriptors or 0, else -1 with errno ---- */

/* A path relative to the root ("" is the root itself). O_NOFOLLOW and O_CLOEXEC are added to the flags. */
int volume_at(const struct volume *volume, const char *path, int flags, mode_t mode);
/* To look at and change attributes: a regular file or a directory open for reading, anything else as O_PATH. */
int volume_entry(const struct volume *volume, const char *path);
/* A regular file open for reading, or for both. Whoever holds the descriptor has the file in use: its bytes count until
 * volume_drop, also when it loses its last name meanwhile. */
int volume_file(const struct volume *volume, const char *path, bool writable, int more_flags);
void volume_drop(struct volume *volume, int fd);
/* A new regular file (EEXIST when there is something), in use as above. */
int volume_create(struct volume *volume, const char *path, mode_t mode, uid_t uid, gid_t gid, int more_flags);
ssize_t volume_write(struct volume *volume, int fd, const void *data, size_t size, off_t offset, bool append);
int volume_truncate(struct volume *volume, int fd, off_t size);
int volume_mkdir(struct volume *volume, int parent, const char *name, mode_t mode, uid_t uid, gid_t gid);
int volume_symlink(struct volume *volume, int parent, const char *name, const char *target, uid_t uid, gid_t gid);
/* The regular file of this name and inode; ESTALE when something else is there. */
int volume_link(struct volume *volume, int from, const char *old_name, ino_t inode, int parent, const char *name);
int volume_unlink(struct volume *volume, int parent, const char *name);
int volume_rmdir(struct volume *volume, int parent, const char *name);
int volume_rename(struct volume *volume, int from, const char *old_name, int to, const char *new_name, bool replace);
/* As volume_entry gives it; a symbolic link keeps its mode. Set-uid and set-gid bits are left out. */
int volume_chmod(int fd, mode_t mode);
/* These are satisfied with O_PATH. */
int volume_chown(int fd, uid_t uid, gid_t gid); /* -1: as it is */
int volume_utimes(int fd, const struct timespec times[2]);
/* Is it of a kind that a volume holds? */
bool volume_holds(const struct stat *status);

#endif
