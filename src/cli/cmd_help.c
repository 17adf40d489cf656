/*
 * The table of commands, the search for a command by its words, and the help pages. Help pages are made from the tables
 * that the options are parsed with, so both always agree. Called by main.c; also the `help` and `version` commands.
 */
#include "cli/cli.h"

const struct cli_command *const cli_commands[] = {
	&cli_run,
	&cli_create,
	&cli_exec,
	&cli_attach,
	&cli_ps,
	&cli_ls,
	&cli_inspect,
	&cli_rm,
	&cli_cp,
	&cli_port,
	&cli_fork,
	&cli_checkpoint,
	&cli_rewind,
	&cli_promote,
	&cli_effects,
	&cli_history,
	&cli_diff,
	&cli_workspace,
	&cli_apply,
	&cli_sync,
	&cli_merge,
	&cli_explore,
	&cli_tree,
	&cli_hibernate,
	&cli_wake,
	&cli_reboot,
	&cli_pause,
	&cli_resume,
	&cli_extend,
	&cli_resize,
	&cli_egress,
	&cli_code,
	&cli_desktop,
	&cli_logs,
	&cli_stats,
	&cli_events,
	&cli_snapshot_create,
	&cli_snapshot_ls,
	&cli_snapshot_rm,
	&cli_snapshot_export,
	&cli_snapshot_import,
	&cli_snapshot_push,
	&cli_snapshot_pull,
	&cli_volume_create,
	&cli_volume_ls,
	&cli_volume_inspect,
	&cli_volume_rm,
	&cli_volume_files,
	&cli_volume_read,
	&cli_volume_write,
	&cli_build,
	&cli_commit,
	&cli_pull,
	&cli_image_ls,
	&cli_image_inspect,
	&cli_image_rm,
	&cli_image_prune,
	&cli_image_export,
	&cli_image_push,
	&cli_login,
	&cli_logout,
	&cli_template_build,
	&cli_template_ls,
	&cli_template_rm,
	&cli_template_export,
	&cli_template_import,
	&cli_template_push,
	&cli_template_pull,
	&cli_key_show,
	&cli_key_ls,
	&cli_key_trust,
	&cli_key_rm,
	&cli_serve,
	&cli_mcp,
	&cli_mcp_install,
	&cli_mcp_uninstall,
	&cli_token_create,
	&cli_token_ls,
	&cli_token_rm,
	&cli_context_add,
	&cli_context_use,
	&cli_context_ls,
	&cli_context_rm,
	&cli_config_show,
	&cli_doctor,
	&cli_gc,
	&cli_pool_drain,
	&cli_uninstall,
	&cli_version,
	&cli_completion,
	&cli_help,
	NULL,
};

const struct option_spec common_options[] = {
	OPTION('h', "help", OPTION_FLAG, struct cli, help, NULL, "show this page"),
	OPTION(0, "json", OPTION_FLAG, struct cli, json, NULL, "one JSON document on stdout"),
	OPTION('v', "verbose", OPTION_FLAG, struct cli, verbose, NULL, "print what is done and how long it took"),
	OPTION(0, "host", OPTION_STRING, struct cli, host, "URL",
	       "a server: unix:/PATH, http://HOST:PORT, https://HOST (HUSK_HOST, husk context)"),
	OPTION(0, "ca", OPTION_STRING, struct cli, ca, "FILE",
	       "certificates that verify an https:// server, PEM (HUSK_CA)"),
	{ 0 },
};

void help_command(const struct cli_command *command, FILE *out)
{
	struct option_group groups[ARRAY_SIZE(command->groups) + 1];

	for (size_t i = 0; i < ARRAY_SIZE(command->groups); i++)
		groups[i] = (struct option_group){ command->groups[i].specs, NULL };
	groups[ARRAY_SIZE(command->groups)] = (struct option_group){ common_options, NULL };
	fprintf(out, "usage: husk %s [OPTIONS]%s%s\n\n%s.\n", command->name, *command->operands ? " " : "",
		command->operands, command->summary);
	if (command->details)
		fprintf(out, "\n%s", command->details);
	fputs("\noptions:\n", out);
	options_help(groups, ARRAY_SIZE(groups), out);
}

void help_overview(FILE *out)
{
	fputs("usage: husk COMMAND [OPTIONS] [ARGUMENTS]\n\n"
	      "Throwaway computers: each sandbox has its own kernel, files and processes.\n\ncommands:\n",
	      out);
	for (size_t i = 0; cli_commands[i]; i++)
		fprintf(out, "  %-18s %s\n", cli_commands[i]->name, cli_commands[i]->summary);
	fputs("\n`husk COMMAND --help` describes one command; `husk doctor` checks this host.\n", out);
}

void help_first(FILE *out)
{
	fputs("Throwaway computers: each sandbox has its own kernel, files and processes. Three things to try:\n\n"
	      "  husk run -- python3 -c 'print(6*7)'   a command in a new sandbox, which is removed afterwards\n"
	      "  husk run -it                          a shell in one\n"
	      "  husk mcp install claude               a computer for your agent (codex, vscode, cursor, gemini)\n\n"
	      "`husk help` lists all commands, `husk doctor` reports what works on this host.\n",
	      out);
}

/* Does the command `name` belong to `family`, as "volume ls" to "volume"? */
static bool is_of(const char *name, const char *family)
{
	size_t size = strlen(family);

	return strncmp(name, family, size) == 0 && name[size] == ' ';
}

bool help_family(const char *family, FILE *out)
{
	bool any = false;

	for (size_t i = 0; cli_commands[i]; i++)
		if (str_equal(cli_commands[i]->name,
			      family)) /* `mcp` is itself a command, with a page that names the others */
			return false;
	for (size_t i = 0; cli_commands[i]; i++) {
		if (!is_of(cli_commands[i]->name, family))
			continue;
		if (!any)
			fprintf(out, "usage: husk %s COMMAND [OPTIONS] [ARGUMENTS]\n\ncommands:\n", family);
		fprintf(out, "  %-18s %s\n", cli_commands[i]->name, cli_commands[i]->summary);
		any = true;
	}
	if (any)
		fprintf(out, "\n`husk %s COMMAND --help` describes one command.\n", family);
	return any;
}

/* How many words of argv match this command's name; 0: no match. */
static int words_matching(const char *name, int argc, char *const *argv)
{
	const char *space = strchr(name, ' ');

	if (!space)
		return str_equal(name, argv[0]) ? 1 : 0;
	size_t size = (size_t)(space - name);
	bool both =
		argc > 1 && strncmp(name, argv[0], size) == 0 && argv[0][size] == '\0' && str_equal(space + 1, argv[1]);
	return both ? 2 : 0;
}

/* "snapshot", "snapshot frob": the family exists, the member does not. */
static int fail_in_family(int argc, char *const *argv, struct husk_error *err)
{
	cleanup_buf struct buf members = { 0 };
	size_t size = strlen(argv[0]);

	for (size_t i = 0; cli_commands[i]; i++) {
		const char *name = cli_commands[i]->name;
		if (is_of(name, argv[0]) && buf_printf(&members, "%s%s", members.size ? ", " : "", name + size + 1) < 0)
			return husk_fail_memory(err);
	}
	if (members.size == 0)
		return 0;
	if (argc < 2)
		return husk_fail(err, HUSK_INVALID, "%s needs one of: %s", argv[0], members.data);
	return husk_fail(err, HUSK_INVALID, "unknown command '%s %s'; %s has: %s", argv[0], argv[1], argv[0],
			 members.data);
}

int help_find(int argc, char *const *argv, const struct cli_command **out, int *words, struct husk_error *err)
{
	const char *names[ARRAY_SIZE(cli_commands)];
	size_t count = 0;

	*words = 0;
	for (; cli_commands[count]; count++) {
		int matching = words_matching(cli_commands[count]->name, argc, argv);
		if (matching > *words) { /* `mcp install` before `mcp` */
			*out = cli_commands[count];
			*words = matching;
		}
		names[count] = cli_commands[count]->name;
	}
	if (*words)
		return 0;
	if (fail_in_family(argc, argv, err) < 0)
		return -1;
	const char *near = str_nearest(argv[0], names, count);
	if (near)
		return husk_fail(err, HUSK_INVALID, "unknown command '%s'; did you mean '%s'? (husk help)", argv[0],
				 near);
	return husk_fail(err, HUSK_INVALID, "unknown command '%s' (husk help)", argv[0]);
}

static int help_run(struct cli *cli, void *arguments, int argc, char **argv, struct husk_error *err)
{
	const struct cli_command *command = NULL;
	int words;

	(void)cli, (void)arguments;
	if (argc == 0) {
		help_overview(stdout);
		return 0;
	}
	if (argc == 1 && help_family(argv[0], stdout))
		return 0;
	if (help_find(argc, argv, &command, &words, err) < 0)
		return -1;
	help_command(command, stdout);
	return 0;
}

static int version_run(struct cli *cli, void *arguments, int argc, char **argv, struct husk_error *err)
{
	(void)arguments, (void)argc, (void)argv;
	if (cli->json)
		return output_json(json_pack("{s:s}", "version", HUSK_VERSION), err);
	puts("husk " HUSK_VERSION);
	return 0;
}

const struct cli_command cli_help = {
	.name = "help",
	.operands = "[COMMAND]",
	.summary = "Show the commands, or one of them",
	.max = 2,
	.offline = true,
	.run = help_run,
};

const struct cli_command cli_version = {
	.name = "version",
	.operands = "",
	.summary = "Show the version",
	.offline = true,
	.run = version_run,
};
