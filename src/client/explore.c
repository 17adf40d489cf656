/*
 * husk_explore: tries each plan in its own fork, scores the forks, and keeps the best. The winner takes the place of the
 * sandbox. It is made of other calls of husk.h, so it works the same over a server. Scores come from the guest: a number
 * on the last line of the output of the scoring command.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "husk.h"

#define PLANS_MAX 256
#define PARALLEL_DEFAULT 8

struct exploration {
	struct husk *husk;
	const struct husk_explore_options *options;
	struct husk_branch *branches;
	size_t count;
	int64_t deadline_ms; /* 0: none */
	atomic_size_t next;
};

void husk_branch_list_free(struct husk_branch *list, size_t count)
{
	for (size_t i = 0; list && i < count; i++) {
		free(list[i].plan);
		free(list[i].sandbox);
		free(list[i].error);
	}
	free(list);
}

static bool is_stopped(const struct exploration *all)
{
	return all->options->stop && all->options->stop(all->options->data) != 0;
}

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
static int run_in_branch(const struct exploration *all, struct husk_branch *branch, const char *what,
			 const char *command, struct husk_result *result)
{
	struct husk_error err = { 0 };
	int64_t left = all->deadline_ms ? all->deadline_ms - time_monotonic_ms() : 0;
	const struct husk_exec_options options = { .shell = command, .timeout_ms = left };

	if (all->deadline_ms && left <= 0) {
		branch->error = strdup("the budget was used up");
		return -1;
	}
	if (husk_run(all->husk, branch->sandbox, &options, result, &err) < 0) {
		branch->error = strdup(err.message);
		return -1;
	}
	if (result->exit_code == 0)
		return 0;
	branch->error = str_format("the %s %s %d", what, result->timed_out ? "timed out with" : "ended with",
				   result->exit_code);
	return -1;
}

static void try_branch(const struct exploration *all, struct husk_branch *branch)
{
	struct husk_result done = { 0 }, said = { 0 };

	if (run_in_branch(all, branch, "plan", branch->plan, &done) == 0 &&
	    run_in_branch(all, branch, "scoring command", all->options->score, &said) == 0) {
		branch->scored = read_score(said.output, said.output_size, &branch->score) == 0;
		if (!branch->scored)
			branch->error = strdup("the scoring command printed no number");
	}
	husk_result_free(&done);
	husk_result_free(&said);
}

static void *worker_main(void *data)
{
	struct exploration *all = data;
	size_t number;

	while ((number = atomic_fetch_add(&all->next, 1)) < all->count && !is_stopped(all))
		try_branch(all, &all->branches[number]);
	return NULL;
}

static void try_all(struct exploration *all)
{
	size_t limit = all->options->parallel ? all->options->parallel : PARALLEL_DEFAULT, started = 0;
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

/* The best first; those without a score last. Sorts in place, and keeps the order of the plans where scores are equal. */
static void sort_branches(struct husk_branch *list, size_t count)
{
	for (size_t i = 1; i < count; i++)
		for (size_t k = i; k > 0; k--) {
			struct husk_branch *a = &list[k - 1], *b = &list[k];
			bool later = b->scored && (!a->scored || b->score > a->score);
			if (!later)
				break;
			struct husk_branch swap = *a;
			*a = *b;
			*b = swap;
		}
}

static void end_losers(struct exploration *all, size_t keep)
{
	for (size_t i = 0; i < all->count; i++) {
		all->branches[i].kept = i < keep && all->branches[i].scored;
		if (!all->branches[i].kept)
			husk_kill(all->husk, all->branches[i].sandbox, NULL);
	}
}

static int promote_winner(struct exploration *all, struct husk_error *err)
{
	struct husk_promoted *promoted = NULL;

	if (husk_promote(all->husk, all->branches[0].sandbox, true, &promoted, err) < 0)
		return -1;
	free(all->branches[0].sandbox);
	all->branches[0].sandbox = steal_pointer(promoted->sandbox);
	husk_promoted_free(promoted);
	return 0;
}

static int finish(struct exploration *all, struct husk_error *err)
{
	size_t keep = all->options->keep ? all->options->keep : 1;
	bool stopped = is_stopped(all);

	sort_branches(all->branches, all->count);
	end_losers(all, stopped ? 0 : keep);
	if (stopped)
		return husk_fail(err, HUSK_GONE, "interrupted; the branches were ended");
	return keep == 1 && all->branches[0].kept && !all->options->no_promote ? promote_winner(all, err) : 0;
}

static int check(size_t count, const struct husk_explore_options *options, struct husk_error *err)
{
	if (!options->score)
		return husk_fail_field(err, "score", "score is missing: a command that prints the score of a branch");
	if (count < 1 || count > PLANS_MAX)
		return husk_fail_field(err, "plans", "give 1 to %d plans, not %zu", PLANS_MAX, count);
	if (options->parallel > PLANS_MAX || options->keep > PLANS_MAX)
		return husk_fail_field(err, options->keep > PLANS_MAX ? "keep" : "parallel", "at most %d", PLANS_MAX);
	return 0;
}

/* Each branch gets its plan and its fork. */
static int assign(struct exploration *all, const char *const *plans, struct husk_sandbox **forks)
{
	int bad = 0;

	for (size_t i = 0; i < all->count; i++) {
		all->branches[i].plan = strdup(plans[i]);
		all->branches[i].sandbox = strdup(forks[i]->id);
		bad |= !all->branches[i].plan || !all->branches[i].sandbox ? -1 : 0;
	}
	return bad;
}

int husk_explore(struct husk *husk, const char *sandbox, const char *const *plans, size_t count,
		 const struct husk_explore_options *options, struct husk_branch **out, struct husk_error *err)
{
	struct exploration all = { .husk = husk, .options = options, .count = count };
	struct husk_sandbox **forks = NULL;

	if (check(count, options, err) < 0 || husk_fork(husk, sandbox, count, options->options, &forks, err) < 0)
		return -1;
	all.deadline_ms = options->budget_ms ? time_monotonic_ms() + options->budget_ms : 0;
	all.branches = calloc(count, sizeof(*all.branches));
	int result = all.branches && assign(&all, plans, forks) == 0 ? 0 : husk_fail_memory(err);
	if (result < 0)
		for (size_t i = 0; forks[i]; i++)
			husk_kill(husk, forks[i]->id, NULL);
	husk_sandbox_list_free(forks);
	if (result == 0)
		try_all(&all);
	if (result == 0)
		result = finish(&all, err);
	if (result == 0)
		*out = steal_pointer(all.branches);
	husk_branch_list_free(all.branches, count);
	return result;
}
