/*
 * Shared by the files of the supervisor. One process serves one sandbox: supervise.c is its main loop, life.c its
 * state, machine.c the operations on the machine, rewind.c the checkpoints, ending.c the end, relief.c the limits,
 * session.c the clients.
 *
 * Locks, in the order in which they may be taken: a turn of life.h (not a lock, but held as long), the link's, `looking`,
 * `parts`, the network's, life's own. The last three are held for a moment only.
 */
#ifndef HUSK_SUPERVISOR_H
#define HUSK_SUPERVISOR_H

#include <pthread.h>

#include "engine/engine.h"
#include "instance/instance.h"
#include "jail/cgroup.h"
#include "link/link.h"
#include "supervisor/holding.h"
#include "supervisor/life.h"
#include "supervisor/network.h"

struct supervisor {
	struct husk husk; /* paths and catalog of the instance */
	struct life life;
	int listen_fd;

	/* Changed only by the thread that has the turn. */
	char *machine_name; /* name in the cgroup and the engine; by slot, because a pooled machine may serve another id */
	char *machine_directory; /* the engine's files */
	uint32_t slot;
	const struct engine *engine;
	struct network network;
	struct effects effects;
	int64_t effect_mark;     /* the last effect when the guest was last frozen; of the thread that has the turn */
	struct link *link;       /* set before the machine is a sandbox, and never freed */
	struct volumes *volumes; /* the mounted volumes; NULL: none */
	struct relief *relief;
	char *image;   /* the image that the machine was restored from, until it became a sandbox */
	bool rebooted; /* it began with a disk alone */
	uint64_t memory_limit, disk_limit;
	bool sleeps_on_expiry;  /* in place of an end */
	_Atomic bool each_call; /* a checkpoint before each call */
	int expiry_tries; /* failed tries to hibernate at the end of the TTL; used by one thread at a time (supervise.c) */
	bool claimed_before; /* the row said claimed at the last check; used by one thread at a time (supervise.c) */

	/* Removed by the thread that dismantles the machine; other threads use them under the lock. */
	pthread_mutex_t parts;
	struct engine_machine *machine;
	struct cgroup *cgroup;
	pthread_cond_t digging;
	bool dug;                /* dismantled */
	pthread_mutex_t looking; /* held by a thread that reads the disk of the machine, which is not freed meanwhile */

	_Atomic size_t queued; /* bytes that wait for clients, over all clients */
};

#endif
