/*
 * Cleaning up after dead supervisors; see recover.c.
 */
#ifndef HUSK_RECOVER_H
#define HUSK_RECOVER_H

#include "instance/instance.h"

/* Finds sandboxes (or only the given one) whose supervisor is dead, removes their remains, and records events. Returns
 * the number of sandboxes. */
size_t husk_recover(struct husk *husk, const char *only);
/* Ends a sandbox whose supervisor does not answer: kills the supervisor and cleans up in its place.
 * CONFLICT: it had ended, or was put to sleep, before its lock was free; look again. */
int supervisor_force(struct husk *husk, const char *id, const char *reason, struct husk_error *err);
/* Changes a hibernated sandbox. Its lock keeps other processes from waking or ending it meanwhile. CONFLICT: it was woken
 * first, or another process changes it now; GONE: it has ended. */
typedef int asleep_fn(struct husk *husk, const struct catalog_sandbox *row, void *data, struct husk_error *err);
int recover_asleep(struct husk *husk, const char *id, asleep_fn *change, void *data, struct husk_error *err);
/* Ends a hibernated sandbox. Its lock keeps other processes from waking it; CONFLICT: the sandbox was woken first. */
int recover_end_asleep(struct husk *husk, const struct catalog_sandbox *row, const char *reason,
		       struct husk_error *err);
/* The same for a hibernated sandbox whose TTL is over: it has no supervisor that could end it. */
void husk_expire(struct husk *husk, const struct catalog_sandbox *row);

#endif
