/*
 * Moments: the states that forks started from. A fork saves its parent once, as a snapshot. That snapshot is kept while
 * one of the children, or one of their forks, lives. `husk diff` and `husk merge` compare with it.
 */
#ifndef HUSK_MOMENTS_H
#define HUSK_MOMENTS_H

#include "instance/instance.h"

/* Keeps the temporary snapshot of a fork whose children run. If it is too large to keep, it is dropped. */
void moment_keep(struct husk *husk, const char *snapshot);
/* Removes moments that nothing alive began with, and the oldest ones beyond the limit. Adds to *bytes (may be NULL); returns
 * how many. */
size_t moments_prune(struct husk *husk, uint64_t *bytes);

#endif
