/*
 * `husk pull` and `husk image ls|inspect|rm|prune`: container images of registries. A pull downloads what is missing
 * and builds the image's template; `husk run -t IMAGE` does the same on the image's first use.
 */
#include "cli/cli.h"
#include "cli/interrupt.h"

/* ---- pull ---- */

struct pulling {
	const char *name;
	struct progress *progress; /* NULL: no terminal */
};

static int pull_progress(void *data, const struct husk_pull_progress *now)
{
	const struct pulling *pulling = data;
	char text[256], done[32], all[32];

	output_size(now->bytes_done, done, sizeof(done));
	output_size(now->bytes, all, sizeof(all));
	if (now->layers)
		snprintf(text, sizeof(text), "pulling: %zu of %zu layers, %s of %s (%s)", now->layers_done, now->layers,
			 done, all, pulling->name);
	else
		snprintf(text, sizeof(text), "pulling: asking the registry (%s)", pulling->name);
	progress_text(pulling->progress, text);
	return interrupt_seen();
}

int image_pull(struct cli *cli, const char *name, struct husk_image **out, struct husk_error *err)
{
	struct pulling pulling = { .name = name };
	struct husk_pull_options options = { .name = name, .progress = pull_progress, .data = &pulling };
	int64_t started = time_monotonic_ms();
	char took[32], size[32];

	if (interrupt_hold(err) < 0)
		return -1;
	pulling.progress = progress_begin("pulling %s", name);
	int result = husk_image_pull(cli->husk, &options, out, err);
	progress_end(&pulling.progress);
	if (result < 0)
		return -1;
	output_duration(time_monotonic_ms() - started, took, sizeof(took));
	output_size((*out)->bytes, size, sizeof(size));
	output_note("pulled %s: %zu layers, %s, in %s", (*out)->name, (*out)->layer_count, size, took);
	return 0;
}

struct pull_arguments {
	bool no_build;
	const char *isolation, *warm;
};

static const struct option_spec pull_options[] = {
	OPTION(0, "no-build", OPTION_FLAG, struct pull_arguments, no_build, NULL,
	       "only download it; its first use builds its template"),
	OPTION(0, "isolation", OPTION_STRING, struct pull_arguments, isolation, "ENGINE",
	       "bake it for this boundary (auto)"),
	OPTION(0, "warm", OPTION_STRING, struct pull_arguments, warm, "COMMAND",
	       "a shell command that runs to its end before the snapshot, so that every sandbox starts warm"),
	{ 0 },
};

static int pull_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct pull_arguments *arguments = data;
	cleanup_image struct husk_image *image = NULL;

	(void)argc;
	if (arguments->warm && arguments->no_build)
		return husk_fail_field(err, "warm",
				       "--warm goes without --no-build: it runs when the template is built");
	if (image_pull(cli, argv[0], &image, err) < 0)
		return -1;
	if (!arguments->no_build) {
		if (template_of_image(cli, image->name, arguments->isolation, arguments->warm, err) < 0)
			return -1;
		image->built = true;
	}
	if (cli->json)
		return output_json(json_image(image), err);
	puts(image->name);
	return 0;
}

/* ---- ls, inspect ---- */

static int image_table(struct husk_image *const *list, struct husk_error *err)
{
	static const char *const heading[] = { "NAME", "DIGEST", "AGE", "SIZE", "LAYERS", "SANDBOXES", "TEMPLATE" };
	cleanup_table struct table table;

	table_begin(&table, heading, ARRAY_SIZE(heading));
	for (size_t i = 0; list[i]; i++) {
		table_cell(&table, list[i]->name);
		table_cellf(&table, "%.19s", list[i]->digest);
		table_age(&table, list[i]->pulled_ms);
		table_size(&table, list[i]->bytes);
		table_cellf(&table, "%zu", list[i]->layer_count);
		table_cellf(&table, "%zu", list[i]->sandboxes);
		table_cell(&table, list[i]->built ? list[i]->template_name : "not built yet: its first use builds it");
	}
	return table_print(&table, err);
}

static int image_ls_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_images struct husk_image **list = NULL;

	(void)data, (void)argc, (void)argv;
	if (husk_image_list(cli->husk, &list, err) < 0)
		return -1;
	return cli->json ? output_json(json_images(list), err) : image_table(list, err);
}

static int image_inspect_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_image struct husk_image *image = NULL;

	(void)data, (void)argc;
	if (husk_image_inspect(cli->husk, argv[0], &image, err) < 0)
		return -1;
	return output_json(json_image(image), err);
}

/* ---- rm, prune ---- */

static int image_rm_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)data, (void)argc;
	return remove_each(cli, argv, husk_image_remove, err);
}

static int image_prune_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	uint64_t bytes = 0;
	size_t count = 0;
	char size[32];

	(void)data, (void)argc, (void)argv;
	if (husk_image_prune(cli->husk, &count, &bytes, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_pack("{s:I, s:I}", "images", (json_int_t)count, "bytes", (json_int_t)bytes),
				   err);
	output_size(bytes, size, sizeof(size));
	printf("removed %zu images: %s\n", count, size);
	return 0;
}

const struct cli_command cli_pull = {
	.name = "pull",
	.operands = "IMAGE",
	.summary = "Download a container image from its registry and build its template",
	.details = "IMAGE is [HOST[:PORT]/]NAME[:TAG|@DIGEST]. The default host is docker.io, or HUSK_REGISTRY. Layers "
		   "that exist\n"
		   "already are not downloaded again, and an interrupted pull is continued. Logins are read from\n"
		   "~/.docker/config.json (husk login). Registries on this host and those in HUSK_INSECURE_REGISTRIES "
		   "use plain HTTP.\n"
		   "`husk run -t IMAGE` pulls on first use; husk pull also gets a newer image of the same tag.\n",
	.groups = { { pull_options, 0 } },
	.arguments_size = sizeof(struct pull_arguments),
	.min = 1,
	.max = 1,
	.run = pull_run,
};

const struct cli_command cli_image_ls = {
	.name = "image ls",
	.operands = "",
	.summary = "List images that were pulled",
	.run = image_ls_run,
};

const struct cli_command cli_image_inspect = {
	.name = "image inspect",
	.operands = "IMAGE",
	.summary = "Show all details of an image, as JSON",
	.min = 1,
	.max = 1,
	.run = image_inspect_run,
};

const struct cli_command cli_image_rm = {
	.name = "image rm",
	.operands = "IMAGE…",
	.summary = "Remove images and their templates; an image with sandboxes or snapshots stays",
	.min = 1,
	.max = -1,
	.run = image_rm_run,
};

const struct cli_command cli_image_prune = {
	.name = "image prune",
	.operands = "",
	.summary = "Remove all images without sandboxes and snapshots",
	.run = image_prune_run,
};
