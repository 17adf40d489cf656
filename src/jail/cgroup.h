/*
 * One control group per sandbox, on hosts with cgroup v2 and on hosts with v1 controllers. Every engine process of the
 * sandbox starts in this group. So the group enforces the limits on the host, and it finds and ends all remaining
 * processes.
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

/* Makes (or finds) husk/<scope>/<id>. The scope separates instances with different HUSK_HOMEs. */
int cgroup_create(const char *scope, const char *id, struct cgroup **out, struct husk_error *err);
int cgroup_set_limits(struct cgroup *group, const struct cgroup_limits *limits, struct husk_error *err);
/* Moves the calling process in. Async-signal-safe: for use between fork and exec. */
int cgroup_enter(struct cgroup *group);

struct cgroup_use {
	uint64_t memory_bytes; /* anonymous and shared memory in use, without page cache that can be dropped */
	uint64_t cpu_us;
	uint64_t oom_kills; /* by the host's kernel */
	uint64_t tasks;     /* processes and threads on the host, including the engine's */
};
int cgroup_read(struct cgroup *group, struct cgroup_use *out, struct husk_error *err);
/* A descriptor that polls readable when the memory in use exceeds memory_bytes. It also does so once a second while the
 * group has as many tasks as a guest close to its pids limit. cgroup_pressure_clear re-arms it. -1 if the host has no
 * memory controller. */
int cgroup_pressure_fd(struct cgroup *group);
void cgroup_pressure_clear(struct cgroup *group);
/* True if memory was the reason. */
bool cgroup_memory_over(struct cgroup *group);
/* The number of processes above which the guest is out of control: its kernel failed to enforce the limit. 0: the tasks
 * were not the reason, or the guest is idle. The number of tasks proves nothing, because an engine keeps some for
 * reuse. */
uint64_t cgroup_crowd(struct cgroup *group);
/* Sends SIGKILL to everything inside until the group is empty (bounded time), then removes it. Succeeds if the group
 * does not exist. */
int cgroup_destroy(const char *scope, const char *id, struct husk_error *err);
void cgroup_free(struct cgroup *group); /* closes descriptors only */
/* Names of the groups of this scope, for the search for leaks; NULL-terminated, caller frees. */
char **cgroup_list(const char *scope);
/* The hierarchies and controllers of the host, for `husk doctor`: "v2: cpu memory pids" */
char *cgroup_describe(void);

#endif
