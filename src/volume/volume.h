/*
 * The directory of a volume, and all operations beneath it. There are two callers: the server of FUSE requests
 * (fuse.h), whose paths come from a hostile guest, and libhusk, whose paths come from its caller. All paths are
 * resolved here, and only here: by openat2 beneath the volume's root, through no symbolic link, onto no other
 * filesystem. A volume contains regular files, directories and symbolic links; links are stored as text and never
 * followed.
 *
 * A volume has a limit in bytes. Every entry counts as one block of 4 KiB plus its size in whole blocks (holes count as
 * data), so the cost for the host is bounded on any filesystem. All processes that have the volume open share the
 * count. If a killed process left the count behind, the next process counts again. If the kernel of the host limits the
 * files itself (a share, engine/engine.h), nothing is counted here.
 *
 *   <home>/volumes/<id>/data/    the files
 *   <home>/volumes/<id>/usage    the count
 */
#ifndef HUSK_VOLUME_H
#define HUSK_VOLUME_H

#include <sys/stat.h>

#include "base/base.h"

#define VOLUME_BLOCK 4096u
#define VOLUME_PATH_MAX 4096u /* including the NUL */

struct volume_count;

struct volume {
	int root;     /* O_PATH: where paths begin */
	int tree;     /* O_PATH: the whole volume, if the root is a directory of it; -1: it is the root */
	int count_fd; /* holds a shared lock while it is open; -1: the kernel counts */
	struct volume_count *count;
	bool joined;    /* the count is right */
	uint64_t limit; /* bytes */
};

/* Makes the directory of a new volume; the second function removes one with all its files. */
int volume_make(const char *directory, struct husk_error *err);
int volume_open(const char *directory, uint64_t limit, struct volume *out, struct husk_error *err);
/* A volume whose files the kernel limits: `root` is their directory, which is owned from now on. */
void volume_open_limited(int root, uint64_t limit, struct volume *out);
/* The same in steps, for two processes. The first gets the path of the files (caller frees) and a descriptor of the
 * count. The second takes ownership of both descriptors, also on failure, and joins. Before the join the count may be
 * wrong. A join may have to read the whole tree. */
char *volume_data(const char *directory);
int volume_count_open(const char *directory, struct husk_error *err);
int volume_adopt(int root, int count_fd, uint64_t limit, struct volume *out, struct husk_error *err);
int volume_join(struct volume *volume, struct husk_error *err);
void volume_close(struct volume *volume);
/* 0 if the kernel counts. */
uint64_t volume_used(const struct volume *volume);

/* Makes this directory the root; it is created if missing, unless `make` is false. The count stays that of the whole volume. */
int volume_descend(struct volume *volume, const char *path, bool make, struct husk_error *err);

/* ---- operations beneath the root: a descriptor or 0, else -1 with errno ---- */

/* A path relative to the root ("" is the root itself). O_NOFOLLOW and O_CLOEXEC are added to the flags. */
int volume_at(const struct volume *volume, const char *path, int flags, mode_t mode);
/* For reading and changing attributes: a regular file or a directory is open for reading, any other type with
 * O_PATH. */
int volume_entry(const struct volume *volume, const char *path);
/* A regular file open for reading, or for reading and writing. A file counts as in use while its descriptor is held:
 * its bytes count until volume_drop, even if its last name is removed. */
int volume_file(const struct volume *volume, const char *path, bool writable, int more_flags);
void volume_drop(struct volume *volume, int fd);
/* A new regular file, in use as above; EEXIST if the name exists. */
int volume_create(struct volume *volume, const char *path, mode_t mode, uid_t uid, gid_t gid, int more_flags);
ssize_t volume_write(struct volume *volume, int fd, const void *data, size_t size, off_t offset, bool append);
int volume_truncate(struct volume *volume, int fd, off_t size);
int volume_mkdir(struct volume *volume, int parent, const char *name, mode_t mode, uid_t uid, gid_t gid);
int volume_symlink(struct volume *volume, int parent, const char *name, const char *target, uid_t uid, gid_t gid);
/* Links the regular file with this name and inode; ESTALE if the name belongs to another file. */
int volume_link(struct volume *volume, int from, const char *old_name, ino_t inode, int parent, const char *name);
int volume_unlink(struct volume *volume, int parent, const char *name);
int volume_rmdir(struct volume *volume, int parent, const char *name);
int volume_rename(struct volume *volume, int from, const char *old_name, int to, const char *new_name, bool replace);
/* For descriptors of volume_entry; a symbolic link keeps its mode. Set-uid and set-gid bits are removed. */
int volume_chmod(int fd, mode_t mode);
/* These accept O_PATH. */
int volume_chown(int fd, uid_t uid, gid_t gid); /* -1: unchanged */
int volume_utimes(int fd, const struct timespec times[2]);
/* True if a volume may contain this type of file. */
bool volume_holds(const struct stat *status);

#endif
