/*
 * `husk stats`: the resources that sandboxes use, by the host's accounting. Without arguments it shows every running
 * sandbox. It never wakes a hibernated sandbox.
 */
#include <inttypes.h>

#include "cli/cli.h"

static void stats_row(struct table *table, const struct husk_sandbox *sandbox, const struct husk_stats *stats)
{
	char used[32], limit[32];

	table_cell(table, sandbox->id);
	table_cell(table, sandbox->name);
	table_cellf(table, "%.2f s", (double)stats->cpu_us / 1e6);
	output_size(stats->memory_bytes, used, sizeof(used));
	output_size(stats->memory_limit, limit, sizeof(limit));
	table_cellf(table, "%s of %s", used, limit);
	output_size(stats->disk_bytes, used, sizeof(used));
	output_size(stats->disk_limit, limit, sizeof(limit));
	table_cellf(table, "%s of %s", used, limit);
	table_cellf(table, "%" PRIu64, stats->processes);
	output_size(stats->network_sent, used, sizeof(used));
	output_size(stats->network_received, limit, sizeof(limit));
	table_cellf(table, "%s out, %s in", used, limit);
}

static int stats_one(struct cli *cli, const struct husk_sandbox *sandbox, struct table *table, json_t *array,
		     struct husk_error *err)
{
	struct husk_stats stats = { 0 };

	if (husk_stats(cli->husk, sandbox->id, &stats, err) < 0)
		return -1;
	stats_row(table, sandbox, &stats);
	json_t *object = json_stats(&stats);
	if (!object || json_object_set_new(object, "id", json_text0(sandbox->id)) < 0 ||
	    json_object_set_new(object, "name", json_text0(sandbox->name)) < 0 ||
	    json_array_append_new(array, object) < 0)
		return husk_fail_memory(err);
	return 0;
}

static int stats_named(struct cli *cli, char *const *names, struct table *table, json_t *array, struct husk_error *err)
{
	for (; *names; names++) {
		cleanup_sandbox struct husk_sandbox *sandbox = NULL;
		if (husk_inspect(cli->husk, *names, &sandbox, err) < 0 ||
		    stats_one(cli, sandbox, table, array, err) < 0)
			return -1;
	}
	return 0;
}

static int stats_all(struct cli *cli, struct table *table, json_t *array, struct husk_error *err)
{
	const struct husk_filter running = { .state = HUSK_RUNNING };
	cleanup_sandboxes struct husk_sandbox **list = NULL;

	if (husk_list(cli->husk, &running, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		/* a sandbox may end between the two calls: then it is left out */
		if (stats_one(cli, list[i], table, array, err) < 0 && err->code != HUSK_GONE &&
		    err->code != HUSK_NOT_FOUND)
			return -1;
	}
	return 0;
}

static int stats_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	static const char *const heading[] = { "ID", "NAME", "CPU", "MEMORY", "DISK", "PROCESSES", "NETWORK" };
	cleanup_table struct table table;
	cleanup_json json_t *array = json_array();

	(void)data;
	if (!array)
		return husk_fail_memory(err);
	table_begin(&table, heading, ARRAY_SIZE(heading));
	int status = argc ? stats_named(cli, argv, &table, array, err) : stats_all(cli, &table, array, err);
	if (status < 0)
		return -1;
	if (!cli->json)
		return table_print(&table, err);
	return output_json(json_incref(argc == 1 ? json_array_get(array, 0) : array), err);
}

const struct cli_command cli_stats = {
	.name = "stats",
	.operands = "[SANDBOX…]",
	.summary = "Show the CPU, memory, disk and network use of sandboxes",
	.max = -1,
	.run = stats_run,
};
