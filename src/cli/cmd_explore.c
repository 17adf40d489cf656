/*
 * `husk explore`: tries each plan in its own fork, scores the forks, and keeps the best (husk_explore). Prints the
 * branches, the best first.
 */
#include "cli/cli.h"
#include "cli/interrupt.h"

#define PLANS_MAX 256
#define DAY (INT64_C(86400))

struct explore_arguments {
	const char *score;
	int64_t keep, parallel, budget_seconds;
	bool no_promote;
};

static const struct option_spec explore_options[] = {
	OPTION(0, "score", OPTION_STRING, struct explore_arguments, score, "COMMAND",
	       "prints the score of a branch as its last line; the highest wins"),
	OPTION(0, "keep", OPTION_INTEGER, struct explore_arguments, keep, "N", "how many branches stay (1)", .min = 1,
	       .max = PLANS_MAX),
	OPTION(0, "parallel", OPTION_INTEGER, struct explore_arguments, parallel, "N", "how many run at a time (8)",
	       .min = 1, .max = PLANS_MAX),
	OPTION(0, "budget", OPTION_SECONDS, struct explore_arguments, budget_seconds, "TIME",
	       "for all plans together; a plan that is not finished by then loses", .min = 1, .max = DAY),
	OPTION(0, "no-promote", OPTION_FLAG, struct explore_arguments, no_promote, NULL,
	       "keep the winner as a fork; it does not take the place of the sandbox"),
	{ 0 },
};

static int print_branches(struct cli *cli, const struct husk_branch *list, size_t count, struct husk_error *err)
{
	static const char *const heading[] = { "SCORE", "SANDBOX", "PLAN" };
	cleanup_table struct table table = { 0 };

	if (cli->json)
		return output_json(json_branches(list, count), err);
	table_begin(&table, heading, ARRAY_SIZE(heading));
	for (size_t i = 0; i < count; i++) {
		if (list[i].scored)
			table_cellf(&table, "%g", list[i].score);
		else
			table_cell(&table, list[i].error ? list[i].error : "");
		table_cell(&table, list[i].kept ? list[i].sandbox : "-");
		table_cell(&table, list[i].plan);
	}
	return table_print(&table, err);
}

static int is_interrupted(void *data)
{
	(void)data;
	return interrupt_seen();
}

static int explore_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct explore_arguments *arguments = data;
	const struct husk_explore_options options = { .score = arguments->score,
						      .keep = (size_t)arguments->keep,
						      .parallel = (size_t)arguments->parallel,
						      .budget_ms = arguments->budget_seconds * 1000,
						      .no_promote = arguments->no_promote,
						      .stop = is_interrupted };
	size_t count = (size_t)argc - 1;
	struct husk_branch *branches = NULL;

	if (!arguments->score)
		return husk_fail(err, HUSK_INVALID,
				 "explore: --score COMMAND is missing; it prints the score of a branch");
	if (interrupt_hold(err) < 0)
		return -1;
	struct progress *progress = progress_begin("exploring %zu branches", count);
	int result = husk_explore(cli->husk, argv[0], (const char *const *)argv + 1, count, &options, &branches, err);
	progress_end(&progress);
	if (result < 0)
		return -1;
	result = print_branches(cli, branches, count, err);
	bool won = branches[0].scored;
	husk_branch_list_free(branches, count);
	return result < 0 ? -1 : won ? 0 : EXIT_FAILED;
}

const struct cli_command cli_explore = {
	.name = "explore",
	.operands = "SANDBOX PLAN…",
	.summary = "Try several commands in forks of a sandbox, and keep the best",
	.details = "Each PLAN is a shell command and runs in its own fork. Then --score runs there; the highest number "
		   "wins. A plan\n"
		   "that fails loses. The winner takes the place of the sandbox (husk promote), and the other branches "
		   "end.\n"
		   "Example: husk explore job --score 'cat result' 'try-a' 'try-b'\n",
	.groups = { { explore_options, 0 } },
	.arguments_size = sizeof(struct explore_arguments),
	.min = 2,
	.max = -1,
	.run = explore_run,
};
