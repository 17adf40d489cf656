/*
 * `husk diff`: which files of a sandbox differ from its template, or from another sandbox. Paths come from the guest.
 */
#include "cli/cli.h"
#include "cli/patch.h"

struct diff_arguments {
	const char *path;
	bool names, patch;
};

static const struct option_spec diff_options[] = {
	OPTION(0, "path", OPTION_STRING, struct diff_arguments, path, "PATH",
	       "only this path of the sandbox, and what is below"),
	OPTION(0, "name-only", OPTION_FLAG, struct diff_arguments, names, NULL, "the paths alone"),
	OPTION('p', "patch", OPTION_FLAG, struct diff_arguments, patch, NULL,
	       "the differences themselves, as diff -u shows them"),
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

static int diff_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct diff_arguments *arguments = data;
	const char *base = argc > 1 ? argv[0] : NULL, *sandbox = argv[argc - 1];
	cleanup_changes struct husk_change **list = NULL;

	if (arguments->patch && (arguments->names || cli->json))
		return husk_fail(err, HUSK_INVALID, "diff: --patch shows text; leave out %s",
				 cli->json ? "--json" : "--name-only");
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
