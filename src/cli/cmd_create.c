/*
 * Creating sandboxes: the options that run, create, code and fork share, the call itself (which bakes a bundled
 * template, or pulls an image, on its first use), and the `create` command. An interrupted create leaves no sandbox
 * behind.
 */
#include "cli/cli.h"
#include "cli/cmd_workspace.h"
#include "cli/interrupt.h"

#define YEAR (INT64_C(365) * 86400)

const struct option_spec source_options[] = {
	OPTION('t', "template", OPTION_STRING, struct create_arguments, template, "TEMPLATE",
	       "the template (base; see husk template ls), or an image of a registry (python:3.12)"),
	OPTION(0, "from", OPTION_STRING, struct create_arguments, snapshot, "SNAPSHOT",
	       "start from a snapshot instead, or from a checkpoint (SANDBOX@NUMBER)"),
	OPTION(0, "isolation", OPTION_STRING, struct create_arguments, isolation, "ENGINE",
	       "boundary to the host: auto (the strongest that works), microvm, gvisor"),
	OPTION(0, "disk", OPTION_SIZE, struct create_arguments, disk_bytes, "SIZE",
	       "size of its disk (the template's, 8G)", .min = 16 * MEBIBYTE, .max = 16 * TEBIBYTE),
	OPTION(0, "volume", OPTION_STRINGS, struct create_arguments, volumes, "NAME:/PATH[:ro]",
	       "mount a volume at that directory; may be repeated"),
	{ 0 },
};

static const char *const checkpoint_names[] = { "off", "each-call", NULL };
static const char *const expiry_names[] = { "kill", "hibernate", NULL };

const struct option_spec limit_options[] = {
	OPTION(0, "name", OPTION_STRING, struct create_arguments, name, "NAME", "a name to use instead of the id"),
	OPTION(0, "ttl", OPTION_SECONDS, struct create_arguments, ttl_seconds, "TIME", "remove it after this time (1h)",
	       .min = 1, .max = YEAR),
	OPTION(0, "persistent", OPTION_FLAG, struct create_arguments, persistent, NULL,
	       "keep it until it is removed by hand"),
	OPTION(0, "on-expiry", OPTION_CHOICE, struct create_arguments, on_expiry, "WHAT",
	       "at the end of its TTL: kill it (the default) or hibernate it; while hibernated it has no TTL",
	       .choices = expiry_names),
	OPTION(0, "checkpoints", OPTION_CHOICE, struct create_arguments, checkpoints, "WHEN",
	       "each-call: take a checkpoint before every exec and code call; off (the default)",
	       .choices = checkpoint_names),
	OPTION(0, "idle", OPTION_SECONDS, struct create_arguments, idle_seconds, "TIME",
	       "hibernate after this time without a call (never)", .min = 1, .max = YEAR),
	OPTION(0, "memory", OPTION_SIZE, struct create_arguments, memory_bytes, "SIZE", "memory limit (1G)",
	       .min = 64 * MEBIBYTE, .max = TEBIBYTE),
	OPTION(0, "cpus", OPTION_CPUS, struct create_arguments, cpu_milli, "N", "CPU limit, may be a fraction (2)",
	       .min = 50, .max = 1024000),
	OPTION(0, "pids", OPTION_INTEGER, struct create_arguments, pids, "N", "limit on processes (512)", .min = 8,
	       .max = 1 << 20),
	OPTION('m', "metadata", OPTION_PAIRS, struct create_arguments, metadata, "K=V",
	       "a label of the sandbox; may be repeated"),
	OPTION('e', "env", OPTION_ENVIRONMENT, struct create_arguments, environment, "K=V|K",
	       "environment of its processes; K alone passes your own value"),
	{ 0 },
};

int create_fill(const struct create_arguments *arguments, struct egress_given *egress, struct husk_create_options *out,
		struct husk_error *err)
{
	if (egress_read(&arguments->egress, egress, err) < 0)
		return -1;
	*out = (struct husk_create_options){
		.template_name = arguments->template,
		.snapshot = arguments->snapshot,
		.name = arguments->name,
		.isolation = arguments->isolation,
		.ttl_seconds = arguments->ttl_seconds,
		.persistent = arguments->persistent,
		.on_expiry = arguments->on_expiry,
		.checkpoints = arguments->checkpoints,
		.idle_seconds = arguments->idle_seconds,
		.memory_bytes = arguments->memory_bytes,
		.disk_bytes = arguments->disk_bytes,
		.cpu_milli = arguments->cpu_milli,
		.pids = (uint32_t)arguments->pids,
		.metadata = arguments->metadata.items,
		.metadata_count = arguments->metadata.count,
		.environment = arguments->environment.items,
		.environment_count = arguments->environment.count,
		.egress = egress->any ? &egress->egress : NULL,
	};
	return 0;
}

static int create_once(struct cli *cli, const struct husk_create_options *options, struct husk_sandbox **out,
		       int64_t *create_ms, struct husk_error *err)
{
	cleanup_progress struct progress *progress = progress_begin("creating a sandbox");
	int64_t started = time_monotonic_us();

	if (husk_create(cli->husk, options, out, err) < 0)
		return -1;
	*create_ms = (time_monotonic_us() - started + 500) / 1000;
	return 0;
}

/* "NAME[/SUBPATH]:/path" or the same with ":ro" as a mount whose strings share one allocation, owned through the name. */
static int read_mount(const char *text, struct husk_mount *out, struct husk_error *err)
{
	char *copy = strdup(text), *path = copy ? strstr(copy, ":/") : NULL;

	if (!copy)
		return husk_fail_memory(err);
	if (!path || path == copy) {
		free(copy);
		return husk_fail(err, HUSK_INVALID,
				 "--volume: '%s' is not NAME:/PATH, NAME/SUBPATH:/PATH or one of them with :ro", text);
	}
	*path++ = '\0';
	bool read_only = str_ends(path, ":ro");
	if (read_only || str_ends(path, ":rw"))
		path[strlen(path) - 3] = '\0';
	char *subpath = strchr(copy, '/');
	if (subpath)
		*subpath++ = '\0';
	*out = (struct husk_mount){ .volume = copy, .path = path, .read_only = read_only, .subpath = subpath };
	return 0;
}

struct mounts_given {
	struct husk_mount *items;
	size_t count;
};

static void mounts_given_free(struct mounts_given *given)
{
	for (size_t i = 0; i < given->count; i++)
		free((char *)given->items[i].volume);
	free(given->items);
}

static int read_mounts(const struct string_list *list, struct mounts_given *out, struct husk_error *err)
{
	out->items = calloc(list->count + 1, sizeof(*out->items));
	if (!out->items)
		return husk_fail_memory(err);
	for (; out->count < list->count; out->count++)
		if (read_mount(list->items[out->count], &out->items[out->count], err) < 0)
			return -1;
	return 0;
}

int create_sandbox(struct cli *cli, const struct create_arguments *arguments, struct husk_sandbox **out,
		   int64_t *create_ms, struct husk_error *err)
{
	cleanup(mounts_given_free) struct mounts_given mounts = { 0 };
	cleanup(egress_given_free) struct egress_given egress = { 0 };
	struct husk_create_options options;

	if (arguments->snapshot && arguments->template)
		return husk_fail(err, HUSK_INVALID,
				 "--from and --template exclude each other: a snapshot has its template");
	if (create_fill(arguments, &egress, &options, err) < 0 || read_mounts(&arguments->volumes, &mounts, err) < 0 ||
	    interrupt_hold(err) < 0)
		return -1;
	options.mounts = mounts.items;
	options.mount_count = mounts.count;
	int result = create_once(cli, &options, out, create_ms, err);
	if (result < 0 && err->code == HUSK_NOT_FOUND && !arguments->snapshot && !interrupt_seen()) {
		const char *template = arguments->template ? arguments->template : "base";
		int baked = template_ensure(cli, template, arguments->isolation, err);
		if (baked < 0)
			return -1;
		if (baked > 0)
			result = create_once(cli, &options, out, create_ms, err);
	}
	if (result < 0)
		return -1;
	if (interrupt_seen()) {
		husk_kill(cli->husk, (*out)->id, NULL);
		husk_sandbox_free(steal_pointer(*out));
		return husk_fail(err, HUSK_GONE, "interrupted; the new sandbox was removed again");
	}
	if (cli->verbose)
		output_note("sandbox %s behind %s, created in %lld ms", (*out)->id,
			    (*out)->boundary ? (*out)->boundary : (*out)->isolation, (long long)*create_ms);
	return 0;
}

struct create_command {
	struct create_arguments create;
	struct workspace_arguments workspace;
};

/* The workspace, and a checkpoint to come back to. A sandbox without its workspace is removed again. */
static int create_workspace(struct cli *cli, const struct workspace_arguments *arguments, const char *id,
			    struct husk_error *err)
{
	if (workspace_bring(cli, arguments, id, NULL, err) == 0 &&
	    (!arguments->workspace || husk_checkpoint(cli->husk, id, "workspace", NULL, err) == 0))
		return 0;
	husk_kill(cli->husk, id, NULL);
	return -1;
}

static int create_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct create_command *arguments = data;
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	int64_t create_ms = 0;

	(void)argc, (void)argv;
	if (create_sandbox(cli, &arguments->create, &sandbox, &create_ms, err) < 0 ||
	    create_workspace(cli, &arguments->workspace, sandbox->id, err) < 0)
		return -1;
	if (!cli->json) {
		puts(sandbox->id);
		return 0;
	}
	json_t *document = json_sandbox(sandbox);
	if (document)
		json_object_set_new(document, "create_ms", json_integer(create_ms));
	return output_json(document, err);
}

const struct cli_command cli_create = {
	.name = "create",
	.operands = "",
	.summary = "Create a sandbox and print its id",
	.details = "The sandbox runs until its TTL ends or `husk rm` removes it. Use it with husk exec, cp, code, fork "
		   "and so on.\n",
	.groups = { { source_options, offsetof(struct create_command, create) },
		    { workspace_options, offsetof(struct create_command, workspace) },
		    { limit_options, offsetof(struct create_command, create) },
		    { egress_options, offsetof(struct create_command, create.egress) } },
	.arguments_size = sizeof(struct create_command),
	.run = create_run,
};
