/*
 * Tells when a control group's memory that cannot be dropped, or the number of its tasks, passes a limit. For cgroup.c
 * only.
 */
#ifndef HUSK_PRESSURE_H
#define HUSK_PRESSURE_H

#include "base/base.h"

struct pressure;

/* Watches the group at `directory` (its memory controller's path); `v2` says which files it has. `tasks` is its pids
 * controller's path, NULL: not watched. NULL on failure. */
struct pressure *pressure_new(const char *directory, bool v2, const char *tasks, struct husk_error *err);
void pressure_free(struct pressure *pressure);                                      /* NULL is fine */
void pressure_set_limit(struct pressure *pressure, uint64_t bytes, uint64_t tasks); /* 0: none */
int pressure_fd(struct pressure *pressure); /* readable from the crossing until pressure_clear */
void pressure_clear(struct pressure *pressure);

/* Anonymous and shared memory in the text of a memory.stat: what no reclaim gives back without swap. */
uint64_t pressure_in_use(const char *memory_stat, bool v2);
/* The number after `key` at the start of a line; 0 when it is not there. */
uint64_t pressure_keyed(const char *text, const char *key);

#endif
