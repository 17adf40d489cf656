/*
 * From the arguments of an EXEC to a running process: user, environment, terminal or pipes, start. Called by the EXEC
 * method in attach.c. Whatever fails here must leave no descriptor and no child behind.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include "agent/environment.h"
#include "agent/process.h"
#include "agent/spawn.h"

/* What a start needs beyond the process itself: gone once it runs. */
struct launch {
	char **argv;
	char **pairs;
	char **environment;
	char *cwd;
	struct user user;
	int64_t timeout_ms;
	int child
		[3]; /* the child's ends; -1: the agent's own, /dev/null. With a terminal all are the same descriptor */
	int agent[3]; /* ours */
};

static void launch_cleanup(struct launch *launch)
{
	for (int i = 0; i < 3; i++) {
		if (launch->child[i] >= 0 && (i == 0 || launch->child[i] != launch->child[0]))
			close(launch->child[i]);
		if (launch->agent[i] >= 0)
			close(launch->agent[i]);
	}
	strv_free(launch->argv);
	strv_free(launch->pairs);
	strv_free(launch->environment);
	free(launch->cwd);
}

static int launch_argv(struct launch *launch, const struct request *request, struct husk_error *err)
{
	struct wire_field field;

	launch->argv = wire_get_strings(request->data, request->size, TAG_ARG);
	if (!launch->argv)
		return husk_fail(err, HUSK_INVALID, "an argument of the command holds a NUL byte");
	if (wire_find(request->data, request->size, TAG_SHELL, &field)) {
		cleanup_free char *line = wire_get_string(request->data, request->size, TAG_SHELL);
		if (!line)
			return husk_fail(err, HUSK_INVALID, "the shell command holds a NUL byte");
		if (launch->argv[0])
			return husk_fail(err, HUSK_INVALID, "give a command or a shell string, not both");
		if (strv_add(&launch->argv, "/bin/sh") < 0 || strv_add(&launch->argv, "-c") < 0 ||
		    strv_add(&launch->argv, line) < 0)
			return husk_fail_memory(err);
	}
	if (!launch->argv[0] || launch->argv[0][0] == '\0')
		return husk_fail(err, HUSK_INVALID, "the command is empty");
	return 0;
}

/* A string that may be absent, but not broken. */
static int optional_string(const struct request *request, uint16_t tag, const char *what, char **out,
			   struct husk_error *err)
{
	struct wire_field field;

	*out = NULL;
	if (!wire_find(request->data, request->size, tag, &field))
		return 0;
	*out = wire_get_string(request->data, request->size, tag);
	return *out ? 0 : husk_fail(err, HUSK_INVALID, "the %s holds a NUL byte", what);
}

static int launch_parse(const struct agent *agent, struct process *process, struct launch *launch,
			const struct request *request, struct husk_error *err)
{
	cleanup_free char *who = NULL;
	int64_t rows = request_int(request, TAG_ROWS, 0), columns = request_int(request, TAG_COLUMNS, 0);

	if (launch_argv(launch, request, err) < 0 || optional_string(request, TAG_USER, "user", &who, err) < 0 ||
	    optional_string(request, TAG_CWD, "working directory", &launch->cwd, err) < 0 ||
	    optional_string(request, TAG_NAME, "label", &process->name, err) < 0 ||
	    user_lookup(who, &launch->user, err) < 0)
		return -1;
	if (launch->cwd && launch->cwd[0] != '/')
		return husk_fail(err, HUSK_INVALID, "working directory '%s' is not absolute; begin it with /",
				 launch->cwd);
	if ((rows || columns) && (rows < 1 || rows > UINT16_MAX || columns < 1 || columns > UINT16_MAX))
		return husk_fail(err, HUSK_INVALID, "a terminal of %lld rows and %lld columns", (long long)rows,
				 (long long)columns);
	process->terminal = rows != 0;
	process->rows = (uint16_t)rows;
	process->columns = (uint16_t)columns;
	process->flags = request_int(request, TAG_FLAGS, 0);
	launch->timeout_ms = request_int(request, TAG_TIMEOUT_MS, 0);
	if (launch->timeout_ms < 0 || launch->timeout_ms > INT64_MAX / 2)
		return husk_fail(err, HUSK_INVALID, "timeout of %lld ms; give 0 or more",
				 (long long)launch->timeout_ms);
	launch->pairs = wire_get_strings(request->data, request->size, TAG_ENV);
	if (!launch->pairs)
		return husk_fail(err, HUSK_INVALID, "an environment variable holds a NUL byte");
	if (environment_check(launch->pairs, err) < 0)
		return -1;
	launch->environment = environment_build(agent, &launch->user, launch->pairs, process->terminal, err);
	return launch->environment ? 0 : -1;
}

static int launch_terminal(const struct process *process, struct launch *launch, struct husk_error *err)
{
	const struct winsize size = { .ws_row = process->rows, .ws_col = process->columns };
	char path[64];
	int number, unlock = 0;

	int master = launch->agent[0] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) < 0 || ioctl(master, TIOCGPTN, &number) < 0 ||
	    ioctl(master, TIOCSWINSZ, &size) < 0)
		return husk_fail_errno(err, "cannot make a terminal");
	snprintf(path, sizeof(path), "/dev/pts/%d", number);
	int slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0)
		return husk_fail_errno(err, "cannot open terminal '%s'", path);
	launch->child[0] = launch->child[1] = launch->child[2] = slave;
	if (launch->user.uid != 0 && fchown(slave, launch->user.uid, (gid_t)-1) < 0)
		log_line(LOG_WARN, "terminal '%s' stays root's: %s", path, strerror(errno));
	/* Reading and writing are two entries in the loop, and an entry is a descriptor. */
	launch->agent[1] = fcntl(master, F_DUPFD_CLOEXEC, 3);
	return launch->agent[1] < 0 ? husk_fail_errno(err, "cannot make a terminal") : 0;
}

static int launch_pipes(const struct process *process, struct launch *launch, struct husk_error *err)
{
	int ends[2];

	for (int i = process->flags & EXEC_STDIN ? 0 : 1; i < 3; i++) {
		if (pipe2(ends, O_CLOEXEC) < 0)
			return husk_fail_errno(err, "cannot make a pipe");
		launch->child[i] = ends[i == 0 ? 0 : 1];
		launch->agent[i] = ends[i == 0 ? 1 : 0];
	}
	return 0;
}

/* Hands our ends to the process. On failure what was handed over is the process's to close. */
static int launch_watch(struct agent *agent, struct process *process, struct launch *launch, struct husk_error *err)
{
	struct source *sources[3] = { &process->input, &process->output[0].source, &process->output[1].source };

	for (int i = 0; i < 3; i++) {
		if (launch->agent[i] < 0)
			continue;
		if (source_open(agent, sources[i], launch->agent[i], (i == 0 ? EPOLLOUT : EPOLLIN) | EPOLLET, err) < 0)
			return -1;
		launch->agent[i] = -1;
	}
	process->input.writable = process->input.fd >= 0;
	return 0;
}

/* The program did not start: the caller sees a process that said why and ended, as a shell would show it. */
static void process_failed_to_start(struct process *process, const struct spawn *spawn)
{
	cleanup_free char *text =
		str_format("husk: %s: %s\n", spawn->argv[0],
			   spawn->outcome == SPAWN_NOT_FOUND && !strchr(spawn->argv[0], '/') ? "command not found"
											     : strerror(spawn->error));

	if (text)
		ring_append(&process->output[process->terminal ? 0 : 1].ring, text, strlen(text));
}

static int launch_start(struct agent *agent, struct process *process, struct launch *launch, struct husk_error *err)
{
	const char *path = environment_get(launch->environment, "PATH");
	struct spawn start = {
		.argv = launch->argv,
		.environment = launch->environment,
		.path = path ? path : "/usr/bin:/bin",
		.directory = launch->cwd ? launch->cwd : launch->user.home,
		.directory_must = launch->cwd != NULL,
		.user = &launch->user,
		.stdio = { launch->child[0], launch->child[1], launch->child[2] },
		.terminal = process->terminal,
		.group_tasks = agent->group_tasks,
	};

	process->cwd = strdup(start.directory);
	process->user = strdup(launch->user.name);
	if (!process->cwd || !process->user)
		return husk_fail_memory(err);
	process->started_ms = time_wall_ms();
	process->started_us = time_monotonic_us();
	process->pid = spawn(&start);
	if (process->pid < 0 && (errno == EAGAIN || errno == ENOMEM))
		return husk_fail(err, HUSK_LIMIT, "cannot start '%s': no room for another process", launch->argv[0]);
	if (process->pid < 0)
		return husk_fail_errno(err, "cannot start '%s'", launch->argv[0]);
	errno = start.error;
	if (start.outcome == SPAWN_DIRECTORY)
		return husk_fail_errno(err, "cannot start '%s' in '%s'", launch->argv[0], start.directory);
	if (start.outcome == SPAWN_FAILED)
		return husk_fail_errno(err, "cannot start '%s' as user '%s'", launch->argv[0], launch->user.name);
	if (start.outcome != SPAWN_STARTED)
		process_failed_to_start(process, &start);
	/* Also for a program that could not be executed: its child's exit status (126, 127) arrives as any other. */
	process->running = true;
	if (launch->timeout_ms > 0)
		process->deadline_ms = time_monotonic_ms() + launch->timeout_ms;
	process->argv = steal_pointer(launch->argv);
	return 0;
}

/* A pid that comes round again belongs to the new process. */
static void process_enter(struct agent *agent, struct process *process)
{
	struct process *old = process_find(agent, process->pid);
	struct process **at = &agent->processes;

	if (old)
		old->forgotten = true;
	while (*at)
		at = &(*at)->next;
	*at = process;
}

struct process *process_start(struct agent *agent, const struct request *request, struct husk_error *err)
{
	cleanup(launch_cleanup) struct launch launch = { .child = { -1, -1, -1 }, .agent = { -1, -1, -1 } };
	struct process *process = calloc(1, sizeof(*process));

	if (!process) {
		husk_fail_memory(err);
		return NULL;
	}
	process->input.fd = process->output[0].source.fd = process->output[1].source.fd = -1;
	if (launch_parse(agent, process, &launch, request, err) == 0 &&
	    (process->terminal ? launch_terminal : launch_pipes)(process, &launch, err) == 0 &&
	    launch_start(agent, process, &launch, err) == 0) {
		/* After the start, since the new program is busy with itself meanwhile: a system call costs up to 0.1 ms. */
		if (launch_watch(agent, process, &launch, err) == 0) {
			process_enter(agent, process);
			return process;
		}
		kill(-process->pid, SIGKILL);
	}
	process_free(agent, process);
	return NULL;
}
