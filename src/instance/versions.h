/*
 * Template versions: built, kept and collected; see versions.c.
 */
#ifndef HUSK_VERSIONS_H
#define HUSK_VERSIONS_H

#include "instance/instance.h"

/* Opens a version's directory and locks it (LOCK_SH, LOCK_EX, with LOCK_NB or not): whoever holds a lock on it keeps it
 * from being collected. -1 when it is gone, or, with LOCK_NB, held by somebody else. */
int version_lock(const char *directory, int mode);
/* Removes versions, whole or not, that no row of the catalog names: what builds that were killed left. Counts what that freed. */
int version_sweep(struct husk *husk, uint64_t *bytes, struct husk_error *err);
/* Removes template versions that no name, sandbox or snapshot needs; counts and bytes may be NULL. */
int template_collect(struct husk *husk, size_t *count, uint64_t *bytes, struct husk_error *err);

#endif
