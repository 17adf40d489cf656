/*
 * Commands for existing sandboxes: rm, fork, hibernate, wake, pause, resume, extend, resize. Each is one call of libhusk with a
 * progress line. An interrupted fork leaves no children behind.
 */
#include <pthread.h>

#include "cli/cli.h"
#include "cli/interrupt.h"

/* ---- hibernate, wake, pause, resume ---- */

typedef int (*lifecycle_call)(struct husk *husk, const char *sandbox, struct husk_error *err);

static int lifecycle(struct cli *cli, const char *name, const char *doing, lifecycle_call call, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	struct progress *progress = progress_begin("%s %s", doing, name);
	int64_t started = time_monotonic_ms();
	int status = call(cli->husk, name, err);

	progress_end(&progress);
	if (status < 0 || husk_inspect(cli->husk, name, &sandbox, err) < 0)
		return -1;
	if (cli->verbose)
		output_note("%s %s took %lld ms", doing, sandbox->id, (long long)(time_monotonic_ms() - started));
	if (cli->json)
		return output_json(json_sandbox(sandbox), err);
	puts(sandbox->id);
	return 0;
}

static int hibernate_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)data, (void)argc;
	return lifecycle(cli, argv[0], "hibernating", husk_hibernate, err);
}

static int wake_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)data, (void)argc;
	return lifecycle(cli, argv[0], "waking", husk_wake, err);
}

static int reboot_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)data, (void)argc;
	return lifecycle(cli, argv[0], "rebooting", husk_reboot, err);
}

static int pause_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)data, (void)argc;
	return lifecycle(cli, argv[0], "pausing", husk_pause, err);
}

static int resume_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)data, (void)argc;
	return lifecycle(cli, argv[0], "resuming", husk_resume, err);
}

/* ---- extend ---- */

struct extend_arguments {
	int64_t ttl_seconds;
	bool persistent;
};

static const struct option_spec extend_options[] = {
	OPTION(0, "ttl", OPTION_SECONDS, struct extend_arguments, ttl_seconds, "TIME", "the same as the operand",
	       .min = 1, .max = INT64_C(365) * 86400),
	OPTION(0, "persistent", OPTION_FLAG, struct extend_arguments, persistent, NULL, "remove its TTL"),
	{ 0 },
};

static int extend_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	struct extend_arguments *arguments = data;
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	int64_t expires_ms = 0;
	char when[25];

	if (argc > 1 && options_seconds("TIME", argv[1], 1, INT64_C(365) * 86400, &arguments->ttl_seconds, err) < 0)
		return -1;
	if ((arguments->ttl_seconds == 0) != arguments->persistent)
		return husk_fail(err, HUSK_INVALID, "extend needs a time, as in husk extend %s 2h, or --persistent",
				 argv[0]);
	if (husk_extend(cli->husk, argv[0], arguments->ttl_seconds, arguments->persistent, &expires_ms, err) < 0)
		return -1;
	if (cli->json) {
		if (husk_inspect(cli->husk, argv[0], &sandbox, err) < 0)
			return -1;
		return output_json(json_sandbox(sandbox), err);
	}
	if (arguments->persistent) {
		puts("never");
		return 0;
	}
	time_format(expires_ms, when);
	puts(when);
	return 0;
}

/* ---- resize ---- */

struct resize_arguments {
	uint64_t memory_bytes;
	uint32_t cpu_milli;
};

static const struct option_spec resize_options[] = {
	OPTION(0, "memory", OPTION_SIZE, struct resize_arguments, memory_bytes, "SIZE", "memory limit",
	       .min = 64 * MEBIBYTE, .max = TEBIBYTE),
	OPTION(0, "cpus", OPTION_CPUS, struct resize_arguments, cpu_milli, "N", "CPU limit, may be a fraction",
	       .min = 50, .max = 1024000),
	{ 0 },
};

static int resize_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct resize_arguments *arguments = data;
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	(void)argc;
	if (!arguments->memory_bytes && !arguments->cpu_milli)
		return husk_fail(err, HUSK_INVALID, "resize needs a limit, as in husk resize %s --memory 2G --cpus 4",
				 argv[0]);
	if (husk_resize(cli->husk, argv[0], arguments->cpu_milli, arguments->memory_bytes, err) < 0 ||
	    husk_inspect(cli->husk, argv[0], &sandbox, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_sandbox(sandbox), err);
	puts(sandbox->id);
	return 0;
}

/* ---- rm ---- */

struct rm_arguments {
	bool all, force;
};

static const struct option_spec rm_options[] = {
	OPTION('a', "all", OPTION_FLAG, struct rm_arguments, all, NULL, "every sandbox of this instance"),
	OPTION('f', "force", OPTION_FLAG, struct rm_arguments, force, NULL, "ignore a sandbox that does not exist"),
	{ 0 },
};

static int rm_tell(const struct cli *cli, const struct husk_sandbox *sandbox, json_t *removed, struct husk_error *err)
{
	if (!cli->json)
		puts(sandbox->id);
	if (json_array_append_new(removed, json_pack("{s:s, s:b}", "id", sandbox->id, "removed", true)) < 0)
		return husk_fail_memory(err);
	return 0;
}

static int rm_named(struct cli *cli, const char *name, json_t *removed, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	if (husk_inspect(cli->husk, name, &sandbox, err) < 0)
		return -1;
	return husk_kill(cli->husk, sandbox->id, err) < 0 ? -1 : rm_tell(cli, sandbox, removed, err);
}

/* A failure does not stop the loop: each failure is printed, and the last one decides the exit status. */
static int rm_each(struct cli *cli, char *const *names, bool force, json_t *removed, struct husk_error *err)
{
	int status = 0;

	for (; *names; names++) {
		struct husk_error failure = { 0 };
		if (rm_named(cli, *names, removed, &failure) == 0)
			continue;
		if (force && (failure.code == HUSK_NOT_FOUND || failure.code == HUSK_GONE))
			continue;
		if (status < 0)
			output_error(err->message);
		*err = failure;
		status = -1;
	}
	return status;
}

#define RM_THREADS 8 /* an end mostly waits: for processes to die, for mounts to go */

struct rm_crowd {
	struct cli *cli;
	struct husk_sandbox **list;
	json_t *removed;
	pthread_mutex_t lock; /* guards the fields below, and the output */
	size_t next;
	struct husk_error failure; /* the last one */
};

static void *rm_some(void *data)
{
	struct rm_crowd *crowd = data;

	for (;;) {
		struct husk_error err = { 0 };

		pthread_mutex_lock(&crowd->lock);
		const struct husk_sandbox *sandbox = crowd->list[crowd->next];
		crowd->next += sandbox != NULL;
		pthread_mutex_unlock(&crowd->lock);
		if (!sandbox)
			return NULL;
		int status = husk_kill(crowd->cli->husk, sandbox->id, &err);
		pthread_mutex_lock(&crowd->lock);
		if (status == 0)
			status = rm_tell(crowd->cli, sandbox, crowd->removed, &err);
		/* a sandbox that ended by itself meanwhile is no failure */
		if (status < 0 && err.code != HUSK_GONE && err.code != HUSK_NOT_FOUND)
			crowd->failure = err;
		pthread_mutex_unlock(&crowd->lock);
	}
}

/* A failure does not stop the others: the last failure is reported. */
static int rm_all(struct cli *cli, json_t *removed, struct husk_error *err)
{
	const struct husk_filter live = { .with_builds = true };
	cleanup_sandboxes struct husk_sandbox **list = NULL;
	cleanup_progress struct progress *progress = progress_begin("removing all sandboxes");
	struct rm_crowd crowd = { .cli = cli, .removed = removed, .lock = PTHREAD_MUTEX_INITIALIZER };
	pthread_t threads[RM_THREADS];
	size_t started = 0;

	if (husk_list(cli->husk, &live, &list, err) < 0)
		return -1;
	crowd.list = list;
	while (started < RM_THREADS && list[started] && pthread_create(&threads[started], NULL, rm_some, &crowd) == 0)
		started++;
	rm_some(&crowd); /* also if no thread could be started */
	while (started > 0)
		pthread_join(threads[--started], NULL);
	husk_pool_drain(cli->husk); /* nothing should be left running */
	if (!crowd.failure.code)
		return 0;
	*err = crowd.failure;
	return -1;
}

static int rm_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct rm_arguments *arguments = data;
	cleanup_json json_t *removed = json_array();

	if (!removed)
		return husk_fail_memory(err);
	if (arguments->all ? argc > 0 : argc == 0)
		return husk_fail(err, HUSK_INVALID, "rm needs sandboxes or --all, one of the two (husk ls)");
	int status = arguments->all ? rm_all(cli, removed, err) : rm_each(cli, argv, arguments->force, removed, err);
	if (cli->json && output_json(json_incref(removed), err) < 0)
		return -1;
	return status;
}

/* ---- fork ---- */

struct fork_arguments {
	struct create_arguments create;
	int64_t count;
};

static const struct option_spec fork_options[] = {
	OPTION('n', "count", OPTION_INTEGER, struct fork_arguments, count, "N", "how many children (1)", .min = 1,
	       .max = 1024),
	{ 0 },
};

static int fork_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct fork_arguments *arguments = data;
	size_t count = arguments->count ? (size_t)arguments->count : 1;
	cleanup_sandboxes struct husk_sandbox **children = NULL;
	cleanup(egress_given_free) struct egress_given egress = { 0 };
	struct husk_create_options options;

	(void)argc;
	if (arguments->create.name && count > 1)
		return husk_fail(err, HUSK_INVALID, "--name: %zu children cannot share one name; leave it out, or -n 1",
				 count);
	if (create_fill(&arguments->create, &egress, &options, err) < 0 || interrupt_hold(err) < 0)
		return -1;
	struct progress *progress = progress_begin("forking %s", argv[0]);
	int64_t started = time_monotonic_ms();
	int status = husk_fork(cli->husk, argv[0], count, &options, &children, err);
	progress_end(&progress);
	if (status < 0)
		return -1;
	if (interrupt_seen()) {
		for (size_t i = 0; children[i]; i++)
			husk_kill(cli->husk, children[i]->id, NULL);
		return husk_fail(err, HUSK_GONE, "interrupted; the children were removed again");
	}
	if (cli->verbose)
		output_note("fork into %zu took %lld ms", count, (long long)(time_monotonic_ms() - started));
	if (cli->json)
		return output_json(json_sandbox_list(children), err);
	for (size_t i = 0; children[i]; i++)
		puts(children[i]->id);
	return 0;
}

const struct cli_command cli_hibernate = {
	.name = "hibernate",
	.operands = "SANDBOX",
	.summary = "Write a sandbox to disk and end all of its processes on the host",
	.min = 1,
	.max = 1,
	.run = hibernate_run,
};

const struct cli_command cli_wake = {
	.name = "wake",
	.operands = "SANDBOX",
	.summary = "Restore a hibernated sandbox; every process continues",
	.min = 1,
	.max = 1,
	.run = wake_run,
};

const struct cli_command cli_reboot = {
	.name = "reboot",
	.operands = "SANDBOX",
	.summary = "Start a sandbox anew with its files; its processes and memory are lost",
	.min = 1,
	.max = 1,
	.run = reboot_run,
};

const struct cli_command cli_pause = {
	.name = "pause",
	.operands = "SANDBOX",
	.summary = "Stop a sandbox in memory",
	.min = 1,
	.max = 1,
	.run = pause_run,
};

const struct cli_command cli_resume = {
	.name = "resume",
	.operands = "SANDBOX",
	.summary = "Continue a paused sandbox",
	.min = 1,
	.max = 1,
	.run = resume_run,
};

const struct cli_command cli_extend = {
	.name = "extend",
	.operands = "SANDBOX TIME",
	.summary = "Set a new TTL, counted from now",
	.groups = { { extend_options, 0 } },
	.arguments_size = sizeof(struct extend_arguments),
	.min = 1,
	.max = 2,
	.run = extend_run,
};

const struct cli_command cli_resize = {
	.name = "resize",
	.operands = "SANDBOX",
	.summary = "Change the memory and CPU limits of a sandbox",
	.groups = { { resize_options, 0 } },
	.arguments_size = sizeof(struct resize_arguments),
	.min = 1,
	.max = 1,
	.run = resize_run,
};

const struct cli_command cli_rm = {
	.name = "rm",
	.operands = "SANDBOX…",
	.summary = "Remove sandboxes",
	.groups = { { rm_options, 0 } },
	.arguments_size = sizeof(struct rm_arguments),
	.max = -1,
	.run = rm_run,
};

const struct cli_command cli_fork = {
	.name = "fork",
	.operands = "SANDBOX",
	.summary = "Make independent copies of a running sandbox, with memory and disk",
	.details = "All children start from one moment of the parent, which keeps running. Options that are not given "
		   "are inherited.\n",
	.groups = { { fork_options, 0 },
		    { limit_options, offsetof(struct fork_arguments, create) },
		    { egress_options, offsetof(struct fork_arguments, create.egress) } },
	.arguments_size = sizeof(struct fork_arguments),
	.min = 1,
	.max = 1,
	.run = fork_run,
};
