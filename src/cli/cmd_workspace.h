/*
 * Workspaces on the command line, for the commands that make sandboxes, and for those that merge.
 */
#ifndef HUSK_CLI_WORKSPACE_H
#define HUSK_CLI_WORKSPACE_H

#include "cli/cli.h"

#define WORKSPACE_DEFAULT "/workspace"

struct workspace_arguments {
	const char *workspace; /* DIR or DIR:/PATH; NULL: none */
	bool all;
};
extern const struct option_spec workspace_options[];

extern const struct option_spec merge_options[];
struct merge_arguments {
	bool dry_run;
	const char *conflicts;
	uint64_t limit_bytes;
};

/* Copies the directory in, if one was given. *path (may be NULL): where it is then; the caller frees it. */
int workspace_bring(struct cli *cli, const struct workspace_arguments *arguments, const char *sandbox, char **path,
		    struct husk_error *err);
/* husk apply. Returns the exit status, or -1 with err. */
int workspace_apply(struct cli *cli, const char *sandbox, const struct merge_arguments *arguments,
		    struct husk_error *err);
/* Prints the result of an apply or a merge. Returns the exit status, or -1 with err. */
int merged_print(struct cli *cli, const struct husk_merged *merged, bool dry_run, struct husk_error *err);

#endif
