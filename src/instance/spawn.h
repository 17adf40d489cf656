/*
 * Starting the supervisor of a sandbox; see spawn.c.
 */
#ifndef HUSK_SPAWN_H
#define HUSK_SPAWN_H

#include "instance/instance.h"

#define SUPERVISOR_NAME "husk-supervise" /* of its process */
#define SUPERVISOR_LOCK_FD 3   /* where a supervisor holds the lock of its sandbox, from its start to its end */
#define SUPERVISOR_STATUS_FD 4 /* where a supervisor writes "ok", or "<code> <message>", once */

/* The husk binary, for processes that libhusk starts; caller frees. */
char *husk_program(struct husk_error *err);
/* Takes the lock of a sandbox without waiting: returns a descriptor to pass to its supervisor, or -1 with CONFLICT. */
int supervisor_lock(struct husk *husk, const char *id, struct husk_error *err);
/* With the lock of a sandbox: removes its lock file and its socket. A caller that gives up a lock without a live
 * supervisor must call this, because no later call would find the file. */
void supervisor_unname(struct husk *husk, const char *id);
/* The lock of a new id. Only a sweep, which checks whether the lock has an owner, can hold it: waits for the sweep. */
int supervisor_lock_new(struct husk *husk, const char *id, struct husk_error *err);
/* Removes the locks without a holder, and their sockets, of ids with this prefix. Locks that `is_live` (NULL: none)
 * finds in the catalog stay. */
void supervisor_locks_sweep(struct husk *husk, const char *prefix, bool (*is_live)(struct husk *husk, const char *id));
/* What the supervisor does first: continue the image, boot with the disk of the image, or wait in the pool. */
enum supervisor_task { SUPERVISE_RUN, SUPERVISE_REBOOT, SUPERVISE_POOL };
/* Starts the supervisor of a sandbox whose row is in CREATING; waits until it is up. On failure nothing is left of it. */
int supervisor_start(struct husk *husk, const char *id, int lock_fd, const char *image, enum supervisor_task task,
		     struct husk_error *err);

#endif
