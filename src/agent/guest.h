/*
 * The processes of the guest, all of them, as /proc shows them.
 */
#ifndef HUSK_AGENT_GUEST_H
#define HUSK_AGENT_GUEST_H

#include "base/base.h"

struct guest_process {
	pid_t pid, parent, group, session;
	char state; /* R S D T t Z X */
	char name[32];
	int64_t ticks; /* CPU time, own and of reaped children */
	int64_t rss_bytes;
	int depth; /* below the agent */
};

/* Every process but the agent, parents before children. As PID 1 that is the whole guest; otherwise (tests) only the
 * agent's descendants, since the rest of the machine is not ours to touch. Caller frees. -1 on failure. */
ssize_t guest_scan(struct guest_process **out, struct husk_error *err);
/* One process by its number: whether it is there. */
bool guest_find(pid_t pid, struct guest_process *out);

#endif
