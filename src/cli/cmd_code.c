/*
 * `husk code`: runs code in a context that keeps its state between calls, in an existing sandbox or in one made for
 * this call only (-t TEMPLATE), which is always removed again. Output appears as it arrives; code_result.c saves rich
 * results (figures, HTML).
 */
#include "cli/code_result.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "cli/interrupt.h"

#define CODE_MAX (64u << 20)

struct code_arguments {
	struct create_arguments create;
	const char *language, *context, *file, *cwd, *output_dir;
	int64_t timeout_ms;
	bool list, restart, remove;
};

static const char *const languages[] = { "python", "javascript", "typescript", "bash", "r", "java", NULL };

static const struct option_spec code_options[] = {
	OPTION('l', "language", OPTION_CHOICE, struct code_arguments, language, "NAME",
	       "python (default), javascript, typescript, bash, r or java", .choices = languages),
	OPTION('c', "context", OPTION_STRING, struct code_arguments, context, "NAME", "the context to use (default)"),
	OPTION('f', "file", OPTION_STRING, struct code_arguments, file, "FILE",
	       "read the code from a file; - is stdin"),
	OPTION('w', "cwd", OPTION_STRING, struct code_arguments, cwd, "PATH", "where the context starts"),
	OPTION(0, "timeout", OPTION_MILLISECONDS, struct code_arguments, timeout_ms, "TIME",
	       "interrupt it after this time; exit status 124", .min = 1, .max = INT64_C(365) * 86400000),
	OPTION('o', "output-dir", OPTION_STRING, struct code_arguments, output_dir, "DIR",
	       "save figures and other rich results there"),
	OPTION(0, "list", OPTION_FLAG, struct code_arguments, list, NULL, "list the contexts of the sandbox"),
	OPTION(0, "restart", OPTION_FLAG, struct code_arguments, restart, NULL,
	       "restart the context; its state is lost"),
	OPTION(0, "rm", OPTION_FLAG, struct code_arguments, remove, NULL, "end the context"),
	{ 0 },
};

/* ---- the code ---- */

static char *read_stream(FILE *file, const char *name, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	char chunk[65536];
	size_t size;

	while ((size = fread(chunk, 1, sizeof(chunk), file)) > 0) {
		if (text.size + size > CODE_MAX) {
			husk_fail(err, HUSK_INVALID, "'%s' is more than 64 MiB of code", name);
			return NULL;
		}
		if (buf_append(&text, chunk, size) < 0) {
			husk_fail_memory(err);
			return NULL;
		}
	}
	if (ferror(file)) {
		husk_fail_errno(err, "cannot read '%s'", name);
		return NULL;
	}
	if (text.size && strlen(text.data) != text.size) {
		husk_fail(err, HUSK_INVALID, "'%s' holds a NUL byte, so it is not source code", name);
		return NULL;
	}
	return buf_steal(&text);
}

/* From the operand, a file, or stdin. */
static char *read_code(const struct code_arguments *arguments, const char *operand, struct husk_error *err)
{
	if (operand && arguments->file) {
		husk_fail(err, HUSK_INVALID, "the code is given twice, as an argument and as --file %s",
			  arguments->file);
		return NULL;
	}
	if (operand && !str_equal(operand, "-")) {
		char *code = strdup(operand);
		if (!code)
			husk_fail_memory(err);
		return code;
	}
	if (!arguments->file || str_equal(arguments->file, "-")) {
		if (isatty(STDIN_FILENO))
			output_note("type the code; Ctrl-D runs it");
		return read_stream(stdin, "stdin", err);
	}
	cleanup_file FILE *file = fopen(arguments->file, "re");
	if (!file) {
		husk_fail_errno(err, "cannot open '%s'", arguments->file);
		return NULL;
	}
	return read_stream(file, arguments->file, err);
}

/* ---- Ctrl-C ---- */

/* husk_code_run blocks and does not handle signals; a thread handles them meanwhile. */
struct watcher {
	struct cli *cli;
	const char *sandbox;
	const struct husk_code_options *code;
	bool throwaway;
	int stop;
	int signal; /* the one that interrupted */
	pthread_t thread;
};

static void interrupt_context(const struct watcher *watcher)
{
	struct husk_code_context *list = NULL;
	size_t count = 0;

	if (husk_code_contexts(watcher->cli->husk, watcher->sandbox, &list, &count, NULL) < 0)
		return;
	for (size_t i = 0; i < count; i++)
		if (str_equal(list[i].name, watcher->code->context) &&
		    str_equal(list[i].language, watcher->code->language))
			husk_process_kill(watcher->cli->husk, watcher->sandbox, list[i].pid, SIGINT, NULL);
	husk_code_context_list_free(list, count);
}

static void *watcher_main(void *data)
{
	struct watcher *watcher = data;
	struct pollfd fds[2] = { { .fd = interrupt_fd(), .events = POLLIN },
				 { .fd = watcher->stop, .events = POLLIN } };

	for (;;) {
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			return NULL;
		if (fds[1].revents & POLLIN)
			return NULL;
		int signal = fds[0].revents & POLLIN ? interrupt_take() : 0;
		if (signal == 0 || signal == SIGWINCH)
			continue;
		if (watcher->signal && !watcher->throwaway)
			_exit(EXIT_SIGNAL_BASE + signal);
		watcher->signal = signal;
		if (watcher->throwaway)
			husk_kill(watcher->cli->husk, watcher->sandbox, NULL);
		else
			interrupt_context(watcher);
	}
}

static int watcher_start(struct watcher *watcher, struct husk_error *err)
{
	if (interrupt_forward(true, err) < 0)
		return -1;
	watcher->stop = eventfd(0, EFD_CLOEXEC);
	if (watcher->stop < 0)
		return husk_fail_errno(err, "cannot make an eventfd");
	errno = pthread_create(&watcher->thread, NULL, watcher_main, watcher);
	return errno ? husk_fail_errno(err, "cannot start a thread") : 0;
}

static void watcher_end(struct watcher *watcher)
{
	eventfd_write(watcher->stop, 1);
	pthread_join(watcher->thread, NULL);
	fd_close(&watcher->stop);
	interrupt_forward(false, NULL);
}

/* ---- running it ---- */

static int code_status(const struct code_view *view, const struct watcher *watcher, bool timed_out)
{
	if (watcher->signal)
		return EXIT_SIGNAL_BASE + watcher->signal;
	if (timed_out)
		return EXIT_TIMED_OUT;
	return view->error ? EXIT_FAILED : 0;
}

static int code_in(struct cli *cli, const struct code_arguments *arguments, const char *sandbox, const char *code,
		   bool throwaway, struct husk_error *err)
{
	const struct husk_code_options options = {
		.language = arguments->language ? arguments->language : "python",
		.context = arguments->context ? arguments->context : "default",
		.code = code,
		.environment = throwaway ? NULL : arguments->create.environment.items,
		.environment_count = throwaway ? 0 : arguments->create.environment.count,
		.cwd = arguments->cwd,
		.timeout_ms = arguments->timeout_ms,
	};
	struct watcher watcher = { .cli = cli, .sandbox = sandbox, .code = &options, .throwaway = throwaway };
	cleanup_code_view struct code_view view = { .json = cli->json, .output_dir = arguments->output_dir };
	bool timed_out = false;

	if (code_view_begin(&view, err) < 0 || watcher_start(&watcher, err) < 0)
		return -1;
	int64_t started = time_monotonic_ms();
	int result = husk_code_run(cli->husk, sandbox, &options, code_view_event, &view, &timed_out, err);
	watcher_end(&watcher);
	if (watcher.signal)
		return EXIT_SIGNAL_BASE + watcher.signal;
	if (result < 0 || code_view_failed(&view, err) < 0)
		return -1;
	if (cli->json) {
		json_t *head = json_pack("{s:s, s:o, s:s, s:b, s:I}", "id", sandbox, "context",
					 json_text0(options.context), "language", options.language, "timed_out",
					 timed_out, "duration_ms", (json_int_t)(time_monotonic_ms() - started));
		if (code_view_json(&view, head, err) < 0)
			return -1;
	} else if (timed_out) {
		output_note("the code was interrupted: it ran longer than its --timeout");
	}
	return code_status(&view, &watcher, timed_out);
}

static int code_throwaway(struct cli *cli, const struct code_arguments *arguments, const char *code,
			  struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	struct husk_error kill_error = { 0 };
	int64_t create_ms = 0;

	if (create_sandbox(cli, &arguments->create, &sandbox, &create_ms, err) < 0)
		return -1;
	int status = code_in(cli, arguments, sandbox->id, code, true, err);
	if (husk_kill(cli->husk, sandbox->id, &kill_error) < 0 && kill_error.code != HUSK_GONE &&
	    kill_error.code != HUSK_NOT_FOUND)
		output_note("sandbox %s could not be removed: %s", sandbox->id, kill_error.message);
	return status;
}

/* ---- contexts ---- */

static int contexts_list(struct cli *cli, const char *sandbox, struct husk_error *err)
{
	static const char *const heading[] = { "CONTEXT", "LANGUAGE", "PID", "CWD" };
	cleanup_table struct table table;
	struct husk_code_context *list = NULL;
	size_t count = 0;

	table_begin(&table, heading, ARRAY_SIZE(heading));
	if (husk_code_contexts(cli->husk, sandbox, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++) {
		table_cell(&table, list[i].name);
		table_cell(&table, list[i].language);
		table_cellf(&table, "%lld", (long long)list[i].pid);
		table_cell(&table, list[i].cwd);
	}
	int status = cli->json ? output_json(json_code_contexts(list, count), err) : table_print(&table, err);
	husk_code_context_list_free(list, count);
	return status;
}

static int context_change(struct cli *cli, const struct code_arguments *arguments, const char *sandbox,
			  struct husk_error *err)
{
	const char *name = arguments->context ? arguments->context : "default";
	/* several languages may have a context of the same name: libhusk accepts "bash:default" to distinguish them */
	cleanup_free char *context =
		arguments->language ? str_format("%s:%s", arguments->language, name) : strdup(name);

	if (!context)
		return husk_fail_memory(err);
	if (arguments->restart && husk_code_restart(cli->husk, sandbox, context, err) < 0)
		return -1;
	if (arguments->remove && husk_code_remove(cli->husk, sandbox, context, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_pack("{s:o, s:s}", "context", json_text0(context), "state",
					     arguments->remove ? "removed" : "restarted"),
				   err);
	return 0;
}

/* ---- the command ---- */

/* Options for a new sandbox have no effect on an existing one, so they are refused. */
static int refuse_create_options(const struct create_arguments *given, struct husk_error *err)
{
	const struct create_arguments *g = given;
	bool any = g->name || g->isolation || g->ttl_seconds || g->idle_seconds || g->pids || g->persistent ||
		   g->memory_bytes || g->disk_bytes || g->cpu_milli || g->metadata.count;

	return any ? husk_fail(err, HUSK_INVALID,
			       "limits and names are for a new sandbox: they need -t TEMPLATE or --from")
		   : 0;
}

static int code_existing(struct cli *cli, const struct code_arguments *arguments, int argc, char **argv,
			 struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	if (argc == 0)
		return husk_fail(err, HUSK_INVALID, "code needs a SANDBOX, or -t TEMPLATE for a throwaway one");
	if (refuse_create_options(&arguments->create, err) < 0)
		return -1;
	if (husk_inspect(cli->husk, argv[0], &sandbox, err) < 0)
		return -1;
	if (arguments->list)
		return contexts_list(cli, sandbox->id, err);
	if (arguments->restart || arguments->remove)
		return context_change(cli, arguments, sandbox->id, err);
	cleanup_free char *code = read_code(arguments, argc > 1 ? argv[1] : NULL, err);
	return code ? code_in(cli, arguments, sandbox->id, code, false, err) : -1;
}

static int code_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct code_arguments *arguments = data;

	if (arguments->list + arguments->restart + arguments->remove > 1)
		return husk_fail(err, HUSK_INVALID, "--list, --restart and --rm exclude each other");
	if (!arguments->create.template && !arguments->create.snapshot)
		return code_existing(cli, arguments, argc, argv, err);
	if (argc > 1)
		return husk_fail(err, HUSK_INVALID,
				 "with -t or --from the sandbox is made for this call: '%s' is one too many", argv[1]);
	if (arguments->list || arguments->restart || arguments->remove)
		return husk_fail(err, HUSK_INVALID,
				 "a throwaway sandbox has no contexts yet: name a SANDBOX instead of -t");
	cleanup_free char *code = read_code(arguments, argc ? argv[0] : NULL, err);
	return code ? code_throwaway(cli, arguments, code, err) : -1;
}

const struct cli_command cli_code = {
	.name = "code",
	.operands = "SANDBOX|-t TEMPLATE [CODE]",
	.summary = "Run a snippet of code in a context that keeps its state",
	.details =
		"The code is CODE, --file or stdin. Prints the output of the code and the value of its last "
		"expression. The exit\n"
		"status is 0, 1 if the code raised an error, 124 if it timed out; 125 means that husk itself failed.\n",
	.groups = { { code_options, 0 },
		    { source_options, offsetof(struct code_arguments, create) },
		    { limit_options, offsetof(struct code_arguments, create) },
		    { egress_options, offsetof(struct code_arguments, create.egress) } },
	.arguments_size = sizeof(struct code_arguments),
	.max = 2,
	.runs_program = true,
	.run = code_run,
};
