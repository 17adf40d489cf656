/*
 * `husk snapshot|template export|import|push|pull`: machines that leave this host, in a file or a registry. The two families
 * differ in the function of libhusk that they call.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/save.h"

#define PASSPHRASE_MAX 4096

struct portable_arguments {
	const char *name, *passphrase_file;
	bool files, disk_only;
};

#define NAME_OPTION(meaning) OPTION(0, "name", OPTION_STRING, struct portable_arguments, name, "NAME", meaning)
#define FILES_OPTION                                                                                                   \
	OPTION(0, "files", OPTION_FLAG, struct portable_arguments, files, NULL,                                        \
	       "also add its files separately, for hosts that cannot continue its memory")
#define DISK_ONLY_OPTION                                                                                               \
	OPTION(0, "disk-only", OPTION_FLAG, struct portable_arguments, disk_only, NULL,                                \
	       "import only its files, as a template; requires an export with --files")

#define PASSPHRASE_OPTION(meaning)                                                                                     \
	OPTION(0, "passphrase-file", OPTION_STRING, struct portable_arguments, passphrase_file, "FILE", meaning)
#define SEAL_OPTION PASSPHRASE_OPTION("encrypt it with the passphrase in this file")
#define UNSEAL_OPTION PASSPHRASE_OPTION("decrypt it with the passphrase in this file")

static const struct option_spec out_options[] = { FILES_OPTION, { 0 } };
static const struct option_spec snapshot_out_options[] = { FILES_OPTION, SEAL_OPTION, { 0 } };
static const struct option_spec template_out_options[] = { SEAL_OPTION, { 0 } };
static const struct option_spec snapshot_file_options[] = {
	NAME_OPTION("its name here (defaults to its old name)"),
	DISK_ONLY_OPTION,
	UNSEAL_OPTION,
	{ 0 },
};
static const struct option_spec template_file_options[] = {
	NAME_OPTION("its name here (defaults to its old name)"),
	UNSEAL_OPTION,
	{ 0 },
};
static const struct option_spec snapshot_in_options[] = {
	NAME_OPTION("its name here (defaults to its old name)"),
	DISK_ONLY_OPTION,
	{ 0 },
};
static const struct option_spec template_in_options[] = {
	NAME_OPTION("its name here (defaults to its old name)"),
	{ 0 },
};

/* ---- progress ---- */

struct showing {
	const char *verb;
	struct progress *progress; /* NULL: no terminal */
};

static int show_progress(void *data, uint64_t done, uint64_t all)
{
	const struct showing *showing = data;
	char text[128], first[32], second[32];

	output_size(done, first, sizeof(first));
	output_size(all, second, sizeof(second));
	snprintf(text, sizeof(text), "%s: %s of %s", showing->verb, first, second);
	progress_text(showing->progress, text);
	return interrupt_seen() != 0;
}

/* ---- passphrases ---- */

/* Without the end of its line; the caller wipes it. *out is NULL if there is none. */
static int read_passphrase(const struct portable_arguments *arguments, char **out, struct husk_error *err)
{
	const char *path = arguments->passphrase_file;
	size_t size = 0;

	if (!path)
		return 0;
	*out = file_read(path, PASSPHRASE_MAX, &size, err);
	if (!*out)
		return -1;
	while (size && ((*out)[size - 1] == '\n' || (*out)[size - 1] == '\r'))
		(*out)[--size] = '\0';
	return size && strlen(*out) == size ? 0
					    : husk_fail_field(err, "passphrase-file", "'%s' holds no passphrase", path);
}

/* ---- export ---- */

typedef int (*export_fn)(struct husk *husk, const char *name, const struct husk_export_options *options, husk_sink sink,
			 void *data, struct husk_error *err);

/* One export. */
struct outgoing {
	struct cli *cli;
	const struct portable_arguments *arguments;
	export_fn export;
	const char *name, *passphrase;
};

static int export_from(void *data, husk_sink sink, void *sink_data, struct husk_error *err)
{
	const struct outgoing *outgoing = data;
	struct showing showing = { .verb = "packing" };
	const struct husk_export_options options = { .files = outgoing->arguments->files,
						     .passphrase = outgoing->passphrase,
						     .progress = show_progress,
						     .data = &showing };

	showing.progress = progress_begin("packing %s", outgoing->name);
	int result = outgoing->export(outgoing->cli->husk, outgoing->name, &options, sink, sink_data, err);
	progress_end(&showing.progress);
	return result;
}

static int export_run(struct cli *cli, const struct portable_arguments *arguments, export_fn export, char **argv,
		      struct husk_error *err)
{
	cleanup_wipe char *passphrase = NULL;
	struct outgoing outgoing = { cli, arguments, export, argv[0], NULL };
	int64_t started = time_monotonic_ms();
	char took[32], size[32];
	uint64_t bytes = 0;

	if (read_passphrase(arguments, &passphrase, err) < 0)
		return -1;
	outgoing.passphrase = passphrase;
	if (save_file(argv[1], export_from, &outgoing, &bytes, err) < 0)
		return -1;
	output_duration(time_monotonic_ms() - started, took, sizeof(took));
	output_size(bytes, size, sizeof(size));
	output_note("exported %s: %s, in %s", argv[0], size, took);
	return 0;
}

static int snapshot_export_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)argc;
	return export_run(cli, data, husk_snapshot_export, argv, err);
}

static int template_export_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)argc;
	return export_run(cli, data, husk_template_export, argv, err);
}

/* ---- import and pull ---- */

static ssize_t read_stdin(void *data, void *bytes, size_t size)
{
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };

	(void)data;
	while (!interrupt_seen() && poll(&input, 1, 200) == 0)
		; /* whoever writes may take long, and be given up */
	return interrupt_seen() ? -1 : read(STDIN_FILENO, bytes, size);
}

static int take_snapshot(struct cli *cli, const struct husk_import_options *options, struct showing *showing,
			 struct husk_error *err)
{
	cleanup_snapshot struct husk_snapshot *snapshot = NULL;

	int result = husk_snapshot_import(cli->husk, options, &snapshot, err);
	progress_end(&showing->progress);
	if (result < 0)
		return -1;
	if (cli->json)
		return output_json(json_snapshot(snapshot), err);
	puts(snapshot->id);
	return 0;
}

static int take_template(struct cli *cli, const struct husk_import_options *options, struct showing *showing,
			 struct husk_error *err)
{
	cleanup_husk_template struct husk_template *template = NULL;

	int result = husk_template_import(cli->husk, options, &template, err);
	progress_end(&showing->progress);
	if (result < 0)
		return -1;
	if (cli->json)
		return output_json(json_template(template), err);
	puts(template->name);
	return 0;
}

/* `source` is a file, "-", or a name in a registry. */
static int take_in(struct cli *cli, const struct portable_arguments *arguments, bool template, bool pulls,
		   const char *source, struct husk_error *err)
{
	struct showing showing = { .verb = pulls ? "pulling" : "importing" };
	cleanup_wipe char *passphrase = NULL;
	struct husk_import_options options = { .name = arguments->name, .progress = show_progress, .data = &showing };

	if (read_passphrase(arguments, &passphrase, err) < 0)
		return -1;
	options.passphrase = passphrase;
	if (pulls)
		options.reference = source;
	else if (str_equal(source, "-"))
		options.source = read_stdin;
	else
		options.path = source;
	if (interrupt_hold(err) < 0)
		return -1;
	showing.progress = progress_begin("%s %s", showing.verb, source);
	int result = template || arguments->disk_only ? take_template(cli, &options, &showing, err)
						      : take_snapshot(cli, &options, &showing, err);
	return result < 0 && interrupt_seen() ? husk_fail(err, HUSK_GONE, "interrupted") : result;
}

static int snapshot_import_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)argc;
	return take_in(cli, data, false, false, argv[0], err);
}

static int template_import_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)argc;
	return take_in(cli, data, true, false, argv[0], err);
}

static int snapshot_pull_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)argc;
	return take_in(cli, data, false, true, argv[0], err);
}

static int template_pull_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)argc;
	return take_in(cli, data, true, true, argv[0], err);
}

/* ---- push ---- */

typedef int (*push_fn)(struct husk *husk, const char *name, const char *reference,
		       const struct husk_export_options *options, struct husk_pushed **out, struct husk_error *err);

static int show_pushed(struct cli *cli, const struct husk_pushed *pushed, int64_t started, struct husk_error *err)
{
	char took[32], sent[32], all[32];

	if (cli->json)
		return output_json(json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "name", pushed->name, "digest",
					     pushed->digest, "chunks", (json_int_t)pushed->chunks, "sent_chunks",
					     (json_int_t)pushed->sent_chunks, "bytes", (json_int_t)pushed->bytes,
					     "sent_bytes", (json_int_t)pushed->sent_bytes),
				   err);
	output_duration(time_monotonic_ms() - started, took, sizeof(took));
	output_size(pushed->sent_bytes, sent, sizeof(sent));
	output_size(pushed->bytes, all, sizeof(all));
	output_note("pushed %s: %zu of %zu chunks, %s of %s, in %s", pushed->name, pushed->sent_chunks, pushed->chunks,
		    sent, all, took);
	puts(pushed->digest);
	return 0;
}

static int push_run(struct cli *cli, const struct portable_arguments *arguments, push_fn push, char **argv,
		    struct husk_error *err)
{
	struct showing showing = { .verb = "pushing" };
	const struct husk_export_options options = { .files = arguments->files,
						     .progress = show_progress,
						     .data = &showing };
	struct husk_pushed *pushed = NULL;
	int64_t started = time_monotonic_ms();

	if (interrupt_hold(err) < 0)
		return -1;
	showing.progress = progress_begin("pushing %s", argv[0]);
	int result = push(cli->husk, argv[0], argv[1], &options, &pushed, err);
	progress_end(&showing.progress);
	if (result == 0)
		result = show_pushed(cli, pushed, started, err);
	husk_pushed_free(pushed);
	return result;
}

static int snapshot_push_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)argc;
	return push_run(cli, data, husk_snapshot_push, argv, err);
}

static int template_push_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)argc;
	return push_run(cli, data, husk_template_push, argv, err);
}

/* ---- the commands ---- */

#define COMMAND(variable, words, names, text, more, specs, count, function)                                            \
	const struct cli_command variable = {                                                                          \
		.name = words,                                                                                         \
		.operands = names,                                                                                     \
		.summary = text,                                                                                       \
		.details = more,                                                                                       \
		.groups = { { specs, 0 } },                                                                            \
		.arguments_size = sizeof(struct portable_arguments),                                                   \
		.min = count,                                                                                          \
		.max = count,                                                                                          \
		.run = function,                                                                                       \
	}

#define TRAVELS                                                                                                        \
	"Exports memory, processes, disk and the root image of its template. Secrets, values of environment "          \
	"variables\n"                                                                                                  \
	"and volumes are not exported; data in the memory of a process is. The export is signed with the key of "      \
	"this\n"                                                                                                       \
	"instance (husk key show).\n"
#define TAKES                                                                                                          \
	"A key that is trusted here (husk key trust) must have signed it. If this host cannot continue it, the "       \
	"error\n"                                                                                                      \
	"names what is missing.\n"

COMMAND(cli_snapshot_export, "snapshot export", "SNAPSHOT FILE|-", "Write a snapshot into a file, for another host",
	TRAVELS, snapshot_out_options, 2, snapshot_export_run);
COMMAND(cli_snapshot_import, "snapshot import", "FILE|-", "Import a snapshot from a file", TAKES, snapshot_file_options,
	1, snapshot_import_run);
COMMAND(cli_snapshot_push, "snapshot push", "SNAPSHOT REGISTRY/NAME:TAG",
	"Send a snapshot to a registry, without the chunks that it already has", TRAVELS, out_options, 2,
	snapshot_push_run);
COMMAND(cli_snapshot_pull, "snapshot pull", "REGISTRY/NAME:TAG", "Import a snapshot from a registry", TAKES,
	snapshot_in_options, 1, snapshot_pull_run);
COMMAND(cli_template_export, "template export", "TEMPLATE FILE|-", "Write a template into a file, for another host",
	NULL, template_out_options, 2, template_export_run);
COMMAND(cli_template_import, "template import", "FILE|-", "Import a template from a file, instead of building it",
	TAKES, template_file_options, 1, template_import_run);
COMMAND(cli_template_push, "template push", "TEMPLATE REGISTRY/NAME:TAG", "Send a template to a registry", NULL, NULL,
	2, template_push_run);
COMMAND(cli_template_pull, "template pull", "REGISTRY/NAME:TAG",
	"Import a template from a registry, instead of building it", TAKES, template_in_options, 1, template_pull_run);
