/*
 * Shares: volumes that a machine has mounted as a directory of the host. So the guest can map their files, and start
 * programs from them. Called by gvisor.c.
 *
 *     <machine>/shares/         in the machine's own mount namespace: a small read-only filesystem with the places 0 to 15
 *     <machine>/shares/3/       the volume with number 3, once the sandbox has it
 *
 * runsc binds <machine>/shares into the root of its file server when the machine is made. A mount that is added later
 * reaches the file server by propagation: the place is a shared mount, and the file server's copy of it a slave. The guest's
 * kernel opens files relative to that copy, so it finds the volume, and only the volume. Each mount is nosuid and nodev,
 * read-only if the sandbox has it so, and shows the owners on disk as the machine's own uids (disk.c).
 *
 * A checkpoint of gVisor names the open files of such a mount, and a restore opens them by name. Another sandbox may have
 * removed one meanwhile: then the restore would fail. So an image lists these names (share-3), and missing ones are made
 * for the moment of the restore. The names come from a guest: they are only used beneath the volume, through no link.
 */
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "engine/gvisor/gvisor.h"
#include "jail/jail.h"

#define NAMES_FILE "%s/share-%u"
#define NAMES_SIZE_MAX (16u << 20)
#define NAMES_MADE_MAX 4096u
#define SEEN_PREFIX "/root" SHARES_MOUNT "/" /* of an open file's path, in the root of the file server */
#define NUMBER_LETTERS 2
#define LOCK_TRIES 500
#define LOCK_PAUSE_MS 20

/* ---- volumes ---- */

int shares_make(const char *home, const char *runtime, const char *directory, uint64_t bytes, struct husk_error *err)
{
	struct gvisor_program program;
	cleanup_close int disks = -1;

	if (gvisor_program_find(runtime, NULL, &program, err) < 0)
		return -1;
	if (!disks_ready(home, runtime, &program))
		return husk_fail(err, HUSK_UNAVAILABLE, "disks are not cloned in '%s'", home);
	disks = disks_open(directory, err);
	return disks < 0 ? -1 : disk_make_volume(disks, directory, bytes, err);
}

int shares_open(const char *directory, struct husk_error *err)
{
	cleanup_close int disks = disks_open(directory, err);

	return disks < 0 ? -1 : disk_mount(disks, directory, 0, false, err);
}

int shares_used(const char *directory, bool now, uint64_t *bytes, struct husk_error *err)
{
	cleanup_close int disks = disks_open(directory, err);

	return disks < 0 ? -1 : disk_volume_used(disks, directory, now, bytes, err);
}

bool shares_in_image(const char *image, unsigned number)
{
	cleanup_free char *path = str_format(NAMES_FILE, image, number);

	return path && access(path, F_OK) == 0;
}

/* ---- mounts ---- */

int shares_place(const char *path)
{
	char place[GVISOR_PATH_MAX + 8];
	size_t length = strlen(path);

	if (length > GVISOR_PATH_MAX) {
		errno = ENAMETOOLONG;
		return -1;
	}
	if (mount("husk-shares", path, "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,nr_inodes=32,mode=755") < 0)
		return -1;
	memcpy(place, path, length);
	for (unsigned i = 0; i < ENGINE_SHARES_MAX; i++) {
		char *at = place + length;
		*at++ = '/';
		if (i > 9)
			*at++ = '1';
		*at++ = (char)('0' + i % 10);
		*at = '\0';
		if (mkdir(place, 0755) < 0)
			return -1;
	}
	if (mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0)
		return -1;
	return mount(NULL, path, NULL, MS_SHARED, NULL);
}

struct addition {
	int machine, mount; /* the pidfd of its init; the volume */
	const char *place;
};

/* A process of its own, because a thread cannot change its mount namespace. */
static _Noreturn void add_mount(void *data)
{
	const struct addition *addition = data;

	if (setns(addition->machine, CLONE_NEWNS) < 0 ||
	    syscall(SYS_move_mount, addition->mount, "", AT_FDCWD, addition->place, MOVE_MOUNT_F_EMPTY_PATH) < 0)
		_exit(errno & 0xff);
	_exit(0);
}

int shares_add(const struct gvisor_process *process, const char *place, unsigned number, const struct share *share,
	       uint32_t uid_base, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/%u", place, number);
	cleanup_close int disks = disks_open(share->directory, err), mount = -1, child = -1;
	int status = 0;

	if (!path)
		return husk_fail_memory(err);
	if (disks < 0 || (mount = disk_mount(disks, share->directory, uid_base, share->read_only, err)) < 0)
		return -1;
	struct addition addition = { process->pidfd, mount, path };
	pid_t pid = jail_clone(0, add_mount, &addition, &child);
	if (pid < 0)
		return husk_fail_errno(err, "cannot start a process for a mount");
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (status == 0)
		return 0;
	errno = WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
	return husk_fail_errno(err, "cannot mount the volume in '%s' at '%s'", share->directory, path);
}

/* ---- names of open files ---- */

static char type_letter(mode_t mode)
{
	return S_ISDIR(mode) ? 'd' : S_ISREG(mode) ? 'f' : S_ISLNK(mode) ? 'l' : S_ISFIFO(mode) ? 'p' : '\0';
}

/* The pid of the sandbox process in its own pid namespace. */
static int sandbox_number(const char *machine, int64_t *out)
{
	cleanup_free char *path = str_format("%s/sandbox.pid", machine);
	cleanup_free char *text = path ? file_read(path, 32, NULL, NULL) : NULL;

	if (text)
		text[strcspn(text, "\n")] = '\0';
	return text ? str_to_int64(text, 2, INT32_MAX, out) : -1;
}

/* "3/a/b" in the places of shares: sets the number and returns the rest; NULL: not a name below one. */
static const char *split_place(const char *path, const struct share *shares, unsigned *number)
{
	size_t digits = strspn(path, "0123456789");

	if (!digits || digits > NUMBER_LETTERS || path[digits] != '/' || !path[digits + 1])
		return NULL;
	*number = (unsigned)strtoul(path, NULL, 10);
	return *number < ENGINE_SHARES_MAX && shares[*number].directory ? path + digits + 1 : NULL;
}

/* Adds the file behind one descriptor of the sandbox process to the list of its share. */
static int note_name(int directory, const char *descriptor, const struct share *shares,
		     struct buf lists[static ENGINE_SHARES_MAX])
{
	char target[PATH_MAX];
	ssize_t length = readlinkat(directory, descriptor, target, sizeof(target) - 1);
	struct stat found;
	unsigned number;

	if (length <= 0 || !str_starts(target, "/"))
		return 0;
	target[length] = '\0';
	if (!str_starts(target, SEEN_PREFIX))
		return 0;
	const char *name = split_place(target + strlen(SEEN_PREFIX), shares, &number);
	/* gVisor itself saves files without a name. */
	if (!name || fstatat(directory, descriptor, &found, 0) < 0 || found.st_nlink == 0 ||
	    !type_letter(found.st_mode))
		return 0;
	const char letter = type_letter(found.st_mode);
	if (lists[number].size > NAMES_SIZE_MAX - PATH_MAX)
		return 0; /* a restore works if these names still exist */
	return buf_append(&lists[number], &letter, 1) < 0 || buf_append(&lists[number], name, strlen(name) + 1) < 0;
}

static int note_names(const struct gvisor_process *process, const char *machine, const struct share *shares,
		      struct buf lists[static ENGINE_SHARES_MAX], struct husk_error *err)
{
	int64_t sandbox;

	if (sandbox_number(machine, &sandbox) < 0)
		return husk_fail(err, HUSK_INTERNAL, "the number of the sandbox process is not known");
	/* Through the /proc of its pid namespace. */
	cleanup_free char *path = str_format("/proc/%d/root/proc/%lld/fd", (int)process->pid, (long long)sandbox);
	cleanup_dir DIR *dir = path ? opendir(path) : NULL;
	if (!dir)
		return husk_fail_errno(err, "cannot look at the open files of the machine");
	for (struct dirent *entry; (entry = readdir(dir));)
		if (entry->d_name[0] != '.' && note_name(dirfd(dir), entry->d_name, shares, lists) != 0)
			return husk_fail_memory(err);
	return 0;
}

static bool has_any(const struct share shares[static ENGINE_SHARES_MAX])
{
	for (size_t i = 0; i < ENGINE_SHARES_MAX; i++)
		if (shares[i].directory)
			return true;
	return false;
}

int shares_save(const struct gvisor_process *process, const char *machine,
		const struct share shares[static ENGINE_SHARES_MAX], const char *image, struct husk_error *err)
{
	struct buf lists[ENGINE_SHARES_MAX] = { 0 };

	if (!has_any(shares))
		return 0;
	int result = note_names(process, machine, shares, lists, err);
	for (unsigned i = 0; i < ENGINE_SHARES_MAX; i++) {
		cleanup_free char *path = shares[i].directory ? str_format(NAMES_FILE, image, i) : NULL;

		if (result == 0 && shares[i].directory)
			result = path ? file_write_atomic(path, lists[i].data, lists[i].size, 0600, err)
				      : husk_fail_memory(err);
		buf_free(&lists[i]);
	}
	return result < 0 ? husk_wrap(err, "volumes") : 0;
}

/* Of: … gofer.dentry("3/a/b").prepareSaveDead: invalidated dentries can't be saved. The name is the guest's: other
 * characters than its path do not matter. */
void shares_explain(struct husk_error *err)
{
	const char *start =
		err && strstr(err->message, "invalidated dentries") ? strstr(err->message, "dentry(\"") : NULL;
	const char *name = start ? strchr(start, '/') : NULL;
	cleanup_free char *path = name ? strndup(name + 1, strcspn(name + 1, "\"")) : NULL;

	if (path)
		husk_fail(err, HUSK_CONFLICT,
			  "a process has the file '%.200s' of a volume open, which another sandbox has replaced or "
			  "removed; close it and try again",
			  path);
}

/* ---- names that are gone ---- */

struct made {
	int root; /* of the volume; belongs to `roots` */
	char *path;
	ino_t inode;
	bool directory;
};

struct share_names {
	int roots[ENGINE_SHARES_MAX];
	int locks[ENGINE_SHARES_MAX];
	struct made *made;
	size_t count;
};

static int open_beneath(int root, const char *path, int flags)
{
	struct open_how how = { .flags = (uint64_t)(unsigned)(flags | O_NOFOLLOW | O_CLOEXEC),
				.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS |
					   RESOLVE_NO_XDEV };

	return (int)syscall(SYS_openat2, root, path, &how, sizeof(how));
}

/* Splits off the last component, and opens the directory above it. */
static int open_parent(int root, const char *path, const char **name)
{
	const char *slash = strrchr(path, '/');
	cleanup_free char *above = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");

	*name = slash ? slash + 1 : path;
	return above ? open_beneath(root, above, O_PATH | O_DIRECTORY) : -1;
}

static int make_one(int parent, const char *name, char type)
{
	if (type == 'd')
		return mkdirat(parent, name, 0755);
	if (type == 'l')
		return symlinkat(".", parent, name);
	return mknodat(parent, name, (type == 'p' ? S_IFIFO : S_IFREG) | 0600, 0);
}

/* Makes the last component of `path` if it is missing. After a failure the restore fails, and names the file. */
static void make_missing(struct share_names *names, int root, const char *path, char type)
{
	cleanup_close int there = open_beneath(root, path, O_PATH), parent = -1;
	struct stat found;
	const char *name;

	if (there >= 0 || errno != ENOENT || names->count >= NAMES_MADE_MAX)
		return;
	parent = open_parent(root, path, &name);
	if (parent < 0 || make_one(parent, name, type) < 0 || fstatat(parent, name, &found, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	struct made *more = reallocarray(names->made, names->count + 1, sizeof(*more));
	char *copy = strdup(path);
	names->made = more ? more : names->made;
	if (!more || !copy) {
		unlinkat(parent, name, type == 'd' ? AT_REMOVEDIR : 0);
		free(copy);
		return;
	}
	more[names->count++] = (struct made){ root, copy, found.st_ino, type == 'd' };
}

/* Restores of one volume at the same time: a name that one of them has made must not be taken for a file that stays. So
 * only one process at a time creates names. The wait is bounded: without the lock a restore may fail, and can be tried
 * again. */
static void lock_names(int fd, int how)
{
	for (int i = 0; i < LOCK_TRIES && flock(fd, how | LOCK_NB) < 0 && errno == EWOULDBLOCK; i++)
		usleep(LOCK_PAUSE_MS * 1000);
}

static bool is_any_missing(int root, const char *list, size_t size)
{
	for (const char *at = list; at < list + size; at += strlen(at) + 1) {
		cleanup_close int there = at[0] && at[1] ? open_beneath(root, at + 1, O_PATH) : -1;
		if (there < 0 && errno == ENOENT)
			return true;
	}
	return false;
}

static void make_path(struct share_names *names, int root, char *path, char type)
{
	for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		make_missing(names, root, path, 'd');
		*slash = '/';
	}
	make_missing(names, root, path, type);
}

static int recall_one(struct share_names *names, unsigned number, const struct share *share, const char *image,
		      struct husk_error *err)
{
	cleanup_free char *path = str_format(NAMES_FILE, image, number);
	size_t size = 0;
	cleanup_free char *list = path ? file_read(path, NAMES_SIZE_MAX, &size, err) : NULL;

	if (!list)
		return path ? husk_wrap(err, "the list of open files in '%s'", image) : husk_fail_memory(err);
	if (size == 0)
		return 0;
	int root = names->roots[number] = shares_open(share->directory, err);
	if (root < 0)
		return -1;
	int lock = names->locks[number] = open(share->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (lock < 0)
		return husk_fail_errno(err, "cannot lock '%s'", share->directory);
	lock_names(lock, LOCK_SH);
	/* file_read ends the bytes with a NUL. */
	if (!is_any_missing(root, list, size))
		return 0;
	lock_names(lock, LOCK_EX);
	for (char *at = list; at < list + size; at += strlen(at) + 1)
		if (at[0] && at[1])
			make_path(names, root, at + 1, at[0]);
	return 0;
}

int shares_recall(const struct share shares[static ENGINE_SHARES_MAX], const char *image, struct share_names **out,
		  struct husk_error *err)
{
	int result = 0;

	*out = NULL;
	if (!has_any(shares))
		return 0;
	if (!(*out = calloc(1, sizeof(**out))))
		return husk_fail_memory(err);
	for (size_t i = 0; i < ENGINE_SHARES_MAX; i++)
		(*out)->roots[i] = (*out)->locks[i] = -1;
	for (unsigned i = 0; i < ENGINE_SHARES_MAX && result == 0; i++)
		if (shares[i].directory && shares_in_image(image, i))
			result = recall_one(*out, i, &shares[i], image, err);
	return result;
}

void shares_forget(struct share_names *names)
{
	while (names && names->count > 0) {
		struct made *made = &names->made[--names->count];
		const char *name;
		cleanup_close int parent = open_parent(made->root, made->path, &name);
		struct stat found;

		/* Unless somebody has put another file there. */
		if (parent >= 0 && fstatat(parent, name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
		    found.st_ino == made->inode)
			unlinkat(parent, name, made->directory ? AT_REMOVEDIR : 0);
		free(made->path);
	}
	for (size_t i = 0; names && i < ENGINE_SHARES_MAX; i++) {
		fd_close(&names->roots[i]);
		fd_close(&names->locks[i]);
	}
	if (names)
		free(names->made);
	free(names);
}
