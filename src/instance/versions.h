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

/* A version that was built elsewhere: <from>/rootfs.img and <from>/recipe.json, which the caller has made root's, become the
 * version row->digest, unless it exists. Returns its lock, which keeps it until it is used. */
int version_adopt(struct husk *husk, const struct catalog_template *row, const char *from, struct husk_error *err);
/* Bakes an adopted version and points its name at it. */
int version_publish(struct husk *husk, struct catalog_template *row, struct husk_error *err);
/* Returns the lock of an existing version if everything that a bake needs is in it; otherwise -1. */
int version_take(struct husk *husk, const char *version);

#endif
