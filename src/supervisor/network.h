/*
 * The network side of a supervised machine; see network.c. Every call is made by the thread that has the turn (life.h),
 * except network_totals and network_view.
 */
#ifndef HUSK_SANDBOX_NETWORK_H
#define HUSK_SANDBOX_NETWORK_H

#include <pthread.h>

#include "net/gateway.h"
#include "net/leash.h"
#include "net/policy.h"
#include "store/catalog.h"

struct supervisor;

#define NETWORK_VISITS_MAX 32 /* ports that are counted separately; the last one counts the rest */

struct network {
	struct gateway gateway; /* the far end of the guest's wire */
	pthread_mutex_t lock;   /* held to exchange the leash, and by threads that read it without the turn */
	struct leash *leash;    /* NULL: nothing leaves */
	struct policy *policy;  /* what holds; NULL before it is a sandbox */
	pthread_t dropper;      /* ends a leash that the sandbox has no use for */
	bool dropping;          /* the thread above has not been waited for */
	bool resumed;           /* the leash continues from saved counters */
	bool untold;            /* the guest must be informed about a change */

	pthread_mutex_t events_lock; /* guards what follows */
	uint64_t events_used, events_missed;
	int64_t events_since_ms;
	struct visit {
		uint16_t port; /* 0: free */
		uint64_t count;
	} visits[NETWORK_VISITS_MAX]; /* connections to ports of the guest from outside */
};
#define NETWORK_INIT                                                                                                   \
	{                                                                                                              \
		.gateway = GATEWAY_NONE, .lock = PTHREAD_MUTEX_INITIALIZER, .events_lock = PTHREAD_MUTEX_INITIALIZER   \
	}

/* Makes the wire, and a leash if the row looks like a sandbox with a policy. Nothing passes yet. */
int network_prepare(struct supervisor *s, const struct catalog_sandbox *row, struct husk_error *err);
/* The machine becomes this sandbox: starts a leash if the policy requires one and none waits, and starts to end a leash
 * that the policy does not need. */
int network_begin(struct supervisor *s, const struct catalog_sandbox *row, struct husk_error *err);
/* Waits until the policy is in force. Called before any process of the guest continues. */
int network_hold(struct supervisor *s, struct husk_error *err);
/* Adds to the arguments of IDENTITY: variables (the sandbox's own, and what stands for secrets), name server, certificates. */
int network_arguments(struct supervisor *s, const char *environment, struct buf *out, struct husk_error *err);
/* Applies another policy; on failure the old one stays. network_tell then informs the guest, when it runs. */
int network_set(struct supervisor *s, const char *text, const char *secrets, struct husk_error *err);
int network_tell(struct supervisor *s, struct husk_error *err);
void network_totals(struct supervisor *s, struct leash_totals *out);
/* {"traffic":{…},"log":[…]} with as many of the newest events as fit in a frame; caller frees. */
char *network_view(struct supervisor *s, size_t limit);
/* What has left and come so far: {"destinations":[…],"requests":N,"visits":{"PORT":N}}, or NULL. Caller frees. */
char *network_traffic(struct supervisor *s);
/* Somebody outside connects to a port of the guest. */
void network_visit(struct supervisor *s, uint16_t port);
/* Removes everything; counters and log stay in the sandbox's directory. Idempotent. */
void network_end(struct supervisor *s);

#endif
