/*
 * The rights that a volume's process gives up before it reads the first byte of a guest; see process.h. jail/jail.c has
 * the stages. The list of allowed system calls is here, and each entry names the function of volume.c, serve_*.c or
 * process_main.c that needs it. Any other system call kills the process.
 */
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>

#include "jail/seccomp.h"
#include "volume/process.h"

#define FILES_MAX (SERVE_HANDLES_MAX + 512u) /* handles, and one per level of a tree that is counted */
#define MEMORY_MAX (256ull << 20)            /* a full table of names, twice while it is saved */

/* process_main.c: the socket, the image's table, log lines (log_line). */
static const struct jail_rule main_rules[] = {
	JAIL_ALLOW(read), JAIL_ALLOW(sendmsg), JAIL_ALLOW(write), JAIL_ALLOW(close), JAIL_ALLOW(mremap), JAIL_END,
};

/* volume.c: opens, reads and changes files below the root. */
static const struct jail_rule file_rules[] = {
	JAIL_ALLOW(openat2),    JAIL_ALLOW(openat), /* a component of a directory that openat2 opened */
	JAIL_ALLOW(fstat),      JAIL_ALLOW(newfstatat),
	JAIL_ALLOW(ftruncate),  JAIL_ALLOW(pwrite64),
	JAIL_ALLOW(flock),      JAIL_ALLOW(poll), /* lock_shared */
	JAIL_ALLOW(mkdirat),    JAIL_ALLOW(symlinkat),
	JAIL_ALLOW(linkat),     JAIL_ALLOW(unlinkat),
	JAIL_ALLOW(renameat),   JAIL_ALLOW(renameat2),
	JAIL_ALLOW(fchown),     JAIL_ALLOW(fchownat),
	JAIL_ALLOW(fchmod),     JAIL_ALLOW(utimensat),
	JAIL_ALLOW(getdents64), JAIL_FCNTL(F_GETFL), /* fdopendir */
	JAIL_FCNTL(F_SETFD),    JAIL_END,
};

/* fuse.c, serve_node.c, serve_file.c. */
static const struct jail_rule serve_rules[] = {
	JAIL_ALLOW(getrandom), JAIL_ALLOW(pread64),   JAIL_ALLOW(lseek),   JAIL_ALLOW(readlinkat),
	JAIL_ALLOW(fsync),     JAIL_ALLOW(fdatasync), JAIL_ALLOW(fstatfs), JAIL_END,
};

/* call_node_fd: a file without a name. */
static const struct jail_rule copy_rules[] = { JAIL_FCNTL(F_DUPFD_CLOEXEC), JAIL_END };

static const struct jail_rule *const lists[] = {
	jail_libc_rules, main_rules, file_rules, serve_rules, copy_rules, NULL
};
static const struct jail_filter filter = { .name = "volume", .lists = lists };

/* After the change of uid, which clears this setting: the kernel ends this process with the thread that started it. */
static int end_with_supervisor(struct husk_error *err)
{
	return prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 ? husk_fail_errno(err, "cannot end with the supervisor") : 0;
}

static int filter_calls(struct husk_error *err)
{
	struct jail_program *program = NULL;

	if (jail_filter_compile(&filter, &program, err) < 0)
		return -1;
	int result = jail_filter_install(program, err);
	jail_program_free(program);
	return result;
}

int volume_jail_enter(const char *root, int root_fd, bool read_only, uint64_t limit, uint32_t uid,
		      struct husk_error *err)
{
	const struct jail jail = {
		.uid = uid,
		.gid = uid,
		.netns = -1,
		.files = FILES_MAX,
		.threads = 1,
		.file_bytes = limit,
		.memory = MEMORY_MAX,
		.root = root,
		.root_fd = root ? 0 : root_fd,
		.root_read_only = read_only,
		.capabilities = 1u << CAP_CHOWN | 1u << CAP_DAC_OVERRIDE | 1u << CAP_FOWNER,
	};

	signal(SIGXFSZ, SIG_IGN); /* reaching the file size limit is an error for the guest */
	if (jail_enter(&jail, err) < 0 || end_with_supervisor(err) < 0)
		return -1;
	return filter_calls(err);
}
