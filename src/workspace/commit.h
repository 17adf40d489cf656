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
	const char *stage; /* in the guest */
	struct buf plan;   /* for the agent */
	size_t staged;     /* the name of what was sent last */
	size_t steps;      /* so many: what step N replaces is "old-N" of the stage afterwards, from 0 on */
	int lock;          /* one commit at a time goes into a sandbox */
	bool begun;        /* the stage is there */
};

/* An empty stage; what an earlier, killed commit left is removed. CONFLICT: another commit goes into the sandbox now. */
int commit_begin(struct commit *commit, struct husk *husk, const char *sandbox, struct husk_error *err);
/* The same with a stage of the caller's own, at most 64 bytes, below /.husk, which nobody else uses at a time. */
int commit_begin_own(struct commit *commit, struct husk *husk, const char *sandbox, const char *stage,
		     struct husk_error *err);
/* Copies a file into the stage. It is put in place only if commit_put follows, before anything else is sent. */
int commit_send(struct commit *commit, husk_source source, void *data, uint32_t mode, const char *user,
		struct husk_error *err);
int commit_put(struct commit *commit, const char *path, struct husk_error *err);
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
