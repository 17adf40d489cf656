/*
 * `husk build`, `husk commit` and `husk image export`: the user's own images. A build prints its progress on stderr, a
 * line for each event, or JSON lines on stdout with --progress json; the name of the image is its only other output.
 */
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/relay.h"

#define SECRET_MAX (1u << 20)

struct build_arguments {
	const char *dockerfile, *name, *target, *isolation, *warm, *progress;
	struct pair_list arguments;
	struct string_list secrets, allow;
	const char *egress;
	uint64_t memory_bytes, disk_bytes;
	uint32_t cpu_milli;
	int64_t timeout_ms;
	bool no_cache, debug;
};

static const char *const progress_names[] = { "plain", "json", "quiet", NULL };
static const char *const egress_names[] = { "off", "allow", "open", NULL };

static const struct option_spec build_options[] = {
	OPTION('f', "file", OPTION_STRING, struct build_arguments, dockerfile, "FILE",
	       "the Dockerfile (Dockerfile in DIR; - reads it from stdin)"),
	OPTION('t', "tag", OPTION_STRING, struct build_arguments, name, "NAME",
	       "its name: NAME for husk run -t NAME, or the name of an image with a tag"),
	OPTION(0, "target", OPTION_STRING, struct build_arguments, target, "STAGE",
	       "build this stage instead of the last"),
	OPTION(0, "build-arg", OPTION_ENVIRONMENT, struct build_arguments, arguments, "K=V|K",
	       "the value of an ARG; K alone passes your own variable"),
	OPTION(0, "secret", OPTION_STRINGS, struct build_arguments, secrets, "id=ID[,src=FILE|,env=VARIABLE]",
	       "a secret for RUN --mount=type=secret; may be repeated"),
	OPTION(0, "allow", OPTION_STRINGS, struct build_arguments, allow, "RULE",
	       "what RUN and ADD may reach: example.com, *.example.com, 10.1.2.0/24:5432; may be repeated (nothing)"),
	OPTION(0, "egress", OPTION_CHOICE, struct build_arguments, egress, "MODE",
	       "what RUN and ADD may reach: off (the default), allow (what the rules name), open (every public "
	       "address)",
	       .choices = egress_names),
	OPTION(0, "memory", OPTION_SIZE, struct build_arguments, memory_bytes, "SIZE", "memory of its sandboxes (2G)",
	       .min = INT64_C(64) << 20, .max = INT64_C(1) << 40),
	OPTION(0, "disk", OPTION_SIZE, struct build_arguments, disk_bytes, "SIZE", "disk of its sandboxes (the base's)",
	       .min = INT64_C(64) << 20, .max = INT64_C(1) << 44),
	OPTION(0, "cpus", OPTION_CPUS, struct build_arguments, cpu_milli, "N", "CPU limit, may be a fraction (2)",
	       .min = 50, .max = 1024000),
	OPTION(0, "timeout", OPTION_MILLISECONDS, struct build_arguments, timeout_ms, "TIME", "limit for each RUN (1h)",
	       .min = 1, .max = INT64_C(7) * 86400 * 1000),
	OPTION(0, "warm", OPTION_STRING, struct build_arguments, warm, "COMMAND",
	       "a shell command that runs to its end before the snapshot, so that every sandbox starts warm"),
	OPTION(0, "no-cache", OPTION_FLAG, struct build_arguments, no_cache, NULL, "run every step"),
	OPTION(0, "debug", OPTION_FLAG, struct build_arguments, debug, NULL,
	       "open a shell in the sandbox of a RUN that fails, as that RUN left it"),
	OPTION(0, "progress", OPTION_CHOICE, struct build_arguments, progress, "HOW",
	       "plain (lines on stderr), json (a document for each event on stdout) or quiet",
	       .choices = progress_names),
	OPTION(0, "isolation", OPTION_STRING, struct build_arguments, isolation, "ENGINE",
	       "build and bake for this boundary (auto)"),
	{ 0 },
};

/* ---- progress ---- */

struct building {
	struct cli *cli;
	bool json, quiet;
	bool mid_line; /* the last output did not end its line */
};

static int print_json(const struct husk_build_event *event)
{
	cleanup_json json_t *document = json_build_event(event);

	if (json_dumpf(document, stdout, JSON_COMPACT) == 0)
		putchar('\n');
	fflush(stdout);
	return 0;
}

/* What a program of the guest prints, safe for a terminal. */
static void print_output(struct building *building, const struct husk_build_event *event)
{
	cleanup_free char *text = strndup(event->text, event->size);

	if (!text || !*text)
		return;
	output_safe(stderr, text, true);
	building->mid_line = text[strlen(text) - 1] != '\n';
}

static void print_plain(struct building *building, const struct husk_build_event *event)
{
	char took[32];

	if (event->kind == HUSK_BUILD_OUTPUT) {
		print_output(building, event);
		return;
	}
	if (building->mid_line)
		fputc('\n', stderr);
	building->mid_line = false;
	if (event->kind == HUSK_BUILD_NOTE) {
		output_note("%.*s", (int)event->size, event->text);
		return;
	}
	fprintf(stderr, "[%s %zu/%zu] ", event->stage, event->step, event->steps);
	if (event->kind == HUSK_BUILD_DONE) {
		output_duration(event->duration_ms, took, sizeof(took));
		fprintf(stderr, "done in %s\n", took);
		return;
	}
	if (event->kind == HUSK_BUILD_CACHED)
		fputs("cached: ", stderr);
	output_safe(stderr, event->text, false);
	fputc('\n', stderr);
}

static int on_progress(void *data, const struct husk_build_event *event)
{
	struct building *building = data;

	if (event && building->json)
		print_json(event);
	else if (event && (!building->quiet || event->kind == HUSK_BUILD_OUTPUT))
		print_plain(building, event);
	return interrupt_seen();
}

/* --debug: a shell with the variables, the user and the directory of the RUN that failed. */
static void on_failed(void *data, const struct husk_build_failure *failure)
{
	struct building *building = data;
	bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
	struct process_arguments arguments = { .interactive = true, .tty = terminal };
	struct husk_exec_options exec;
	cleanup_relay struct relay_result result = { 0 };
	struct husk_error why = { 0 };
	int64_t pid = 0;

	if (building->mid_line)
		fputc('\n', stderr);
	building->mid_line = false;
	output_note("the RUN at line %u failed with status %d; this is a shell in its sandbox, which ends with it",
		    failure->line, failure->exit_code);
	arguments.shell = terminal ? NULL : "exec sh";
	int status = relay_exec_options(building->cli, NULL, &arguments, 0, NULL, &exec, &why);
	exec.user = failure->user;
	exec.cwd = failure->cwd;
	exec.environment = failure->environment;
	exec.environment_count = failure->environment_count;
	if (status == 0)
		status = relay_exec(building->cli, failure->sandbox, &arguments, &exec, false, &result, &pid, &why);
	if (status < 0)
		output_error(why.message);
}

/* ---- secrets ---- */

/* "id=ID,src=FILE", "id=ID,env=VARIABLE"; "id=ID" takes the variable of that name. */
static int read_secret(const char *given, struct husk_pair *out, struct husk_error *err)
{
	cleanup_free char *copy = strdup(given), *id = NULL, *file = NULL, *variable = NULL;
	char *rest = copy;

	if (!copy)
		return husk_fail_memory(err);
	for (char *part; (part = strsep(&rest, ","));) {
		char **into = str_starts(part, "id=")                                   ? &id
			      : str_starts(part, "src=") || str_starts(part, "source=") ? &file
			      : str_starts(part, "env=")                                ? &variable
											: NULL;
		if (str_equal(part, "type=file") || str_equal(part, "type=env"))
			continue;
		if (!into)
			return husk_fail_field(err, "secret",
					       "--secret needs id=ID and src=FILE or env=VARIABLE, not '%s'", part);
		free(*into);
		*into = strdup(strchr(part, '=') + 1);
		if (!*into)
			return husk_fail_memory(err);
	}
	if (!id || !*id)
		return husk_fail_field(err, "secret", "--secret needs id=ID");
	const char *set = file ? NULL : getenv(variable ? variable : id);
	cleanup_wipe char *value = file ? file_read(file, SECRET_MAX, NULL, err) : set ? strdup(set) : NULL;
	if (!value)
		return file ? -1
			    : husk_fail_field(err, "secret",
					      "the variable %s is not set; or give the secret as src=FILE",
					      variable ? variable : id);
	out->key = steal_pointer(id);
	out->value = steal_pointer(value);
	return 0;
}

static void secrets_free(struct husk_pair *secrets, size_t count)
{
	for (size_t i = 0; secrets && i < count; i++) {
		free((char *)secrets[i].key);
		str_wipe((char *)secrets[i].value);
	}
	free(secrets);
}

/* ---- build ---- */

/* A Dockerfile from stdin has no place of its own. */
static char *read_stdin(struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	char piece[65536];
	ssize_t count;

	while ((count = read(STDIN_FILENO, piece, sizeof(piece))) > 0)
		if (text.size > SECRET_MAX || buf_append(&text, piece, (size_t)count) < 0) {
			husk_fail(err, HUSK_INVALID, "the Dockerfile on stdin is larger than %u bytes", SECRET_MAX);
			return NULL;
		}
	char *out = buf_steal(&text);
	if (!out)
		husk_fail_memory(err);
	return out;
}

static int print_built(struct cli *cli, const struct building *building, const struct husk_image *image, bool fresh,
		       const char *name, struct husk_error *err)
{
	if (!cli->json && !building->json) {
		output_note(fresh ? "%s is built: husk run -t %s"
				  : "%s is built already, and nothing changed: husk run -t %s",
			    name, name);
		puts(name);
		return 0;
	}
	json_t *document = json_image(image);
	json_object_set_new(document, "fresh", json_boolean(fresh));
	if (!building->json)
		return output_json(document, err);
	cleanup_json json_t *line = json_pack("{s:s, s:o}", "event", "built", "image", document);
	if (json_dumpf(line, stdout, JSON_COMPACT) == 0)
		putchar('\n');
	return 0;
}

static int build_with(struct cli *cli, const struct build_arguments *arguments, const char *context,
		      const struct husk_pair *secrets, struct husk_error *err)
{
	const struct egress_arguments network = { .mode = arguments->egress, .allow = arguments->allow };
	struct building building = { .cli = cli,
				     .json = str_equal(arguments->progress, "json"),
				     .quiet = str_equal(arguments->progress, "quiet") };
	bool from_stdin = str_equal(arguments->dockerfile, "-"), fresh = false;
	cleanup_free char *text = from_stdin ? read_stdin(err) : NULL;
	cleanup_image struct husk_image *image = NULL;
	struct egress_given egress = { 0 };

	if (from_stdin && !text)
		return -1;
	int result = egress_read(&network, &egress, err);
	const struct husk_dockerfile_options options = { .name = arguments->name,
							 .dockerfile = from_stdin ? NULL : arguments->dockerfile,
							 .text = text,
							 .context = context,
							 .target = arguments->target,
							 .arguments = arguments->arguments.items,
							 .argument_count = arguments->arguments.count,
							 .secrets = secrets,
							 .secret_count = arguments->secrets.count,
							 .egress = egress.any ? &egress.egress : NULL,
							 .isolation = arguments->isolation,
							 .memory_bytes = arguments->memory_bytes,
							 .disk_bytes = arguments->disk_bytes,
							 .cpu_milli = arguments->cpu_milli,
							 .timeout_ms = arguments->timeout_ms,
							 .warm = arguments->warm,
							 .no_cache = arguments->no_cache,
							 .progress = on_progress,
							 .failed = arguments->debug ? on_failed : NULL,
							 .data = &building };
	if (result == 0)
		result = husk_build(cli->husk, &options, &image, &fresh, err);
	egress_given_free(&egress);
	if (building.mid_line)
		fputc('\n', stderr);
	return result < 0 ? -1 : print_built(cli, &building, image, fresh, arguments->name, err);
}

static int build_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct build_arguments *arguments = data;
	const char *context = argc ? argv[0] : ".";
	struct husk_pair *secrets = calloc(arguments->secrets.count + 1, sizeof(*secrets));
	struct stat status;
	int result = secrets ? 0 : husk_fail_memory(err);

	if (result == 0 && !arguments->name)
		result = husk_fail_field(err, "tag", "the image needs a name: husk build -t NAME %s", context);
	if (result == 0 && (stat(context, &status) < 0 || !S_ISDIR(status.st_mode)))
		result =
			husk_fail(err, HUSK_INVALID, "'%s' is not a directory; the context of a build is one", context);
	for (size_t i = 0; result == 0 && i < arguments->secrets.count; i++)
		result = read_secret(arguments->secrets.items[i], &secrets[i], err);
	if (result == 0)
		result = interrupt_hold(err);
	if (result == 0)
		result = build_with(cli, arguments, context, secrets, err);
	secrets_free(secrets, arguments->secrets.count);
	return result;
}

int build_dockerfile(struct cli *cli, const char *name, const char *file, const char *isolation, const char *warm,
		     struct husk_error *err)
{
	const struct build_arguments arguments = {
		.name = name, .dockerfile = file, .isolation = isolation, .warm = warm
	};
	const char *slash = strrchr(file, '/');
	cleanup_free char *context = slash ? strndup(file, (size_t)MAX(slash - file, 1)) : strdup(".");

	if (!context)
		return husk_fail_memory(err);
	return interrupt_hold(err) < 0 ? -1 : build_with(cli, &arguments, context, NULL, err);
}

/* ---- commit, export ---- */

struct commit_arguments {
	const char *output;
	bool push;
};

static const struct option_spec commit_options[] = {
	OPTION('o', "output", OPTION_STRING, struct commit_arguments, output, "DIR",
	       "also write it as an OCI image layout, a new directory"),
	OPTION(0, "push", OPTION_FLAG, struct commit_arguments, push, NULL, "also send it to the registry of its name"),
	{ 0 },
};

static int push_progress(void *data, uint64_t done, uint64_t all)
{
	char text[128], first[32], second[32];

	output_size(done, first, sizeof(first));
	output_size(all, second, sizeof(second));
	snprintf(text, sizeof(text), "pushing: %s of %s", first, second);
	progress_text(data, text);
	return interrupt_seen() != 0;
}

/* To its registry, with a line at the end. */
static int push_image(struct cli *cli, const char *name, const char *reference, struct husk_pushed **out,
		      struct husk_error *err)
{
	char sent[32], all[32];
	struct progress *progress = progress_begin("pushing %s", name);
	int result = husk_image_push(cli->husk, name, reference, push_progress, progress, out, err);

	progress_end(&progress);
	if (result < 0)
		return -1;
	output_size((*out)->sent_bytes, sent, sizeof(sent));
	output_size((*out)->bytes, all, sizeof(all));
	output_note("pushed %s: %zu of %zu blobs, %s of %s", (*out)->name, (*out)->sent_chunks, (*out)->chunks, sent,
		    all);
	return 0;
}

static int commit_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct commit_arguments *arguments = data;
	const struct husk_commit_options options = { .name = argv[1] };
	cleanup_image struct husk_image *image = NULL;

	(void)argc;
	if (interrupt_hold(err) < 0)
		return -1;
	struct progress *progress = progress_begin("making an image of %s", argv[0]);
	int result = husk_commit(cli->husk, argv[0], &options, &image, err);
	progress_end(&progress);
	if (result < 0)
		return -1;
	if (arguments->output && husk_image_export(cli->husk, image->name, arguments->output, err) < 0)
		return -1;
	if (arguments->push) {
		struct husk_pushed *pushed = NULL;
		if (push_image(cli, argv[1], NULL, &pushed, err) < 0)
			return husk_wrap(err, "the image '%s' was made, and not pushed", image->name);
		husk_pushed_free(pushed);
	}
	if (cli->json)
		return output_json(json_image(image), err);
	puts(image->name);
	return 0;
}

static int image_push_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	struct husk_pushed *pushed = NULL;

	(void)data;
	if (interrupt_hold(err) < 0 || push_image(cli, argv[0], argc > 1 ? argv[1] : NULL, &pushed, err) < 0)
		return -1;
	int result = 0;
	if (cli->json)
		result = output_json(json_pack("{s:s, s:s}", "name", pushed->name, "digest", pushed->digest), err);
	else
		puts(pushed->digest);
	husk_pushed_free(pushed);
	return result;
}

static int image_export_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)data, (void)argc;
	if (husk_image_export(cli->husk, argv[0], argv[1], err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_pack("{s:o, s:o}", "name", json_text0(argv[0]), "path", json_text0(argv[1])),
				   err);
	puts(argv[1]);
	return 0;
}

const struct cli_command cli_build = {
	.name = "build",
	.operands = "[DIR]",
	.summary = "Build an image and its template from a Dockerfile; every RUN runs in a sandbox",
	.details = "DIR is the context (.): the files that COPY and ADD may copy, without those that its .dockerignore "
		   "names.\n"
		   "FROM is a template (base, agent), an image that was built or pulled here, or an image of a "
		   "registry. RUN and ADD\n"
		   "have no network unless --allow or --egress opens it. Results of steps are kept, and a later build "
		   "continues\n"
		   "from them; HUSK_BUILD_CACHE limits their size (10G), and husk gc --all removes them. Unsupported "
		   "instructions\n"
		   "are an error with line and column, before anything runs.\n",
	.groups = { { build_options, 0 } },
	.arguments_size = sizeof(struct build_arguments),
	.max = 1,
	.run = build_run,
};

const struct cli_command cli_commit = {
	.name = "commit",
	.operands = "SANDBOX NAME",
	.summary = "Make a container image of the files of a sandbox",
	.details = "The image has one layer. It is in `husk image ls`, and its first use builds its template. -o also "
		   "writes it as an\n"
		   "OCI image layout, which skopeo, podman and buildah read.\n",
	.groups = { { commit_options, 0 } },
	.arguments_size = sizeof(struct commit_arguments),
	.min = 2,
	.max = 2,
	.run = commit_run,
};

const struct cli_command cli_image_push = {
	.name = "image push",
	.operands = "IMAGE [REGISTRY/NAME:TAG]",
	.summary = "Send an image to a registry, without the layers that it already has",
	.min = 1,
	.max = 2,
	.run = image_push_run,
};

const struct cli_command cli_image_export = {
	.name = "image export",
	.operands = "IMAGE DIR",
	.summary = "Write an image as an OCI image layout, for skopeo, podman and buildah",
	.min = 2,
	.max = 2,
	.run = image_export_run,
};
