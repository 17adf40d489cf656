/*
 * Which files changed before each checkpoint of a sandbox. A checkpoint never changes, so each is compared once, and the result is
 * kept in its row.
 */
#ifndef HUSK_CLIENT_HISTORY_FILES_H
#define HUSK_CLIENT_HISTORY_FILES_H

#include "instance/instance.h"

/* Compares each checkpoint that was not compared with its present parent yet, and sets `files` of its row. A checkpoint
 * that is removed meanwhile, and a first one whose origin is no longer stored, get no `files`. */
int history_compare(struct husk *husk, const struct catalog_sandbox *row, struct catalog_point *const *points,
		    struct husk_error *err);
/* From the row to the answer. -1: no memory. */
int history_read(const struct catalog_point *point, struct husk_checkpoint *out);

#endif
