/*
 * Handles a guest that exceeds its memory or processes, and reports a full disk; see relief.c.
 */
#ifndef HUSK_RELIEF_H
#define HUSK_RELIEF_H

#include "supervisor/supervisor.h"

/* Starts the thread. The cgroup of the machine must exist. */
int relief_start(struct supervisor *s, struct husk_error *err);
/* The guest reports a full disk and, if its own kernel enforces the memory limit, what it killed. Called after the limits are
 * set. */
int relief_watch(struct supervisor *s, struct husk_error *err);
/* Ends the thread. The link must be down, so that the thread cannot wait for the guest. */
void relief_stop(struct supervisor *s);

#endif
