/*
 * The files that differ between two running machines. husk_diff in husk.h finds or starts the machines first.
 */
#ifndef HUSK_CLIENT_DIFF_H
#define HUSK_CLIENT_DIFF_H

#include "instance/instance.h"

/* Both by id, of the same build of a template. `base` NULL: the template itself. */
int diff_machines(struct husk *husk, const char *sandbox, const char *base, const char *path, struct husk_change ***out,
		  struct husk_error *err);

#endif
