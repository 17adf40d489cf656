/*
 * A few prepared machines, so that create, fork and wake do not wait for processes to start. A pool entry is an
 * ordinary supervisor that waits to be claimed. If it is not claimed in time, it ends by itself.
 */
#ifndef HUSK_POOL_H
#define HUSK_POOL_H

#include "instance/instance.h"

/* How many entries of each kind to keep per template in use: $HUSK_POOL, otherwise 2; 0 turns the pool off. */
int pool_size(void);
/* How long an unclaimed entry waits: $HUSK_POOL_IDLE seconds, otherwise 300. */
int64_t pool_idle_ms(void);

/* Turns a pool entry of the wanted template and disk into the wanted sandbox: a new one (wanted->id NULL), or a
 * hibernated one that wakes (then lock_fd is its lock). `image` is for an entry that is not warm, `secrets` (may be
 * NULL) for a new sandbox. 1: done, *out is its id (caller frees); 0: the pool has no such entry; -1: the entry failed
 * and is gone. */
int pool_take(struct husk *husk, const struct catalog_sandbox *wanted, int lock_fd, const char *image, bool warm,
	      const char *secrets, char **out, struct husk_error *err);
/* Adds one prepared machine (warm: also restored) for the template and disk of `like`; waits until it is ready, and
 * returns whether it is. A failure is only logged: the next claim finds the pool empty. */
bool pool_add(struct husk *husk, const struct catalog_sandbox *like, bool warm);
/* Fills the pool of the template of `like`, a sandbox or a new entry, on its own thread, until `over` returns true or the
 * pool is drained. `leashed`: `like` has a leash. */
void pool_refill(struct husk *husk, const struct catalog_sandbox *like, bool leashed, bool (*over)(void *data),
		 void *data);
/* Notes a fork into `count` children. Until the returned descriptor is closed, refills wait. For as long as an entry waits to
 * be claimed, the pool keeps that many machines ready for the next fork, at most twice pool_size(). -1: not noted. */
int pool_note_fork(struct husk *husk, size_t count);
/* Called before the process ends: no entry is left half made, and no new one is started. */
void pool_close(void);

#endif
