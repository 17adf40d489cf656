/*
 * The held requests of a supervised sandbox: stored when the leash passes them on, and sent when a client asks. See
 * holding.c.
 */
#ifndef HUSK_HOLDING_H
#define HUSK_HOLDING_H

#include <pthread.h>

#include "net/leash.h"

struct supervisor;

/* The request that is being sent, and what became of it. */
struct effects {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t key; /* of the request; 0: none */
	bool done;
	struct leash_sent outcome;
};
void effects_open(struct effects *effects);

/* For the leash (struct leash_spec); `data` is the supervisor. */
void effects_hold(void *data, const json_t *head, const char *request, size_t size, struct leash_held *out);
void effects_sent(void *data, const struct leash_sent *sent);

/* Sends a held effect, once. 0: the host has answered. UNAVAILABLE: nothing has left, and it stays held. CONFLICT: it is not
 * held. INTERNAL: it may have been sent. */
int machine_send_effect(struct supervisor *s, int64_t number, struct husk_error *err);

#endif
