/*
 * Shared by the files of the command line: the description of a command (main.c parses its options, opens the instance,
 * runs it and turns its result into an exit status), and helpers that several commands use. The command line uses
 * libhusk through husk.h only.
 */
#ifndef HUSK_CLI_H
#define HUSK_CLI_H

#include "base/base.h"
#include "cli/cmd_egress.h"
#include "cli/options.h"
#include "cli/output.h"
#include "husk.h"
#include "json/owned.h"

/* Exit statuses of husk itself. run, exec, attach and code return the program's status, and 125 for failures of
 * husk. */
enum {
	EXIT_FAILED = 1,
	EXIT_USAGE = 2,
	EXIT_MISSING = 3,
	EXIT_TIMED_OUT = 124,
	EXIT_HUSK = 125,
	EXIT_NOT_EXECUTABLE = 126,
	EXIT_NOT_FOUND = 127,
	EXIT_SIGNAL_BASE = 128,
};

struct cli {
	struct husk *husk; /* open while a command runs, unless it is `offline` */
	const struct cli_command *command;
	bool json, verbose, help;
	const char *host, *ca;      /* --host, --ca */
	struct husk_error settings; /* the error in the machine's settings; code 0: none */
};

struct command_group {
	const struct option_spec *specs;
	size_t offset; /* of their structure inside the command's arguments */
};

struct cli_command {
	const char *name;     /* one word, or two: "snapshot create" */
	const char *operands; /* shown in the usage line */
	const char *summary;
	const char *details; /* more lines of --help; NULL: none */
	struct command_group groups[6];
	size_t arguments_size; /* zeroed, filled from `groups`, passed to `run` */
	int min, max;          /* operands; max -1: any number */
	size_t stop_after;     /* see options_parse: words of the guest's command are not parsed */
	bool runs_program;     /* failures of husk itself exit with 125 */
	bool offline;          /* needs no instance */
	/* Returns the exit status, or -1 with err filled. */
	int (*run)(struct cli *cli, void *arguments, int argc, char **argv, struct husk_error *err);
};

/* The commands, in the order help shows them; ends with NULL. */
extern const struct cli_command *const cli_commands[];

extern const struct cli_command cli_run, cli_create, cli_exec, cli_attach, cli_ps, cli_ls, cli_inspect, cli_rm, cli_cp,
	cli_fork, cli_checkpoint, cli_rewind, cli_promote, cli_effects, cli_history, cli_diff, cli_workspace, cli_apply,
	cli_sync, cli_merge, cli_explore, cli_tree, cli_snapshot_create, cli_snapshot_ls, cli_snapshot_rm,
	cli_volume_create, cli_volume_ls, cli_volume_inspect, cli_volume_rm, cli_volume_files, cli_volume_read,
	cli_volume_write, cli_hibernate, cli_wake, cli_reboot, cli_pause, cli_resume, cli_extend, cli_resize, cli_code,
	cli_desktop, cli_logs, cli_stats, cli_events, cli_template_build, cli_template_ls, cli_template_rm, cli_pull,
	cli_image_ls, cli_image_inspect, cli_image_rm, cli_image_prune, cli_image_export, cli_login, cli_logout,
	cli_build, cli_commit, cli_serve, cli_mcp, cli_mcp_install, cli_mcp_uninstall, cli_port, cli_token_create,
	cli_token_ls, cli_token_rm, cli_egress, cli_context_add, cli_context_use, cli_context_ls, cli_context_rm,
	cli_config_show, cli_doctor, cli_gc, cli_pool_drain, cli_version, cli_completion, cli_uninstall, cli_help;
extern const struct cli_command cli_snapshot_export, cli_snapshot_import, cli_snapshot_push, cli_snapshot_pull,
	cli_template_export, cli_template_import, cli_template_push, cli_template_pull, cli_key_show, cli_key_ls,
	cli_key_trust, cli_key_rm, cli_image_push;

/* ---- the manual (cmd_help.c) ---- */

/* The help page of one command, and the list of all commands. */
void help_command(const struct cli_command *command, FILE *out);
void help_overview(FILE *out);
/* For a new user: three commands to try, and where to find the rest. */
void help_first(FILE *out);
/* Prints the commands that begin with this word ("snapshot"); false: none. */
bool help_family(const char *family, FILE *out);
/* Finds a command by its first words: *words is how many of argv named it. If there is none, the error suggests the
 * nearest. */
int help_find(int argc, char *const *argv, const struct cli_command **out, int *words, struct husk_error *err);
extern const struct option_spec common_options[];

/* ---- servers (cmd_context.c) ---- */

/* Opens the instance given by --host, HUSK_HOST, HUSK_HOME, the current context or the default, in this order. */
int context_open(struct cli *cli, struct husk_error *err);

/* ---- making sandboxes (cmd_create.c) ---- */

struct create_arguments {
	const char *template, *snapshot, *name, *isolation, *on_expiry, *checkpoints;
	int64_t ttl_seconds, idle_seconds, pids;
	bool persistent;
	uint64_t memory_bytes, disk_bytes;
	uint32_t cpu_milli;
	struct pair_list metadata, environment;
	struct string_list volumes; /* NAME:/path, NAME:/path:ro */
	struct egress_arguments egress;
};
extern const struct option_spec source_options[]; /* options for new sandboxes only */
extern const struct option_spec limit_options[];  /* options that a fork has as well */

/* Fills the options; create_fill adds to `egress`, which must live as long as the options. Free it with
 * egress_given_free. */
int create_fill(const struct create_arguments *arguments, struct egress_given *egress, struct husk_create_options *out,
		struct husk_error *err);
/* Creates a sandbox. A bundled template that was never baked is baked first, with progress on stderr. *create_ms is the
 * time of the create alone. If interrupted, nothing is left, and the error says so. */
int create_sandbox(struct cli *cli, const struct create_arguments *arguments, struct husk_sandbox **out,
		   int64_t *create_ms, struct husk_error *err);

/* ---- the network (cmd_egress.c) ---- */

/* What the sandbox was denied since then (see json_denied), as a list for --json; without --json it is printed on
 * stderr. */
json_t *egress_denied(struct cli *cli, const char *sandbox, int64_t since_ms, const char *errors, size_t size);

/* ---- builds (cmd_build.c) ---- */

/* Builds an image and its template from a Dockerfile, with its directory as the context, as `husk build -t NAME` does. */
int build_dockerfile(struct cli *cli, const char *name, const char *file, const char *isolation, const char *warm,
		     struct husk_error *err);

/* ---- templates (cmd_template.c) ---- */

/* Called after husk_create failed with NOT_FOUND. 1: the template was a bundled definition or the name of an image,
 * and is baked now (a missing image is pulled first). 0: the failure had another reason. -1: failed, with a better
 * message. */
int template_ensure(struct cli *cli, const char *name, const char *isolation, struct husk_error *err);
/* Builds the template of a pulled image if it does not exist: 1 if it was built now, 0 if it existed. */
int template_of_image(struct cli *cli, const char *image, const char *isolation, const char *warm,
		      struct husk_error *err);
/* `template rm` and `image rm`: removes each in turn and prints its name; stops at the first failure. */
typedef int (*remove_fn)(struct husk *husk, const char *name, struct husk_error *err);
int remove_each(struct cli *cli, char *const *names, remove_fn remove, struct husk_error *err);
/* Adds the names of all definitions to *out, each once, sorted. */
int template_definitions(char ***out, struct husk_error *err);

/* ---- images of registries (cmd_image.c) ---- */

/* husk_image_pull with progress on stderr, and a line at the end. */
int image_pull(struct cli *cli, const char *name, struct husk_image **out, struct husk_error *err);

#endif
