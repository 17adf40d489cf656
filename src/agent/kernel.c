/*
 * The first work of PID 1 in a virtual machine. The kernel starts the agent from an initramfs that holds the agent and
 * kernel modules. The agent loads the modules, mounts the template's root and the disk, moves there, and then continues as
 * with every engine. This file also connects to the host, over vsock. Called by main and by the link. Nothing of the
 * initramfs may stay reachable or in memory.
 */
#include <fcntl.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "agent/agent.h"

#define MODULES "/modules"
#define ORDER MODULES "/order" /* file names, one per line, each after its dependencies */
#define NEW_ROOT "/base"
#define ROOT_DEVICE "/dev/vda"
#define DISK_DEVICE "/dev/vdb"
#define PATIENCE_MS 60000 /* a host may be very busy; the host has its own timeout */
#define PAUSE_NS 2000000
#define HOST_CID 2u
#define HOST_PORT 1024u

/* From <linux/vm_sockets.h>, which musl does not provide. */
struct vsock_address {
	sa_family_t family;
	uint16_t zero;
	uint32_t port, cid;
	uint8_t rest[4];
};

bool kernel_is_ours(void)
{
	return getpid() == 1 && access(ORDER, F_OK) == 0;
}

static void pause_briefly(void)
{
	const struct timespec pause = { .tv_nsec = PAUSE_NS };

	nanosleep(&pause, NULL);
}

/* ---- mounts ---- */

static int mount_at(const char *type, const char *source, const char *target, unsigned long flags, const char *options,
		    struct husk_error *err)
{
	if (mkdir(target, 0755) < 0 && errno != EEXIST && errno != EROFS)
		return husk_fail_errno(err, "cannot make '%s'", target);
	if (mount(source, target, type, flags, options) < 0)
		return husk_fail_errno(err, "cannot mount '%s'", target);
	return 0;
}

static int mount_kernel(struct husk_error *err)
{
	static const char *const links[][2] = { { "/proc/self/fd", "/dev/fd" },
						{ "/proc/self/fd/0", "/dev/stdin" },
						{ "/proc/self/fd/1", "/dev/stdout" },
						{ "/proc/self/fd/2", "/dev/stderr" } };

	if (mount_at("proc", "proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, err) < 0 ||
	    mount_at("sysfs", "sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, err) < 0 ||
	    mount_at("devtmpfs", "dev", "/dev", MS_NOSUID, "mode=755", err) < 0 ||
	    mount_at("devpts", "devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "mode=620,gid=5,ptmxmode=666", err) < 0)
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(links); i++)
		if (symlink(links[i][0], links[i][1]) < 0 && errno != EEXIST)
			return husk_fail_errno(err, "cannot make '%s'", links[i][1]);
	return 0;
}

/* ---- modules ---- */

static int load_module(const char *name, struct husk_error *err)
{
	char path[128];

	snprintf(path, sizeof(path), MODULES "/%s", name);
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST))
		return husk_fail_errno(err, "cannot load '%s'", path);
	/* The kernel has its own copy; the initramfs gives its memory back. */
	unlink(path);
	return 0;
}

static int load_modules(struct husk_error *err)
{
	cleanup_free char *order = file_read(ORDER, 64 * 1024, NULL, err);
	char *rest = order;

	if (!order)
		return -1;
	for (char *name = strsep(&rest, "\n"); name; name = strsep(&rest, "\n"))
		if (name[0] && load_module(name, err) < 0)
			return -1;
	unlink(ORDER);
	rmdir(MODULES);
	return 0;
}

static int wait_for(const char *path, struct husk_error *err)
{
	for (int64_t end = time_monotonic_ms() + PATIENCE_MS; access(path, F_OK) < 0; pause_briefly())
		if (time_monotonic_ms() > end)
			return husk_fail(err, HUSK_TIMEOUT, "'%s' did not appear", path);
	return 0;
}

/* ---- the root ---- */

static int move_mount(const char *name, struct husk_error *err)
{
	char from[32], to[64];

	snprintf(from, sizeof(from), "/%s", name);
	snprintf(to, sizeof(to), NEW_ROOT "/%s", name);
	if (mount(from, to, NULL, MS_MOVE, NULL) < 0)
		return husk_fail_errno(err, "cannot move '%s'", from);
	return 0;
}

static int change_root(struct husk_error *err)
{
	static const char *const moved[] = { "dev", "proc", "sys" };

	/* Unwritten parts of the disk read as zeroes, so initialising its inode tables would be useless work in every
	 * copy. */
	if (mount_at("erofs", ROOT_DEVICE, NEW_ROOT, MS_RDONLY, NULL, err) < 0 ||
	    mount_at("ext4", DISK_DEVICE, NEW_ROOT "/.husk/disk", MS_NOATIME, "discard,noinit_itable", err) < 0)
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(moved); i++)
		if (move_mount(moved[i], err) < 0)
			return -1;
	unlink("/init");
	if (chdir(NEW_ROOT) < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
		return husk_fail_errno(err, "cannot move into the root image");
	return 0;
}

static int loopback_up(struct husk_error *err)
{
	cleanup_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &lo) < 0)
		return husk_fail_errno(err, "cannot bring up the loopback interface");
	return 0;
}

int kernel_boot(struct husk_error *err)
{
	const struct rlimit files = { .rlim_cur = 65536, .rlim_max = 1048576 };

	if (mount_kernel(err) < 0 || load_modules(err) < 0 || wait_for(ROOT_DEVICE, err) < 0 ||
	    wait_for(DISK_DEVICE, err) < 0 || change_root(err) < 0)
		return -1;
	if (setrlimit(RLIMIT_NOFILE, &files) < 0)
		return husk_fail_errno(err, "cannot set the limit of open files");
	return loopback_up(err);
}

/* ---- the link ---- */

/* The host may not be listening yet: after a restore, both sides start at the same time. */
int kernel_connect(struct husk_error *err)
{
	const struct vsock_address host = { .family = AF_VSOCK, .port = HOST_PORT, .cid = HOST_CID };
	int64_t end = time_monotonic_ms() + PATIENCE_MS;

	for (;;) {
		cleanup_close int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd < 0)
			return husk_fail_errno(err, "cannot make a socket to the host");
		if (connect(fd, (const struct sockaddr *)&host, sizeof(host)) == 0) {
			int high = fcntl(fd, F_DUPFD_CLOEXEC, 64);
			return high < 0 ? husk_fail_errno(err, "cannot keep the link") : high;
		}
		if (time_monotonic_ms() > end)
			return husk_fail_errno(err, "cannot connect to the host");
		pause_briefly();
	}
}
