/*
 * Unified diffs of files of a sandbox, as `diff -u` prints them.
 */
#ifndef HUSK_CLI_PATCH_H
#define HUSK_CLI_PATCH_H

#include "husk.h"

/* Prints the change as a patch. `base`: the sandbox that `sandbox` was compared with; NULL: its template. */
int patch_print(struct husk *husk, const char *sandbox, const char *base, const struct husk_change *change,
		struct husk_error *err);
/* The same for a change of husk_workspace_diff, in a form that git apply reads. `root`: the workspace in the guest. */
int patch_print_workspace(struct husk *husk, const char *sandbox, const char *root, const struct husk_change *change,
			  struct husk_error *err);

struct patch_stat {
	size_t added, removed; /* lines */
	bool binary;           /* not text, or too large to compare as text */
};
/* How many lines patch_print would show as added and removed. */
int patch_count(struct husk *husk, const char *sandbox, const char *base, const struct husk_change *change,
		struct patch_stat *out, struct husk_error *err);

#endif
