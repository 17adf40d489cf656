/*
 * Puts prepared changes into a directory of the caller, all or none: what was replaced waits in the stage, and goes back if a
 * later step fails. A kill in the middle leaves each file old or new.
 */
#ifndef HUSK_WORKSPACE_REPLACE_H
#define HUSK_WORKSPACE_REPLACE_H

#include <sys/stat.h>

#include "base/base.h"

#define STAGE_NAME_SIZE 40

enum op_kind { OP_REMOVE = 1, OP_RMDIR, OP_MKDIR, OP_PUT, OP_MODE };

struct op {
	enum op_kind kind;
	const char *path;
	char name[STAGE_NAME_SIZE];   /* PUT: of the new file in the stage */
	mode_t mode;                  /* MKDIR, MODE */
	bool existed;                 /* PUT: it replaces something */
	bool optional;                /* RMDIR: may stay if it is not empty */
	struct stat before;           /* what is replaced or removed, as it was when that was decided */
	char parked[STAGE_NAME_SIZE]; /* where the old file waits, in the stage; "": nowhere */
	bool done;
};

/* The kinds run in their order: first what goes, deepest first, then what comes, parents first. CONFLICT: a file was changed
 * while this ran; then everything is as before. */
int replace_all(int directory, int stage, struct op *ops, size_t count, struct husk_error *err);

#endif
