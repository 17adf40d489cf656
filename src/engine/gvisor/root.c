/*
 * The mount namespace of a machine's host side: a /proc for its own pid namespace. If the root directory of the host is
 * closed to other users, also a new root that is open: the sandbox process has uids that own nothing on the host, so it
 * could not start from a root of mode 0700, and Husk must not change the host's root.
 *
 * Called by the machine's init between fork and exec: async-signal-safe calls only, no allocation.
 */
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "engine/gvisor/gvisor.h"

#define NEW_ROOT "/proc" /* always exists, and is the one directory that is not carried over */

/* In the layout of the kernel. */
struct entry {
	uint64_t inode;
	int64_t offset;
	uint16_t size;
	uint8_t type;
	char name[];
};

/* Carries one name of the old root into the new one: directories are bound, links copied, other files left out. */
static int carry_over(const char *name)
{
	char from[300] = "/", to[300] = NEW_ROOT "/", target[300];
	size_t length = strlen(name);
	struct stat st;

	if (length > 255 || str_equal(name, ".") || str_equal(name, "..") || str_equal(name, "proc"))
		return 0;
	memcpy(from + strlen(from), name, length + 1);
	memcpy(to + strlen(to), name, length + 1);
	if (lstat(from, &st) < 0)
		return errno == ENOENT ? 0 : -1;
	if (S_ISLNK(st.st_mode)) {
		ssize_t size = readlink(from, target, sizeof(target) - 1);
		if (size < 0)
			return -1;
		target[size] = '\0';
		return symlink(target, to);
	}
	if (!S_ISDIR(st.st_mode))
		return 0;
	return mkdir(to, 0755) < 0 ? -1 : mount(from, to, NULL, MS_BIND | MS_REC, NULL);
}

static int carry_all(void)
{
	_Alignas(struct entry) char buffer[4096];
	int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long size = -1;

	while (fd >= 0 && (size = syscall(SYS_getdents64, fd, buffer, sizeof(buffer))) > 0) {
		for (long at = 0; at < size;) {
			struct entry *entry = (struct entry *)(buffer + at);
			if (carry_over(entry->name) < 0) {
				fd_close(&fd);
				return -1;
			}
			at += entry->size;
		}
	}
	fd_close(&fd);
	return size < 0 ? -1 : 0;
}

static int open_root(void)
{
	if (mount("husk", NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755") < 0)
		return -1;
	if (carry_all() < 0 || mkdir(NEW_ROOT "/proc", 0555) < 0 || chdir(NEW_ROOT) < 0)
		return -1;
	/* Onto itself: the old root is then mounted under the mount point of the new one, and is unmounted from
	 * there. */
	if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0)
		return -1;
	return chdir("/");
}

int gvisor_own_mounts(void)
{
	struct stat root;

	/* Unmounts of the host still reach this namespace; its own mounts stay private. */
	if (mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL) < 0 || stat("/", &root) < 0)
		return -1;
	if (!(root.st_mode & S_IXOTH) && open_root() < 0)
		return -1;
	return mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}
