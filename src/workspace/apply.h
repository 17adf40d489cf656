/*
 * The steps of an apply, for husk_workspace_apply and husk_workspace_sync: from what the sandbox changed (scan.h) to files of the
 * caller. See apply.c.
 */
#ifndef HUSK_WORKSPACE_APPLY_H
#define HUSK_WORKSPACE_APPLY_H

#include "workspace/replace.h"
#include "workspace/scan.h"

#define APPLY_LIMIT (UINT64_C(1) << 30) /* bytes of changed files, unless told */

struct apply {
	const struct husk_merge_options *options;
	bool leave; /* paths with a conflict stay as they are, and the others are written */
	struct record record;
	struct work work;
	struct op *ops; /* room for two for each item */
	size_t op_count;
	struct husk_merged *merged;
	const char *cleared;  /* a path whose file makes way for a directory */
	int directory, stage; /* the directory is locked */
	char *stage_path;
};
/* Removes the stage. */
void apply_free(struct apply *apply);
int apply_check(const struct husk_merge_options *options, struct husk_error *err);
/* Makes the stage, in the directory or, for a dry run, elsewhere. */
int apply_stage(struct apply *apply, struct husk_error *err);
/* Decides about the items of `work`, and writes. The record has the new base then, and is not saved; after a failure it must not be
 * used. CONFLICT: a file was changed meanwhile, and nothing was written. */
int apply_work(struct apply *apply, struct husk_error *err);

#endif
