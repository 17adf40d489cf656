/*
 * Shared by libhusk's files about snapshots.
 */
#ifndef HUSK_SANDBOX_SNAPSHOT_H
#define HUSK_SANDBOX_SNAPSHOT_H

#include "instance/instance.h"

/* Saves a running sandbox under a new snapshot id (id[32]). The snapshot is not ready yet, so a fork may use it without
 * anybody seeing it. *parent gets the sandbox's id (caller frees), *effect
 * (may be NULL) its last effect that the image knows of. Returns the snapshot's lock, which shows that a
 * process works on it; snapshot_settle closes it. */
int snapshot_take(struct husk *husk, const char *sandbox, const char *name, char id[static 32], char **parent,
		  int64_t *effect, struct husk_error *err);
/* The work is finished: makes the snapshot ready, or drops it. */
void snapshot_settle(struct husk *husk, const char *id, int *lock);
/* Removes the row and the image, complete or not. */
void snapshot_drop(struct husk *husk, const char *id);
/* Drops snapshots that are not ready and that no process works on; returns how many. Adds to *bytes (may be NULL). */
size_t snapshots_recover(struct husk *husk, uint64_t *bytes);

/* By id or name; "tenant/name" is a snapshot that the tenant shares. */
int snapshot_find(struct husk *husk, const char *snapshot, struct catalog_snapshot **out, struct husk_error *err);

/* Does it hold a step of a build (husk_build)? */
bool snapshot_is_step(const struct catalog_snapshot *row);

#endif
