/*
 * The husk-vmm process of a machine: starts it in its jail, talks to it over its control socket, and ends it. Called by
 * microvm.c. A process that does not answer, or answers nonsense, is killed, because it works for a hostile guest.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>

#include "engine/microvm/microvm.h"
#include "jail/jail.h"

#define VCPUS_DEFAULT_MAX 4
#define MEMORY_STEP (256ull << 20)
#define MEMORY_LEAST (512ull << 20)
#define MEMORY_MOST (8ull << 30)

int microvm_shape_here(struct microvm_shape *out, struct husk_error *err)
{
	struct sysinfo host;
	long online = sysconf(_SC_NPROCESSORS_ONLN);

	if (sysinfo(&host) < 0 || online < 1)
		return husk_fail_errno(err, "cannot ask how large this host is");
	/* Half of the host is more than one sandbox should have; unused memory costs nothing. The limit of a sandbox is
	 * enforced by its cgroup, and inside by the agent. */
	uint64_t half = (uint64_t)host.totalram * host.mem_unit / 2 / MEMORY_STEP * MEMORY_STEP;
	*out = (struct microvm_shape){ .vcpus = (uint32_t)MIN(online, VCPUS_DEFAULT_MAX),
				       .memory_bytes = MIN(MAX(half, MEMORY_LEAST), MEMORY_MOST) };
	return 0;
}

/* ---- starting ---- */

static int start_program(const struct engine_spec *spec, int control, struct microvm_process *out,
			 struct husk_error *err)
{
	cleanup_free char *program = place_find("husk-vmm");
	cleanup_free char *log_path = str_format("%s/console.log", spec->directory);
	cleanup_free char *id = str_format("%u", spec->uid_base);
	cleanup_close int log = -1;

	if (!program)
		return place_missing("husk-vmm", err);
	if (!log_path || !id)
		return husk_fail_memory(err);
	log = open(log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	if (log < 0)
		return husk_fail_errno(err, "cannot write %s", log_path);
	const char *const argv[] = { "husk-vmm", id, id, NULL };
	const struct jail_start start = {
		.program = program, .argv = argv, .fds = &control, .fd_count = 1, .log = log, .cgroup = spec->cgroup
	};
	pid_t pid;

	return jail_start(&start, &pid, &out->pidfd, err);
}

int microvm_process_start(const struct engine_spec *spec, const struct microvm_shape *shape,
			  struct microvm_process *out, struct husk_error *err)
{
	cleanup_close int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), theirs = -1;
	const uint64_t values[] = { shape->vcpus, shape->memory_bytes };
	int ends[2];

	if (kvm < 0)
		return husk_fail_errno(err, "cannot open /dev/kvm");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		return husk_fail_errno(err, "cannot make the control socket");
	out->control = ends[0];
	theirs = ends[1];
	if (start_program(spec, theirs, out, err) < 0)
		return -1;
	fd_close(&theirs); /* so that its end is seen */
	return microvm_post(out, CONTROL_SHAPE, values, ARRAY_SIZE(values), NULL, &kvm, 1, err);
}

/* ---- calls ---- */

static int wait_reply(struct microvm_process *process, struct control_reply *reply, int timeout_ms,
		      struct husk_error *err)
{
	struct pollfd wait = { .fd = process->control, .events = POLLIN };
	int fds[CONTROL_FDS_MAX], ready, got;
	size_t count = 0;

	do
		ready = poll(&wait, 1, timeout_ms);
	while (ready < 0 && errno == EINTR);
	if (ready == 0)
		return husk_fail(err, HUSK_TIMEOUT, "husk-vmm did not answer within %d s", timeout_ms / 1000);
	got = ready < 0 ? -1 : control_receive(process->control, reply, sizeof(*reply), fds, &count, err);
	for (size_t i = 0; i < count; i++)
		fd_close(&fds[i]); /* it has none to give */
	if (got == 0)
		return husk_fail(err, HUSK_GONE, "husk-vmm has ended");
	return got < 0 ? -1 : 0;
}

int microvm_post(struct microvm_process *process, enum control_type type, const uint64_t *values, size_t value_count,
		 const char *text, const int *fds, size_t fd_count, struct husk_error *err)
{
	struct control_request request = { .version = CONTROL_VERSION, .type = type };

	if (process->control < 0 || process->stopped)
		return husk_fail(err, HUSK_GONE, "the machine has been stopped");
	if (text && strlen(text) >= sizeof(request.text))
		return husk_fail(err, HUSK_INVALID, "'%.40s…' is too long", text);
	for (size_t i = 0; i < value_count; i++)
		request.value[i] = values[i];
	if (text)
		memcpy(request.text, text, strlen(text));
	if (control_send(process->control, &request, sizeof(request), fds, fd_count, err) < 0) {
		microvm_process_stop(process);
		return -1;
	}
	process->owed++;
	return 0;
}

int microvm_settle(struct microvm_process *process, int timeout_ms, uint64_t done[CONTROL_VALUES],
		   struct husk_error *err)
{
	struct control_reply reply = { 0 };
	int result = 0;

	while (process->owed > 0) {
		if (wait_reply(process, &reply, timeout_ms, err) < 0) {
			microvm_process_stop(process);
			process->owed = 0;
			return -1;
		}
		process->owed--;
		reply.message[sizeof(reply.message) - 1] = '\0';
		if (reply.code && result == 0)
			result = husk_fail(err, reply.code, "%s", reply.message);
	}
	if (result == 0 && done)
		memcpy(done, reply.value, sizeof(reply.value));
	return result;
}

void microvm_process_stop(struct microvm_process *process)
{
	siginfo_t ended;

	process->stopped = true;
	if (process->pidfd < 0)
		return;
	syscall(SYS_pidfd_send_signal, process->pidfd, SIGKILL, NULL, 0);
	while (waitid(P_PIDFD, (id_t)process->pidfd, &ended, WEXITED) < 0 && errno == EINTR)
		;
}

void microvm_process_free(struct microvm_process *process)
{
	microvm_process_stop(process);
	fd_close(&process->pidfd);
	fd_close(&process->control);
	*process = (struct microvm_process)MICROVM_PROCESS_INIT;
}
