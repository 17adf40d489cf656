/*
 * A few prepared machines kept ready, so that create, fork and wake do not pay for process start-up. A pool entry is an
 * ordinary supervisor that waits to be claimed and ends by itself when nobody comes.
 */
#ifndef HUSK_POOL_H
#define HUSK_POOL_H

#include "instance/instance.h"

/* How many of each kind to keep per template in use: $HUSK_POOL, else 2; 0 turns the pool off. */
int pool_size(void);
/* How long an unclaimed entry waits: $HUSK_POOL_IDLE seconds, else 300. */
int64_t pool_idle_ms(void);

/* Has a pool entry of the wanted template and disk become the wanted sandbox: a new one (wanted->id NULL), or a
 * hibernated one that wakes (then lock_fd is its lock). `image` is for an entry that is not warm, `secrets` (may be NULL)
 * for a new one. 1: done, and its id in *out (caller frees); 0: the pool had none; -1: it had one, and that failed and is
 * gone. */
int pool_take(struct husk *husk, const struct catalog_sandbox *wanted, int lock_fd, const char *image, bool warm,
	      const char *secrets, char **out, struct husk_error *err);
/* Adds one prepared machine (warm: restored as well) for the template and disk of `like`; waits until it is there, and
 * says whether it is. A failure is only logged: whoever wanted the machine finds the pool empty. */
bool pool_add(struct husk *husk, const struct catalog_sandbox *like, bool warm);
/* Brings the pool of the template of `like` up to its size, from a thread of its own, until `over` says stop. `leashed`:
 * `like` has an egress policy. */
void pool_refill(struct husk *husk, const struct catalog_sandbox *like, bool leashed, bool (*over)(void *data),
		 void *data);
/* Before the process ends: no entry is half made then, and no more are begun. */
void pool_close(void);

#endif
