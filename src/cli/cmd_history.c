/*
 * `husk checkpoint`, `husk rewind`, `husk promote`, `husk history`: numbered checkpoints of one sandbox, and the return
 * to one of them. A rewind prints on stderr what it could not undo.
 */
#include "cli/cli.h"
#include "cli/interrupt.h"

/* ---- checkpoint ---- */

static int checkpoint_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_checkpoint struct husk_checkpoint *checkpoint = NULL;

	(void)data;
	struct progress *progress = progress_begin("taking a checkpoint of %s", argv[0]);
	int64_t started = time_monotonic_ms();
	int status = husk_checkpoint(cli->husk, argv[0], argc > 1 ? argv[1] : NULL, &checkpoint, err);
	progress_end(&progress);
	if (status < 0)
		return -1;
	if (cli->verbose)
		output_note("checkpoint took %lld ms", (long long)(time_monotonic_ms() - started));
	if (cli->json)
		return output_json(json_checkpoint(checkpoint), err);
	printf("%lld\n", (long long)checkpoint->number);
	return 0;
}

/* ---- rewind ---- */

struct rewind_arguments {
	bool drop_later;
};

static const struct option_spec rewind_options[] = {
	OPTION(0, "drop-later", OPTION_FLAG, struct rewind_arguments, drop_later, NULL,
	       "remove the later checkpoints; the default is to keep them"),
	{ 0 },
};

static int tell_rewound(const struct husk_rewound *rewound, struct husk_error *err)
{
	cleanup_json json_t *document = json_rewound(rewound);
	json_t *lines = json_object_get(document, "not_undone");

	if (!document)
		return husk_fail_memory(err);
	printf("%lld\n", (long long)rewound->number);
	for (size_t i = 0; rewound->effects && rewound->effects[i]; i++)
		output_note("effect %lld dropped: %s %s was held, and is not sent",
			    (long long)rewound->effects[i]->number, rewound->effects[i]->method,
			    rewound->effects[i]->url);
	for (size_t i = 0; i < json_array_size(lines); i++)
		output_note("not undone: %s", json_string_value(json_array_get(lines, i)));
	return 0;
}

static int rewind_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct rewind_arguments *arguments = data;
	cleanup_rewound struct husk_rewound *rewound = NULL;

	if (interrupt_hold(err) < 0)
		return -1;
	struct progress *progress = progress_begin("rewinding %s", argv[0]);
	int64_t started = time_monotonic_ms();
	int status = husk_rewind(cli->husk, argv[0], argc > 1 ? argv[1] : NULL, arguments->drop_later, &rewound, err);
	progress_end(&progress);
	if (status < 0)
		return -1;
	if (cli->verbose)
		output_note("rewind took %lld ms", (long long)(time_monotonic_ms() - started));
	return cli->json ? output_json(json_rewound(rewound), err) : tell_rewound(rewound, err);
}

/* ---- promote ---- */

struct promote_arguments {
	bool keep;
};

static const struct option_spec promote_options[] = {
	OPTION(0, "keep", OPTION_FLAG, struct promote_arguments, keep, NULL, "keep the other forks of the parent"),
	{ 0 },
};

/* What became of the effects that were held. */
static void tell_effects(const struct husk_promoted *promoted)
{
	for (size_t i = 0; promoted->effects && promoted->effects[i]; i++) {
		const struct husk_effect *effect = promoted->effects[i];

		if (effect->status)
			output_note("effect %lld sent: %s %s, answered %d", (long long)effect->number, effect->method,
				    effect->url, effect->status);
		else
			output_note("effect %lld is %s: %s %s: %s (husk effects %s)", (long long)effect->number,
				    effect->state, effect->method, effect->url, effect->detail ? effect->detail : "",
				    promoted->sandbox);
	}
}

static int promote_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct promote_arguments *arguments = data;
	cleanup_promoted struct husk_promoted *promoted = NULL;

	(void)argc;
	if (interrupt_hold(err) < 0)
		return -1;
	struct progress *progress = progress_begin("promoting %s", argv[0]);
	int status = husk_promote(cli->husk, argv[0], arguments->keep, &promoted, err);
	progress_end(&progress);
	if (status < 0)
		return -1;
	if (cli->json)
		return output_json(json_promoted(promoted), err);
	printf("%s\n", promoted->sandbox);
	for (size_t i = 0; promoted->ended[i]; i++)
		output_note("%s has ended", promoted->ended[i]);
	tell_effects(promoted);
	return 0;
}

/* ---- history ---- */

struct history_arguments {
	struct string_list remove;
	bool files;
};

static const struct option_spec history_options[] = {
	OPTION(0, "rm", OPTION_STRINGS, struct history_arguments, remove, "N|LABEL",
	       "remove this checkpoint first; may be repeated"),
	OPTION(0, "files", OPTION_FLAG, struct history_arguments, files, NULL,
	       "also show the files that changed before each checkpoint, up to 100 names"),
	{ 0 },
};

/* What ran after each checkpoint, and what had left before it, if there is one that was taken for a call. */
static bool has_calls(struct husk_checkpoint *const *list)
{
	for (size_t i = 0; list[i]; i++)
		if (list[i]->ran)
			return true;
	return false;
}

static int history_table(struct husk_checkpoint *const *list, struct husk_error *err)
{
	static const char *const heading[] = { " ", "N", "LABEL", "AFTER", "AGE", "SIZE", "SENT", "BEFORE" };
	bool calls = has_calls(list);
	cleanup_table struct table table;

	table_begin(&table, heading, ARRAY_SIZE(heading) - (calls ? 0 : 2));
	for (size_t i = 0; list[i]; i++) {
		table_cell(&table, list[i]->current ? "*" : " ");
		table_cellf(&table, "%lld", (long long)list[i]->number);
		table_cell(&table, list[i]->label);
		if (list[i]->parent)
			table_cellf(&table, "%lld", (long long)list[i]->parent);
		else
			table_cell(&table, NULL);
		table_age(&table, list[i]->created_ms);
		table_size(&table, list[i]->bytes);
		if (calls && list[i]->sent)
			table_size(&table, list[i]->sent);
		else if (calls)
			table_cell(&table, NULL);
		if (calls)
			table_cell(&table, list[i]->ran);
	}
	return table_print(&table, err);
}

/* Below the table: what changed from the checkpoint before to this one. */
static void print_files(const struct husk_checkpoint *checkpoint)
{
	static const char letters[] = { [HUSK_ADDED] = 'A', [HUSK_REMOVED] = 'D', [HUSK_CHANGED] = 'M' };
	int64_t more = checkpoint->files_changed - (int64_t)checkpoint->file_count;

	if (checkpoint->files_changed < 0)
		printf("%lld: not known\n", (long long)checkpoint->number);
	else
		printf("%lld: %lld file%s\n", (long long)checkpoint->number, (long long)checkpoint->files_changed,
		       checkpoint->files_changed == 1 ? "" : "s");
	for (size_t i = 0; i < checkpoint->file_count; i++) {
		printf("   %c ", letters[checkpoint->files[i].kind]);
		output_safe(stdout, checkpoint->files[i].path, false);
		putchar('\n');
	}
	if (checkpoint->file_count && more > 0)
		printf("   and %lld more\n", (long long)more);
}

static int get_history(struct cli *cli, const char *sandbox, bool files, struct husk_checkpoint ***out,
		       struct husk_error *err)
{
	if (!files)
		return husk_history(cli->husk, sandbox, out, err);
	struct progress *progress = progress_begin("comparing checkpoints");
	int result = husk_history_files(cli->husk, sandbox, out, err);
	progress_end(&progress);
	return result;
}

static int history_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct history_arguments *arguments = data;
	cleanup_checkpoints struct husk_checkpoint **list = NULL;

	(void)argc;
	for (size_t i = 0; i < arguments->remove.count; i++)
		if (husk_checkpoint_remove(cli->husk, argv[0], arguments->remove.items[i], err) < 0)
			return -1;
	if (get_history(cli, argv[0], arguments->files, &list, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_checkpoints(list), err);
	if (history_table(list, err) < 0)
		return -1;
	for (size_t i = 0; arguments->files && list[i]; i++)
		print_files(list[i]);
	return 0;
}

const struct cli_command cli_checkpoint = {
	.name = "checkpoint",
	.operands = "SANDBOX [LABEL]",
	.summary = "Save a numbered checkpoint of a sandbox, which keeps running",
	.details = "Prints the number of the checkpoint. Checkpoints belong to the sandbox and are removed with it; "
		   "husk snapshot\n"
		   "create saves a state that outlives the sandbox.\n",
	.min = 1,
	.max = 2,
	.run = checkpoint_run,
};

const struct cli_command cli_rewind = {
	.name = "rewind",
	.operands = "SANDBOX [N|LABEL]",
	.summary = "Put the same sandbox back to a checkpoint: memory, processes and disk",
	.details = "Without N or LABEL, goes back to the current checkpoint. The sandbox keeps its id, name, TTL and "
		   "volumes. Later\n"
		   "checkpoints stay, so a rewind can also go forward. Running calls end. What a rewind cannot undo "
		   "(network traffic,\n"
		   "files in volumes) is listed on stderr.\n",
	.groups = { { rewind_options, 0 } },
	.arguments_size = sizeof(struct rewind_arguments),
	.min = 1,
	.max = 2,
	.run = rewind_run,
};

const struct cli_command cli_promote = {
	.name = "promote",
	.operands = "SANDBOX",
	.summary = "Put a fork into the place of the sandbox that it was forked from",
	.details = "The parent keeps its id, name, TTL and volumes, and continues with the memory, processes and disk "
		   "of the fork.\n"
		   "The fork and the other forks of the parent end. The earlier state of the parent is lost, unless it "
		   "has a\n"
		   "checkpoint (husk checkpoint). Requests that the fork holds (--hold) are sent in order. Prints the "
		   "id of the parent.\n",
	.groups = { { promote_options, 0 } },
	.arguments_size = sizeof(struct promote_arguments),
	.min = 1,
	.max = 1,
	.run = promote_run,
};

const struct cli_command cli_history = {
	.name = "history",
	.operands = "SANDBOX",
	.summary = "List the checkpoints of a sandbox; * is the current one",
	.details = "With --files, each checkpoint is compared with the one before it (AFTER), and the first one with "
		   "the origin of the\n"
		   "sandbox. The first call starts a copy of each checkpoint; the result is stored.\n",
	.groups = { { history_options, 0 } },
	.arguments_size = sizeof(struct history_arguments),
	.min = 1,
	.max = 1,
	.run = history_run,
};
