/*
 * How the guest sees its limits; see limits.c.
 */
#ifndef HUSK_AGENT_LIMITS_H
#define HUSK_AGENT_LIMITS_H

#include <sched.h>

#include "base/base.h"

struct limits {
	int real_meminfo, real_cpuinfo,
		real_stat;                  /* the kernel's own files; -1: not PID 1, nothing is mounted over them */
	int meminfo, cpuinfo, stat, online; /* the agent's files that are mounted over them */
	int group_memory, group_cpu;        /* files in the guest's control groups that show the limits; -1: none */
	int group_usage;                    /* CPU time of the guest, as its kernel counts it; -1: see /proc/stat */
	bool unified;                       /* those groups are cgroup v2 */
	cpu_set_t all;                      /* processors of the machine */
	int cpus;                           /* … and how many the guest may use */
	int64_t available;                  /* bytes of memory, when its use changed last */
	int64_t refreshed_ms, pause_ms;
};
#define LIMITS_INIT                                                                                                    \
	{                                                                                                              \
		.real_meminfo = -1, .real_cpuinfo = -1, .real_stat = -1, .meminfo = -1, .cpuinfo = -1, .stat = -1,     \
		.online = -1, .group_memory = -1, .group_cpu = -1, .group_usage = -1                                   \
	}

/* Mounts the agent's files over the kernel's, in a root that is ready. In a virtual machine (`machine`) the guest sees
 * the group that limits it. */
void limits_boot(struct limits *limits, bool machine);
/* Shows this sandbox's limits: bytes of memory, thousandths of processors. 0: unknown, changes nothing. */
void limits_show(struct limits *limits, int64_t memory, int64_t cpu_milli);
/* Updates the memory in use, at most once per interval; true if it did. Called in every turn of the loop. */
bool limits_refresh(struct limits *limits, int64_t memory);
/* When the next update is due while processes run, even if the agent is idle; 0: never. */
int64_t limits_next_ms(const struct limits *limits);
/* The content of the kernel's own /proc/meminfo, even if a file is mounted over it; caller frees. The second function
 * returns a "Name: 123 kB" line of that text in bytes, 0 if the line is missing. */
char *limits_meminfo(const struct limits *limits, struct husk_error *err);
int64_t limits_meminfo_bytes(const char *text, const char *name);

#endif
