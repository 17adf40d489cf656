/*
 * `husk run`: a sandbox for one command. Creates it, follows the command, removes it, exits with the command's status.
 * After any failure, and any number of Ctrl-C, the sandbox is removed (unless --keep).
 */
#include <inttypes.h>

#include "cli/cli.h"
#include "cli/cmd_workspace.h"
#include "cli/relay.h"

struct run_arguments {
	struct create_arguments create;
	struct process_arguments process;
	struct workspace_arguments workspace;
	bool interactive_tty, keep, remove, apply;
};

static const struct option_spec run_options[] = {
	OPTION(0, "tty", OPTION_FLAG, struct run_arguments, process.tty, NULL, "give it a terminal"),
	OPTION(0, "interactive-tty", OPTION_FLAG, struct run_arguments, interactive_tty, NULL,
	       "-i and --tty: for a shell and other interactive programs", .exact = "-it"),
	OPTION(0, "interactive-tty", OPTION_FLAG, struct run_arguments, interactive_tty, NULL, NULL, .exact = "-ti"),
	OPTION(0, "rm", OPTION_FLAG, struct run_arguments, remove, NULL, NULL), /* what it does anyway */
	OPTION(0, "keep", OPTION_FLAG, struct run_arguments, keep, NULL, "leave the sandbox running afterwards"),
	OPTION(0, "apply", OPTION_FLAG, struct run_arguments, apply, NULL,
	       "with --workspace: if the command succeeds, write its changes back to the directory"),
	{ 0 },
};

static int run_print(struct cli *cli, const struct husk_sandbox *sandbox, int64_t pid,
		     const struct relay_result *result, json_t *denied, int64_t create_ms, int64_t total_ms,
		     struct husk_error *err)
{
	if (cli->verbose)
		output_note("command took %lld ms, %lld ms in all", (long long)result->duration_ms,
			    (long long)total_ms);
	if (!cli->json)
		return 0;
	return output_json(relay_json(sandbox, pid, create_ms, total_ms, result, denied), err);
}

/* -d: the sandbox stays, with its TTL, and so does the command. */
static int run_detached(struct cli *cli, const struct husk_sandbox *sandbox, const struct husk_exec_options *exec,
			struct husk_error *err)
{
	int64_t pid = 0;

	if (husk_exec(cli->husk, sandbox->id, exec, NULL, &pid, err) < 0) {
		husk_kill(cli->husk, sandbox->id, NULL);
		if (!str_equal(err->field, HUSK_FIELD_PROGRAM))
			return -1;
		output_error(err->message);
		return err->code == HUSK_NOT_FOUND ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
	}
	if (cli->json)
		return output_json(
			json_pack("{s:s, s:I, s:b}", "id", sandbox->id, "pid", (json_int_t)pid, "detached", true), err);
	puts(sandbox->id);
	output_note("process %" PRId64 " continues: husk attach %s %" PRId64 "; husk rm %s ends both", pid, sandbox->id,
		    pid, sandbox->id);
	return 0;
}

/* --apply, after the command. 1: the changes could not be applied, and the sandbox must stay, because it has them. */
static int run_apply(struct cli *cli, const struct run_arguments *arguments, const struct husk_sandbox *sandbox,
		     const struct relay_result *result)
{
	cleanup_merged struct husk_merged *merged = NULL;
	struct husk_error why = { 0 };

	if (!arguments->apply || result->exit_code != 0)
		return 0;
	if (husk_workspace_apply(cli->husk, sandbox->id, NULL, &merged, &why) < 0)
		output_error(why.message);
	else if (merged->conflicts)
		output_note("%zu of %zu changes conflict with %s; nothing was written", merged->conflicts,
			    merged->count, merged->target);
	else {
		output_note("%zu change%s written to %s", merged->count, merged->count == 1 ? "" : "s", merged->target);
		return 0;
	}
	output_note("sandbox %s is kept (husk apply %s, husk rm %s)", sandbox->id, sandbox->id, sandbox->id);
	return 1;
}

/* Follows the command in an existing sandbox; then removes the sandbox, whatever the result. */
static int run_in(struct cli *cli, const struct run_arguments *arguments, const struct husk_sandbox *sandbox,
		  const struct husk_exec_options *exec, struct relay_result *result, int64_t *pid, json_t **denied,
		  struct husk_error *err)
{
	struct husk_error kill_error = { 0 };
	int status = relay_exec(cli, sandbox->id, &arguments->process, exec, false, result, pid, err);
	bool offline = str_equal(sandbox->egress_mode, "off");

	*denied = status < 0 || (offline && result->exit_code == 0)
			  ? json_array()
			  : egress_denied(cli, sandbox->id, 0, result->last_errors.data, result->last_errors.size);

	if (status == 0 && run_apply(cli, arguments, sandbox, result) > 0)
		result->exit_code = EXIT_FAILED;
	else if (arguments->keep) {
		output_note("sandbox %s is kept (husk rm %s)", sandbox->id, sandbox->id);
	} else if (husk_kill(cli->husk, sandbox->id, &kill_error) < 0 && kill_error.code != HUSK_GONE &&
		   kill_error.code != HUSK_NOT_FOUND) {
		output_note("sandbox %s could not be removed: %s", sandbox->id, kill_error.message);
		return status < 0 ? -1 : husk_fail(err, HUSK_INTERNAL, "try husk rm %s, then husk gc", sandbox->id);
	}
	return status;
}

static int run_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	struct run_arguments *arguments = data;
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	cleanup_relay struct relay_result result = { 0 };
	cleanup_json json_t *denied = NULL;
	cleanup_free char *workspace = NULL;
	int64_t started = time_monotonic_ms(), create_ms = 0, pid = 0;
	struct husk_exec_options exec;

	if (arguments->interactive_tty)
		arguments->process.interactive = arguments->process.tty = true;
	if (cli->verbose && argc > 0 && strstr(argv[0], ":/")) /* Docker's -v */
		return husk_fail(err, HUSK_INVALID, "-v is --verbose; a volume is given with --volume NAME:/PATH");
	if (arguments->process.detach && arguments->remove)
		return husk_fail(err, HUSK_INVALID,
				 "--rm and -d exclude each other: a sandbox of run -d ends with its "
				 "--ttl, or with husk rm");
	if (arguments->apply && (!arguments->workspace.workspace || arguments->process.detach))
		return husk_fail(err, HUSK_INVALID,
				 arguments->process.detach ? "--apply and -d exclude each other; use husk apply later"
							   : "--apply needs --workspace DIR");
	arguments->process.image = arguments->create.template || arguments->create.snapshot;
	if (relay_exec_options(cli, NULL, &arguments->process, argc, argv, &exec, err) < 0)
		return -1;
	if (create_sandbox(cli, &arguments->create, &sandbox, &create_ms, err) < 0)
		return -1;
	if (workspace_bring(cli, &arguments->workspace, sandbox->id, &workspace, err) < 0) {
		husk_kill(cli->husk, sandbox->id, NULL);
		return -1;
	}
	if (!exec.cwd)
		exec.cwd = workspace;
	if (arguments->process.detach)
		return run_detached(cli, sandbox, &exec, err);
	if (run_in(cli, arguments, sandbox, &exec, &result, &pid, &denied, err) < 0)
		return -1;
	if (run_print(cli, sandbox, pid, &result, denied, create_ms, time_monotonic_ms() - started, err) < 0)
		return -1;
	return relay_status(cli, &result);
}

const struct cli_command cli_run = {
	.name = "run",
	.operands = "[[--] COMMAND [ARG…]]",
	.summary = "Run a command in a new sandbox and remove the sandbox afterwards",
	.details = "On a terminal without a command, opens a shell. With -d the sandbox stays until its --ttl.\n"
		   "`-t IMAGE` ([HOST[:PORT]/]NAME:TAG) pulls an image on first use; without a command, runs the "
		   "command of the image.\n"
		   "The exit status is that of the command: 127 not found, 126 not executable, 128+N killed by signal "
		   "N, 124\n"
		   "timed out. 125 means that husk itself failed. Stdin is not read without -i.\n",
	.groups = { { source_options, offsetof(struct run_arguments, create) },
		    { workspace_options, offsetof(struct run_arguments, workspace) },
		    { limit_options, offsetof(struct run_arguments, create) },
		    { egress_options, offsetof(struct run_arguments, create.egress) },
		    { process_options, offsetof(struct run_arguments, process) },
		    { run_options, 0 } },
	.arguments_size = sizeof(struct run_arguments),
	.max = -1,
	.stop_after = 1,
	.runs_program = true,
	.run = run_run,
};
