/*
 * Handles a guest that exceeds its memory or processes; see relief.c.
 */
#ifndef HUSK_RELIEF_H
#define HUSK_RELIEF_H

#include "supervisor/supervisor.h"

/* Starts the thread. The cgroup of the machine must exist. */
int relief_start(struct supervisor *s, struct husk_error *err);
/* If the guest's own kernel enforces the memory limit, the guest reports what it killed. Called before its processes
 * run. */
int relief_watch(struct supervisor *s, struct husk_error *err);
/* Ends the thread. The link must be down, so that the thread cannot wait for the guest. */
void relief_stop(struct supervisor *s);

#endif
