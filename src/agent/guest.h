/*
 * All processes of the guest, as /proc shows them.
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

/* Every process except the agent, parents before children. If the agent is PID 1, that is the whole guest. Otherwise
 * (in tests) only the agent's descendants are listed, because the other processes belong to the host. Caller frees. -1
 * on failure. */
ssize_t guest_scan(struct guest_process **out, struct husk_error *err);
/* Looks one process up by its number; false if there is none. */
bool guest_find(pid_t pid, struct guest_process *out);

#endif
