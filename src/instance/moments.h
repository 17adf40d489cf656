/*
 * Moments: the states that forks began with. A fork saves its parent once, as a snapshot; instead of removing that snapshot, it
 * is kept as long as one of the children, or a child of theirs, lives. `husk diff` and `husk merge` compare with it.
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
