/*
 * `husk exec` and `husk attach`: a process in an existing sandbox. A process outlives the client that started it, so
 * detaching (the detach keys, a lost terminal) never ends it. An interrupt that the process ignores for too long, or a
 * second interrupt, does.
 */
#include <inttypes.h>
#include <signal.h>

#include "cli/cli.h"
#include "cli/relay.h"
#include "cli/terminal.h"

struct exec_arguments {
	struct process_arguments process;
	const char *label;
	struct pair_list environment;
};

static const struct option_spec exec_options[] = {
	OPTION('t', "tty", OPTION_FLAG, struct exec_arguments, process.tty, NULL,
	       "give it a terminal (-it for a shell; ctrl-p ctrl-q detaches)"),
	OPTION('e', "env", OPTION_ENVIRONMENT, struct exec_arguments, environment, "K=V|K",
	       "an environment variable; K alone passes your own value"),
	OPTION(0, "label", OPTION_STRING, struct exec_arguments, label, "TEXT", "a name for it in husk ps"),
	{ 0 },
};

static int exec_detached(struct cli *cli, const char *sandbox, const struct husk_exec_options *options,
			 struct husk_error *err)
{
	int64_t pid = 0;

	if (husk_exec(cli->husk, sandbox, options, NULL, &pid, err) < 0) {
		if (!str_equal(err->field, HUSK_FIELD_PROGRAM))
			return -1;
		output_error(err->message);
		return err->code == HUSK_NOT_FOUND ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
	}
	if (!cli->json) {
		printf("%" PRId64 "\n", pid);
		return 0;
	}
	cleanup_sandbox struct husk_sandbox *seen = NULL; /* the user may have given a name; the id is shown */
	if (husk_inspect(cli->husk, sandbox, &seen, err) < 0)
		return -1;
	return output_json(json_pack("{s:s, s:I, s:b}", "id", seen->id, "pid", (json_int_t)pid, "detached", true), err);
}

/* The end of exec and attach: an interrupted process is killed, a detached one is named, a result is shown. */
static int finish(struct cli *cli, const char *sandbox, int64_t pid, int64_t started_ms,
		  const struct relay_result *result, const struct husk_attach_result *attached, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *seen = NULL;
	cleanup_json json_t *denied = NULL;

	if (result->interrupted && result->interrupted != SIGHUP && result->interrupted != SIGPIPE)
		husk_process_kill(cli->husk, sandbox, pid, SIGKILL, NULL);
	if (result->detached && isatty(STDERR_FILENO))
		fputc('\n', stderr); /* after the guest's prompt */
	if (result->detached)
		output_note("process %" PRId64 " continues (husk attach %s %" PRId64 ")", pid, sandbox, pid);
	/* requested if a denial may be the reason why the command failed */
	if (!result->detached && !result->interrupted && result->exit_code != 0)
		denied = egress_denied(cli, sandbox, started_ms, result->last_errors.data, result->last_errors.size);
	if (!cli->json || result->interrupted)
		return relay_status(cli, result);
	if (husk_inspect(cli->husk, sandbox, &seen, err) < 0)
		return -1;
	if (!denied)
		denied = json_array();
	cleanup_json json_t *object = relay_json(seen, pid, -1, time_wall_ms() - started_ms, result, denied);
	if (!object)
		return husk_fail_memory(err);
	if (attached) {
		cleanup_json json_t *more = json_pack(
			"{s:I, s:I, s:I, s:I}", "stdout_offset", (json_int_t)attached->offset_stdout, "stderr_offset",
			(json_int_t)attached->offset_stderr, "stdout_dropped", (json_int_t)attached->dropped_stdout,
			"stderr_dropped", (json_int_t)attached->dropped_stderr);
		if (!more || json_object_update(object, more) < 0)
			return husk_fail_memory(err);
	}
	if (output_json(json_incref(object), err) < 0)
		return -1;
	return relay_status(cli, result);
}

static int exec_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	struct exec_arguments *arguments = data;
	cleanup_relay struct relay_result result = { 0 };
	const char *sandbox = argv[0];
	struct husk_exec_options options;
	int64_t pid = 0;

	if (relay_exec_options(cli, sandbox, &arguments->process, argc - 1, argv + 1, &options, err) < 0)
		return -1;
	options.environment = arguments->environment.items;
	options.environment_count = arguments->environment.count;
	options.label = arguments->label;
	if (arguments->process.detach)
		return exec_detached(cli, sandbox, &options, err);
	int64_t started_ms = time_wall_ms();
	if (relay_exec(cli, sandbox, &arguments->process, &options, true, &result, &pid, err) < 0)
		return -1;
	return finish(cli, sandbox, pid, started_ms, &result, NULL, err);
}

/* ---- attach ---- */

struct attach_arguments {
	bool interactive;
	int64_t offset, error_offset;
};

static const struct option_spec attach_options[] = {
	OPTION('i', "interactive", OPTION_FLAG, struct attach_arguments, interactive, NULL,
	       "pass stdin to the command"),
	OPTION(0, "offset", OPTION_INTEGER, struct attach_arguments, offset, "N",
	       "skip the first N bytes of stdout (starts at the oldest kept byte)", .max = INT64_MAX - 1),
	OPTION(0, "stderr-offset", OPTION_INTEGER, struct attach_arguments, error_offset, "N", "the same for stderr",
	       .max = INT64_MAX - 1),
	{ 0 },
};

static int is_on_terminal(struct cli *cli, const char *sandbox, int64_t pid, bool *out, struct husk_error *err)
{
	struct husk_process_info *list = NULL;
	size_t count = 0;

	if (husk_process_list(cli->husk, sandbox, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++)
		if (list[i].pid == pid)
			*out = list[i].terminal;
	husk_process_list_free(list, count);
	return 0;
}

static int attach_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct attach_arguments *arguments = data;
	/* offset 0 and "from the oldest byte" are the same as long as nothing was dropped; dropped bytes are
	 * reported */
	const struct husk_attach_options options = {
		.offset_stdout = arguments->offset ? arguments->offset : -1,
		.offset_stderr = arguments->error_offset ? arguments->error_offset : -1,
		.keep_stdin = arguments->interactive,
	};
	struct husk_attach_result attached = { 0 };
	cleanup_relay struct relay_result result = { 0 };
	struct relay_options relay = { .sandbox = argv[0], .input = arguments->interactive, .capture = cli->json };
	struct husk_process *process = NULL;

	(void)argc;
	if (str_to_int64(argv[1], 1, INT64_MAX, &relay.pid) < 0)
		return husk_fail(err, HUSK_INVALID, "'%s' is not a process id (husk ps %s)", argv[1], argv[0]);
	if (is_on_terminal(cli, argv[0], relay.pid, &relay.terminal, err) < 0)
		return -1;
	if (husk_attach(cli->husk, argv[0], relay.pid, &options, &process, &attached, err) < 0)
		return -1;
	if (!cli->json && attached.dropped_stdout + attached.dropped_stderr > 0)
		output_note("%" PRId64 " bytes of stdout and %" PRId64 " of stderr are no longer kept",
			    attached.dropped_stdout, attached.dropped_stderr);
	relay.detachable = true;
	int64_t started_ms = time_wall_ms();
	if (relay_process(cli, process, &relay, &result, err) < 0)
		return -1;
	return finish(cli, argv[0], relay.pid, started_ms, &result, &attached, err);
}

const struct cli_command cli_exec = {
	.name = "exec",
	.operands = "SANDBOX [[--] COMMAND [ARG…]]",
	.summary = "Run a command in a sandbox; on a terminal without a command, a shell",
	.details = "The exit status is that of the command: 127 not found, 126 not executable, 128+N killed by signal "
		   "N, 124\n"
		   "timed out. 125 means that husk itself failed. A hibernated sandbox is woken.\n",
	.groups = { { exec_options, 0 }, { process_options, offsetof(struct exec_arguments, process) } },
	.arguments_size = sizeof(struct exec_arguments),
	.min = 1,
	.max = -1,
	.stop_after = 2,
	.runs_program = true,
	.run = exec_run,
};

const struct cli_command cli_attach = {
	.name = "attach",
	.operands = "SANDBOX PID",
	.summary = "Follow a process that was started earlier",
	.details = "Prints the output that is still kept, then new output. The exit status is that of the process.\n",
	.groups = { { attach_options, 0 } },
	.arguments_size = sizeof(struct attach_arguments),
	.min = 2,
	.max = 2,
	.runs_program = true,
	.run = attach_run,
};
