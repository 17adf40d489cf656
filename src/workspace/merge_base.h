/*
 * The common version of a merge: the state that two sandboxes last shared.
 */
#ifndef HUSK_WORKSPACE_MERGE_BASE_H
#define HUSK_WORKSPACE_MERGE_BASE_H

#include "instance/instance.h"

/* *out: a word for husk_moment_open, which the caller frees; NULL: both come from the template and share nothing else. GONE: there
 * was such a state, and it was not kept. INVALID: both are the same sandbox. */
int merge_base(struct husk *husk, const char *from, const char *into, char **out, struct husk_error *err);

#endif
