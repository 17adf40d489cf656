/*
 * The supervisor's side of a volume's process: starts it with the descriptors that it needs, and ends it; see process.h.
 * supervisor/volumes.c talks to it over the socket. Every wait for the process has a deadline.
 */
#include "volume/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define SOCKET_ROOM (1 << 20) /* room for several full-size reads or writes in each direction */
#define KILLED_MS 100         /* how long to wait for a killed process */

enum { SOCKET, FILES, TABLE, DESCRIPTORS }; /* FILES: the count, or the mount of files that the kernel counts */

static int open_pair(int ends[static 2], struct husk_error *err)
{
	const int room = SOCKET_ROOM;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return husk_fail_errno(err, "cannot make a socket for a volume");
	for (int i = 0; i < 2; i++)
		if (setsockopt(ends[i], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) < 0)
			log_line(LOG_WARN, "the socket of a volume is small: %s", strerror(errno));
	return fd_set_nonblocking(ends[0], true) < 0 ? husk_fail_errno(err, "cannot set up the socket of a volume") : 0;
}

static int launch(const struct volume_spec *spec, const int fds[static DESCRIPTORS], struct volume_process *out,
		  struct husk_error *err)
{
	cleanup_free char *data = volume_data(spec->directory);
	char limit[24], uid[16];
	const char *const argv[] = { "husk",
				     "volume-server",
				     spec->root < 0 ? data : VOLUME_MOUNTED,
				     spec->read_only ? "ro" : "rw",
				     limit,
				     uid,
				     spec->table ? "table" : "new",
				     spec->subpath ? spec->subpath : "",
				     NULL };
	const struct jail_start start = { .program = spec->program,
					  .argv = argv,
					  .fds = fds,
					  .fd_count = spec->table ? DESCRIPTORS : TABLE,
					  .log = -1 };

	if (!data)
		return husk_fail_memory(err);
	snprintf(limit, sizeof(limit), "%llu", (unsigned long long)spec->limit);
	snprintf(uid, sizeof(uid), "%u", spec->uid);
	return jail_start(&start, &out->pid, &out->pidfd, err);
}

int volume_process_start(const struct volume_spec *spec, struct volume_process *out, struct husk_error *err)
{
	cleanup_close int count = spec->root < 0 ? volume_count_open(spec->directory, err) : -1;
	cleanup_close int table = -1, ours = -1, theirs = -1;
	int ends[2] = { -1, -1 };

	*out = (struct volume_process){ .socket = -1, .pidfd = -1 };
	if (spec->root < 0 && count < 0)
		return -1;
	table = spec->table ? open(spec->table, O_RDONLY | O_CLOEXEC) : -1;
	if (spec->table && table < 0)
		return husk_fail_errno(err, "cannot open '%s'", spec->table);
	int paired = open_pair(ends, err);
	ours = ends[0];
	theirs = ends[1];
	const int fds[DESCRIPTORS] = {
		[SOCKET] = theirs, [FILES] = spec->root < 0 ? count : spec->root, [TABLE] = table
	};
	if (paired < 0 || launch(spec, fds, out, err) < 0)
		return husk_wrap(err, "cannot start the server of a volume");
	out->socket = steal_fd(&ours);
	return 0;
}

/* Waits at most this long; returns true if the process has ended. */
static bool reap(struct volume_process *process, int timeout_ms)
{
	int64_t end = time_monotonic_ms() + timeout_ms, left = timeout_ms;
	struct pollfd over = { .fd = process->pidfd, .events = POLLIN };
	siginfo_t ignored;
	int ready;

	while ((ready = poll(&over, 1, (int)left)) < 0 && errno == EINTR) {
		left = end - time_monotonic_ms();
		left = MAX(left, 0);
	}
	return ready > 0 && waitid(P_PIDFD, (id_t)process->pidfd, &ignored, WEXITED | WNOHANG) == 0;
}

void volume_process_end(struct volume_process *process, int grace_ms)
{
	fd_close(&process->socket);
	if (process->pidfd < 0)
		return;
	if (!reap(process, grace_ms)) {
		log_line(LOG_WARN, "the server of a volume did not end within %d ms and was killed", grace_ms);
		syscall(SYS_pidfd_send_signal, process->pidfd, SIGKILL, NULL, 0);
		if (!reap(process, KILLED_MS))
			log_line(LOG_WARN, "the server of a volume (pid %d) hangs in the kernel", (int)process->pid);
	}
	fd_close(&process->pidfd);
}
