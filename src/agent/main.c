/*
 * husk-agent, PID 1 of every sandbox. The host talks to the agent over stdin and stdout, or over vsock in a virtual
 * machine; the other files of this folder do the work. When the agent is not PID 1 (in tests), it skips the boot and leaves
 * the machine alone. A child process must never inherit the link.
 */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "agent/agent.h"
#include "agent/environment.h"
#include "agent/image.h"
#include "agent/process.h"
#include "base/log.h"

void agent_die(const char *format, ...)
{
	char text[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	log_line(LOG_ERROR, "%s", text);
	_exit(1);
}

/* Closes other inherited descriptors, because every child would inherit them too. */
static int close_inherited(struct husk_error *err)
{
	if (syscall(SYS_close_range, 3u, (unsigned)INT_MAX, 0u) < 0)
		return husk_fail_errno(err, "cannot close inherited descriptors");
	return 0;
}

/* Moves the link from 0 and 1 to descriptors that no child inherits. */
static int take_link(int *in, int *out, struct husk_error *err)
{
	*in = fcntl(0, F_DUPFD_CLOEXEC, 64);
	*out = fcntl(1, F_DUPFD_CLOEXEC, 64);
	return *in < 0 || *out < 0 ? husk_fail_errno(err, "cannot take the link") : 0;
}

/* /dev/null as stdin of a child without input, instead of the link or a machine's console. */
static int take_null(struct husk_error *err)
{
	cleanup_close int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
		return husk_fail_errno(err, "cannot open /dev/null");
	return 0;
}

/* Set by the handler, read by the loop: waitpid in every turn would cost a system call each. */
static volatile sig_atomic_t child_ended;

static void on_child(int number)
{
	(void)number;
	child_ended = 1;
}

static void on_pipe(int number)
{
	(void)number; /* the failing write reports it */
}

bool agent_take_child_ended(void)
{
	bool ended = child_ended;

	child_ended = 0; /* the signal is blocked outside the wait, so none is lost here */
	return ended;
}

/* Handlers instead of SIG_IGN: exec resets handlers, so a child starts with default dispositions. */
static int take_signals(struct husk_error *err)
{
	const struct sigaction child = { .sa_handler = on_child, .sa_flags = SA_NOCLDSTOP };
	const struct sigaction pipe = { .sa_handler = on_pipe, .sa_flags = SA_RESTART };
	sigset_t blocked;

	sigemptyset(&blocked);
	sigaddset(&blocked, SIGCHLD);
	if (sigprocmask(SIG_SETMASK, &blocked, NULL) < 0 || sigaction(SIGCHLD, &child, NULL) < 0 ||
	    sigaction(SIGPIPE, &pipe, NULL) < 0)
		return husk_fail_errno(err, "cannot take signals");
	return 0;
}

/* Over vsock in a virtual machine, because stdin and stdout are its console. */
static int connect_link(int *in, int *out, struct husk_error *err)
{
	*in = kernel_connect(err);
	if (*in < 0)
		return -1;
	*out = fcntl(*in, F_DUPFD_CLOEXEC, 64);
	return *out < 0 ? husk_fail_errno(err, "cannot keep the link") : 0;
}

static int agent_start(struct agent *agent, struct husk_error *err)
{
	bool machine = kernel_is_ours();
	int in, out;

	umask(022);
	prctl(PR_SET_NAME, "husk-agent"); /* the copy in memory has another name */
	if (close_inherited(err) < 0 || take_signals(err) < 0)
		return -1;
	if (machine && kernel_boot(err) < 0)
		return -1;
	if (getpid() == 1 && access("/.husk/disk", F_OK) == 0 &&
	    (boot_root(agent, err) < 0 || boot_process_group(agent, machine, err) < 0))
		return -1;
	if (agent->group_tasks >= 0)
		limits_boot(&agent->limits, machine);
	agent->link.socket = machine;
	if ((machine ? connect_link(&in, &out, err) : take_link(&in, &out, err)) < 0 || take_null(err) < 0)
		return -1;
	agent->image_environment = environment_load("/.husk/environment", err);
	if (!agent->image_environment || image_load(agent, err) < 0)
		return -1;
	agent->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (agent->epoll < 0)
		return husk_fail_errno(err, "cannot make the event loop");
	if (machine && memory_open(agent, err) < 0)
		return -1;
	return uplink_open(agent, in, out, err);
}

/*
 * As PID 1 the agent runs from a copy of itself in memory. gVisor (2024) patches pages of a program. It kills a forked
 * child, such as a worker, if an instruction crosses from a page of the root image into a patched page: gVisor takes
 * the fetch for a write. A copy in memory is mapped as a whole, which avoids this.
 */
static void run_from_memory(char **argv)
{
	char *const marked[] = { argv[0], "in-memory", NULL };
	int from = open("/.husk/agent", O_RDONLY | O_CLOEXEC);
	int copy = memfd_create("husk-agent", MFD_CLOEXEC);
	struct stat st;
	off_t at = 0;

	if (from < 0 || copy < 0 || fstat(from, &st) < 0)
		agent_die("cannot copy the agent: %s", strerror(errno));
	while (at < st.st_size && sendfile(copy, from, &at, (size_t)(st.st_size - at)) > 0)
		;
	if (at == st.st_size)
		fexecve(copy, marked, environ);
	agent_die("cannot run the agent from memory: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	static struct agent agent = {
		.group_tasks = -1,
		.group_max = -1,
		.group_memory = -1,
		.kernel_log.fd = -1,
		.limits = LIMITS_INIT,
		.layers = LAYERS_NONE,
		.follow.source.fd = -1,
	};
	struct husk_error err = { 0 };

	log_begin("agent", LOG_INFO);
	if (getpid() == 1 && argc == 1 && !kernel_is_ours())
		run_from_memory(argv);
	if (agent_start(&agent, &err) < 0)
		agent_die("%s", err.message);
	loop_run(&agent);
	if (getpid() != 1) /* as PID 1, the end of the agent ends the machine and all its processes */
		process_kill_all(&agent);
	return 0;
}
