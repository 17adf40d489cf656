/*
 * Clearing up after supervisors that are gone; see recover.c.
 */
#ifndef HUSK_RECOVER_H
#define HUSK_RECOVER_H

#include "instance/instance.h"

/* Finds sandboxes (or the one given) whose supervisor is dead, removes what they left, and writes events that say so.
 * Returns how many. */
size_t husk_recover(struct husk *husk, const char *only);
/* Ends a sandbox whose supervisor does not answer: kills the supervisor, and clears up in its place. */
int supervisor_force(struct husk *husk, const char *id, const char *reason, struct husk_error *err);
/* Ends a hibernated sandbox. Its lock keeps a waker away meanwhile; CONFLICT: somebody woke it first. */
int recover_end_asleep(struct husk *husk, const struct catalog_sandbox *row, const char *reason,
		       struct husk_error *err);
/* The same for a hibernated sandbox whose time is over: the supervisor that would have ended it is asleep too. */
void husk_expire(struct husk *husk, const struct catalog_sandbox *row);

#endif
