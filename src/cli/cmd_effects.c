/*
 * `husk effects`: the requests of a sandbox that are held instead of sent (--hold). Lists, shows, sends and drops them.
 */
#include <inttypes.h>

#include "cli/cli.h"
#include "cli/interrupt.h"

#define NUMBERS_MAX 256

static int list_table(struct husk_effect *const *list, struct husk_error *err)
{
	static const char *const heading[] = { "N", "STATE", "METHOD", "URL", "SIZE", "AGE", "NOTE" };
	cleanup_table struct table table;

	table_begin(&table, heading, ARRAY_SIZE(heading));
	for (size_t i = 0; list[i]; i++) {
		table_cellf(&table, "%" PRId64, list[i]->number);
		table_cell(&table, list[i]->state);
		table_cell(&table, list[i]->method);
		table_cell(&table, list[i]->url);
		table_size(&table, list[i]->bytes);
		table_age(&table, list[i]->created_ms);
		if (list[i]->status)
			table_cellf(&table, "answered %d", list[i]->status);
		else
			table_cell(&table, list[i]->detail);
	}
	return table_print(&table, err);
}

static int give(struct cli *cli, struct husk_effect *const *list, struct husk_error *err)
{
	return cli->json ? output_json(json_effects(list), err) : list_table(list, err);
}

static int read_numbers(int argc, char **argv, int64_t *out, struct husk_error *err)
{
	if (argc > NUMBERS_MAX)
		return husk_fail(err, HUSK_INVALID, "at most %d effects at a time", NUMBERS_MAX);
	for (int i = 0; i < argc; i++)
		if (str_to_int64(argv[i], 1, INT64_MAX, &out[i]) < 0)
			return husk_fail(err, HUSK_INVALID,
					 "'%s' is not the number of an effect (husk effects SANDBOX)", argv[i]);
	return 0;
}

/* Those that were not sent make the command fail. */
static int check_sent(struct husk_effect *const *list, struct husk_error *err)
{
	for (size_t i = 0; list[i]; i++)
		if (!str_equal(list[i]->state, "sent"))
			return husk_fail(err, HUSK_UNAVAILABLE, "effect %" PRId64 " %s: %s", list[i]->number,
					 str_equal(list[i]->state, "uncertain") ? "may have been sent"
										: "was not sent, and stays held",
					 list[i]->detail ? list[i]->detail : "no reason is known");
	return 0;
}

static int send_run(struct cli *cli, const char *sandbox, const int64_t *numbers, size_t count, struct husk_error *err)
{
	cleanup_effects struct husk_effect **list = NULL;

	if (interrupt_hold(err) < 0)
		return -1;
	struct progress *progress = progress_begin("sending the effects of %s", sandbox);
	int status = husk_effects_send(cli->husk, sandbox, count ? numbers : NULL, count, &list, err);
	progress_end(&progress);
	if (status < 0 || give(cli, list, err) < 0)
		return -1;
	return check_sent(list, err);
}

static int drop_run(struct cli *cli, const char *sandbox, const int64_t *numbers, size_t count, struct husk_error *err)
{
	cleanup_effects struct husk_effect **list = NULL;

	if (husk_effects_drop(cli->husk, sandbox, count ? numbers : NULL, count, &list, err) < 0)
		return -1;
	return give(cli, list, err);
}

static int show_run(struct cli *cli, const char *sandbox, const int64_t *numbers, size_t count, struct husk_error *err)
{
	cleanup_free char *text = NULL;
	size_t size = 0;

	if (count != 1)
		return husk_fail(err, HUSK_INVALID, "show takes one effect: husk effects %s show N", sandbox);
	if (husk_effect_request(cli->husk, sandbox, numbers[0], &text, &size, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_pack("{s:o}", "request", json_text(text, size)), err);
	if (isatty(STDOUT_FILENO)) /* it comes from the guest */
		output_safe(stdout, text, true);
	else
		fwrite(text, 1, size, stdout);
	return 0;
}

static int effects_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const char *action = argc > 1 ? argv[1] : "ls";
	int64_t numbers[NUMBERS_MAX] = { 0 };
	size_t count = argc > 2 ? (size_t)argc - 2 : 0;

	(void)data;
	if (argc > 2 && read_numbers(argc - 2, argv + 2, numbers, err) < 0)
		return -1;
	if (str_equal(action, "send"))
		return send_run(cli, argv[0], numbers, count, err);
	if (str_equal(action, "drop"))
		return drop_run(cli, argv[0], numbers, count, err);
	if (str_equal(action, "show"))
		return show_run(cli, argv[0], numbers, count, err);
	if (!str_equal(action, "ls"))
		return husk_fail(err, HUSK_INVALID, "'%s' is not an action; use ls, show, send or drop", action);
	cleanup_effects struct husk_effect **list = NULL;
	if (husk_effects(cli->husk, argv[0], &list, err) < 0)
		return -1;
	return give(cli, list, err);
}

const struct cli_command cli_effects = {
	.name = "effects",
	.operands = "SANDBOX [ls|show|send|drop] [N...]",
	.summary = "List, send or drop the requests of a sandbox that are held (--hold)",
	.details = "Without N, send and drop apply to all held requests. send goes in order and stops at the first one "
		   "that cannot\n"
		   "be sent. husk promote sends those of the fork. An effect whose sending was interrupted is "
		   "'uncertain', and is\n"
		   "never sent again.\n",
	.min = 1,
	.max = 2 + NUMBERS_MAX,
	.run = effects_run,
};
