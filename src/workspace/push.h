/*
 * What the caller changed in the directory goes into the sandbox.
 */
#ifndef HUSK_WORKSPACE_PUSH_H
#define HUSK_WORKSPACE_PUSH_H

#include "workspace/sync.h"

/* The names whose version differs from the base, without those that have an open conflict. All of them are put in place by one call to the
 * agent. What a program in the guest wrote meanwhile is put back, and is a change of the sandbox for the next round. `quiet`: names
 * that are not reported. Both lists are sorted by listing_compare. */
int push(struct sync *sync, const struct names *names, const struct names *quiet, struct husk_error *err);

#endif
