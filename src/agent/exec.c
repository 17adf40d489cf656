/*
 * METHOD_EXEC: turns the arguments of a call into a running process (user, environment, terminal or pipes), and attaches
 * the channel to the process (attach.c) unless the caller detaches. A failure must leave no descriptor and no child behind.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include "agent/attach.h"
#include "agent/environment.h"
#include "agent/image.h"
#include "agent/process.h"
#include "agent/spawn.h"

/* What is needed to start a process and is freed after the start. */
struct launch {
	char **argv;
	char **pairs;
	char **environment;
	char *cwd;
	struct user user;
	int64_t timeout_ms;
	int child[3]; /* the child's ends; -1: the agent's /dev/null. A terminal is all three */
	int agent[3]; /* the agent's ends */
};

static void launch_cleanup(struct launch *launch)
{
	for (int i = 2; i >= 0; i--) { /* the first one last: all three may be the same */
		if (i == 0 || launch->child[i] != launch->child[0])
			fd_close(&launch->child[i]);
		fd_close(&launch->agent[i]);
	}
	strv_free(launch->argv);
	strv_free(launch->pairs);
	strv_free(launch->environment);
	free(launch->cwd);
}

/* The argument vector of the image's own command. */
static int launch_image(const struct agent *agent, struct launch *launch, struct husk_error *err)
{
	for (char **word = agent->image.argv; *word; word++)
		if (strv_add(&launch->argv, *word) < 0)
			return husk_fail_memory(err);
	return 0;
}

static int launch_argv(const struct agent *agent, struct launch *launch, const struct request *request,
		       struct husk_error *err)
{
	cleanup_free char *line = NULL;
	bool of_image = (request_int(request, TAG_FLAGS, 0) & EXEC_IMAGE) != 0;

	if (of_image && agent->image.argv)
		return launch_image(agent, launch, err);
	launch->argv = request_strings(request, TAG_ARG, err);
	if (!launch->argv || request_string(request, TAG_SHELL, &line, err) < 0)
		return -1;
	if (line) {
		if (launch->argv[0])
			return husk_fail(err, HUSK_INVALID, "give a command or a shell string, not both");
		if (strv_add(&launch->argv, "/bin/sh") < 0 || strv_add(&launch->argv, "-c") < 0 ||
		    strv_add(&launch->argv, line) < 0)
			return husk_fail_memory(err);
	}
	if (!launch->argv[0] || launch->argv[0][0] == '\0')
		return husk_fail(err, HUSK_INVALID, "the command is %s",
				 of_image ? "missing, and what the sandbox was made from names none" : "empty");
	return 0;
}

static int launch_parse(const struct agent *agent, struct process *process, struct launch *launch,
			const struct request *request, struct husk_error *err)
{
	cleanup_free char *who = NULL;
	int64_t rows = request_int(request, TAG_ROWS, 0), columns = request_int(request, TAG_COLUMNS, 0);

	if (launch_argv(agent, launch, request, err) < 0 || request_string(request, TAG_USER, &who, err) < 0 ||
	    request_string(request, TAG_CWD, &launch->cwd, err) < 0 ||
	    request_string(request, TAG_NAME, &process->name, err) < 0 ||
	    image_user(agent, who, &launch->user, err) < 0)
		return -1;
	if (!rows != !columns)
		return husk_fail(err, HUSK_INVALID, "a terminal needs both rows and columns");
	process->terminal = rows != 0;
	process->rows = (uint16_t)rows;
	process->columns = (uint16_t)columns;
	process->flags = request_int(request, TAG_FLAGS, 0);
	launch->timeout_ms = request_int(request, TAG_TIMEOUT_MS, 0);
	for (int i = 0; i < (process->terminal ? 1 : 2); i++)
		if (ring_keep(&process->output[i].ring, (uint64_t)request_int(request, TAG_KEEP, 0), err) < 0)
			return -1;
	launch->pairs = request_strings(request, TAG_ENV, err);
	if (!launch->pairs)
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
	/* Reading and writing are two entries in the loop, and each entry needs its own descriptor. */
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

/* Hands the agent's ends to the process. After a failure, the process closes those that were handed over. */
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

/* The program did not start: the caller sees a process that wrote the reason and ended, as from a shell. */
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
		.directory = launch->cwd        ? launch->cwd
			     : agent->image.cwd ? agent->image.cwd
						: launch->user.home,
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
	if (start.outcome != SPAWN_STARTED) {
		process->unstarted = start.outcome == SPAWN_NOT_FOUND ? 127 : 126;
		process_failed_to_start(process, &start);
	}
	/* Also for a program that could not be executed: its child ends with 126 or 127 like any other process. */
	process->running = true;
	if (launch->timeout_ms > 0)
		process->deadline_ms = time_monotonic_ms() + launch->timeout_ms;
	process->argv = steal_pointer(launch->argv);
	return 0;
}

/* If the kernel reuses a pid, the pid belongs to the new process. */
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

/* A program that cannot be executed becomes a process that ended with 126 or 127 and wrote the reason to its stderr.
 * NULL means that the call is invalid or a limit was reached. */
static struct process *process_start(struct agent *agent, const struct request *request, struct husk_error *err)
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
		/* After the start, because a system call takes up to 0.1 ms, and the new program is busy with its own
		 * start meanwhile. */
		if (launch_watch(agent, process, &launch, err) == 0) {
			process_enter(agent, process);
			return process;
		}
		kill(-process->pid, SIGKILL);
	}
	process_free(agent, process);
	return NULL;
}

int exec_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	struct process *process = process_start(agent, request, err);

	if (!process)
		return -1;
	if (!(process->flags & EXEC_DETACH))
		return attachment_new(agent, number, process, process->input.fd >= 0, err) ? 0 : -1;
	/* No channel will report its end, so the failed start is reported here, and no entry is kept. */
	process->forgotten = process->unstarted != 0;
	if (wire_put_int(&message, TAG_PID, process->pid) < 0 ||
	    (process->unstarted && wire_put_int(&message, TAG_EXIT_CODE, process->unstarted) < 0))
		return husk_fail_memory(err);
	uplink_send(agent, number, WIRE_MSG, 0, message.data, message.size);
	uplink_end(agent, number, NULL, &message);
	return 0;
}
