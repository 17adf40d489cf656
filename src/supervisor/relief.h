/*
 * What is done about a guest that takes more memory or processes than it may: see relief.c.
 */
#ifndef HUSK_RELIEF_H
#define HUSK_RELIEF_H

#include "supervisor/supervisor.h"

/* Starts the thread; the machine's cgroup is there. */
int relief_start(struct supervisor *s, struct husk_error *err);
/* A guest whose own kernel holds its memory limit tells what that killed. Before its processes run. */
int relief_watch(struct supervisor *s, struct husk_error *err);
/* Ends the thread. The link is down, so that it cannot wait for the guest. */
void relief_stop(struct supervisor *s);

#endif
