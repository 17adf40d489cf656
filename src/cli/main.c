/*
 * husk, the command line: finds the command, parses its options, opens the instance, runs the command, and turns its
 * result into an exit status. Each command has its own file. This file names no command, except the processes that
 * libhusk starts from this same binary: `supervise`, `leash` and `volume-server`, which serve one sandbox, its network
 * and one of its volumes, and `builder`, a step of a template's build.
 */
#include "base/log.h"
#include "cli/alias.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "config/config.h"
#include "net/leash.h"
#include "store/builder.h"
#include "supervisor/supervise.h"
#include "volume/process.h"

static int status_of(const struct cli *cli, const struct husk_error *err)
{
	if (interrupt_seen())
		return EXIT_SIGNAL_BASE + interrupt_seen();
	if (cli->command && cli->command->runs_program)
		return EXIT_HUSK;
	if (err->code == HUSK_INVALID)
		return EXIT_USAGE;
	return err->code == HUSK_NOT_FOUND ? EXIT_MISSING : EXIT_FAILED;
}

static int check_operands(const struct cli_command *command, int argc, char *const *argv, struct husk_error *err)
{
	if (argc < command->min)
		return husk_fail(err, HUSK_INVALID, "%s needs %s (husk %s --help)", command->name, command->operands,
				 command->name);
	if (command->max >= 0 && argc > command->max)
		return husk_fail(err, HUSK_INVALID, "%s: unexpected '%s' (husk %s --help)", command->name,
				 argv[command->max], command->name);
	return 0;
}

/* Output counts only when it is flushed: a full disk behind stdout is a failure; a reader that left is not. */
static int finish_output(int status)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return status;
	if (errno == EPIPE)
		return EXIT_SIGNAL_BASE + 13;
	output_note("cannot write to standard output: %s", strerror(errno));
	return status ? status : EXIT_FAILED;
}

static int open_and_run(struct cli *cli, void *arguments, int argc, char **argv, struct husk_error *err)
{
	if (!cli->command->offline && cli->settings.code)
		return husk_fail(err, cli->settings.code, "%s", cli->settings.message);
	if (!cli->command->offline && context_open(cli, err) < 0)
		return -1;
	int status = cli->command->run(cli, arguments, argc, argv, err);
	if (cli->husk)
		husk_close(cli->husk);
	return status;
}

static int parse_and_run(struct cli *cli, int argc, char **argv, struct husk_error *err)
{
	const struct cli_command *command = cli->command;
	cleanup_free char *arguments = calloc(1, MAX(command->arguments_size, 1));
	struct option_group groups[ARRAY_SIZE(command->groups) + 1] = { { common_options, cli } };
	int status = -1;

	if (!arguments)
		return husk_fail_memory(err);
	for (size_t i = 0; i < ARRAY_SIZE(command->groups); i++)
		groups[i + 1] =
			(struct option_group){ command->groups[i].specs, arguments + command->groups[i].offset };
	if (options_parse(groups, ARRAY_SIZE(groups), command->stop_after, &argc, argv, err) < 0) {
		husk_wrap(err, "%s", command->name);
	} else if (cli->help) {
		help_command(command, stdout);
		status = 0;
	} else if (check_operands(command, argc, argv, err) == 0) {
		if (cli->verbose && !getenv("HUSK_LOG"))
			log_set_level(LOG_INFO);
		status = open_and_run(cli, arguments, argc, argv, err);
	}
	options_free(groups, ARRAY_SIZE(groups));
	return status;
}

/* Options before the command: only the common ones; then the command's words. */
static int find_command(struct cli *cli, int *argc, char ***argv, struct husk_error *err)
{
	const struct option_group common = { common_options, cli };
	int words = 0;

	if (*argc == 1 && str_equal((*argv)[0], "--version"))
		(*argv)[0] = "version";
	if (options_parse(&common, 1, 1, argc, *argv, err) < 0)
		return -1;
	if (*argc == 0 && cli->help) {
		help_overview(stdout);
		return 0;
	}
	if (*argc == 0) {
		help_first(stderr);
		return EXIT_USAGE;
	}
	if (alias_command(argc, argv, err) < 0)
		return -1;
	if (*argc == 2 && (str_equal((*argv)[1], "--help") || str_equal((*argv)[1], "-h")) &&
	    help_family((*argv)[0], stdout))
		return 0;
	if (help_find(*argc, *argv, &cli->command, &words, err) < 0)
		return -1;
	*argc -= words;
	*argv += words;
	return 0;
}

int main(int argc, char **argv)
{
	struct cli cli = { 0 };
	struct husk_error err = { 0 };

	if (argc > 1 && str_equal(argv[1], "supervise"))
		return supervise_main(argc - 1, argv + 1);
	if (argc > 1 && str_equal(argv[1], "leash"))
		return leash_main(argc - 1, argv + 1);
	if (argc > 1 && str_equal(argv[1], "volume-server"))
		return volume_server_main(argc - 1, argv + 1);
	if (argc > 1 && str_equal(argv[1], "builder"))
		return builder_main(argc - 1, argv + 1);
	argc -= argc > 0;
	argv++;
	/* Wrong settings are reported by the command that would use them. */
	int status = config_apply(&cli.settings) < 0 ? 0 : log_setup("husk", LOG_WARN, &err);
	if (status == 0)
		status = interrupt_setup(&err);
	if (status == 0)
		status = find_command(&cli, &argc, &argv, &err);
	if (status == 0 && cli.command)
		status = parse_and_run(&cli, argc, argv, &err);
	if (status < 0) {
		output_error(err.message);
		status = status_of(&cli, &err);
	}
	return finish_output(status);
}
