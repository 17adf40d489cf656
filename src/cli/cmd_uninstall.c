/*
 * `husk uninstall`: the step before the program itself is removed. `--stop` leaves nothing running and keeps persistent
 * data; the removal of a package calls it. `--data` removes the whole instance. apt or make removes the program's own
 * files.
 */
#include "cli/cli.h"

struct uninstall_arguments {
	bool stop, data, yes;
};

static const struct option_spec uninstall_options[] = {
	OPTION(0, "stop", OPTION_FLAG, struct uninstall_arguments, stop, NULL,
	       "hibernate persistent sandboxes and end the others; snapshots, volumes and templates stay"),
	OPTION(0, "data", OPTION_FLAG, struct uninstall_arguments, data, NULL,
	       "remove everything: sandboxes, snapshots, volumes, templates, tokens"),
	OPTION('y', "yes", OPTION_FLAG, struct uninstall_arguments, yes, NULL,
	       "with --data: really remove; without it, husk only lists what it would remove"),
	{ 0 },
};

static bool is_awake(const struct husk_sandbox *sandbox)
{
	return sandbox->state != HUSK_HIBERNATED && sandbox->state != HUSK_ENDED;
}

/* The persistent ones first: if one of them cannot be hibernated, nothing has ended yet. */
static int stop_all(struct cli *cli, struct husk_sandbox *const *list, struct husk_error *err)
{
	for (size_t i = 0; list[i]; i++)
		if (list[i]->persistent && is_awake(list[i]) && husk_hibernate(cli->husk, list[i]->id, err) < 0)
			return husk_wrap(err, "sandbox %s is persistent and cannot be put to disk (husk rm %s ends it)",
					 list[i]->id, list[i]->id);
	for (size_t i = 0; list[i]; i++)
		if (!list[i]->persistent && is_awake(list[i]) && husk_kill(cli->husk, list[i]->id, err) < 0 &&
		    err->code != HUSK_NOT_FOUND)
			return -1;
	husk_pool_drain(cli->husk);
	return 0;
}

static int end_all(struct cli *cli, struct husk_sandbox *const *list, struct husk_error *err)
{
	for (size_t i = 0; list[i]; i++)
		if (husk_kill(cli->husk, list[i]->id, err) < 0 && err->code != HUSK_NOT_FOUND)
			return -1;
	husk_pool_drain(cli->husk);
	return husk_erase(cli->husk, err);
}

/* Prints what `--data` is about to remove. */
static int say_contents(struct cli *cli, struct husk_sandbox *const *list, struct husk_error *err)
{
	struct husk_snapshot **snapshots = NULL;
	struct husk_volume **volumes = NULL;
	struct husk_template **templates = NULL;
	size_t counts[4] = { 0 };

	if (husk_snapshot_list(cli->husk, &snapshots, err) < 0)
		return -1;
	for (; snapshots[counts[0]]; counts[0]++)
		;
	husk_snapshot_list_free(snapshots);
	if (husk_volume_list(cli->husk, &volumes, err) < 0)
		return -1;
	for (; volumes[counts[1]]; counts[1]++)
		;
	husk_volume_list_free(volumes);
	if (husk_template_list(cli->husk, &templates, err) < 0)
		return -1;
	for (; templates[counts[2]]; counts[2]++)
		;
	husk_template_list_free(templates);
	for (; list[counts[3]]; counts[3]++)
		;
	return husk_fail(
		err, HUSK_INVALID,
		"this would remove %zu sandboxes, %zu snapshots, %zu volumes and %zu templates for good; add --yes",
		counts[3], counts[0], counts[1], counts[2]);
}

static int uninstall_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct uninstall_arguments *arguments = data;
	const struct husk_filter live = { .with_builds = true };
	cleanup_sandboxes struct husk_sandbox **list = NULL;

	(void)argc, (void)argv;
	if (!arguments->stop && !arguments->data)
		return husk_fail(
			err, HUSK_INVALID,
			"uninstall needs --stop or --data; the program itself is removed by apt purge husk, or "
			"by make uninstall");
	if (husk_list(cli->husk, &live, &list, err) < 0)
		return -1;
	if (arguments->data && !arguments->yes)
		return say_contents(cli, list, err);
	cleanup_progress struct progress *progress = progress_begin("ending sandboxes");
	return arguments->data ? end_all(cli, list, err) : stop_all(cli, list, err);
}

const struct cli_command cli_uninstall = {
	.name = "uninstall",
	.operands = "",
	.summary = "Stop all sandboxes (--stop), or remove all data of this instance (--data)",
	.details = "To remove the program itself, use apt purge husk, or make uninstall.\n",
	.groups = { { uninstall_options, 0 } },
	.arguments_size = sizeof(struct uninstall_arguments),
	.run = uninstall_run,
};
