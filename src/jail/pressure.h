/*
 * Signals when the number of a control group's tasks, or its memory that cannot be dropped, exceeds a limit. For
 * cgroup.c only.
 */
#ifndef HUSK_PRESSURE_H
#define HUSK_PRESSURE_H

#include "base/base.h"

struct pressure;

/* Watches the group at `directory` (the path of its memory controller); `v2` selects the file format. `tasks` is the
 * path of its pids controller; NULL: not watched. NULL on failure. */
struct pressure *pressure_new(const char *directory, bool v2, const char *tasks, struct husk_error *err);
void pressure_free(struct pressure *pressure);                                      /* NULL is fine */
void pressure_set_limit(struct pressure *pressure, uint64_t bytes, uint64_t tasks); /* 0: none */
int pressure_fd(struct pressure *pressure); /* readable from the crossing until pressure_clear */
void pressure_clear(struct pressure *pressure);

/* Anonymous and shared memory in the text of a memory.stat: memory that cannot be reclaimed without swap. */
uint64_t pressure_in_use(const char *memory_stat, bool v2);
/* The number after `key` at the start of a line; 0 if the key is missing. */
uint64_t pressure_keyed(const char *text, const char *key);

#endif
