/*
 * What the files of the supervisor share. One process, one sandbox: supervise.c is its main loop, machine.c what can be
 * done to the machine, session.c the clients.
 */
#ifndef HUSK_SUPERVISOR_H
#define HUSK_SUPERVISOR_H

#include <pthread.h>

#include "engine/engine.h"
#include "jail/cgroup.h"
#include "sandbox/internal.h"
#include "sandbox/link.h"
#include "sandbox/network.h"

struct supervisor {
	struct husk husk; /* paths and catalog of the instance */
	char *id;
	char *machine_name; /* of the cgroup and in the engine: by slot, since a pooled machine may serve another id */
	char *machine_directory; /* the engine's files */
	uint32_t slot;
	int listen_fd;
	int wake_fd; /* eventfd: tells the main loop that something changed (expiry, the end) */

	const struct engine *engine;
	struct engine_machine *machine;
	struct cgroup *cgroup;
	struct network network;
	struct link *link;
	struct volumes *volumes; /* those that are mounted; NULL: none */
	char *image;             /* what the machine was restored from, until it became a sandbox */

	/* One lifecycle operation at a time; guards everything below. */
	pthread_mutex_t lock;
	enum catalog_state state;
	bool over;          /* nothing is left but to exit */
	int64_t expires_ms; /* wall clock; 0: none. Pool entries expire too */
	int64_t idle_seconds;
	bool persistent;
	uint64_t memory_limit;

	/* Idle time: sessions at work, and when the last one ended. Its own lock, taken after `lock`. */
	pthread_mutex_t activity_lock;
	size_t sessions;
	int64_t idle_since_ms; /* monotonic */
	struct supervisor_kill {
		int64_t pid;
		char name[32];
	} kills[16]; /* by the guest's kernel, for memory; not written down yet */
	size_t kill_count;

	/* The main loop's: how many of those may still become events. */
	size_t kill_budget;
	int64_t kills_told_ms;
};

/* ---- machine.c; each takes the lock itself ---- */

/* cgroup and engine, up to where an image can be restored. */
int machine_prepare(struct supervisor *s, const struct catalog_sandbox *row, struct husk_error *err);
/* Continues from `image` and connects the link; the guest's processes stay frozen until machine_become. */
int machine_restore(struct supervisor *s, const char *image, struct husk_error *err);
/* Gives the machine its identity, limits and environment from its row, lets its processes go, and marks it running. */
int machine_become(struct supervisor *s, const struct catalog_sandbox *row, struct husk_error *err);
/* A pooled machine becomes the sandbox `id` (its own id, or a hibernated one's, whose lock is `lock_fd`). */
int machine_claim(struct supervisor *s, const char *id, int lock_fd, const char *image, struct husk_error *err);
/* Freeze, save, thaw. *pause_ms: how long the guest stood still. */
int machine_checkpoint(struct supervisor *s, const char *image, int64_t *pause_ms, struct husk_error *err);
int machine_hibernate(struct supervisor *s, struct husk_error *err);
int machine_pause(struct supervisor *s, bool pause, struct husk_error *err);
int machine_extend(struct supervisor *s, int64_t ttl_seconds, bool persistent, int64_t *expires_ms,
		   struct husk_error *err);
/* Ends it for good: nothing is left of it but its row, its events and its log. Idempotent. */
void machine_end(struct supervisor *s, const char *reason);
/* Takes back a machine that never became a sandbox: a pool entry nobody claimed, or one that failed to come up. A sandbox
 * that was waking is hibernated as before. Idempotent. */
void machine_abort(struct supervisor *s);
/* Memory ran short: has the guest's largest process killed. Or its processes are too many: kills them all. */
void machine_relieve(struct supervisor *s);
/* Writes down what the guest's own kernel killed for memory. */
void machine_tell_kills(struct supervisor *s);
/* Another egress policy (JSON, and the text of its secrets file or NULL), from its return on. */
int machine_egress(struct supervisor *s, const char *policy, const char *secrets, struct husk_error *err);
/* Its traffic and the newest `limit` entries of its log, as JSON the caller frees. */
char *machine_egress_view(struct supervisor *s, size_t limit);
/* Adds the live view's fields as JSON. */
char *machine_describe(struct supervisor *s);

/* ---- session.c ---- */

/* Serves one client on its own threads; takes the descriptor. */
void session_start(struct supervisor *s, int fd);

/* ---- supervise.c ---- */

int supervisor_listen(struct supervisor *s, struct husk_error *err);
void supervisor_nudge(struct supervisor *s); /* makes the main loop look again */

/* ---- pool.c ---- */

/* Brings the pool of this template up to its size, from a thread of its own. */
void pool_refill(struct supervisor *s, const struct catalog_sandbox *like);

#endif
