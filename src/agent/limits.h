/*
 * What the guest is told of its limits: see limits.c.
 */
#ifndef HUSK_AGENT_LIMITS_H
#define HUSK_AGENT_LIMITS_H

#include <sched.h>

#include "base/base.h"

struct limits {
	int real_meminfo, real_cpuinfo, real_stat; /* the kernel's own; -1: not PID 1, nothing is laid over */
	int meminfo, cpuinfo, stat, online;        /* what lies over them */
	int group_memory, group_cpu;               /* the limits that groups of the guest's show; -1: none of ours */
	int group_usage;  /* CPU time of the guest, as its kernel counts it; -1: see /proc/stat */
	bool unified;     /* those groups are of the second version */
	cpu_set_t all;    /* processors there are */
	int cpus;         /* … and those that the guest may use */
	struct buf shown; /* what the memory file holds */
	int64_t refreshed_ms, pause_ms;
};
#define LIMITS_INIT                                                                                                    \
	{                                                                                                              \
		.real_meminfo = -1, .real_cpuinfo = -1, .real_stat = -1, .meminfo = -1, .cpuinfo = -1, .stat = -1,     \
		.online = -1, .group_memory = -1, .group_cpu = -1, .group_usage = -1                                   \
	}

/* Lays the files over, in a root that is ready. In a virtual machine (`machine`) the group that limits is shown. */
void limits_boot(struct limits *limits, bool machine);
/* This sandbox's: bytes of memory, thousandths of processors (0: not known, which changes nothing). */
void limits_show(struct limits *limits, int64_t memory, int64_t cpu_milli);
/* What is in use, once in a while: called whenever the agent has something to do. */
void limits_refresh(struct limits *limits, int64_t memory);
/* When that is due although the agent has nothing to do, for processes that run; 0: never. */
int64_t limits_next_ms(const struct limits *limits);
/* The kernel's own words, whatever lies over them; caller frees. A "Name:   123 kB" line of it, in bytes; 0 when it is not there. */
char *limits_meminfo(const struct limits *limits, struct husk_error *err);
int64_t limits_meminfo_bytes(const char *text, const char *name);

#endif
