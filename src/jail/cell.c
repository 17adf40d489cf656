/*
 * The stages of a cell (cell.h), in their order; if one stage fails, the whole fails. The child first sets up its root with
 * the rights of the host's root, because mounting inside a user namespace is not trusted. Then the child enters the user
 * namespace, whose ids only the parent can assign. From there on the child has no rights on the host. All of this happens
 * before any untrusted byte is read.
 */
#include "jail/cell.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "jail/jail.h"
#include "jail/seccomp.h"

#define NEW_ROOT "/proc" /* any directory that always exists and contains no file of a cell */
#define SETUP_FAILED 125 /* the exit status if the cell could not be made; the reason is on its standard error */
#define FILES_MAX 4096   /* mkfs.erofs of erofs-utils 1.8 has hundreds open at once */
#define PROCESSES_MAX 64
#define INSTALL_PROCESSES_MAX 4096

struct birth {
	const struct cell *cell;
	int (*inside)(void *data);
	void *data;
	int to_parent[2], to_child[2]; /* pipes: "set my ids", "ids are set" */
};

/* ---- stage: files ---- */

static int make_parents(char *path, struct husk_error *err)
{
	for (char *slash = strchr(path + strlen(NEW_ROOT) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		int made = mkdir(path, 0755);
		int number = errno;
		*slash = '/';
		if (made < 0 && number != EEXIST)
			return husk_fail_errno(err, "cannot make '%s'", path);
	}
	return 0;
}

/* An empty file or directory as a mount point. */
static int make_place(const char *path, bool directory)
{
	if (directory)
		return mkdir(path, 0755) < 0 && errno != EEXIST ? -1 : 0;
	cleanup_close int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	return fd < 0 ? -1 : 0;
}

static int copy_link(const char *from, const char *to, struct husk_error *err)
{
	char target[4096];
	ssize_t size = readlink(from, target, sizeof(target) - 1);

	if (size < 0)
		return husk_fail_errno(err, "cannot read '%s'", from);
	target[size] = '\0';
	return symlink(target, to) < 0 ? husk_fail_errno(err, "cannot bring '%s' in", from) : 0;
}

static int bring(const struct cell *cell, const struct cell_file *file, struct husk_error *err)
{
	const unsigned long flags = MS_BIND | MS_REMOUNT | MS_NOSUID | (file->how == CELL_DEVICE ? 0 : MS_NODEV) |
				    (file->how == CELL_READ ? MS_RDONLY : 0) |
				    (file->how == CELL_WRITE && !cell->installs ? MS_NOEXEC : 0);
	cleanup_free char *to = str_format(NEW_ROOT "%s", file->to);
	struct stat st;

	if (!to)
		return husk_fail_memory(err);
	if (make_parents(to, err) < 0)
		return -1;
	if (file->how == CELL_LINK && lstat(file->from, &st) == 0 && S_ISLNK(st.st_mode))
		return copy_link(file->from, to, err);
	if (stat(file->from, &st) < 0)
		return husk_fail_errno(err, "cannot find '%s'", file->from);
	if (make_place(to, S_ISDIR(st.st_mode)) < 0 || mount(file->from, to, NULL, MS_BIND, NULL) < 0 ||
	    mount(NULL, to, NULL, flags, NULL) < 0)
		return husk_fail_errno(err, "cannot bring '%s' in", file->from);
	return 0;
}

/* Makes a root that contains only the given files; the host's tree is unmounted. */
static int take_files(const struct cell *cell, struct husk_error *err)
{
	if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("husk-cell", NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=1k,mode=755") < 0)
		return husk_fail_errno(err, "cannot mount an empty root");
	for (const struct cell_file *file = cell->files; file && file->from; file++)
		if (bring(cell, file, err) < 0)
			return -1;
	/* The kernel lets the cell mount its own /proc only if it already sees one. */
	if (cell->installs && (mkdir(NEW_ROOT "/proc", 0555) < 0 ||
			       mount("proc", NEW_ROOT "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0))
		return husk_fail_errno(err, "cannot mount /proc");
	if (mount(NULL, NEW_ROOT, NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | MS_RDONLY, NULL) < 0)
		return husk_fail_errno(err, "cannot make the empty root read-only");
	/* pivot_root onto itself: the old root is then on top of the new one, and is unmounted from there. */
	if (chdir(NEW_ROOT) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 ||
	    chdir("/") < 0)
		return husk_fail_errno(err, "cannot leave the host's root");
	return 0;
}

/* ---- stage: limits ---- */

/* Never above the inherited limit: raising it requires a capability that not every root has. */
static int limit(int resource, rlim_t value)
{
	struct rlimit both;

	if (getrlimit((__rlimit_resource_t)resource, &both) < 0)
		return -1;
	both.rlim_max = MIN(both.rlim_max, value);
	both.rlim_cur = both.rlim_max;
	return setrlimit((__rlimit_resource_t)resource, &both);
}

static int take_limits(const struct cell *cell, struct husk_error *err)
{
	int bad = limit(RLIMIT_CORE, 0) | limit(RLIMIT_NOFILE, FILES_MAX) |
		  limit(RLIMIT_NPROC, cell->installs ? INSTALL_PROCESSES_MAX : PROCESSES_MAX) |
		  limit(RLIMIT_MEMLOCK, 0) | limit(RLIMIT_MSGQUEUE, 0) | limit(RLIMIT_FSIZE, cell->file_bytes) |
		  limit(RLIMIT_CPU, cell->cpu_seconds);

#if !defined(__SANITIZE_ADDRESS__) /* AddressSanitizer reserves more than any limit */
	if (cell->memory_bytes)
		bad |= limit(RLIMIT_AS, cell->memory_bytes);
#endif
	return bad ? husk_fail_errno(err, "cannot set limits") : 0;
}

/* ---- stage: ids ---- */

/* Becomes root of a namespace that contains only the cell's own ids. Not from a chroot: the kernel refuses that. */
static int take_ids(struct birth *birth, struct husk_error *err)
{
	char byte = 0;

	if (unshare(CLONE_NEWUSER) < 0)
		return husk_fail_errno(err, "cannot make a user namespace (sysctl user.max_user_namespaces)");
	if (write_full(birth->to_parent[1], &byte, 1) < 0 || read_full(birth->to_child[0], &byte, 1) != 1)
		return husk_fail(err, HUSK_INTERNAL, "nobody gave the cell its ids");
	if (setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
		return husk_fail_errno(err, "cannot take the cell's ids");
	return 0;
}

/* Run by the parent, which is root of the host. */
static int give_ids(pid_t child, uint32_t base, struct husk_error *err)
{
	static const char *const maps[] = { "uid_map", "gid_map" };
	char path[64], line[64];

	snprintf(line, sizeof(line), "0 %u %u\n", base, CELL_IDS);
	for (size_t i = 0; i < ARRAY_SIZE(maps); i++) {
		snprintf(path, sizeof(path), "/proc/%d/%s", (int)child, maps[i]);
		if (file_poke(path, line, err) < 0)
			return husk_wrap(err, "cannot map the cell's ids (are we root?)");
	}
	return 0;
}

/* ---- stage: capabilities ---- */

/* These apply only to files of the cell's own ids, as all rights in a user namespace. */
#define KEPT (1u << CAP_CHOWN | 1u << CAP_DAC_OVERRIDE | 1u << CAP_FOWNER | 1u << CAP_FSETID)

static int drop_capabilities(struct husk_error *err)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct kept[2] = { { .effective = KEPT, .permitted = KEPT } };
	unsigned long capability = 0;

	/* Until a number is unknown: the kernel may have more capabilities than the headers. */
	for (;; capability++) {
		if (capability < 32 && (KEPT & 1u << capability))
			continue;
		if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0)
			break;
	}
	if (errno != EINVAL)
		return husk_fail_errno(err, "cannot give up capability %lu", capability);
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 || syscall(SYS_capset, &header, kept) < 0 ||
	    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return husk_fail_errno(err, "cannot give up capabilities");
	return 0;
}

/* ---- stage: system calls ---- */

/* Files, memory and time. Other calls fail with ENOSYS, which every C library can handle. */
static const struct jail_rule file_rules[] = {
	JAIL_ALLOW(read),       JAIL_ALLOW(write),
	JAIL_ALLOW(readv),      JAIL_ALLOW(writev),
	JAIL_ALLOW(pread64),    JAIL_ALLOW(pwrite64),
	JAIL_ALLOW(lseek),      JAIL_ALLOW(open),
	JAIL_ALLOW(openat),     JAIL_ALLOW(openat2),
	JAIL_ALLOW(creat),      JAIL_ALLOW(close),
	JAIL_ALLOW(stat),       JAIL_ALLOW(lstat),
	JAIL_ALLOW(fstat),      JAIL_ALLOW(newfstatat),
	JAIL_ALLOW(statx),      JAIL_ALLOW(statfs),
	JAIL_ALLOW(fstatfs),    JAIL_ALLOW(access),
	JAIL_ALLOW(faccessat),  JAIL_ALLOW(faccessat2),
	JAIL_ALLOW(getdents64), JAIL_ALLOW(readlink),
	JAIL_ALLOW(readlinkat), JAIL_ALLOW(mkdir),
	JAIL_ALLOW(mkdirat),    JAIL_ALLOW(rmdir),
	JAIL_ALLOW(unlink),     JAIL_ALLOW(unlinkat),
	JAIL_ALLOW(rename),     JAIL_ALLOW(renameat),
	JAIL_ALLOW(renameat2),  JAIL_ALLOW(link),
	JAIL_ALLOW(linkat),     JAIL_ALLOW(symlink),
	JAIL_ALLOW(symlinkat),  JAIL_ALLOW(mknod), /* for FIFOs; a user namespace cannot make devices */
	JAIL_ALLOW(mknodat),    JAIL_ALLOW(chmod),
	JAIL_ALLOW(fchmod),     JAIL_ALLOW(fchmodat),
	JAIL_ALLOW(chown),      JAIL_ALLOW(lchown),
	JAIL_ALLOW(fchown),     JAIL_ALLOW(fchownat),
	JAIL_ALLOW(utime),      JAIL_ALLOW(utimes),
	JAIL_ALLOW(futimesat),  JAIL_ALLOW(utimensat),
	JAIL_ALLOW(truncate),   JAIL_ALLOW(ftruncate),
	JAIL_ALLOW(fallocate),  JAIL_ALLOW(copy_file_range),
	JAIL_ALLOW(sendfile),   JAIL_ALLOW(fsync),
	JAIL_ALLOW(fdatasync),  JAIL_ALLOW(fadvise64),
	JAIL_ALLOW(flock),      JAIL_ALLOW(fcntl),
	JAIL_ALLOW(dup),        JAIL_ALLOW(dup2),
	JAIL_ALLOW(dup3),       JAIL_ALLOW(chdir),
	JAIL_ALLOW(fchdir),     JAIL_ALLOW(getcwd),
	JAIL_ALLOW(umask),      JAIL_END,
};

static const struct jail_rule process_rules[] = {
	JAIL_ALLOW(mremap),
	JAIL_ALLOW(madvise),
	JAIL_ALLOW(arch_prctl),
	JAIL_ALLOW(set_tid_address),
	JAIL_ALLOW(set_robust_list),
	JAIL_ALLOW(rseq),
	JAIL_ALLOW(rt_sigaction),
	JAIL_ALLOW(sigaltstack),
	JAIL_ALLOW(kill), /* itself: abort */
	JAIL_ALLOW(tgkill),
	JAIL_ALLOW(getpid),
	JAIL_ALLOW(gettid),
	JAIL_ALLOW(getppid),
	JAIL_ALLOW(getuid),
	JAIL_ALLOW(geteuid),
	JAIL_ALLOW(getgid),
	JAIL_ALLOW(getegid),
	JAIL_ALLOW(prlimit64),
	JAIL_ALLOW(getrlimit),
	JAIL_ALLOW(getrusage),
	JAIL_ALLOW(sysinfo),
	JAIL_ALLOW(uname),
	JAIL_ALLOW(getrandom),
	JAIL_ALLOW(gettimeofday),
	JAIL_ALLOW(time),
	JAIL_ALLOW(clock_getres),
	JAIL_ALLOW(clock_nanosleep),
	JAIL_ALLOW(sched_yield),
	JAIL_ALLOW_MASKED(clone, 1, CLONE_THREAD | JAIL_NAMESPACES, CLONE_THREAD),
	JAIL_END,
};

/* Loading a program requires executable mappings. */
static const struct jail_rule execute_rules[] = {
	JAIL_ALLOW(execve), JAIL_ALLOW(mmap), JAIL_ALLOW(mprotect), JAIL_IOCTL(TIOCGWINSZ), JAIL_END,
};

static int filter_calls(const struct cell *cell, struct husk_error *err)
{
	const struct jail_rule *const lists[] = { jail_libc_rules, file_rules, process_rules,
						  cell->executes ? execute_rules : NULL, NULL };
	const struct jail_filter filter = { .name = "cell", .lists = lists, .refuses = ENOSYS };
	struct jail_program *program = NULL;

	int result = jail_filter_compile(&filter, &program, err);
	if (result == 0)
		result = jail_filter_install(program, err);
	jail_program_free(program);
	return result;
}

/* ---- a system put together from packages ---- */

static int exit_status(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return SETUP_FAILED;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Makes namespaces that belong to the cell's own user namespace, so that its root may mount in them. The outer process
 * waits, and all processes of the cell end with it. */
static int install(struct birth *birth)
{
	struct husk_error err = { 0 };

	if (unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC) < 0)
		husk_fail_errno(&err, "cannot make the cell's own namespaces");
	pid_t pid = err.code ? -1 : fork();
	if (pid > 0)
		return exit_status(pid);
	if (pid == 0) {
		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
		    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0)
			return birth->inside(birth->data);
		husk_fail_errno(&err, "cannot mount the cell's own /proc");
	}
	dprintf(2, "%s\n", err.message);
	return SETUP_FAILED;
}

/* ---- the cell's own process ---- */

static void keep_standard(struct birth *birth)
{
	int *const ends[] = { birth->to_parent, birth->to_child };

	for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
		for (int k = 0; k < 2; k++)
			fd_close(&ends[i][k]);
	syscall(SYS_close_range, 3u, ~0u, 0u);
}

static void be_inside(void *data)
{
	struct birth *birth = data;
	const struct cell *cell = birth->cell;
	struct husk_error err = { 0 };
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	umask(022);
	if (take_files(cell, &err) == 0 && take_ids(birth, &err) == 0) {
		keep_standard(birth);
		/* After the change of ids, which clears this setting. */
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
			_exit(SETUP_FAILED);
		if (cell->installs && take_limits(cell, &err) == 0)
			_exit(install(birth));
		if (!cell->installs && take_limits(cell, &err) == 0 && drop_capabilities(&err) == 0 &&
		    filter_calls(cell, &err) == 0)
			_exit(birth->inside(birth->data));
	}
	dprintf(2, "%s\n", err.message);
	_exit(SETUP_FAILED);
}

static int wait_for(pid_t pid, struct husk_error *err)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return husk_fail_errno(err, "cannot wait for the cell");
	if (WIFSIGNALED(status))
		return husk_fail(err, HUSK_LIMIT, "it was ended by signal %d (%s)", WTERMSIG(status),
				 strsignal(WTERMSIG(status)));
	if (WEXITSTATUS(status) == SETUP_FAILED)
		return husk_fail(err, HUSK_UNAVAILABLE, "its jail could not be made");
	return WEXITSTATUS(status);
}

int cell_run(const struct cell *cell, int (*inside)(void *data), void *data, struct husk_error *err)
{
	const unsigned long spaces = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP |
				     (cell->installs ? 0 : CLONE_NEWNET);
	struct birth birth = {
		.cell = cell, .inside = inside, .data = data, .to_parent = { -1, -1 }, .to_child = { -1, -1 }
	};
	cleanup_close int process = -1;
	char byte = 0;

	if (pipe2(birth.to_parent, O_CLOEXEC) < 0 || pipe2(birth.to_child, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot make a pipe");
	pid_t pid = jail_clone(spaces, be_inside, &birth, &process);
	int result = pid < 0 ? husk_fail_errno(err, "cannot make namespaces (are we root?)") : 0;
	fd_close(&birth.to_parent[1]);
	fd_close(&birth.to_child[0]);
	/* The child asks when it is ready for its ids. If it ends before, the wait reports why. */
	if (pid > 0 && read_full(birth.to_parent[0], &byte, 1) == 1) {
		result = give_ids(pid, cell->uid_base, err);
		if (result < 0)
			kill(pid, SIGKILL);
		else
			(void)!write_full(birth.to_child[1], &byte, 1);
	}
	fd_close(&birth.to_parent[0]);
	fd_close(&birth.to_child[1]);
	int status = pid > 0 ? wait_for(pid, result < 0 ? NULL : err) : -1;
	return result < 0 ? -1 : status;
}
