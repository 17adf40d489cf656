/*
 * One control group per sandbox, on hosts with cgroup v2 and on hosts with v1 controllers. Every engine process of the
 * sandbox is born in it, so it is both the limit that holds on the host and the way to find and end whatever is left.
 */
#ifndef HUSK_CGROUP_H
#define HUSK_CGROUP_H

#include "base/base.h"

struct cgroup; /* opaque */

struct cgroup_limits {
	uint64_t
		memory_bytes; /* 0: none. What the guest may use; the host-side hard limit is above it by a reserve for the
				* engine, so that the guest's largest process is ended before the whole sandbox is */
	uint32_t cpu_milli; /* 1000: one full CPU; 0: none */
	uint32_t pids; /* processes and threads the guest may have; the host-side limit leaves room for the engine */
};

/* Makes (or finds) husk/<scope>/<id>; scope keeps instances of different HUSK_HOMEs apart. */
int cgroup_create(const char *scope, const char *id, struct cgroup **out, struct husk_error *err);
int cgroup_set_limits(struct cgroup *group, const struct cgroup_limits *limits, struct husk_error *err);
/* Moves the calling process in. Async-signal-safe: for use between fork and exec. */
int cgroup_enter(struct cgroup *group);

struct cgroup_use {
	uint64_t memory_bytes; /* anonymous and shmem in use; page cache that can be dropped is not counted */
	uint64_t cpu_us;
	uint64_t oom_kills; /* by the host's kernel */
	uint64_t tasks;     /* processes and threads on the host, the engine's included */
};
int cgroup_read(struct cgroup *group, struct cgroup_use *out, struct husk_error *err);
/* A descriptor that polls readable when memory in use crosses memory_bytes, and once a second while the tasks on the host are
 * as many as a guest close to its pids limit costs. cgroup_pressure_clear re-arms it. -1 when the host has no memory
 * controller. */
int cgroup_pressure_fd(struct cgroup *group);
void cgroup_pressure_clear(struct cgroup *group);
/* Which of the two was it? */
bool cgroup_memory_over(struct cgroup *group);
/* Tasks, and the guest is at work: past this many processes of its own it is a flood, which the guest's kernel failed to
 * hold back. 0: it was not the tasks, or nothing moves. Tasks prove nothing, since an engine keeps some for the next. */
uint64_t cgroup_crowd(struct cgroup *group);
/* SIGKILLs everything inside until it is empty (bounded time), then removes it. Safe on one that is gone already. */
int cgroup_destroy(const char *scope, const char *id, struct husk_error *err);
void cgroup_free(struct cgroup *group); /* closes descriptors only */
/* Names of the groups of this scope, for the search for leaks; NULL-terminated, caller frees. */
char **cgroup_list(const char *scope);
/* Which hierarchy and controllers there are, for `husk doctor`: "v2: cpu memory pids" */
char *cgroup_describe(void);

#endif
