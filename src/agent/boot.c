/*
 * What PID 1 does before anything else: the template's read-only root gets its writable layer, the agent moves into it,
 * and the workload gets a group whose size can be limited. Called once by main. After it nothing of the bare image must
 * be reachable but through the layer.
 */
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "agent/agent.h"

#define NEW_ROOT "/.husk/root"
#define DISK "/.husk/disk"
#define GROUP_MOUNT "/.husk/root" /* an empty directory again once the old root is gone */

static int make_directory(const char *path, mode_t mode, struct husk_error *err)
{
	if (mkdir(path, mode) < 0 && errno != EEXIST)
		return husk_fail_errno(err, "cannot make '%s'", path);
	return 0;
}

/* What the engine has mounted is carried over with all that is mounted below it. */
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

int boot_root(struct husk_error *err)
{
	static const char *const carried[] = { "proc", "sys", "dev" };

	if (make_directory(DISK "/upper", 0755, err) < 0 || make_directory(DISK "/work", 0755, err) < 0)
		return -1;
	if (mount("overlay", NEW_ROOT, "overlay", 0, "lowerdir=/,upperdir=" DISK "/upper,workdir=" DISK "/work") < 0)
		return husk_fail_errno(err, "cannot mount the writable layer");
	for (size_t i = 0; i < ARRAY_SIZE(carried); i++) {
		if (carry_over(carried[i], err) < 0)
			return -1;
	}
	/* The old root comes to lie where the new one was, and is let go from there. */
	if (syscall(SYS_pivot_root, NEW_ROOT, NEW_ROOT NEW_ROOT) < 0 || chdir("/") < 0)
		return husk_fail_errno(err, "cannot move into the writable layer");
	if (umount2(NEW_ROOT, MNT_DETACH) < 0)
		return husk_fail_errno(err, "cannot let go of the bare image");

	if (make_directory("/tmp", 01777, err) < 0 || make_directory("/dev/shm", 01777, err) < 0)
		return -1;
	if (chmod("/tmp", 01777) < 0)
		return husk_fail_errno(err, "cannot open '/tmp' to everybody");
	if (mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") < 0)
		return husk_fail_errno(err, "cannot mount '/dev/shm'");
	return 0;
}

int boot_process_group(struct agent *agent, bool machine, struct husk_error *err)
{
	/* A virtual machine has more memory than the sandbox may use; the limit is held here, page cache included. */
	if (mount("cgroup", GROUP_MOUNT, "cgroup", MS_NOSUID | MS_NODEV | MS_NOEXEC, machine ? "pids,memory" : "pids") <
	    0)
		return husk_fail_errno(err, "cannot mount the process group");
	if (make_directory(GROUP_MOUNT "/workload", 0755, err) < 0)
		return -1;
	agent->group_tasks = open(GROUP_MOUNT "/workload/cgroup.procs", O_WRONLY | O_CLOEXEC);
	agent->group_max = open(GROUP_MOUNT "/workload/pids.max", O_WRONLY | O_CLOEXEC);
	if (machine)
		agent->group_memory = open(GROUP_MOUNT "/workload/memory.limit_in_bytes", O_WRONLY | O_CLOEXEC);
	if (agent->group_tasks < 0 || agent->group_max < 0 || (machine && agent->group_memory < 0))
		return husk_fail_errno(err, "cannot open the process group");
	/* Out of sight: the open files keep it, and the workload finds no limit to lift. */
	if (umount2(GROUP_MOUNT, MNT_DETACH) < 0)
		return husk_fail_errno(err, "cannot hide the process group");
	return 0;
}
