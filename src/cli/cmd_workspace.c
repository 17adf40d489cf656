/*
 * Workspaces and merges on the command line: --workspace of run and create, `husk workspace`, `husk apply` and `husk merge`. Names of files come from the guest.
 */
#include "cli/cmd_workspace.h"

#include "cli/interrupt.h"

#define LEFT_OUT_SHOWN 10

const struct option_spec workspace_options[] = {
	OPTION(0, "workspace", OPTION_STRING, struct workspace_arguments, workspace, "DIR[:/PATH]",
	       "copy a directory of yours to /PATH (/workspace), without files that git ignores; husk apply writes "
	       "changes back"),
	OPTION(0, "workspace-all", OPTION_FLAG, struct workspace_arguments, all, NULL,
	       "also the files that git ignores"),
	{ 0 },
};

/* ---- bringing in ---- */

struct told {
	size_t count;
};

static void on_left_out(void *data, const char *name, const char *why)
{
	struct told *told = data;

	if (++told->count <= LEFT_OUT_SHOWN)
		output_note("left out '%s': %s", name, why);
}

/* DIR:/PATH; a directory whose name holds ":/" is given with ":/PATH" after it. The caller frees both. */
static int split_workspace(const char *text, char **directory, char **path, struct husk_error *err)
{
	const char *colon = NULL;

	for (const char *at = text; (at = strstr(at, ":/")); at++)
		colon = at;
	*directory = colon ? strndup(text, (size_t)(colon - text)) : strdup(text);
	*path = strdup(colon ? colon + 1 : WORKSPACE_DEFAULT);
	if (!*directory || !*path)
		return husk_fail_memory(err);
	if (!**directory)
		return husk_fail(err, HUSK_INVALID, "--workspace: '%s' is not DIR or DIR:/PATH", text);
	return 0;
}

int workspace_bring(struct cli *cli, const struct workspace_arguments *arguments, const char *sandbox, char **path,
		    struct husk_error *err)
{
	cleanup_free char *directory = NULL, *inside = NULL;
	struct told told = { 0 };

	if (!arguments->workspace)
		return arguments->all ? husk_fail(err, HUSK_INVALID, "--workspace-all needs --workspace DIR") : 0;
	if (split_workspace(arguments->workspace, &directory, &inside, err) < 0)
		return -1;
	struct husk_workspace_options options = {
		.directory = directory, .path = inside, .all = arguments->all, .left_out = on_left_out, .data = &told
	};
	struct progress *progress = progress_begin("copying %s", directory);
	int result = husk_workspace_bring(cli->husk, sandbox, &options, err);
	progress_end(&progress);
	if (told.count > LEFT_OUT_SHOWN)
		output_note("left out %zu more", told.count - LEFT_OUT_SHOWN);
	if (result == 0 && path)
		*path = steal_pointer(inside);
	return result;
}

/* ---- husk workspace ---- */

static const struct option_spec bring_options[] = {
	OPTION(0, "all", OPTION_FLAG, struct workspace_arguments, all, NULL, "also the files that git ignores"),
	{ 0 },
};

static int bring_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	struct workspace_arguments *arguments = data;
	cleanup_free char *path = NULL;

	(void)argc;
	arguments->workspace = argv[1];
	if (workspace_bring(cli, arguments, argv[0], &path, err) < 0)
		return -1;
	if (!path)
		return husk_fail(err, HUSK_INVALID, "name a directory: DIR or DIR:/PATH");
	if (cli->json)
		return output_json(json_pack("{s:o}", "path", json_text0(path)), err);
	printf("%s\n", path);
	return 0;
}

const struct cli_command cli_workspace = {
	.name = "workspace",
	.operands = "SANDBOX DIR[:/PATH]",
	.summary = "Copy a directory of yours into an existing sandbox, as create --workspace does",
	.details =
		"Prints its path in the sandbox: /PATH, or /workspace. husk diff --workspace and husk apply use the\n"
		"directory that was copied last. Nothing of the host is mounted.\n",
	.groups = { { bring_options, 0 } },
	.arguments_size = sizeof(struct workspace_arguments),
	.min = 2,
	.max = 2,
	.run = bring_run,
};

/* ---- the result of an apply or a merge ---- */

static void print_entry(const struct husk_merge_entry *entry)
{
	static const char letters[] = { [HUSK_ADDED] = 'A', [HUSK_REMOVED] = 'D', [HUSK_CHANGED] = 'M' };
	bool open = entry->conflict && !entry->resolved;

	printf("%c ", open ? 'C' : entry->merged ? 'G' : letters[entry->kind]);
	output_safe(stdout, entry->path, false);
	if (entry->conflict)
		printf(" (%s%s)", entry->conflict, entry->resolved ? "; resolved as told" : "");
	putchar('\n');
}

static void print_left_out(const struct husk_merged *merged)
{
	size_t count = strv_length(merged->left_out);

	for (size_t i = 0; i < MIN(count, LEFT_OUT_SHOWN); i++)
		output_note("left out '%s': %s", merged->left_out[i], merged->reasons[i]);
	if (count > LEFT_OUT_SHOWN)
		output_note("left out %zu more", count - LEFT_OUT_SHOWN);
	if (merged->ignored)
		output_note("left out %zu new file%s that git ignores", merged->ignored,
			    merged->ignored == 1 ? "" : "s");
}

int merged_print(struct cli *cli, const struct husk_merged *merged, bool dry_run, struct husk_error *err)
{
	if (cli->json) {
		if (output_json(json_merged(merged), err) < 0)
			return -1;
	} else {
		for (size_t i = 0; i < merged->count; i++)
			print_entry(&merged->entries[i]);
		print_left_out(merged);
	}
	if (merged->conflicts == 0)
		return 0;
	output_note("%zu conflict%s with %s; %s", merged->conflicts, merged->conflicts == 1 ? "" : "s", merged->target,
		    merged->written ? "these were left as they are"
		    : dry_run       ? "nothing would be written"
				    : "nothing was written (--conflicts markers, ours or theirs resolves them)");
	return EXIT_FAILED;
}

/* ---- husk apply ---- */

static const char *const conflict_names[] = { "markers", "ours", "theirs", NULL };

const struct option_spec merge_options[] = {
	OPTION('n', "dry-run", OPTION_FLAG, struct merge_arguments, dry_run, NULL, "only show what would be done"),
	OPTION(0, "conflicts", OPTION_CHOICE, struct merge_arguments, conflicts, "HOW",
	       "write even with conflicts: markers in text, ours (the target's version) or theirs",
	       .choices = conflict_names),
	OPTION(0, "limit", OPTION_SIZE, struct merge_arguments, limit_bytes, "SIZE",
	       "maximum size of all changed files (1G)", .min = MEBIBYTE, .max = TEBIBYTE),
	{ 0 },
};

int workspace_apply(struct cli *cli, const char *sandbox, const struct merge_arguments *arguments,
		    struct husk_error *err)
{
	cleanup_merged struct husk_merged *merged = NULL;
	struct husk_merge_options options = { .dry_run = arguments->dry_run,
					      .conflicts = arguments->conflicts,
					      .limit_bytes = arguments->limit_bytes };
	struct progress *progress = progress_begin("applying");
	int result = husk_workspace_apply(cli->husk, sandbox, &options, &merged, err);

	progress_end(&progress);
	return result < 0 ? -1 : merged_print(cli, merged, arguments->dry_run, err);
}

static int apply_run(struct cli *cli, void *arguments, int argc, char **argv, struct husk_error *err)
{
	(void)argc;
	return workspace_apply(cli, argv[0], arguments, err);
}

const struct cli_command cli_apply = {
	.name = "apply",
	.operands = "SANDBOX",
	.summary = "Write the changes that a sandbox made to its workspace back to your directory",
	.details =
		"A is added, M changed, D removed, G changed on both sides and merged, C a conflict. With a conflict "
		"nothing\n"
		"is written, unless --conflicts is given, and the exit status is 1. Never written: .git, links that "
		"lead\n"
		"outside, devices, and new files that git ignores. husk diff --workspace SANDBOX shows the changes.\n",
	.groups = { { merge_options, 0 } },
	.arguments_size = sizeof(struct merge_arguments),
	.min = 1,
	.max = 1,
	.run = apply_run,
};

/* ---- husk merge ---- */

struct merge_command {
	struct merge_arguments merge;
	const char *base, *path;
};

static const struct option_spec merge_own_options[] = {
	OPTION(0, "base", OPTION_STRING, struct merge_command, base, "STATE",
	       "the base: a sandbox, SANDBOX@NUMBER, a snapshot or a template (the state at the fork)"),
	OPTION(0, "path", OPTION_STRING, struct merge_command, path, "PATH", "only this path and everything below it"),
	{ 0 },
};

static int merge_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct merge_command *arguments = data;
	cleanup_merged struct husk_merged *merged = NULL;
	struct husk_merge_options options = { .dry_run = arguments->merge.dry_run,
					      .conflicts = arguments->merge.conflicts,
					      .limit_bytes = arguments->merge.limit_bytes };
	struct progress *progress = progress_begin("merging");

	(void)argc;
	int result = husk_merge(cli->husk, argv[0], argv[1], arguments->base, arguments->path, &options, &merged, err);
	progress_end(&progress);
	return result < 0 ? -1 : merged_print(cli, merged, options.dry_run, err);
}

const struct cli_command cli_merge = {
	.name = "merge",
	.operands = "SANDBOX SANDBOX",
	.summary = "Merge the files that one sandbox changed into another one",
	.details = "The changes of the first sandbox go into the second, which keeps running. A is added, M changed, D "
		   "removed,\n"
		   "G changed in both and merged, C a conflict. With a conflict nothing is written, unless --conflicts "
		   "is given,\n"
		   "and the exit status is 1.\n",
	.groups = { { merge_own_options, 0 }, { merge_options, offsetof(struct merge_command, merge) } },
	.arguments_size = sizeof(struct merge_command),
	.min = 2,
	.max = 2,
	.run = merge_run,
};
