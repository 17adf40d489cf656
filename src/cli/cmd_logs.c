/*
 * `husk logs`: the log of Husk's own processes for a sandbox, or the console of its guest; also after its end. The text
 * may come from the guest: control characters never reach the terminal.
 */
#include "cli/cli.h"
#include "cli/interrupt.h"

#define FOLLOW_MS 250 /* between two reads: also the maximum delay of Ctrl-C */

struct logs_arguments {
	bool console, follow;
	int64_t lines;
};

static const struct option_spec logs_options[] = {
	OPTION(0, "console", OPTION_FLAG, struct logs_arguments, console, NULL,
	       "the console of the guest, instead of Husk's own log"),
	OPTION('f', "follow", OPTION_FLAG, struct logs_arguments, follow, NULL,
	       "print new lines until the sandbox has ended or Ctrl-C"),
	OPTION('n', "lines", OPTION_INTEGER, struct logs_arguments, lines, "N", "only the newest N lines", .min = 1,
	       .max = INT64_C(1000000)),
	{ 0 },
};

/* Where the newest `lines` lines begin; 0: all. */
static const char *newest(const char *text, int64_t lines)
{
	const char *at = text + strlen(text);

	if (lines == 0 || at == text)
		return text;
	at -= at[-1] == '\n';
	while (at > text && (at[-1] != '\n' || --lines > 0))
		at--;
	return at;
}

static int show(const char *text, struct husk_error *err)
{
	output_safe(stdout, text, true);
	return fflush(stdout) == 0 ? 0 : husk_fail_errno(err, "cannot write to standard output");
}

/* 1: the sandbox has ended. Checked before the last read, so that no last line is missed. */
static int has_ended(struct cli *cli, const char *id, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	if (husk_inspect(cli->husk, id, &sandbox, err) < 0)
		return -1;
	return sandbox->state == HUSK_ENDED;
}

static int follow(struct cli *cli, const char *id, enum husk_log_source source, struct husk_log_position *position,
		  struct husk_error *err)
{
	for (int over = 0; !over && !interrupt_seen();) {
		cleanup_free char *text = NULL;

		over = has_ended(cli, id, err);
		if (over < 0 || husk_logs(cli->husk, id, source, position, &text, err) < 0 || show(text, err) < 0)
			return interrupt_seen() ? 0 : -1; /* an interrupt ends a call to a server */
		if (!over)
			usleep(FOLLOW_MS * 1000);
	}
	return 0;
}

static int logs_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct logs_arguments *arguments = data;
	enum husk_log_source source = arguments->console ? HUSK_LOG_CONSOLE : HUSK_LOG_SUPERVISOR;
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	struct husk_log_position position = { 0 };
	cleanup_free char *text = NULL;

	(void)argc;
	if (cli->json && arguments->follow)
		return husk_fail(err, HUSK_INVALID,
				 "logs: --json is one document and --follow has no end; give one of them");
	if (arguments->follow && interrupt_hold(err) < 0)
		return -1;
	/* By its id from here on: the name may belong to another sandbox later. */
	if (husk_inspect(cli->husk, argv[0], &sandbox, err) < 0 ||
	    husk_logs(cli->husk, sandbox->id, source, &position, &text, err) < 0)
		return -1;
	const char *shown = newest(text, arguments->lines);
	if (cli->json)
		return output_json(json_pack("{s:s, s:s, s:o}", "id", sandbox->id, "source",
					     arguments->console ? "console" : "log", "log", json_text0(shown)),
				   err);
	if (show(shown, err) < 0)
		return -1;
	return arguments->follow ? follow(cli, sandbox->id, source, &position, err) : 0;
}

const struct cli_command cli_logs = {
	.name = "logs",
	.operands = "SANDBOX",
	.summary = "Show the log of a sandbox, or its guest's console, also after its end",
	.groups = { { logs_options, 0 } },
	.arguments_size = sizeof(struct logs_arguments),
	.min = 1,
	.max = 1,
	.run = logs_run,
};
