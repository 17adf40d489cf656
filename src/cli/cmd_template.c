/*
 * `husk template build|ls|rm`, and the baking of a bundled template on its first use. Definitions are folders with a
 * `template` file: those of $HUSK_TEMPLATES, else those beside this program in its source tree, else those installed.
 */
#include <limits.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/interrupt.h"

#ifndef HUSK_PREFIX
#define HUSK_PREFIX "/usr/local"
#endif

/* ---- definitions ---- */

/* The folders with definitions, in the order of the search. */
static int definition_roots(char ***out, struct husk_error *err)
{
	const char *chosen = getenv("HUSK_TEMPLATES");
	char program[PATH_MAX];

	if (chosen && *chosen)
		return strv_add(out, chosen) < 0 ? husk_fail_memory(err) : 0;
	ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);
	if (size > 0) {
		program[size] = '\0';
		char *slash = strrchr(program, '/');
		if (slash)
			*slash = '\0';
		cleanup_free char *beside = str_format("%s/../templates", program);
		cleanup_free char *installed = str_format("%s/../share/husk/templates", program);
		if (!beside || !installed || strv_add(out, beside) < 0 || strv_add(out, installed) < 0)
			return husk_fail_memory(err);
	}
	return strv_add(out, HUSK_PREFIX "/share/husk/templates") < 0 ? husk_fail_memory(err) : 0;
}

static bool is_definition(const char *directory)
{
	cleanup_free char *file = str_format("%s/template", directory);
	struct stat status;

	return file && stat(file, &status) == 0 && S_ISREG(status.st_mode);
}

/* The folder of the definition with that name; NULL with err untouched: none. */
static char *definition_find(const char *name, struct husk_error *err)
{
	cleanup_strv char **roots = NULL;

	if (strchr(name, '/') || name[0] == '.' || name[0] == '\0' || definition_roots(&roots, err) < 0)
		return NULL;
	for (size_t i = 0; roots && roots[i]; i++) {
		cleanup_free char *directory = str_format("%s/%s", roots[i], name);
		if (directory && is_definition(directory))
			return steal_pointer(directory);
	}
	return NULL;
}

static bool strv_has(char *const *list, const char *word)
{
	for (; list && *list; list++)
		if (str_equal(*list, word))
			return true;
	return false;
}

int template_definitions(char ***out, struct husk_error *err)
{
	cleanup_strv char **roots = NULL;

	if (definition_roots(&roots, err) < 0)
		return -1;
	for (size_t i = 0; roots && roots[i]; i++) {
		cleanup_dir DIR *dir = opendir(roots[i]);
		for (struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir)) {
			cleanup_free char *directory = str_format("%s/%s", roots[i], entry->d_name);
			if (entry->d_name[0] == '.' || !directory || !is_definition(directory) ||
			    strv_has(*out, entry->d_name))
				continue;
			if (strv_add(out, entry->d_name) < 0)
				return husk_fail_memory(err);
		}
	}
	strv_sort(*out);
	return 0;
}

/* ---- build ---- */

/* One moving line on a terminal; elsewhere, and with -v, a line each. */
static void build_progress(void *data, const char *line)
{
	struct progress *progress = data;

	if (progress) {
		progress_text(progress, line);
		return;
	}
	fputs("  ", stderr);
	output_safe(stderr, line, false);
	fputc('\n', stderr);
}

/* `image`: the pulled image that it is built from; NULL: as the options say. */
static int build(struct cli *cli, const char *image, struct husk_build_options *options, struct husk_template **out,
		 bool *fresh, struct husk_error *err)
{
	const char *called = image ? image : options->name ? options->name : "";
	int64_t started = time_monotonic_ms();
	char took[32];

	if (interrupt_hold(err) < 0)
		return -1;
	struct progress *progress = cli->verbose ? NULL : progress_begin("building template '%s'", called);
	options->progress = build_progress;
	options->data = progress;
	int result = image ? husk_image_build(cli->husk, image, options, out, fresh, err)
			   : husk_template_build(cli->husk, options, out, fresh, err);
	progress_end(&progress);
	if (result < 0)
		return interrupt_seen() ? husk_fail(err, HUSK_GONE, "interrupted; template '%s' was not built", called)
					: -1;
	output_duration(time_monotonic_ms() - started, took, sizeof(took));
	if (*fresh)
		output_note("template '%s' is ready after %s", (*out)->name, took);
	return 0;
}

static int fail_unknown(struct husk_template *const *list, const char *name, struct husk_error *err)
{
	cleanup_strv char **names = NULL;

	if (template_definitions(&names, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++)
		if (strv_add(&names, list[i]->name) < 0)
			return husk_fail_memory(err);
	const char *near = names ? str_nearest(name, (const char *const *)names, strv_length(names)) : NULL;
	if (near)
		return husk_fail(err, HUSK_NOT_FOUND, "template '%s' not found; did you mean '%s'? (husk template ls)",
				 name, near);
	return husk_fail(err, HUSK_NOT_FOUND,
			 "template '%s' not found (husk template ls); an image is named with its tag: -t %s:latest",
			 name, name);
}

int template_of_image(struct cli *cli, const char *image, const char *isolation, const char *warm,
		      struct husk_error *err)
{
	cleanup_husk_template struct husk_template *template = NULL;
	struct husk_build_options options = { .isolation = isolation, .warm = warm };
	bool fresh = false;

	return build(cli, image, &options, &template, &fresh, err) < 0 ? -1 : fresh;
}

/* The first use of an image: pulls it if it is missing, and builds it. */
static int image_ensure(struct cli *cli, const char *name, const char *isolation, struct husk_error *err)
{
	cleanup_image struct husk_image *image = NULL;
	struct husk_error why = { 0 };

	if (husk_image_inspect(cli->husk, name, &image, &why) < 0) {
		if (why.code != HUSK_NOT_FOUND)
			return husk_fail(err, why.code, "%s", why.message);
		output_note("image '%s' is used for the first time and is pulled now", name);
		if (image_pull(cli, name, &image, err) < 0)
			return -1;
	} else if (image->built) {
		return 0; /* the failure had another reason */
	}
	return template_of_image(cli, image->name, isolation, NULL, err) < 0 ? -1 : 1;
}

int template_ensure(struct cli *cli, const char *name, const char *isolation, struct husk_error *err)
{
	cleanup_templates struct husk_template **list = NULL;
	cleanup_husk_template struct husk_template *template = NULL;
	bool fresh = false;

	bool here = !husk_url(cli->husk);
	if (!here && husk_image_is_name(name)) /* a server pulls only for its own host */
		return 0;
	if (husk_template_list(cli->husk, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++)
		if (str_equal(list[i]->name, name))
			return 0;
	if (husk_image_is_name(name))
		return image_ensure(cli, name, isolation, err);
	cleanup_free char *definition = here ? definition_find(name, err) : NULL;
	if (here && !definition)
		return fail_unknown(list, name, err);
	if (here)
		output_note("template '%s' is used for the first time and is built now", name);
	/* A server finds the definition by its name, and builds it for all of its users, behind its own boundary. */
	struct husk_build_options options = { .name = name,
					      .definition = definition,
					      .isolation = here ? isolation : NULL };
	return build(cli, NULL, &options, &template, &fresh, err) < 0 ? -1 : 1;
}

struct build_arguments {
	const char *dockerfile, *name, *tar, *rootfs, *image, *reference, *isolation, *warm;
	bool force;
};

static const struct option_spec build_options[] = {
	OPTION(0, "tar", OPTION_STRING, struct build_arguments, tar, "FILE", "from a root filesystem in a tar file"),
	OPTION(0, "rootfs", OPTION_STRING, struct build_arguments, rootfs, "DIR",
	       "from a root filesystem in a directory"),
	OPTION(0, "image", OPTION_STRING, struct build_arguments, image, "PATH",
	       "from a container image: an OCI layout, a tar of one, or the output of docker save"),
	OPTION(0, "dockerfile", OPTION_STRING, struct build_arguments, dockerfile, "FILE",
	       "from a Dockerfile; its directory is the context (husk build has more options)"),
	OPTION(0, "ref", OPTION_STRING, struct build_arguments, reference, "REF", "which image, if PATH holds several"),
	OPTION(0, "name", OPTION_STRING, struct build_arguments, name, "NAME", "its name (the name of the definition)"),
	OPTION(0, "isolation", OPTION_STRING, struct build_arguments, isolation, "ENGINE",
	       "bake it for this boundary (auto)"),
	OPTION(0, "warm", OPTION_STRING, struct build_arguments, warm, "COMMAND",
	       "a shell command that runs to its end before the snapshot, so that every sandbox starts warm"),
	OPTION('f', "force", OPTION_FLAG, struct build_arguments, force, NULL, "build even if nothing changed"),
	{ 0 },
};

/* "./my-template/" has the name my-template. */
static char *name_of_directory(const char *path)
{
	cleanup_free char *real = realpath(path, NULL);
	const char *slash = real ? strrchr(real, '/') : NULL;

	return slash && slash[1] ? strdup(slash + 1) : NULL;
}

/* NAME or DIR to the folder of a definition and the template's name. */
static int resolve_definition(const char *operand, char **directory, char **name, struct husk_error *err)
{
	if (is_definition(operand)) {
		*directory = strdup(operand);
		*name = name_of_directory(operand);
		return *directory && *name ? 0 : husk_fail_memory(err);
	}
	*directory = definition_find(operand, err);
	*name = strdup(operand);
	if (*directory)
		return *name ? 0 : husk_fail_memory(err);
	cleanup_strv char **names = NULL;
	if (template_definitions(&names, err) < 0)
		return -1;
	const char *near = names ? str_nearest(operand, (const char *const *)names, strv_length(names)) : NULL;
	return husk_fail(err, HUSK_NOT_FOUND, "'%s' is not a definition (a directory with a `template` file)%s%s%s",
			 operand, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static int build_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct build_arguments *arguments = data;
	cleanup_husk_template struct husk_template *template = NULL;
	cleanup_free char *directory = NULL, *name = NULL;
	bool fresh = false;

	const char *given = arguments->tar ? arguments->tar : arguments->rootfs ? arguments->rootfs : arguments->image;
	const char *called = arguments->name ? arguments->name : argc > 0 ? argv[0] : NULL;

	if ((!given && !arguments->dockerfile && argc == 0) ||
	    (arguments->tar != NULL) + (arguments->rootfs != NULL) + (arguments->image != NULL) > 1)
		return husk_fail(err, HUSK_INVALID,
				 "template build needs one of NAME, DIR, --tar FILE, --rootfs DIR and --image PATH");
	if (arguments->reference && !arguments->image)
		return husk_fail(err, HUSK_INVALID, "--ref goes with --image");
	if (given && arguments->name && argc > 0)
		return husk_fail(err, HUSK_INVALID, "'%s' and --name %s: give the name once", argv[0], arguments->name);
	if (!called)
		return husk_fail(err, HUSK_INVALID,
				 "--name is needed: a root filesystem does not say what it is called");
	if (arguments->dockerfile)
		return given ? husk_fail(err, HUSK_INVALID, "--dockerfile goes without --tar, --rootfs and --image")
			     : build_dockerfile(cli, called, arguments->dockerfile, arguments->isolation,
						arguments->warm, err);
	/* A server finds its own definitions; a local directory does not exist there. */
	bool theirs = husk_url(cli->husk) && !given && !is_definition(argv[0]);
	if (!given && !theirs && resolve_definition(argv[0], &directory, &name, err) < 0)
		return -1;
	struct husk_build_options options = {
		.name = given || theirs || arguments->name ? called : name,
		.definition = directory,
		.tar = arguments->tar,
		.directory = arguments->rootfs,
		.image = arguments->image,
		.reference = arguments->reference,
		.isolation = arguments->isolation,
		.warm = arguments->warm,
		.force = arguments->force,
	};
	if (build(cli, NULL, &options, &template, &fresh, err) < 0)
		return -1;
	if (!cli->json) {
		if (!fresh)
			output_note("template '%s' is built already and nothing changed (--force builds it anyway)",
				    template->name);
		puts(template->name);
		return 0;
	}
	json_t *document = json_template(template);
	if (document)
		json_object_set_new(document, "fresh", json_boolean(fresh));
	return output_json(document, err);
}

/* ---- ls, rm ---- */

/* The definitions that were never baked, so that `template ls` shows them too. */
static int unbuilt_names(struct husk_template *const *list, char ***out, struct husk_error *err)
{
	cleanup_strv char **names = NULL;

	if (template_definitions(&names, err) < 0)
		return -1;
	for (size_t i = 0; names && names[i]; i++) {
		bool built = false;
		for (size_t k = 0; list[k] && !built; k++)
			built = str_equal(list[k]->name, names[i]);
		if (!built && strv_add(out, names[i]) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

static json_t *templates_json(struct husk_template *const *list, char *const *unbuilt)
{
	cleanup_json json_t *array = json_templates(list);

	for (size_t i = 0; array && unbuilt && unbuilt[i]; i++)
		if (json_array_append_new(array,
					  json_pack("{s:o, s:b}", "name", json_text0(unbuilt[i]), "built", false)) < 0)
			return NULL;
	return steal_pointer(array);
}

/* The short digest of the content, and the build. */
static void table_version(struct table *table, const char *version)
{
	const char *build = version ? strrchr(version, '-') : NULL;

	table_cellf(table, "%.8s%s", version ? version : "-", build ? build : "");
}

static int templates_table(struct husk_template *const *list, char *const *unbuilt, struct husk_error *err)
{
	static const char *const heading[] = { "NAME", "VERSION", "ISOLATION", "AGE", "SIZE", "OLD", "DESCRIPTION" };
	cleanup_table struct table table;

	table_begin(&table, heading, ARRAY_SIZE(heading));
	for (size_t i = 0; list[i]; i++) {
		table_cell(&table, list[i]->name);
		table_version(&table, list[i]->digest);
		table_cell(&table, list[i]->isolation);
		table_age(&table, list[i]->created_ms);
		table_size(&table, list[i]->bytes);
		table_cellf(&table, "%zu", list[i]->old_versions);
		table_cell(&table, list[i]->description);
	}
	for (size_t i = 0; unbuilt && unbuilt[i]; i++) {
		table_cell(&table, unbuilt[i]);
		for (size_t column = 1; column < ARRAY_SIZE(heading) - 1; column++)
			table_cell(&table, NULL);
		table_cell(&table, "not built yet: its first use builds it");
	}
	return table_print(&table, err);
}

static int template_ls_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_templates struct husk_template **list = NULL;
	cleanup_strv char **unbuilt = NULL;

	(void)data, (void)argc, (void)argv;
	if (husk_template_list(cli->husk, &list, err) < 0 ||
	    (!husk_url(cli->husk) && unbuilt_names(list, &unbuilt, err) < 0))
		return -1;
	if (cli->json)
		return output_json(templates_json(list, unbuilt), err);
	return templates_table(list, unbuilt, err);
}

int remove_each(struct cli *cli, char *const *names, remove_fn remove, struct husk_error *err)
{
	cleanup_json json_t *removed = json_array();

	for (; *names; names++) {
		if (remove(cli->husk, *names, err) < 0)
			return -1;
		if (!cli->json)
			puts(*names);
		if (json_array_append_new(removed,
					  json_pack("{s:o, s:b}", "name", json_text0(*names), "removed", true)) < 0)
			return husk_fail_memory(err);
	}
	return cli->json ? output_json(json_incref(removed), err) : 0;
}

static int template_rm_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)data, (void)argc;
	return remove_each(cli, argv, husk_template_remove, err);
}

const struct cli_command cli_template_build = {
	.name = "template build",
	.operands = "TEMPLATE|DIR",
	.summary = "Build a template: make its root filesystem, boot it once, warm it, keep it running as a snapshot",
	.details = "TEMPLATE is a bundled definition, DIR a directory with a definition. With --tar, --rootfs or "
		   "--image, it is the name\n"
		   "of the new template. If the same content is built already, the command does nothing.\n"
		   "\n"
		   "The template of an image has its files and variables (skopeo copy, docker save and podman save "
		   "write images). E2B's\n"
		   "builder finds images in the folder 'images' of the instance's home by name.\n",
	.groups = { { build_options, 0 } },
	.arguments_size = sizeof(struct build_arguments),
	.max = 1,
	.run = build_run,
};

const struct cli_command cli_template_ls = {
	.name = "template ls",
	.operands = "",
	.summary = "List templates",
	.run = template_ls_run,
};

const struct cli_command cli_template_rm = {
	.name = "template rm",
	.operands = "TEMPLATE…",
	.summary = "Remove templates",
	.min = 1,
	.max = -1,
	.run = template_rm_run,
};
