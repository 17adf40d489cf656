/*
 * Starting supervisors, and keeping a few prepared machines ready so that create, fork and wake do not pay for process
 * start-up. A pool entry is an ordinary supervisor that waits to be claimed and ends by itself when nobody comes.
 */
#ifndef HUSK_POOL_H
#define HUSK_POOL_H

#include "sandbox/internal.h"

#define SUPERVISOR_LOCK_FD 3 /* where a supervisor holds the lock of its sandbox, from its start to its end */

/* How many of each kind to keep per template in use: $HUSK_POOL, else 2; 0 turns the pool off. */
int pool_size(void);
/* How long an unclaimed entry waits: $HUSK_POOL_IDLE seconds, else 300. */
int64_t pool_idle_ms(void);

/* The husk binary, for the processes libhusk starts; caller frees. */
char *husk_program(struct husk_error *err);
/* The lock of a sandbox, taken without waiting: a descriptor to hand to its supervisor, or -1 with CONFLICT. */
int supervisor_lock(struct husk *husk, const char *id, struct husk_error *err);
/* Starts the supervisor of a sandbox whose row is in CREATING; waits until it is up. On failure nothing is left of it. */
int supervisor_start(struct husk *husk, const char *id, int lock_fd, const char *image, bool pool,
		     struct husk_error *err);
/* Has a pool entry of the wanted template and disk become the wanted sandbox: a new one (wanted->id NULL), or a
 * hibernated one that wakes (then lock_fd is its lock). `image` is for an entry that is not warm, `secrets` (may be NULL)
 * for a new one. 1: done, and its id in
 * *out (caller frees); 0: the pool had none; -1: it had one, and that failed and is gone. */
int pool_take(struct husk *husk, const struct catalog_sandbox *wanted, int lock_fd, const char *image, bool warm,
	      const char *secrets, char **out, struct husk_error *err);
/* Adds one prepared machine (warm: restored as well) for the template and disk of `like`; waits until it is there. That it
 * failed is only logged: whoever wanted it finds the pool empty. */
void pool_add(struct husk *husk, const struct catalog_sandbox *like, bool warm);

/* A connection to a supervisor by its sandbox's id, HELLO exchanged; no wake, no wait. */
int supervisor_dial(struct husk *husk, const char *id, struct husk_error *err);
/* One call on such a connection. `results` (may be NULL) gets the END payload. */
int supervisor_call(int fd, uint16_t method, const struct buf *arguments, struct buf *results, struct husk_error *err);

/* Is there a whole image of this sandbox on disk (it is hibernated, or waking)? */
bool sandbox_has_image(struct husk *husk, const char *id);

#endif
