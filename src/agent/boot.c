/*
 * The first work of PID 1: gives the template's read-only root a writable layer, moves into it, and creates the control
 * group whose memory can be limited. Called once, by main. Afterwards no path leads to the bare image or to the writable
 * layer alone; the agent keeps a descriptor of each, to find changed files (changes.c).
 */
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "agent/agent.h"

#define NEW_ROOT "/.husk/root"
#define DISK "/.husk/disk"
#define DATA "/.husk/disk/data"   /* exists if the disk is a directory of the host */
#define STAGE "/.husk/writes/"    /* in the writable layer, so that a file can be renamed to any place in that layer */
#define GROUP_MOUNT "/.husk/root" /* an empty directory again after the old root was unmounted */

static int make_directory(const char *path, mode_t mode, struct husk_error *err)
{
	if (mkdir(path, mode) < 0 && errno != EEXIST)
		return husk_fail_errno(err, "cannot make '%s'", path);
	return 0;
}

/* Moves a mount of the engine into the new root, with all mounts below it. */
static int carry_over(const char *name, struct husk_error *err)
{
	char from[64], to[64];

	snprintf(from, sizeof(from), "/%s", name);
	snprintf(to, sizeof(to), NEW_ROOT "/%s", name);
	if (make_directory(to, 0755, err) < 0)
		return -1;
	if (mount(from, to, NULL, MS_BIND | MS_REC, NULL) < 0)
		return husk_fail_errno(err, "cannot carry '%s' over", from);
	return 0;
}

/* Directories that the engine shows are below the mount point of the new root. Opened before something is mounted
 * there; -1: this engine has none. */
static int open_shares(void)
{
	return access(NEW_ROOT "/0", F_OK) == 0 ? open(NEW_ROOT, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
}

static int carry_shares(int shares, struct husk_error *err)
{
	char from[32];

	if (shares < 0)
		return 0;
	snprintf(from, sizeof(from), "/proc/self/fd/%d", shares);
	if (make_directory(NEW_ROOT SHARES, 0700, err) < 0)
		return -1;
	if (mount(from, NEW_ROOT SHARES, NULL, MS_BIND, NULL) < 0)
		return husk_fail_errno(err, "cannot carry the volumes over");
	return 0;
}

static int keep_layers(struct agent *agent, const char *upper, struct husk_error *err)
{
	agent->layers.upper = open(upper, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	agent->layers.lower = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (agent->layers.upper < 0 || agent->layers.lower < 0)
		return husk_fail_errno(err, "cannot open the layers of the root");
	return 0;
}

static const char *const carried[] = { "proc", "sys", "dev" };

/* A machine that is rebooted brings what its guest wrote. Its /.husk is not needed, and must not hide the image's; where
 * mounts belong, only a directory will do. */
static int mend_upper(const char *upper, struct husk_error *err)
{
	char path[96];

	snprintf(path, sizeof(path), "%s/.husk", upper);
	if (unlink(path) < 0 && errno != ENOENT && dir_remove(path, err) < 0)
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(carried); i++) {
		snprintf(path, sizeof(path), "%s/%s", upper, carried[i]);
		(void)!unlink(path); /* fails on a directory */
	}
	return 0;
}

int boot_root(struct agent *agent, struct husk_error *err)
{
	const char *disk = access(DATA, F_OK) == 0 ? DATA : DISK;
	cleanup_close int shares = open_shares();
	char upper[64], work[64], options[192];
	snprintf(upper, sizeof(upper), "%s/upper", disk);
	snprintf(work, sizeof(work), "%s/work", disk);
	snprintf(options, sizeof(options), "lowerdir=/,upperdir=%s,workdir=%s", upper, work);
	if (make_directory(upper, 0755, err) < 0 || make_directory(work, 0755, err) < 0 || mend_upper(upper, err) < 0)
		return -1;
	if (mount("overlay", NEW_ROOT, "overlay", 0, options) < 0)
		return husk_fail_errno(err, "cannot mount the writable layer");
	if (keep_layers(agent, upper, err) < 0 || carry_shares(shares, err) < 0)
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(carried); i++) {
		if (carry_over(carried[i], err) < 0)
			return -1;
	}
	/* The old root is mounted on top of the new one, and then unmounted. */
	if (syscall(SYS_pivot_root, NEW_ROOT, NEW_ROOT NEW_ROOT) < 0 || chdir("/") < 0)
		return husk_fail_errno(err, "cannot move into the writable layer");
	if (umount2(NEW_ROOT, MNT_DETACH) < 0)
		return husk_fail_errno(err, "cannot let go of the bare image");

	if (make_directory(STAGE, 0700, err) < 0)
		return -1;
	agent->stage = STAGE;
	if (make_directory("/tmp", 01777, err) < 0 || make_directory("/dev/shm", 01777, err) < 0)
		return -1;
	if (chmod("/tmp", 01777) < 0)
		return husk_fail_errno(err, "cannot open '/tmp' to everybody");
	if (mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") < 0)
		return husk_fail_errno(err, "cannot mount '/dev/shm'");
	return 0;
}

/* gVisor has cgroup v2 if its runsc supports it: the process limit is exact there. */
static int mount_group(bool machine, struct husk_error *err)
{
	static const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;

	if (!machine && mount("cgroup", GROUP_MOUNT, "cgroup2", flags, NULL) == 0)
		return 0;
	/* A virtual machine has more memory than the sandbox may use. This group enforces the limit, page cache
	 * included. */
	if (mount("cgroup", GROUP_MOUNT, "cgroup", flags, machine ? "pids,memory" : "pids") == 0)
		return 0;
	return husk_fail_errno(err, "cannot mount the process group");
}

int boot_process_group(struct agent *agent, bool machine, struct husk_error *err)
{
	if (mount_group(machine, err) < 0)
		return -1;
	if (make_directory(GROUP_MOUNT "/workload", 0755, err) < 0)
		return -1;
	agent->group_tasks = open(GROUP_MOUNT "/workload/cgroup.procs", O_WRONLY | O_CLOEXEC);
	agent->group_max = open(GROUP_MOUNT "/workload/pids.max", O_WRONLY | O_CLOEXEC);
	if (machine)
		agent->group_memory = open(GROUP_MOUNT "/workload/memory.limit_in_bytes", O_WRONLY | O_CLOEXEC);
	if (agent->group_tasks < 0 || agent->group_max < 0 || (machine && agent->group_memory < 0))
		return husk_fail_errno(err, "cannot open the process group");
	/* Hidden: the open files keep the group in use, and the workload finds no limit to lift. */
	if (umount2(GROUP_MOUNT, MNT_DETACH) < 0)
		return husk_fail_errno(err, "cannot hide the process group");
	return 0;
}
