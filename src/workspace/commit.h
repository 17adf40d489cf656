/*
 * Writes prepared files into a running sandbox, all or none: everything is first copied into a stage in the guest, and then put in
 * place by one call to its agent (METHOD_REPLACE). If this process is killed, the sandbox has all of it or nothing.
 */
#ifndef HUSK_WORKSPACE_COMMIT_H
#define HUSK_WORKSPACE_COMMIT_H

#include "instance/instance.h"

struct commit {
	struct husk *husk;
	const char *sandbox;
	struct buf plan; /* for the agent */
	size_t staged;
	int lock;   /* one commit at a time goes into a sandbox */
	bool begun; /* the stage is there */
};

/* An empty stage; what an earlier, killed commit left is removed. CONFLICT: another commit goes into the sandbox now. */
int commit_begin(struct commit *commit, struct husk *husk, const char *sandbox, struct husk_error *err);
/* `user`: the owner of a new file; one that replaces a file keeps its owner. NULL: root. */
int commit_file(struct commit *commit, const char *path, const struct buf *content, uint32_t mode, const char *user,
		struct husk_error *err);
int commit_directory(struct commit *commit, const char *path, uint32_t mode, const char *user, struct husk_error *err);
int commit_link(struct commit *commit, const char *path, const char *target, struct husk_error *err);
int commit_remove(struct commit *commit, const char *path, struct husk_error *err);
int commit_mode(struct commit *commit, const char *path, uint32_t mode, struct husk_error *err);
/* Puts all of it in place. On failure the sandbox is as it was, unless the message says that this is not known. */
int commit_finish(struct commit *commit, struct husk_error *err);
/* Removes the stage, with what was replaced. */
void commit_end(struct commit *commit);
#define cleanup_commit cleanup(commit_end)

#endif
