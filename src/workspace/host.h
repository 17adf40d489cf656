/*
 * The directory of the caller: which of its files belong to the workspace, and each as a version. No name leads out of it: a
 * parent is opened with openat2 below the directory, without following any link.
 */
#ifndef HUSK_WORKSPACE_HOST_H
#define HUSK_WORKSPACE_HOST_H

#include <sys/stat.h>

#include "workspace/threeway.h"

/* Opens the directory that holds `path`. *base: the last part of the path. -1 with errno: ENOENT: there is none; ENOTDIR or
 * ELOOP: a file or a link is in the way; EXDEV: the path would lead out. */
int host_parent(int directory, const char *path, const char **base);
/* Opens a file or directory for reading; the same, and no link is followed. */
int host_open(int directory, const char *path);
/* The version of a path now, and its status (may be NULL). A path below a file or a link is one that is not there, with
 * *in_the_way (may be NULL) set. */
int host_version(int directory, const char *path, struct version *out, struct stat *status, bool *in_the_way,
		 struct husk_error *err);

struct names {
	char **items;
	size_t count, room;
};
void names_free(struct names *names);
#define cleanup_names cleanup(names_free)
int names_add(struct names *names, const char *name, struct husk_error *err); /* copies it */

/* The names of the workspace, relative, parents first. In a git work tree: the files that git does not ignore, and .git
 * itself; otherwise, or with `all`, everything. *is_git: the first was the case. */
int host_list(const char *directory, bool all, struct names *out, bool *is_git, struct husk_error *err);
/* The path and, if it is a directory, what is below it, whatever git ignores. Nothing, if there is none. */
int host_below(int directory, const char *path, struct names *out, struct husk_error *err);
/* Which of the names git ignores in this directory, with the same text as in `names`; a directory is given with '/' at
 * its end. Without git: none. */
int host_ignored(const char *directory, const struct names *names, struct names *out, struct husk_error *err);

/* Where files wait beside the directory's own until all of them can be put in place. */
#define STAGE_NAME ".husk-apply"
/* May the name be written on the caller's side? NULL: yes; otherwise why not. ".git" is never written: git runs what is
 * configured there. */
const char *name_refused(const char *path);
/* Does the target of a link at this path stay inside of the workspace? */
bool link_stays_inside(const char *path, const char *target);

#endif
