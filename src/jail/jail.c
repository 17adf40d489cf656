/*
 * The stages of the jail, one function each, in their order: first what the parent does to the child (jail_start, called by
 * engines), then what the program does to itself (jail_enter, called by husk-vmm).
 *
 * If one stage fails, the whole fails. No stage may be skipped because the host lacks a feature, and no stage may read data
 * of the guest. Between fork and exec only async-signal-safe calls are allowed, because the parent may have threads.
 */
#include "jail/jail.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "jail/cgroup.h"

#define FIRST_FD 3

/* ---- from outside ---- */

static const char *const start_steps[] = { "join its control group", "take its descriptors", "be executed" };
enum start_step { STEP_CGROUP, STEP_DESCRIPTORS, STEP_EXEC };

/* Sent to the parent if the program cannot be started; otherwise nothing is sent. */
struct start_report {
	enum start_step step;
	int number; /* errno */
};

struct birth {
	const struct jail_start *start;
	int report;
};

static _Noreturn void give_up(const struct birth *birth, enum start_step step)
{
	struct start_report report = { .step = step, .number = errno };

	(void)!write(birth->report, &report, sizeof(report));
	_exit(127);
}

/*
 * Stage: descriptors. The given ones become 3, 4, 5 …, the log 1 and 2, /dev/null 0; all others are closed. Must not
 * rely on O_CLOEXEC: a library of the parent may not set it.
 */
static int keep_only(struct birth *birth)
{
	const struct jail_start *start = birth->start;
	const int count = (int)start->fd_count, clear = FIRST_FD + JAIL_FDS_MAX + 2;
	int copies[JAIL_FDS_MAX], log, report;

	/* Moved above their final numbers first, so that none is overwritten. */
	for (int i = 0; i < count; i++)
		if ((copies[i] = fcntl(start->fds[i], F_DUPFD_CLOEXEC, clear)) < 0)
			return -1;
	log = start->log < 0 ? open("/dev/null", O_RDWR | O_CLOEXEC) : start->log;
	log = log < 0 ? -1 : fcntl(log, F_DUPFD_CLOEXEC, clear);
	report = fcntl(birth->report, F_DUPFD_CLOEXEC, clear);
	if (log < 0 || report < 0)
		return -1;
	for (int i = 0; i < count; i++)
		if (dup2(copies[i], FIRST_FD + i) < 0)
			return -1;
	birth->report = FIRST_FD + count;
	if (dup3(report, birth->report, O_CLOEXEC) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 || close(0) < 0)
		return -1;
	if (syscall(SYS_close_range, (unsigned)birth->report + 1, ~0u, 0u) < 0)
		return -1;
	return open("/dev/null", O_RDWR) == 0 ? 0 : -1;
}

/* The child, already pid 1 of a new pid namespace. Stages: session, cgroup, descriptors, environment. */
static void be_born(void *data)
{
	struct birth *birth = data;
	const struct jail_start *start = birth->start;
	/* Only the variable that tests set for every process of Husk (fd_close). */
	const char *const environment[] = { getenv("HUSK_STRICT") ? "HUSK_STRICT=1" : NULL, NULL };

	signals_reset();
	setsid();
	umask(077);
	if (start->cgroup && cgroup_enter(start->cgroup) < 0)
		give_up(birth, STEP_CGROUP);
	if (keep_only(birth) < 0)
		give_up(birth, STEP_DESCRIPTORS);
	execve(start->program, (char *const *)start->argv, (char *const *)environment);
	give_up(birth, STEP_EXEC);
}

pid_t jail_clone(unsigned long flags, void (*child)(void *data), void *data, int *pidfd)
{
	sigset_t all, old;
	pid_t pid;
	int saved;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	/* The pidfd is returned in the argument of the parent's thread id, the third one on every architecture. */
	pid = (pid_t)syscall(SYS_clone, flags | CLONE_PIDFD | SIGCHLD, NULL, pidfd, NULL, NULL);
	if (pid == 0) {
		child(data);
		_exit(0);
	}
	saved = errno;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	errno = saved;
	return pid;
}

static int start_wait(int report_fd, const char *program, struct husk_error *err)
{
	struct start_report report;
	ssize_t got = read_full(report_fd, &report, sizeof(report));

	/* exec has closed it. */
	if (got == 0)
		return 0;
	if (got != (ssize_t)sizeof(report) || (size_t)report.step >= ARRAY_SIZE(start_steps))
		return husk_fail(err, HUSK_INTERNAL, "'%s' ended before it could be started", program);
	errno = report.number;
	return husk_fail_errno(err, "'%s' cannot %s", program, start_steps[report.step]);
}

int jail_start(const struct jail_start *start, pid_t *pid, int *pidfd, struct husk_error *err)
{
	cleanup_close int report_in = -1, report_out = -1, process = -1;
	struct birth birth = { .start = start };
	int ends[2];
	pid_t child;

	if (start->fd_count > JAIL_FDS_MAX)
		return husk_fail(err, HUSK_INVALID, "%zu descriptors for a jail; %d are the most", start->fd_count,
				 JAIL_FDS_MAX);
	if (pipe2(ends, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot make a pipe");
	report_in = ends[0];
	report_out = birth.report = ends[1];
	child = jail_clone(CLONE_NEWPID, be_born, &birth, &process);
	if (child < 0)
		return husk_fail_errno(err, "cannot start '%s' in a pid namespace of its own (are we root?)",
				       start->program);
	fd_close(&report_out);
	if (start_wait(report_in, start->program, err) < 0) {
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
		return -1;
	}
	*pid = child;
	*pidfd = steal_fd(&process);
	return 0;
}

/* ---- from inside ---- */

static int limit(int resource, const char *what, uint64_t value, struct husk_error *err)
{
	struct rlimit both = { .rlim_cur = value, .rlim_max = value };

	if (setrlimit((__rlimit_resource_t)resource, &both) < 0)
		return husk_fail_errno(err, "cannot limit %s to %llu", what, (unsigned long long)value);
	return 0;
}

/*
 * Stage: limits. For resources that the cgroup does not limit: descriptors, threads of this uid, and the size of a
 * file. Core dumps are disabled, because they would put a guest's memory on the host's disk. Must run as root, because
 * only root may raise a hard limit. Memory is limited only if the jail sets a limit: a monitor maps its guest's memory,
 * more than once.
 */
int jail_limit(const struct jail *jail, struct husk_error *err)
{
	if (limit(RLIMIT_CORE, "core dumps", 0, err) < 0 || limit(RLIMIT_NOFILE, "open files", jail->files, err) < 0 ||
	    limit(RLIMIT_NPROC, "threads", jail->threads, err) < 0 ||
	    limit(RLIMIT_MEMLOCK, "locked memory", 0, err) < 0 || limit(RLIMIT_MSGQUEUE, "message queues", 0, err) < 0)
		return -1;
#if !defined(__SANITIZE_ADDRESS__) /* whose shadow memory alone exceeds any limit */
	if (jail->memory && limit(RLIMIT_DATA, "private memory", jail->memory, err) < 0)
		return -1;
#endif
	return limit(RLIMIT_FSIZE, "file size", jail->file_bytes ? jail->file_bytes : RLIM_INFINITY, err);
}

/*
 * Stage: network. An empty namespace, or the sandbox's own if one is given. Must never stay in the host's namespace.
 */
int jail_leave_network(const struct jail *jail, struct husk_error *err)
{
	if (jail->netns >= 0 && setns(jail->netns, CLONE_NEWNET) < 0)
		return husk_fail_errno(err, "cannot join the sandbox's network namespace");
	if (jail->netns < 0 && unshare(CLONE_NEWNET) < 0)
		return husk_fail_errno(err, "cannot make an empty network namespace");
	return 0;
}

/*
 * Stage: the rest of the host: its shared memory and queues, its host name, its view of cgroups, the session's
 * terminal. The parent makes the pid namespace. A process that is not the first in it was not started by jail_start,
 * and could see the host's processes.
 */
int jail_leave_host(struct husk_error *err)
{
	if (getpid() != 1)
		return husk_fail(err, HUSK_INVALID,
				 "not the first process of a pid namespace; Husk starts this program itself");
	if (unshare(CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP) < 0)
		return husk_fail_errno(err, "cannot leave the host's ipc, uts and cgroup namespaces");
	return 0;
}

/* Mounts the new root over some directory. */
static int mount_root(const struct jail *jail, const char *somewhere, struct husk_error *err)
{
	const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC, read_only = jail->root_read_only ? MS_RDONLY : 0;

	if (jail->root_fd) {
		int fd = jail->root_fd;
		long moved = syscall(SYS_move_mount, fd, "", AT_FDCWD, somewhere, MOVE_MOUNT_F_EMPTY_PATH);

		fd_close(&fd); /* no directory of the host stays open */
		if (moved < 0 || mount(NULL, somewhere, NULL, MS_BIND | MS_REMOUNT | flags | read_only, NULL) < 0)
			return husk_fail_errno(err, "cannot mount a volume as the root");
		return 0;
	}
	if (!jail->root)
		return mount("husk-jail", somewhere, "tmpfs", flags | MS_RDONLY, "size=4k,nr_inodes=1,mode=555") < 0
			       ? husk_fail_errno(err, "cannot mount an empty root")
			       : 0;
	if (mount(jail->root, somewhere, NULL, MS_BIND, NULL) < 0 ||
	    mount(NULL, somewhere, NULL, MS_BIND | MS_REMOUNT | flags | read_only, NULL) < 0)
		return husk_fail_errno(err, "cannot mount '%s' as the root", jail->root);
	return 0;
}

/*
 * Stage: files. A mount namespace whose root is an empty, read-only tmpfs without room for another inode, or the one
 * directory that the jail names. The host's tree is unmounted, so no path leads anywhere else. Must not leave a way
 * back: the old root is detached before this returns, and the caller must hold no descriptors of directories.
 */
int jail_leave_files(const struct jail *jail, struct husk_error *err)
{
	static const char somewhere[] = "/proc"; /* any directory that always exists */

	if (unshare(CLONE_NEWNS) < 0)
		return husk_fail_errno(err, "cannot make a mount namespace");
	/* The following mounts must not reach the host. */
	if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return husk_fail_errno(err, "cannot make the mounts private");
	if (mount_root(jail, somewhere, err) < 0)
		return -1;
	if (chdir(somewhere) < 0)
		return husk_fail_errno(err, "cannot enter the new root");
	/* pivot_root onto itself: the old root is then on top of the new one, and is unmounted from there. */
	if (syscall(SYS_pivot_root, ".", ".") < 0)
		return husk_fail_errno(err, "cannot take the new root");
	if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return husk_fail_errno(err, "cannot leave the host's root");
	return 0;
}

static bool keeps(const struct jail *jail, unsigned long capability)
{
	return capability < 64 && jail->capabilities >> capability & 1;
}

/*
 * Stage: privileges. Empties every set that could return a capability later: ambient, bounding except the kept ones,
 * and root's special rights (securebits). Must run before the change of uid, which removes the right to do this.
 */
int jail_drop_privileges(const struct jail *jail, struct husk_error *err)
{
	const unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED |
				   SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |
				   SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED |
				   /* Kept across the change of uid; those that are not wanted are dropped right after
				    * it. */
				   (jail->capabilities ? SECBIT_KEEP_CAPS : 0);

	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
		return husk_fail_errno(err, "cannot clear the ambient capabilities");
	/* Until a number is unknown: the kernel may have more capabilities than the headers. */
	unsigned long capability = 0;
	while (keeps(jail, capability) || prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0)
		capability++;
	if (errno != EINVAL || capability == 0)
		return husk_fail_errno(err, "cannot give up capability %lu", capability);
	if (prctl(PR_SET_SECUREBITS, bits, 0, 0, 0) < 0)
		return husk_fail_errno(err, "cannot lock the secure bits");
	return 0;
}

/*
 * Stage: identity. The sandbox's own uid and gid, no groups, no capabilities except the kept ones, no gain by exec, no
 * tracing by a process of the same uid. Must be the last stage: afterwards none of the others would be possible.
 */
int jail_become(const struct jail *jail, struct husk_error *err)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	const uint32_t low = (uint32_t)jail->capabilities, high = (uint32_t)(jail->capabilities >> 32);
	struct __user_cap_data_struct kept[2] = { { .permitted = low, .effective = low },
						  { .permitted = high, .effective = high } };

	if (jail->uid == 0 || jail->gid == 0)
		return husk_fail(err, HUSK_INVALID, "a jail for uid %u, gid %u; root is not a prisoner", jail->uid,
				 jail->gid);
	if (setgroups(0, NULL) < 0 || setresgid(jail->gid, jail->gid, jail->gid) < 0 ||
	    setresuid(jail->uid, jail->uid, jail->uid) < 0)
		return husk_fail_errno(err, "cannot become uid %u, gid %u", jail->uid, jail->gid);
	if (syscall(SYS_capset, &header, kept) < 0)
		return husk_fail_errno(err, "cannot give up capabilities");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return husk_fail_errno(err, "cannot forbid new privileges and tracing");
	return 0;
}

static bool has_other_capabilities(const struct jail *jail)
{
	const uint32_t low = (uint32_t)jail->capabilities, high = (uint32_t)(jail->capabilities >> 32);
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &header, data) < 0)
		return true;
	return data[0].effective != low || data[0].permitted != low || data[0].inheritable ||
	       data[1].effective != high || data[1].permitted != high || data[1].inheritable;
}

/* An empty root has no "proc". A root with files may have its own "proc", so its mount is checked instead. */
static bool sees_host(const struct jail *jail)
{
	const unsigned long wanted = ST_NOSUID | ST_NODEV | ST_NOEXEC | (jail->root_read_only ? ST_RDONLY : 0);
	struct statvfs root;

	if (!jail->root && !jail->root_fd)
		return access("/proc", F_OK) == 0 || access("/dev", F_OK) == 0 || access("/..", W_OK) == 0;
	return statvfs("/", &root) < 0 || (root.f_flag & wanted) != wanted;
}

/*
 * Stage: proof. Tries what must not work, to check that the jail holds. Must change nothing if it does.
 */
int jail_check(const struct jail *jail, struct husk_error *err)
{
	uid_t uids[3];
	gid_t gids[3];

	if (getresuid(&uids[0], &uids[1], &uids[2]) < 0 || getresgid(&gids[0], &gids[1], &gids[2]) < 0)
		return husk_fail_errno(err, "cannot ask for our own uid");
	for (int i = 0; i < 3; i++)
		if (uids[i] != jail->uid || gids[i] != jail->gid)
			return husk_fail(err, HUSK_INTERNAL, "the jail does not hold: uid %u, gid %u", uids[i],
					 gids[i]);
	if (setuid(0) == 0 || has_other_capabilities(jail) || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
		return husk_fail(err, HUSK_INTERNAL, "the jail does not hold: privileges are left");
	if (sees_host(jail))
		return husk_fail(err, HUSK_INTERNAL, "the jail does not hold: files of the host are in reach");
	return 0;
}

int jail_enter(const struct jail *jail, struct husk_error *err)
{
	if (jail_limit(jail, err) < 0 || jail_leave_network(jail, err) < 0 || jail_leave_host(err) < 0 ||
	    jail_leave_files(jail, err) < 0 || jail_drop_privileges(jail, err) < 0 || jail_become(jail, err) < 0 ||
	    jail_check(jail, err) < 0)
		return husk_wrap(err, "jail");
	return 0;
}
