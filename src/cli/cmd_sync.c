/*
 * `husk sync`: carries changes between a workspace directory and its sandbox. Names of files come from the guest.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>

#include "cli/cli.h"
#include "cli/interrupt.h"

#define LOOK_US 100000 /* between looks for an interrupt */

struct sync_arguments {
	bool watch;
	const char *conflicts;
	uint64_t limit_bytes;
};

static const char *const conflict_names[] = { "markers", "ours", "theirs", NULL };

static const struct option_spec sync_options[] = {
	OPTION('w', "watch", OPTION_FLAG, struct sync_arguments, watch, NULL, "carry later changes too, until Ctrl-C"),
	OPTION(0, "conflicts", OPTION_CHOICE, struct sync_arguments, conflicts, "HOW",
	       "resolve conflicts: markers in text, ours (the directory's version) or theirs",
	       .choices = conflict_names),
	OPTION(0, "limit", OPTION_SIZE, struct sync_arguments, limit_bytes, "SIZE",
	       "maximum size of the changed files of one round and direction (1G)", .min = MEBIBYTE, .max = TEBIBYTE),
	{ 0 },
};

static void print_json(const struct husk_sync_event *event)
{
	json_t *document = event->path ? json_pack("{s:o, s:s, s:s, s:b, s:o}", "path", json_text0(event->path),
						   "change", husk_change_name(event->kind), "to",
						   event->conflict     ? "neither"
						   : event->to_sandbox ? "sandbox"
								       : "directory",
						   "merged", event->merged, "conflict", json_text0(event->conflict))
				       : json_pack("{s:o}", "note", json_text0(event->note));
	cleanup_free char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;

	json_decref(document);
	if (text)
		printf("%s\n", text);
	fflush(stdout);
}

static void on_event(void *data, const struct husk_sync_event *event)
{
	static const char letters[] = { [HUSK_ADDED] = 'A', [HUSK_REMOVED] = 'D', [HUSK_CHANGED] = 'M' };
	const struct cli *cli = data;

	if (cli->json) {
		print_json(event);
		return;
	}
	if (!event->path) {
		output_note("%s", event->note);
		return;
	}
	if (event->conflict)
		printf("! C ");
	else
		printf("%c %c ", event->to_sandbox ? '>' : '<', event->merged ? 'G' : letters[event->kind]);
	output_safe(stdout, event->path, false);
	if (event->conflict)
		printf(" (%s)", event->conflict);
	putchar('\n');
	fflush(stdout);
}

/* Tells the sync of an interrupt: a handler of signals cannot, and a second interrupt must end husk at once. */
struct lookout {
	pthread_t thread;
	int fd;
	atomic_bool done;
};

static void *lookout_main(void *data)
{
	struct lookout *lookout = data;

	while (!atomic_load(&lookout->done) && !interrupt_seen())
		usleep(LOOK_US);
	eventfd_write(lookout->fd, 1);
	return NULL;
}

static int sync_watched(struct cli *cli, const char *sandbox, struct husk_sync_options *options, struct husk_error *err)
{
	struct lookout lookout = { .fd = eventfd(0, EFD_CLOEXEC) };
	cleanup_close int fd = lookout.fd;

	if (fd < 0)
		return husk_fail_errno(err, "cannot wait for an interrupt");
	options->stop_fd = fd;
	if (interrupt_hold(err) < 0)
		return -1;
	errno = pthread_create(&lookout.thread, NULL, lookout_main, &lookout);
	if (errno)
		return husk_fail_errno(err, "cannot start a thread");
	int result = husk_workspace_sync(cli->husk, sandbox, options, NULL, err);
	atomic_store(&lookout.done, true);
	pthread_join(lookout.thread, NULL);
	/* The first interrupt ends the programs that a round waits for, and the round with them: nothing is half-done. */
	return interrupt_seen() ? 0 : result;
}

static int sync_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct sync_arguments *arguments = data;
	struct husk_sync_options options = { .watch = arguments->watch,
					     .conflicts = arguments->conflicts,
					     .limit_bytes = arguments->limit_bytes,
					     .report = on_event,
					     .stop_fd = -1,
					     .data = cli };
	size_t conflicts = 0;

	(void)argc;
	if (arguments->watch)
		return sync_watched(cli, argv[0], &options, err);
	if (husk_workspace_sync(cli->husk, argv[0], &options, &conflicts, err) < 0)
		return -1;
	if (conflicts)
		output_note("%zu conflict%s; both sides keep their version (--conflicts markers, ours or theirs "
			    "resolves them)",
			    conflicts, conflicts == 1 ? "" : "s");
	return conflicts ? EXIT_FAILED : 0;
}

const struct cli_command cli_sync = {
	.name = "sync",
	.operands = "SANDBOX",
	.summary = "Carry changes between your workspace directory and the sandbox, both ways",
	.details = "> went into the sandbox, < came from it, ! is a conflict, which changes neither side. A is added, "
		   "M changed,\n"
		   "D removed, G changed on both sides and merged. Files that git ignores and .git are not carried. "
		   "Nothing of the\n"
		   "host is mounted. With conflicts the exit status is 1.\n",
	.groups = { { sync_options, 0 } },
	.arguments_size = sizeof(struct sync_arguments),
	.min = 1,
	.max = 1,
	.run = sync_run,
};
