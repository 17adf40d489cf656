/*
 * husk, the command line: finds the command, parses its options, opens the instance, runs it, and turns what came of it
 * into an exit status. Everything a command does stands in its own file; nothing here knows any of them by name, except
 * `supervise` and `leash`, the processes that look after one sandbox and its network and that libhusk starts from this
 * same binary.
 */
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "net/leash.h"
#include "sandbox/supervise.h"

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

/* Output is only as good as its last flush: a full disk behind stdout is a failure, a reader that left is not news. */
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
	if (!cli->command->offline && husk_open(NULL, &cli->husk, err) < 0)
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
		status = open_and_run(cli, arguments, argc, argv, err);
	}
	options_free(groups, ARRAY_SIZE(groups));
	return status;
}

/* Options before the command: only those common to all; then the command's words. */
static int find_command(struct cli *cli, int *argc, char ***argv, struct husk_error *err)
{
	const struct option_group common = { common_options, cli };
	int words = 0;

	if (*argc == 1 && str_equal((*argv)[0], "--version"))
		(*argv)[0] = "version";
	if (options_parse(&common, 1, 1, argc, *argv, err) < 0)
		return -1;
	if (*argc == 0) {
		help_overview(cli->help ? stdout : stderr);
		return cli->help ? 0 : EXIT_USAGE;
	}
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
	argc -= argc > 0;
	argv++;
	int status = interrupt_setup(&err);
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
