/*
 * Template versions: built, kept and collected; see versions.c.
 */
#ifndef HUSK_VERSIONS_H
#define HUSK_VERSIONS_H

#include "instance/instance.h"

/* Opens a version's directory and locks it (LOCK_SH, LOCK_EX, with or without LOCK_NB). While a process holds a lock,
 * the version is not collected. -1: the version is gone, or, with LOCK_NB, another process holds it. */
int version_lock(const char *directory, int mode);
/* Removes versions, complete or not, that no row of the catalog names: remains of killed builds. Counts the freed
 * bytes. */
int version_sweep(struct husk *husk, uint64_t *bytes, struct husk_error *err);
/* Removes template versions that no name, sandbox or snapshot needs; counts and bytes may be NULL. */
int template_collect(struct husk *husk, size_t *count, uint64_t *bytes, struct husk_error *err);

#endif
