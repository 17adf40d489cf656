/*
 * `husk diff`: which files differ between two states: sandboxes, checkpoints, snapshots, templates. Paths come from the guest.
 */
#include "cli/cli.h"
#include "cli/patch.h"

struct diff_arguments {
	const char *path;
	bool names, patch, stat, workspace, packages, processes;
};

static const struct option_spec diff_options[] = {
	OPTION(0, "path", OPTION_STRING, struct diff_arguments, path, "PATH", "only this path and everything below it"),
	OPTION(0, "name-only", OPTION_FLAG, struct diff_arguments, names, NULL, "the paths alone"),
	OPTION('p', "patch", OPTION_FLAG, struct diff_arguments, patch, NULL, "the differences as diff -u shows them"),
	OPTION(0, "stat", OPTION_FLAG, struct diff_arguments, stat, NULL, "how many lines of each file changed"),
	OPTION(0, "packages", OPTION_FLAG, struct diff_arguments, packages, NULL,
	       "instead of files: Debian, pip and npm packages that were installed, removed or changed"),
	OPTION(0, "processes", OPTION_FLAG, struct diff_arguments, processes, NULL,
	       "instead of files: processes and listening ports that are new or gone"),
	OPTION('w', "workspace", OPTION_FLAG, struct diff_arguments, workspace, NULL,
	       "what it changed in its workspace, as a patch (husk create --workspace)"),
	{ 0 },
};

/* "(mode 0644 to 0755, owner 0:0 to 1000:1000)", if more than the content changed. */
static void print_attributes(const struct husk_change *change)
{
	const struct husk_file *old = &change->before, *new = &change->file;
	const char *separator = " (";
	static const char *const types[] = {
		[HUSK_FILE] = "file", [HUSK_DIRECTORY] = "directory", [HUSK_SYMLINK] = "link", [HUSK_OTHER] = "other"
	};

	if (change->kind != HUSK_CHANGED || !old->type)
		return;
	if (old->type != new->type)
		printf("%s%s to %s", separator, types[old->type], types[new->type]), separator = ", ";
	if (old->mode != new->mode && old->type == new->type)
		printf("%smode %04o to %04o", separator, old->mode, new->mode), separator = ", ";
	if (old->uid != new->uid || old->gid != new->gid)
		printf("%sowner %u:%u to %u:%u", separator, old->uid, old->gid, new->uid, new->gid), separator = ", ";
	if (old->type == HUSK_SYMLINK && new->type == HUSK_SYMLINK) {
		printf("%slink ", separator);
		output_safe(stdout, old->target ? old->target : "", false);
		printf(" to ");
		output_safe(stdout, new->target ? new->target : "", false);
		separator = ", ";
	}
	printf("%s", *separator == ',' ? ")" : "");
}

static void print_change(const struct husk_change *change, bool name_only)
{
	static const char letters[] = { [HUSK_ADDED] = 'A', [HUSK_REMOVED] = 'D', [HUSK_CHANGED] = 'M' };

	if (!name_only)
		printf("%c ", letters[change->kind]);
	output_safe(stdout, change->file.path, false);
	/* What cannot be taken for a file of that name. */
	printf("%s", change->file.type == HUSK_DIRECTORY ? "/" : "");
	if (!name_only)
		print_attributes(change);
	puts("");
}

/* The two states of a comparison whose contents are shown. They stay open until all is printed. */
struct states {
	struct husk *husk;
	struct husk_moment new, old;
	char *template_name; /* compared with, if it is not `old` */
	const char *against; /* for husk_diff */
	const char *base;    /* for patch_print; NULL: the template */
};

static void states_close(struct states *states)
{
	husk_moment_close(states->husk, &states->new);
	husk_moment_close(states->husk, &states->old);
	free(states->template_name);
}

/* Is the word the template of the sandbox, and nothing else? */
static bool names_template(struct husk *husk, const struct husk_sandbox *sandbox, const char *word)
{
	cleanup_sandbox struct husk_sandbox *other = NULL;

	return str_equal(word, sandbox->template_name) && husk_inspect(husk, word, &other, NULL) < 0;
}

static int states_open(struct states *states, const char *new, const char *old, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	if (husk_moment_open(states->husk, new, &states->new, err) < 0 ||
	    husk_inspect(states->husk, states->new.sandbox, &sandbox, err) < 0)
		return -1;
	if (!old && !states->new.is_copy && sandbox->origin) {
		/* If that state is gone, husk_diff says so. */
		husk_moment_open(states->husk, sandbox->origin, &states->old, NULL);
	} else if (old && !names_template(states->husk, sandbox, old)) {
		if (husk_moment_open(states->husk, old, &states->old, err) < 0)
			return -1;
	} else if (old || states->new.is_copy) {
		states->template_name = strdup(sandbox->template_name);
		if (!states->template_name)
			return husk_fail_memory(err);
	}
	states->base = states->old.sandbox;
	states->against = states->base ? states->base : states->template_name;
	return 0;
}

static int print_stat(struct cli *cli, const struct states *states, struct husk_change *const *list,
		      struct husk_error *err)
{
	size_t files = 0, added = 0, removed = 0;

	for (; list[files]; files++) {
		struct patch_stat stat;
		if (patch_count(cli->husk, states->new.sandbox, states->base, list[files], &stat, err) < 0)
			return -1;
		added += stat.added;
		removed += stat.removed;
		if (stat.binary)
			printf("%14s  ", "binary");
		else
			printf("%6s%-5zu %c%-5zu ", "+", stat.added, '-', stat.removed);
		print_change(list[files], false);
	}
	printf("%zu file%s, %zu line%s added, %zu removed\n", files, files == 1 ? "" : "s", added,
	       added == 1 ? "" : "s", removed);
	return 0;
}

/* With contents: the states are opened once, for the list and for what is read after it. */
static int diff_contents(struct cli *cli, const struct diff_arguments *arguments, const char *new, const char *old,
			 struct husk_error *err)
{
	cleanup(states_close) struct states states = { .husk = cli->husk };
	cleanup_changes struct husk_change **list = NULL;

	if (states_open(&states, new, old, err) < 0 ||
	    husk_diff(cli->husk, states.new.sandbox, states.against, arguments->path, &list, err) < 0)
		return -1;
	if (arguments->stat)
		return print_stat(cli, &states, list, err);
	for (size_t i = 0; list[i]; i++)
		if (patch_print(cli->husk, states.new.sandbox, states.base, list[i], err) < 0)
			return -1;
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

static void print_difference(const struct husk_difference *difference)
{
	static const char letters[] = { [HUSK_ADDED] = 'A', [HUSK_REMOVED] = 'D', [HUSK_CHANGED] = 'M' };

	printf("%c %-7s ", letters[difference->change], difference->kind);
	output_safe(stdout, difference->name, false);
	for (int new = 0; new < 2; new ++) {
		const char *version = new ? difference->after : difference->before;
		if (!version)
			continue;
		printf("%s", new && difference->before ? " to " : " ");
		output_safe(stdout, version, false);
	}
	puts("");
}

static int diff_system(struct cli *cli, const struct diff_arguments *arguments, const char *new, const char *old,
		       struct husk_error *err)
{
	struct husk_difference *list = NULL;
	size_t count = 0;
	unsigned what =
		(arguments->packages ? HUSK_DIFF_PACKAGES : 0u) | (arguments->processes ? HUSK_DIFF_PROCESSES : 0u);

	if (husk_diff_system(cli->husk, new, old, what, &list, &count, err) < 0)
		return -1;
	int result = cli->json ? output_json(json_differences(list, count), err) : 0;
	for (size_t i = 0; i < count && !cli->json; i++)
		print_difference(&list[i]);
	husk_difference_list_free(list, count);
	return result;
}

static int diff_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct diff_arguments *arguments = data;
	const char *base = argc > 1 ? argv[0] : NULL, *sandbox = argv[argc - 1];
	cleanup_changes struct husk_change **list = NULL;

	if (arguments->patch + arguments->stat + arguments->names + cli->json > 1)
		return husk_fail(err, HUSK_INVALID, "diff: give one of --patch, --stat, --name-only and --json");
	if (arguments->workspace && (base || arguments->path || arguments->stat))
		return husk_fail(err, HUSK_INVALID, "diff: --workspace takes one sandbox, without --path and --stat");
	if (arguments->workspace)
		return diff_workspace(cli, arguments, sandbox, err);
	if ((arguments->packages || arguments->processes) &&
	    (arguments->patch || arguments->stat || arguments->names || arguments->path))
		return husk_fail(err, HUSK_INVALID,
				 "diff: --packages and --processes go with --json and with each other only");
	if (arguments->packages || arguments->processes)
		return diff_system(cli, arguments, sandbox, base, err);
	if (arguments->patch || arguments->stat)
		return diff_contents(cli, arguments, sandbox, base, err);
	struct progress *progress = progress_begin("comparing");
	int status = husk_diff(cli->husk, sandbox, base, arguments->path, &list, err);
	progress_end(&progress);
	if (status < 0)
		return -1;
	for (size_t i = 0; list[i] && !cli->json; i++)
		print_change(list[i], arguments->names);
	return cli->json ? output_json(json_changes(list), err) : 0;
}

const struct cli_command cli_diff = {
	.name = "diff",
	.operands = "[SANDBOX] SANDBOX",
	.summary = "Show which files differ between two states of sandboxes",
	.details =
		"A is added, M changed, D removed. A state is a sandbox, a checkpoint (SANDBOX@NUMBER), a snapshot or "
		"a\n"
		"template. One state is compared with its origin: its fork, its snapshot or its template. Two states: "
		"the changes\n"
		"from the first to the second; both must come from the same build of a template. Host name, machine\n"
		"id, resolver and volumes are left out.\n",
	.groups = { { diff_options, 0 } },
	.arguments_size = sizeof(struct diff_arguments),
	.min = 1,
	.max = 2,
	.run = diff_run,
};
