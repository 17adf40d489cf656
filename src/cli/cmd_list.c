/*
 * `husk ls` and `husk inspect` for sandboxes, `husk ps` for the processes of one. These commands change nothing, with one
 * exception: `husk ps` wakes a hibernated sandbox, because its processes cannot be listed otherwise.
 */
#include <inttypes.h>

#include "cli/cli.h"

/* ---- ls ---- */

struct ls_arguments {
	const char *state;
	bool all, quiet;
	struct pair_list metadata;
};

static const char *const state_names[] = { "creating", "running", "paused", "hibernated", "ended", NULL };

static const struct option_spec ls_options[] = {
	OPTION(0, "state", OPTION_CHOICE, struct ls_arguments, state, "STATE",
	       "only sandboxes in this state: creating, running, paused, hibernated, ended", .choices = state_names),
	OPTION('m', "metadata", OPTION_PAIRS, struct ls_arguments, metadata, "K=V",
	       "only sandboxes with this label; may be repeated"),
	OPTION('a', "all", OPTION_FLAG, struct ls_arguments, all, NULL, "also ended sandboxes"),
	OPTION('q', "quiet", OPTION_FLAG, struct ls_arguments, quiet, NULL, "ids only"),
	{ 0 },
};

static enum husk_state state_by_name(const char *name)
{
	for (enum husk_state state = HUSK_CREATING; state <= HUSK_ENDED; state++)
		if (str_equal(husk_state_name(state), name))
			return state;
	return 0;
}

static void cell_expiry(struct table *table, const struct husk_sandbox *sandbox)
{
	char text[32];

	if (sandbox->state == HUSK_ENDED) {
		table_cell(table, NULL);
	} else if (sandbox->persistent || sandbox->expires_ms == 0) {
		table_cell(table, "never");
	} else {
		output_age(sandbox->expires_ms - time_wall_ms(), text, sizeof(text));
		table_cellf(table, "in %s", text);
	}
}

/* The owner of an instance sees the sandboxes of its tenants too, with a column that says whose they are. */
static int ls_table(struct husk_sandbox *const *list, bool owner, struct husk_error *err)
{
	static const char *const heading[] = { "ID",  "NAME",    "TEMPLATE", "STATE", "ISOLATION",
					       "AGE", "EXPIRES", "MEMORY",   "TENANT" };
	cleanup_table struct table table;
	bool tenants = false;

	for (size_t i = 0; list[i]; i++) {
		const char *tenant = list[i]->tenant, *first = list[0]->tenant;
		tenants |= owner ? tenant != NULL : tenant ? !str_equal(tenant, first) : first != NULL;
	}
	table_begin(&table, heading, ARRAY_SIZE(heading) - !tenants);
	for (size_t i = 0; list[i]; i++) {
		table_cell(&table, list[i]->id);
		table_cell(&table, list[i]->name);
		table_cell(&table, list[i]->template_name);
		if (list[i]->state == HUSK_ENDED && list[i]->end_reason)
			table_cellf(&table, "ended (%s)", list[i]->end_reason);
		else
			table_cell(&table, husk_state_name(list[i]->state));
		table_cell(&table, list[i]->isolation);
		table_age(&table, list[i]->created_ms);
		cell_expiry(&table, list[i]);
		table_size(&table, list[i]->memory_bytes);
		if (tenants)
			table_cell(&table, list[i]->tenant);
	}
	return table_print(&table, err);
}

static int ls_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct ls_arguments *arguments = data;
	cleanup_sandboxes struct husk_sandbox **list = NULL;
	struct husk_filter filter = { .with_ended = arguments->all,
				      .metadata = arguments->metadata.items,
				      .metadata_count = arguments->metadata.count };

	(void)argc, (void)argv;
	if (arguments->state)
		filter.state = state_by_name(arguments->state);
	filter.with_ended = filter.with_ended || filter.state == HUSK_ENDED;
	if (husk_list(cli->husk, &filter, &list, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_sandbox_list(list), err);
	if (!arguments->quiet)
		return ls_table(list, !husk_url(cli->husk), err);
	for (size_t i = 0; list[i]; i++)
		puts(list[i]->id);
	return 0;
}

/* ---- inspect ---- */

static void print_field(const char *key, const char *value)
{
	if (!value)
		return;
	printf("%-12s ", key);
	output_safe(stdout, value, false);
	putchar('\n');
}

static void print_time(const char *key, int64_t wall_ms)
{
	char text[25];

	if (wall_ms == 0)
		return;
	time_format(wall_ms, text);
	print_field(key, text);
}

static void print_size(const char *key, uint64_t bytes)
{
	char text[32];

	output_size(bytes, text, sizeof(text));
	print_field(key, text);
}

static void inspect_print(const struct husk_sandbox *sandbox)
{
	print_field("id", sandbox->id);
	print_field("name", sandbox->name);
	print_field("state", husk_state_name(sandbox->state));
	print_field("ended by", sandbox->end_reason);
	print_field("template", sandbox->template_name);
	print_field("parent", sandbox->parent);
	print_field("isolation", sandbox->isolation);
	print_field("boundary", sandbox->boundary);
	print_time("created", sandbox->created_ms);
	print_time("expires", sandbox->expires_ms);
	print_field("persistent", sandbox->persistent ? "yes" : NULL);
	print_field("on expiry", str_equal(sandbox->on_expiry, "hibernate") ? "hibernates" : NULL);
	print_field("checkpoints", str_equal(sandbox->checkpoints, "each-call") ? "before each call" : NULL);
	print_time("ended", sandbox->ended_ms);
	if (sandbox->idle_seconds)
		printf("%-12s hibernates after %" PRId64 " s without a call\n", "idle", sandbox->idle_seconds);
	print_size("memory", sandbox->memory_bytes);
	print_size("disk", sandbox->disk_bytes);
	printf("%-12s %g\n%-12s %u\n", "cpus", (double)sandbox->cpu_milli / 1000, "pids", sandbox->pids);
	print_field("egress", sandbox->egress_mode);
	for (size_t i = 0; i < sandbox->mount_count; i++) {
		const struct husk_mount *mount = &sandbox->mounts[i];
		cleanup_free char *text = str_format("%s%s%s at %s%s", mount->volume, mount->subpath ? "/" : "",
						     mount->subpath ? mount->subpath : "", mount->path,
						     mount->read_only ? ", read-only" : "");
		print_field("volume", text);
	}
	for (size_t i = 0; i < sandbox->metadata_count; i++) {
		cleanup_free char *pair = str_format("%s=%s", sandbox->metadata[i].key, sandbox->metadata[i].value);
		print_field("metadata", pair);
	}
	for (size_t i = 0; sandbox->environment_names && sandbox->environment_names[i]; i++)
		print_field("env", sandbox->environment_names[i]);
}

static int inspect_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	(void)data, (void)argc;
	if (husk_inspect(cli->husk, argv[0], &sandbox, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_sandbox(sandbox), err);
	inspect_print(sandbox);
	return 0;
}

/* ---- ps ---- */

static void cell_command(struct table *table, const struct husk_process_info *process)
{
	cleanup_buf struct buf line = { 0 };

	for (size_t i = 0; process->argv && process->argv[i]; i++)
		if (buf_printf(&line, "%s%s", i ? " " : "", process->argv[i]) < 0)
			table->failed = true;
	if (process->label)
		table_cellf(table, "%s (%s)", line.data ? line.data : "", process->label);
	else
		table_cell(table, line.data);
}

static void cell_status(struct table *table, const struct husk_process_info *process)
{
	if (process->running)
		table_cell(table, "running");
	else if (process->out_of_memory)
		table_cell(table, "out of memory");
	else if (process->timed_out)
		table_cell(table, "timed out");
	else
		table_cellf(table, "exit %d", process->exit_code);
}

static int ps_table(const struct husk_process_info *list, size_t count, struct husk_error *err)
{
	static const char *const heading[] = { "PID", "STATUS", "USER", "AGE", "COMMAND" };
	cleanup_table struct table table;

	table_begin(&table, heading, ARRAY_SIZE(heading));
	for (size_t i = 0; i < count; i++) {
		table_cellf(&table, "%" PRId64, list[i].pid);
		cell_status(&table, &list[i]);
		table_cell(&table, list[i].user);
		table_age(&table, list[i].started_ms);
		cell_command(&table, &list[i]);
	}
	return table_print(&table, err);
}

static int ps_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	struct husk_process_info *list = NULL;
	size_t count = 0;

	(void)data, (void)argc;
	if (husk_process_list(cli->husk, argv[0], &list, &count, err) < 0)
		return -1;
	int status = cli->json ? output_json(json_process_list(list, count), err) : ps_table(list, count, err);
	husk_process_list_free(list, count);
	return status;
}

const struct cli_command cli_ls = {
	.name = "ls",
	.operands = "",
	.summary = "List sandboxes",
	.groups = { { ls_options, 0 } },
	.arguments_size = sizeof(struct ls_arguments),
	.run = ls_run,
};

const struct cli_command cli_inspect = {
	.name = "inspect",
	.operands = "SANDBOX",
	.summary = "Show all details of a sandbox",
	.min = 1,
	.max = 1,
	.run = inspect_run,
};

const struct cli_command cli_ps = {
	.name = "ps",
	.operands = "SANDBOX",
	.summary = "List the processes that were started in a sandbox",
	.min = 1,
	.max = 1,
	.run = ps_run,
};
