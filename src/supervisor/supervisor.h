/*
 * What the files of the supervisor share. One process, one sandbox: supervise.c is its main loop, life.c its state,
 * machine.c what can be done to the machine, rewind.c its checkpoints, ending.c its end, relief.c its limits, session.c the clients.
 *
 * Locks, in the order in which they may be taken: a turn of life.h (no lock, but held as long), the link's, `parts`, the
 * network's, life's own. The last three are held for a moment only.
 */
#ifndef HUSK_SUPERVISOR_H
#define HUSK_SUPERVISOR_H

#include <pthread.h>

#include "engine/engine.h"
#include "instance/instance.h"
#include "jail/cgroup.h"
#include "link/link.h"
#include "supervisor/life.h"
#include "supervisor/network.h"

struct supervisor {
	struct husk husk; /* paths and catalog of the instance */
	struct life life;
	int listen_fd;

	/* Changed only by whoever has the turn. */
	char *machine_name; /* of the cgroup and in the engine: by slot, since a pooled machine may serve another id */
	char *machine_directory; /* the engine's files */
	uint32_t slot;
	const struct engine *engine;
	struct network network;
	struct link *link;       /* set before it is a sandbox, and never freed */
	struct volumes *volumes; /* those that are mounted; NULL: none */
	struct relief *relief;
	char *image; /* what the machine was restored from, until it became a sandbox */
	uint64_t memory_limit;
	bool sleeps_on_expiry; /* in place of an end */
	int expiry_tries;      /* to sleep when its time is over; by one thread at a time (supervise.c) */
	bool claimed_before;   /* its row said so at the last look; by one thread at a time (supervise.c) */

	/* Taken away by whoever dismantles the machine; others use them under the lock. */
	pthread_mutex_t parts;
	struct engine_machine *machine;
	struct cgroup *cgroup;
	pthread_cond_t digging;
	bool dug; /* dismantled */

	_Atomic size_t queued; /* bytes that wait for clients, all of them together */
};

#endif
