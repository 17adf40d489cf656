/*
 * `husk diff`: which files of a sandbox differ from its template, or from another sandbox. Paths come from the guest.
 */
#include "cli/cli.h"
#include "cli/patch.h"

struct diff_arguments {
	const char *path;
	bool names, patch, workspace;
};

static const struct option_spec diff_options[] = {
	OPTION(0, "path", OPTION_STRING, struct diff_arguments, path, "PATH",
	       "only this path of the sandbox, and what is below"),
	OPTION(0, "name-only", OPTION_FLAG, struct diff_arguments, names, NULL, "the paths alone"),
	OPTION('p', "patch", OPTION_FLAG, struct diff_arguments, patch, NULL,
	       "the differences themselves, as diff -u shows them"),
	OPTION('w', "workspace", OPTION_FLAG, struct diff_arguments, workspace, NULL,
	       "what it changed in its workspace, as a patch (husk create --workspace)"),
	{ 0 },
};

static void print_change(const struct husk_change *change, bool name_only)
{
	static const char letters[] = { [HUSK_ADDED] = 'A', [HUSK_REMOVED] = 'D', [HUSK_CHANGED] = 'M' };

	if (!name_only)
		printf("%c ", letters[change->kind]);
	output_safe(stdout, change->file.path, false);
	/* What cannot be taken for a file of that name. */
	puts(change->file.type == HUSK_DIRECTORY ? "/" : "");
}

static int print_changes(struct cli *cli, const struct diff_arguments *arguments, const char *sandbox, const char *base,
			 struct husk_change *const *list, struct husk_error *err)
{
	for (size_t i = 0; list[i]; i++) {
		if (!arguments->patch)
			print_change(list[i], arguments->names);
		else if (patch_print(cli->husk, sandbox, base, list[i], err) < 0)
			return -1;
	}
	return 0;
}

/* The work of the sandbox, against the directory as it was brought in. */
static int diff_workspace(struct cli *cli, const struct diff_arguments *arguments, const char *sandbox,
			  struct husk_error *err)
{
	cleanup_changes struct husk_change **list = NULL;
	cleanup_free char *directory = NULL, *path = NULL;

	if (husk_workspace_where(cli->husk, sandbox, &directory, &path, err) < 0 ||
	    husk_workspace_diff(cli->husk, sandbox, &list, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_changes(list), err);
	for (size_t i = 0; list[i]; i++) {
		if (arguments->names)
			print_change(list[i], true);
		else if (patch_print_workspace(cli->husk, sandbox, path, list[i], err) < 0)
			return -1;
	}
	return 0;
}

static int diff_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct diff_arguments *arguments = data;
	const char *base = argc > 1 ? argv[0] : NULL, *sandbox = argv[argc - 1];
	cleanup_changes struct husk_change **list = NULL;

	if (arguments->patch && (arguments->names || cli->json))
		return husk_fail(err, HUSK_INVALID, "diff: --patch shows text; leave out %s",
				 cli->json ? "--json" : "--name-only");
	if (arguments->workspace && (base || arguments->path))
		return husk_fail(err, HUSK_INVALID, "diff: --workspace takes one sandbox, without --path");
	if (arguments->workspace)
		return diff_workspace(cli, arguments, sandbox, err);
	struct progress *progress = progress_begin("comparing");
	int status = husk_diff(cli->husk, sandbox, base, arguments->path, &list, err);
	progress_end(&progress);
	if (status < 0)
		return -1;
	return cli->json ? output_json(json_changes(list), err)
			 : print_changes(cli, arguments, sandbox, base, list, err);
}

const struct cli_command cli_diff = {
	.name = "diff",
	.operands = "[SANDBOX] SANDBOX",
	.summary = "Show which files of a sandbox differ from its template, or from another sandbox",
	.details = "A is added, M changed, D removed. With two sandboxes: what the second has that the first has not, "
		   "and\n"
		   "the other way round; both must be of the same build of a template. Host name, machine id, resolver "
		   "and\n"
		   "volumes are left out.\n",
	.groups = { { diff_options, 0 } },
	.arguments_size = sizeof(struct diff_arguments),
	.min = 1,
	.max = 2,
	.run = diff_run,
};
