/*
 * `husk run`: a sandbox for one command. Makes it, follows the command, removes it, exits with the command's status.
 * Whatever goes wrong in between, and however often the user presses Ctrl-C, the sandbox is removed (unless --keep).
 */
#include "cli/cli.h"
#include "cli/relay.h"

struct run_arguments {
	struct create_arguments create;
	struct process_arguments process;
	bool interactive_tty, keep;
};

static const struct option_spec run_options[] = {
	OPTION(0, "tty", OPTION_FLAG, struct run_arguments, process.tty, NULL, "give it a terminal"),
	OPTION(0, "interactive-tty", OPTION_FLAG, struct run_arguments, interactive_tty, NULL,
	       "-i and --tty: a shell, or whatever wants a keyboard", .exact = "-it"),
	OPTION(0, "interactive-tty", OPTION_FLAG, struct run_arguments, interactive_tty, NULL, NULL, .exact = "-ti"),
	OPTION(0, "keep", OPTION_FLAG, struct run_arguments, keep, NULL, "leave the sandbox running afterwards"),
	{ 0 },
};

static int run_print(struct cli *cli, const struct husk_sandbox *sandbox, const struct relay_result *result,
		     json_t *denied, int64_t create_ms, int64_t total_ms, struct husk_error *err)
{
	if (cli->verbose)
		output_note("command took %lld ms, %lld ms in all", (long long)result->duration_ms,
			    (long long)total_ms);
	if (!cli->json)
		return 0;
	cleanup_json json_t *object = json_pack(
		"{s:s, s:o, s:o, s:o, s:I, s:I}", "id", sandbox->id, "template", json_text0(sandbox->template_name),
		"isolation", json_text0(sandbox->isolation), "boundary", json_text0(sandbox->boundary), "create_ms",
		(json_int_t)create_ms, "total_ms", (json_int_t)total_ms);
	if (relay_json(object, result) < 0 || json_object_set(object, "denied", denied) < 0)
		return husk_fail_memory(err);
	return output_json(json_incref(object), err);
}

/* Follows the command in a sandbox that is there; then removes it, whatever came of the command. */
static int run_in(struct cli *cli, const struct run_arguments *arguments, const struct husk_sandbox *sandbox,
		  const struct husk_exec_options *exec, struct relay_result *result, json_t **denied,
		  struct husk_error *err)
{
	struct husk_error kill_error = { 0 };
	int64_t pid = 0;
	int status = relay_exec(cli, sandbox->id, &arguments->process, exec, false, result, &pid, err);

	*denied = status < 0 || str_equal(sandbox->egress_mode, "off") ? json_array()
								       : egress_denied(cli, sandbox->id, 0);

	if (arguments->keep) {
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
	int64_t started = time_monotonic_ms(), create_ms = 0;
	struct husk_exec_options exec;

	if (arguments->interactive_tty)
		arguments->process.interactive = arguments->process.tty = true;
	if (relay_exec_options(&arguments->process, argc, argv, &exec, err) < 0)
		return -1;
	if (create_sandbox(cli, &arguments->create, &sandbox, &create_ms, err) < 0)
		return -1;
	if (run_in(cli, arguments, sandbox, &exec, &result, &denied, err) < 0)
		return -1;
	if (run_print(cli, sandbox, &result, denied, create_ms, time_monotonic_ms() - started, err) < 0)
		return -1;
	return relay_status(cli, &result);
}

const struct cli_command cli_run = {
	.name = "run",
	.operands = "[--] COMMAND [ARG…]",
	.summary = "Run a command in a new sandbox and remove the sandbox afterwards",
	.details = "The exit status is the command's: 127 not found, 126 not executable, 128+N killed by signal N, 124 "
		   "timed\n"
		   "out. 125 means that husk itself failed. Stdin is not read without -i.\n",
	.groups = { { source_options, offsetof(struct run_arguments, create) },
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
