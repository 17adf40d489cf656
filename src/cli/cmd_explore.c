/*
 * `husk explore`: tries each plan in a fork of its own, scores the forks, and keeps the best. The winner takes the place of the sandbox.
 * Scores come from the guest: a number on the last line of what the scoring command prints.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

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
	       "for all of them; what is not finished by then has lost", .min = 1, .max = DAY),
	OPTION(0, "no-promote", OPTION_FLAG, struct explore_arguments, no_promote, NULL,
	       "leave the winner a fork; it takes the place of the sandbox otherwise"),
	{ 0 },
};

struct branch {
	const char *plan, *id;
	size_t number;
	double score;
	bool scored, kept;
	char error[160]; /* why there is no score */
};

struct exploration {
	struct husk *husk;
	const struct explore_arguments *arguments;
	struct branch *branches;
	size_t count;
	int64_t deadline_ms; /* 0: none */
	atomic_size_t next;
};

/* ---- one branch ---- */

/* The last line that is not empty, as a number. */
static int read_score(const char *text, size_t size, double *out)
{
	cleanup_free char *copy = strndup(text ? text : "", size);
	char *end = copy ? copy + strlen(copy) : NULL, *rest = NULL;

	while (end && end > copy && (unsigned char)end[-1] <= ' ')
		*--end = '\0';
	if (!end || end == copy)
		return -1;
	char *line = memrchr(copy, '\n', (size_t)(end - copy));
	line = line ? line + 1 : copy;
	*out = strtod(line, &rest);
	return rest == line || isnan(*out) ? -1 : 0;
}

/* Runs a command in the branch; the caller frees *result. -1: it failed, and the branch says why. */
static int run_in_branch(const struct exploration *all, struct branch *branch, const char *what, const char *command,
			 struct husk_result *result)
{
	struct husk_error err = { 0 };
	int64_t left = all->deadline_ms ? all->deadline_ms - time_monotonic_ms() : 0;
	const struct husk_exec_options options = { .shell = command, .timeout_ms = left };

	if (all->deadline_ms && left <= 0) {
		snprintf(branch->error, sizeof(branch->error), "the budget was used up");
		return -1;
	}
	if (husk_run(all->husk, branch->id, &options, result, &err) < 0) {
		snprintf(branch->error, sizeof(branch->error), "%.150s", err.message);
		return -1;
	}
	if (result->exit_code == 0)
		return 0;
	snprintf(branch->error, sizeof(branch->error), "the %s %s %d", what,
		 result->timed_out ? "timed out with" : "ended with", result->exit_code);
	return -1;
}

static void try_branch(const struct exploration *all, struct branch *branch)
{
	struct husk_result done = { 0 }, said = { 0 };

	if (run_in_branch(all, branch, "plan", branch->plan, &done) == 0 &&
	    run_in_branch(all, branch, "scoring command", all->arguments->score, &said) == 0) {
		branch->scored = read_score(said.output, said.output_size, &branch->score) == 0;
		if (!branch->scored)
			snprintf(branch->error, sizeof(branch->error), "the scoring command printed no number");
	}
	husk_result_free(&done);
	husk_result_free(&said);
}

static void *worker_main(void *data)
{
	struct exploration *all = data;
	size_t number;

	while ((number = atomic_fetch_add(&all->next, 1)) < all->count && !interrupt_seen())
		try_branch(all, &all->branches[number]);
	return NULL;
}

static void try_all(struct exploration *all)
{
	size_t limit = all->arguments->parallel ? (size_t)all->arguments->parallel : 8, started = 0;
	pthread_t workers[PLANS_MAX];

	for (; started < MIN(limit, all->count); started++)
		if (pthread_create(&workers[started], NULL, worker_main, all) != 0)
			break;
	if (started == 0)
		worker_main(all);
	for (size_t i = 0; i < started; i++)
		pthread_join(workers[i], NULL);
}

/* ---- all of them ---- */

/* The best first; those without a score last, in the order of the plans. */
static int by_score(const void *a, const void *b)
{
	const struct branch *x = a, *y = b;

	if (x->scored != y->scored)
		return x->scored ? -1 : 1;
	if (x->scored && x->score != y->score)
		return x->score > y->score ? -1 : 1;
	return x->number < y->number ? -1 : 1;
}

static void end_losers(struct exploration *all, size_t keep)
{
	for (size_t i = 0; i < all->count; i++) {
		all->branches[i].kept = i < keep && all->branches[i].scored;
		if (!all->branches[i].kept)
			husk_kill(all->husk, all->branches[i].id, NULL);
	}
}

static json_t *branch_json(const struct branch *branch)
{
	return json_pack("{s:o, s:s, s:o, s:b, s:o}", "plan", json_text0(branch->plan), "sandbox", branch->id, "score",
			 branch->scored ? json_real(branch->score) : json_null(), "kept", branch->kept, "error",
			 branch->scored ? json_null() : json_text0(branch->error));
}

static int print_branches(struct cli *cli, const struct exploration *all, struct husk_error *err)
{
	static const char *const heading[] = { "SCORE", "SANDBOX", "PLAN" };
	cleanup_table struct table table = { 0 };
	json_t *list = cli->json ? json_array() : NULL;

	table_begin(&table, heading, ARRAY_SIZE(heading));
	for (size_t i = 0; i < all->count; i++) {
		const struct branch *branch = &all->branches[i];
		if (cli->json)
			json_array_append_new(list, branch_json(branch));
		else if (branch->scored)
			table_cellf(&table, "%g", branch->score);
		else
			table_cell(&table, branch->error);
		table_cell(&table, branch->kept ? branch->id : "-");
		table_cell(&table, branch->plan);
	}
	return cli->json ? output_json(list, err) : table_print(&table, err);
}

static int finish(struct cli *cli, struct exploration *all, const char *sandbox, struct husk_error *err)
{
	const struct explore_arguments *arguments = all->arguments;
	size_t keep = arguments->keep ? (size_t)arguments->keep : 1;

	qsort(all->branches, all->count, sizeof(*all->branches), by_score);
	end_losers(all, interrupt_seen() ? 0 : keep);
	if (interrupt_seen())
		return husk_fail(err, HUSK_GONE, "interrupted; the branches were ended");
	if (keep == 1 && all->branches[0].kept && !arguments->no_promote) {
		if (husk_promote(cli->husk, all->branches[0].id, true, NULL, err) < 0)
			return -1;
		all->branches[0].id = sandbox;
	}
	if (print_branches(cli, all, err) < 0)
		return -1;
	return all->branches[0].scored ? 0 : EXIT_FAILED;
}

static int explore_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct explore_arguments *arguments = data;
	cleanup_sandbox struct husk_sandbox *parent = NULL;
	cleanup_sandboxes struct husk_sandbox **forks = NULL;
	size_t count = (size_t)argc - 1;
	cleanup_free struct branch *branches = calloc(count, sizeof(*branches));
	struct exploration all = { .husk = cli->husk, .arguments = arguments, .branches = branches, .count = count };

	if (!branches)
		return husk_fail_memory(err);
	if (!arguments->score)
		return husk_fail(err, HUSK_INVALID,
				 "explore: --score COMMAND is missing; it prints the score of a branch");
	if (count > PLANS_MAX)
		return husk_fail(err, HUSK_INVALID, "explore: at most %d plans", PLANS_MAX);
	if (husk_inspect(cli->husk, argv[0], &parent, err) < 0 || interrupt_hold(err) < 0 ||
	    husk_fork(cli->husk, parent->id, count, NULL, &forks, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++)
		branches[i] = (struct branch){ .plan = argv[i + 1], .id = forks[i]->id, .number = i };
	if (arguments->budget_seconds)
		all.deadline_ms = time_monotonic_ms() + arguments->budget_seconds * 1000;
	struct progress *progress = progress_begin("exploring %zu branches", count);
	try_all(&all);
	progress_end(&progress);
	return finish(cli, &all, parent->id, err);
}

const struct cli_command cli_explore = {
	.name = "explore",
	.operands = "SANDBOX PLAN…",
	.summary = "Try several commands in forks of a sandbox, and keep the best",
	.details = "Each PLAN is a shell command and runs in a fork of its own. Then --score runs there; the highest "
		   "number wins. "
		   "A plan\n"
		   "that fails has lost. The winner takes the place of the sandbox (husk promote), and the other "
		   "branches end.\n"
		   "Example: husk explore job --score 'cat result' 'try-a' 'try-b'\n",
	.groups = { { explore_options, 0 } },
	.arguments_size = sizeof(struct explore_arguments),
	.min = 2,
	.max = -1,
	.run = explore_run,
};
