/*
 * What libhusk's files about snapshots share.
 */
#ifndef HUSK_SANDBOX_SNAPSHOT_H
#define HUSK_SANDBOX_SNAPSHOT_H

#include "instance/instance.h"

/* Saves a running sandbox under a new snapshot id (id[32]); not ready yet, so that a fork may pass through it unseen.
 * *parent gets the sandbox's id, for the caller to free. Returns the snapshot's lock, which says that somebody is at work
 * on it: to be closed by snapshot_settle. */
int snapshot_take(struct husk *husk, const char *sandbox, const char *name, char id[static 32], char **parent,
		  struct husk_error *err);
/* The work is over: the snapshot is ready, or dropped. */
void snapshot_settle(struct husk *husk, const char *id, int *lock);
/* Removes the row and the image, whole or not. */
void snapshot_drop(struct husk *husk, const char *id);
/* Drops those that are not ready and that nobody is at work on any more; how many. Adds to *bytes (may be NULL). */
size_t snapshots_recover(struct husk *husk, uint64_t *bytes);

/* By id or name; "tenant/name" is one that the tenant shares. */
int snapshot_find(struct husk *husk, const char *snapshot, struct catalog_snapshot **out, struct husk_error *err);

#endif
