/*
 * `husk snapshot create|ls|rm`: the state of a sandbox at one moment (memory, processes and disk), kept under an id and
 * an optional name. `husk create --from` continues from it.
 */
#include "cli/cli.h"
#include "cli/interrupt.h"

struct snapshot_arguments {
	const char *name;
};

static const struct option_spec snapshot_options[] = {
	OPTION(0, "name", OPTION_STRING, struct snapshot_arguments, name, "NAME", "a name to use instead of the id"),
	{ 0 },
};

static int snapshot_create_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct snapshot_arguments *arguments = data;
	struct husk_snapshot *snapshot = NULL;

	if (argc > 1 && arguments->name)
		return husk_fail(err, HUSK_INVALID, "the name is given twice, as '%s' and as --name %s", argv[1],
				 arguments->name);
	if (interrupt_hold(err) < 0)
		return -1;
	struct progress *progress = progress_begin("taking a snapshot of %s", argv[0]);
	int status = husk_snapshot_create(cli->husk, argv[0], argc > 1 ? argv[1] : arguments->name, &snapshot, err);
	progress_end(&progress);
	if (status < 0)
		return -1;
	if (interrupt_seen()) {
		husk_snapshot_remove(cli->husk, snapshot->id, NULL);
		status = husk_fail(err, HUSK_GONE, "interrupted; the snapshot was removed again");
	} else if (cli->json) {
		status = output_json(json_snapshot(snapshot), err);
	} else {
		puts(snapshot->id);
	}
	husk_snapshot_free(snapshot);
	return status;
}

static int snapshot_table(struct husk_snapshot *const *list, struct husk_error *err)
{
	static const char *const heading[] = { "ID", "NAME", "SANDBOX", "TEMPLATE", "ISOLATION", "AGE", "SIZE" };
	cleanup_table struct table table;

	table_begin(&table, heading, ARRAY_SIZE(heading));
	for (size_t i = 0; list[i]; i++) {
		table_cell(&table, list[i]->id);
		table_cell(&table, list[i]->name);
		table_cell(&table, list[i]->sandbox);
		table_cell(&table, list[i]->template_name);
		table_cell(&table, list[i]->isolation);
		table_age(&table, list[i]->created_ms);
		table_size(&table, list[i]->bytes);
	}
	return table_print(&table, err);
}

static int snapshot_ls_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_snapshots struct husk_snapshot **list = NULL;

	(void)data, (void)argc, (void)argv;
	if (husk_snapshot_list(cli->husk, &list, err) < 0)
		return -1;
	return cli->json ? output_json(json_snapshots(list), err) : snapshot_table(list, err);
}

/* A snapshot that was given by name is shown by its id. */
static int snapshot_id(struct husk_snapshot *const *list, const char *name, char **out, struct husk_error *err)
{
	for (size_t i = 0; list[i]; i++) {
		if (!str_equal(list[i]->id, name) && !str_equal(list[i]->name, name))
			continue;
		*out = strdup(list[i]->id);
		return *out ? 0 : husk_fail_memory(err);
	}
	*out = strdup(name); /* libhusk reports the error and suggests a name */
	return *out ? 0 : husk_fail_memory(err);
}

static int snapshot_rm_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_snapshots struct husk_snapshot **list = NULL;
	cleanup_json json_t *removed = json_array();

	(void)data, (void)argc;
	if (!removed)
		return husk_fail_memory(err);
	if (husk_snapshot_list(cli->husk, &list, err) < 0)
		return -1;
	for (; *argv; argv++) {
		cleanup_free char *id = NULL;
		if (snapshot_id(list, *argv, &id, err) < 0 || husk_snapshot_remove(cli->husk, id, err) < 0)
			return -1;
		if (!cli->json)
			puts(id);
		if (json_array_append_new(removed, json_pack("{s:s, s:b}", "id", id, "removed", true)) < 0)
			return husk_fail_memory(err);
	}
	return cli->json ? output_json(json_incref(removed), err) : 0;
}

const struct cli_command cli_snapshot_create = {
	.name = "snapshot create",
	.operands = "SANDBOX [NAME]",
	.summary = "Save the state of a running sandbox, which keeps running",
	.groups = { { snapshot_options, 0 } },
	.arguments_size = sizeof(struct snapshot_arguments),
	.min = 1,
	.max = 2,
	.run = snapshot_create_run,
};

const struct cli_command cli_snapshot_ls = {
	.name = "snapshot ls",
	.operands = "",
	.summary = "List snapshots",
	.run = snapshot_ls_run,
};

const struct cli_command cli_snapshot_rm = {
	.name = "snapshot rm",
	.operands = "SNAPSHOT…",
	.summary = "Remove snapshots",
	.min = 1,
	.max = -1,
	.run = snapshot_rm_run,
};
