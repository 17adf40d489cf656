/*
 * The place of an instance's cloned disks: a btrfs with quotas. If the instance is on a btrfs, its directory `disks` is
 * used. Otherwise Husk makes a btrfs in a sparse file of the instance, behind a loop device:
 *
 *     <home>/disks.btrfs     the file; when disks are removed, its blocks are given back to the host
 *     <home>/disks.lock      held to make, attach or resize the file
 *
 * The btrfs is not mounted at any path. Every process that works with disks has its own mount, by a descriptor. The
 * first process attaches the loop device, and the kernel removes mount and device with the last process, however it
 * ended. So there is nothing to clean up after a kill or a reboot, and other mount namespaces do not matter.
 *
 * Called by disk.c, which knows the content. Nothing here may run `mkfs` on a file that has a name.
 */
#include <endian.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

#include "engine/gvisor/gvisor.h"

#define DIRECTORY "disks"
#define FILE_NAME "disks.btrfs"
#define FILE_PARTIAL "disks.partial" /* while it is being made */
#define LOCK_NAME "disks.lock"
#define MEMORY_NAME "disks" /* the reason why there are no cloned disks, in the instance's runtime directory */
#define LOOP_MAJOR 7
#define LOOP_BLOCK 4096
#define RETRY_MS 20
#define RETRIES 500 /* a mount that ends on another CPU keeps the device busy for some time */
#define MKFS_TIMEOUT_MS 60000
#define CLEANING_MS 20000

#define SIZE_UNIT (64ull << 20)
#define SIZE_MIN (512ull << 20)
#define SIZE_MAX_FILE (8ull << 40)
#define HOST_SPARE (1ull << 30) /* free space of the host that disks never use */
#define RESERVE_MAX (4ull << 30)
#define METADATA_STEP "268435456" /* the smallest that the kernel accepts */

/* ---- what there is ---- */

int disks_quotas(int fd, char *out, size_t size)
{
	struct btrfs_ioctl_fs_info_args info = { 0 };
	size_t length;

	if (ioctl(fd, BTRFS_IOC_FS_INFO, &info) < 0)
		return -1;
	length = (size_t)snprintf(out, size, "/sys/fs/btrfs/");
	for (size_t i = 0; i < sizeof(info.fsid); i++)
		length += (size_t)snprintf(out + length, size - length, "%s%02x",
					   i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", info.fsid[i]);
	snprintf(out + length, size - length, "/qgroups");
	return access(out, F_OK);
}

static bool is_btrfs(const char *path)
{
	struct statfs found;

	return statfs(path, &found) == 0 && found.f_type == BTRFS_SUPER_MAGIC;
}

static bool has_quotas(const char *path)
{
	cleanup_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char quotas[DISKS_QUOTAS_MAX];

	return fd >= 0 && disks_quotas(fd, quotas, sizeof(quotas)) == 0;
}

static bool is_there(const char *directory, const char *name)
{
	cleanup_free char *path = str_format("%s/%s", directory, name);

	return path && access(path, F_OK) == 0;
}

/* The instance that contains `path` (caller frees); NULL: none with such disks. */
static char *find_home(const char *path)
{
	cleanup_free char *home = strdup(path);

	while (home && *home) {
		if (is_there(home, LOCK_NAME) && (is_there(home, FILE_NAME) || is_there(home, DIRECTORY)))
			return steal_pointer(home);
		char *slash = strrchr(home, '/');
		if (!slash)
			break;
		*slash = '\0';
	}
	return NULL;
}

static int lock_home(const char *home, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/" LOCK_NAME, home);
	cleanup_close int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;

	if (fd < 0 || flock(fd, LOCK_EX) < 0)
		return husk_fail_errno(err, "cannot lock the disks in '%s'", home);
	return steal_fd(&fd);
}

/* ---- the loop device ---- */

struct loop {
	int fd; /* while this is open, the kernel keeps the device */
	char path[64];
};

static void loop_close(struct loop *loop)
{
	fd_close(&loop->fd);
}

/* In a container, /dev may lack the node of a new device. */
static int loop_node(unsigned number, struct loop *out)
{
	snprintf(out->path, sizeof(out->path), "/dev/loop%u", number);
	out->fd = open(out->path, O_RDWR | O_CLOEXEC);
	if (out->fd < 0 && errno == ENOENT &&
	    (mknod(out->path, S_IFBLK | 0600, makedev(LOOP_MAJOR, number)) == 0 || errno == EEXIST))
		out->fd = open(out->path, O_RDWR | O_CLOEXEC);
	return out->fd < 0 ? -1 : 0;
}

/* Does this device belong to that file? Checked with the device open, so that the answer stays true. */
static bool loop_is_of(const struct loop *loop, const struct stat *file)
{
	struct loop_info64 info;

	return ioctl(loop->fd, LOOP_GET_STATUS64, &info) == 0 && info.lo_inode == file->st_ino &&
	       info.lo_device == file->st_dev;
}

static int loop_find(const struct stat *file, struct loop *out)
{
	cleanup_dir DIR *dir = opendir("/sys/block");
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		cleanup_free char *bound = str_format("/sys/block/%s/loop", entry->d_name);
		unsigned number;

		if (sscanf(entry->d_name, "loop%u", &number) != 1 || !bound || access(bound, F_OK) < 0 ||
		    loop_node(number, out) < 0)
			continue;
		if (loop_is_of(out, file))
			return 0;
		loop_close(out);
	}
	return -1;
}

/* Direct I/O: data is in the page cache only once, and a flush of the device flushes the file. */
static int loop_configure(int loop, int file)
{
	struct loop_config config = { .fd = (uint32_t)file,
				      .block_size = LOOP_BLOCK,
				      .info = { .lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO } };

	if (ioctl(loop, LOOP_CONFIGURE, &config) == 0)
		return 0;
	if (errno != EINVAL)
		return -1;
	config.info.lo_flags = LO_FLAGS_AUTOCLEAR; /* tmpfs */
	return ioctl(loop, LOOP_CONFIGURE, &config);
}

static int loop_attach(int file, struct loop *out, struct husk_error *err)
{
	cleanup_close int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);

	for (int i = 0; control >= 0 && i < RETRIES; i++) {
		int number = ioctl(control, LOOP_CTL_GET_FREE);

		if (number < 0 || loop_node((unsigned)number, out) < 0)
			break;
		if (loop_configure(out->fd, file) == 0)
			return 0;
		int reason = errno;
		loop_close(out);
		errno = reason;
		if (reason != EBUSY) /* else somebody was faster */
			break;
	}
	return husk_fail_errno(err, "cannot get a loop device");
}

/* ---- the mount ---- */

/* A mount without a path, of the subvolume `name` or (NULL) of everything; with errno. */
static int mount_loop(const struct loop *loop, const char *name)
{
	cleanup_close int context = fsopen("btrfs", FSOPEN_CLOEXEC);

	if (context < 0 || fsconfig(context, FSCONFIG_SET_STRING, "source", loop->path, 0) < 0 ||
	    fsconfig(context, FSCONFIG_SET_STRING, "discard", "async", 0) < 0 ||
	    (name && fsconfig(context, FSCONFIG_SET_STRING, "subvol", name, 0) < 0) ||
	    fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return -1;
	return fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME);
}

/* A device whose last mount is just ending is busy for a moment: tries again. */
static int mount_patiently(const struct loop *loop, const char *name, struct husk_error *err)
{
	for (int i = 0; i < RETRIES; i++) {
		int fd = mount_loop(loop, name);

		if (fd >= 0)
			return fd;
		if (errno != EBUSY)
			break;
		usleep(RETRY_MS * 1000);
	}
	/* So says btrfs if an error has made it read-only, while it is still mounted. */
	if (errno == EINVAL || errno == EROFS)
		return husk_fail(
			err, HUSK_UNAVAILABLE,
			"they became read-only when a write failed on the host's disk; free space there, then end "
			"the sandboxes that still run (husk ls, husk rm), and they are mounted again");
	return husk_fail_errno(err, "cannot mount the disks on %s", loop->path);
}

/* The top directory, opened for reading and not only as a path. It keeps the mount, which has no other user. */
static int mount_top(const struct loop *loop, struct husk_error *err)
{
	cleanup_close int mount = mount_patiently(loop, NULL, err);
	int top = mount < 0 ? -1 : openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return mount >= 0 && top < 0 ? husk_fail_errno(err, "cannot open the disks") : top;
}

/* ---- its size ---- */

/* The maximum size of the filesystem in the file: its own use, plus the host's free space without a reserve. */
static uint64_t wanted_size(int file, struct husk_error *err)
{
	struct statfs host;
	struct stat found;

	if (fstatfs(file, &host) < 0 || fstat(file, &found) < 0) {
		husk_fail_errno(err, "cannot look at the disks");
		return 0;
	}
	uint64_t free_bytes = (uint64_t)host.f_bavail * (uint64_t)host.f_bsize;
	uint64_t spare = MIN(free_bytes / 8, HOST_SPARE);
	uint64_t size = (uint64_t)found.st_blocks * 512 + free_bytes - spare;
	return MAX(MIN(size, SIZE_MAX_FILE) / SIZE_UNIT * SIZE_UNIT, SIZE_MIN);
}

static int resize(int mount, uint64_t size)
{
	struct btrfs_ioctl_vol_args order = { 0 };

	snprintf(order.name, sizeof(order.name), "1:%llu", (unsigned long long)size);
	return ioctl(mount, BTRFS_IOC_RESIZE, &order);
}

/* Adapts the size to the host's free space, so that a full host gives ENOSPC in the guests, not a failed write below
 * them. Should be done often; small differences are ignored. After a failure the size stays. */
static void fit(const struct loop *loop, int file, int mount)
{
	struct btrfs_ioctl_dev_info_args device = { .devid = 1 };
	uint64_t wanted = wanted_size(file, NULL);
	struct stat found;

	if (!wanted || ioctl(mount, BTRFS_IOC_DEV_INFO, &device) < 0 || fstat(file, &found) < 0)
		return;
	uint64_t has = device.total_bytes, slack = MAX(has / 32, SIZE_UNIT);
	/* Space with chunks stays: moving them costs more than it gains. */
	if (wanted < has)
		wanted = MAX(wanted, (device.bytes_used + SIZE_UNIT) / SIZE_UNIT * SIZE_UNIT);
	if (wanted + slack > has && has + slack > wanted)
		return;
	if (wanted > (uint64_t)found.st_size &&
	    (ftruncate(file, (off_t)wanted) < 0 || ioctl(loop->fd, LOOP_SET_CAPACITY, 0) < 0))
		return;
	if (resize(mount, wanted) < 0)
		log_line(LOG_INFO, "disks: cannot change their size from %llu to %llu bytes: %s",
			 (unsigned long long)has, (unsigned long long)wanted, strerror(errno));
}

/* ---- blocks that a full host cannot take ---- */

/* If a write of metadata fails, btrfs becomes read-only for all machines until the last of them is gone. A write of data
 * that fails is an error for its file only. So the parts of the file that hold metadata get their blocks before. */
static void reserve_chunk(int file, const struct btrfs_chunk *chunk, uint64_t *left)
{
	uint64_t length = le64toh(chunk->length), start = le64toh(chunk->stripe.offset);

	if (!(le64toh(chunk->type) & (BTRFS_BLOCK_GROUP_METADATA | BTRFS_BLOCK_GROUP_SYSTEM)) || length > *left)
		return;
	*left -= length;
	if (fallocate(file, FALLOC_FL_KEEP_SIZE, (off_t)start, (off_t)length) < 0)
		log_line(LOG_DEBUG, "disks: cannot reserve blocks for metadata: %s", strerror(errno));
}

static void reserve(int file, int mount)
{
	struct btrfs_ioctl_search_args search = { .key = { .tree_id = BTRFS_CHUNK_TREE_OBJECTID,
							   .min_objectid = BTRFS_FIRST_CHUNK_TREE_OBJECTID,
							   .max_objectid = BTRFS_FIRST_CHUNK_TREE_OBJECTID,
							   .min_type = BTRFS_CHUNK_ITEM_KEY,
							   .max_type = BTRFS_CHUNK_ITEM_KEY,
							   .max_offset = UINT64_MAX,
							   .max_transid = UINT64_MAX } };
	uint64_t left = RESERVE_MAX;

	for (;;) {
		struct btrfs_ioctl_search_header header;
		struct btrfs_chunk chunk;
		size_t at = 0;

		search.key.nr_items = 4096;
		if (ioctl(mount, BTRFS_IOC_TREE_SEARCH, &search) < 0 || search.key.nr_items == 0)
			return;
		for (uint32_t i = 0; i < search.key.nr_items && at + sizeof(header) <= sizeof(search.buf); i++) {
			memcpy(&header, search.buf + at, sizeof(header));
			at += sizeof(header);
			if (header.len >= sizeof(chunk) && at + header.len <= sizeof(search.buf)) {
				memcpy(&chunk, search.buf + at, sizeof(chunk));
				reserve_chunk(file, &chunk, &left);
			}
			at += header.len;
			search.key.min_offset = header.offset + 1;
		}
	}
}

/* Metadata grows in steps of this size; otherwise a large btrfs takes 1 GiB at a time. Kernels before 6.0 cannot. */
static void set_step(int mount)
{
	char path[DISKS_QUOTAS_MAX], file[DISKS_QUOTAS_MAX + 64];

	if (disks_quotas(mount, path, sizeof(path)) < 0)
		return;
	snprintf(file, sizeof(file), "%s/../allocation/metadata/chunk_size", path);
	cleanup_close int fd = open(file, O_WRONLY | O_CLOEXEC);
	(void)!write(fd, METADATA_STEP, strlen(METADATA_STEP));
}

/* ---- opening ---- */

/* With the lock held: one device for one file. */
static int attach(const char *home, const char *name, struct loop *loop, int *file, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/%s", home, name);
	struct stat found;

	*file = path ? open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
	if (*file < 0 || fstat(*file, &found) < 0)
		return husk_fail_errno(err, "cannot open '%s'", path ? path : name);
	return loop_find(&found, loop) == 0 ? 0 : loop_attach(*file, loop, err);
}

static int open_file(const char *home, const char *name, struct husk_error *err)
{
	cleanup_close int lock = lock_home(home, err);
	cleanup_close int file = -1;
	struct loop loop = { .fd = -1 };

	if (lock < 0 || attach(home, FILE_NAME, &loop, &file, err) < 0)
		return lock < 0 ? -1 : husk_wrap(err, "the disks in '%s' (HUSK_DISK=memory does without)", home);
	int mount = name ? mount_patiently(&loop, name, err) : mount_top(&loop, err);
	if (mount >= 0 && !name) {
		fit(&loop, file, mount);
		set_step(mount);
		reserve(file, mount);
	}
	loop_close(&loop);
	return mount < 0 ? husk_wrap(err, "the disks in '%s' (HUSK_DISK=memory does without)", home) : mount;
}

int disks_open(const char *path, struct husk_error *err)
{
	cleanup_free char *home = find_home(path);
	cleanup_free char *directory = home ? str_format("%s/" DIRECTORY, home) : NULL;

	if (!home)
		return husk_fail(err, HUSK_NOT_FOUND, "no disks belong to '%s'", path);
	if (is_there(home, FILE_NAME))
		return open_file(home, NULL, err);
	int fd = directory ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW) : -1;
	return fd < 0 ? husk_fail_errno(err, "cannot open the disks in '%s'", home) : fd;
}

int disks_mount(const char *path, int disks, const char *name, struct husk_error *err)
{
	cleanup_free char *home = find_home(path);

	if (home && is_there(home, FILE_NAME))
		return open_file(home, name, err);
	int tree = open_tree(disks, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);
	return tree < 0 ? husk_fail_errno(err, "cannot mount the disk '%s'", name) : tree;
}

/* ---- making one ---- */

static int run_mkfs(const char *path, struct husk_error *err)
{
	/* One copy of metadata: a defect that destroys one block of the file also destroys the other. */
	const char *const argv[] = { "mkfs.btrfs", "-q", "-K", "-m", "single", "-d", "single", path, NULL };
	struct command command = { COMMAND_INIT, .argv = argv, .timeout_ms = MKFS_TIMEOUT_MS };

	return command_run(&command, err);
}

static int enable_quotas(int mount, struct husk_error *err)
{
	struct btrfs_ioctl_quota_ctl_args order = { .cmd = BTRFS_QUOTA_CTL_ENABLE };

	if (ioctl(mount, BTRFS_IOC_QUOTA_CTL, &order) < 0 || ioctl(mount, BTRFS_IOC_QUOTA_RESCAN_WAIT) < 0 ||
	    fchmod(mount, 0700) < 0 || syncfs(mount) < 0)
		return husk_fail_errno(err, "cannot enable btrfs quotas");
	return 0;
}

static int make_partial(const char *home, const char *partial, struct husk_error *err)
{
	cleanup_close int file = open(partial, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600), again = -1, mount = -1;
	struct loop loop = { .fd = -1 };

	if (file < 0)
		return husk_fail_errno(err, "cannot make '%s'", partial);
	uint64_t size = wanted_size(file, err);
	if (!size)
		return -1;
	if (ftruncate(file, (off_t)size) < 0)
		return husk_fail_errno(err, "cannot make '%s' of %llu bytes", partial, (unsigned long long)size);
	if (run_mkfs(partial, err) < 0 || attach(home, FILE_PARTIAL, &loop, &again, err) < 0)
		return -1;
	mount = mount_top(&loop, err);
	int result = mount < 0 ? -1 : enable_quotas(mount, err);
	loop_close(&loop);
	return result == 0 && fsync(file) < 0 ? husk_fail_errno(err, "cannot flush '%s'", partial) : result;
}

static int make_file(const char *home, struct husk_error *err)
{
	cleanup_free char *partial = str_format("%s/" FILE_PARTIAL, home);
	cleanup_free char *path = str_format("%s/" FILE_NAME, home);
	cleanup_close int lock = lock_home(home, err);

	if (lock < 0 || !partial || !path)
		return lock < 0 ? -1 : husk_fail_memory(err);
	if (access(path, F_OK) == 0)
		return 0;
	unlink(partial); /* of one that was killed */
	if (make_partial(home, partial, err) == 0 && rename(partial, path) == 0)
		return 0;
	if (!err || !err->code)
		husk_fail_errno(err, "cannot make '%s'", path);
	unlink(partial);
	return -1;
}

/* Does this kernel support idmapped mounts of btrfs? */
static bool is_kernel_new(void)
{
	struct utsname name;
	unsigned major = 0, minor = 0;

	return uname(&name) == 0 && sscanf(name.release, "%u.%u", &major, &minor) == 2 &&
	       (major > 5 || (major == 5 && minor >= 15));
}

static bool has_mkfs(void)
{
	static const char *const places[] = { "/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin" };

	for (size_t i = 0; i < ARRAY_SIZE(places); i++)
		if (is_there(places[i], "mkfs.btrfs"))
			return true;
	return false;
}

/* Checks requirements besides the instance's own files; cheap. */
static int check_host(const char *home, struct husk_error *err)
{
	cleanup_close int context = fsopen("btrfs", FSOPEN_CLOEXEC);
	struct statfs found;

	if (context < 0)
		return husk_fail(err, HUSK_UNAVAILABLE, "this kernel has no btrfs");
	if (access("/dev/loop-control", R_OK | W_OK) < 0)
		return husk_fail(err, HUSK_UNAVAILABLE, "this host has no loop devices (/dev/loop-control)");
	if (!has_mkfs())
		return husk_fail(err, HUSK_UNAVAILABLE, "mkfs.btrfs (package btrfs-progs) is not installed");
	if (statfs(home, &found) < 0 || (uint64_t)found.f_bavail * (uint64_t)found.f_bsize < 2 * SIZE_MIN)
		return husk_fail(err, HUSK_UNAVAILABLE, "less than %llu MiB are free there",
				 (unsigned long long)(2 * SIZE_MIN >> 20));
	return 0;
}

static int make_here(const char *home, struct husk_error *err)
{
	cleanup_free char *directory = str_format("%s/" DIRECTORY, home);
	cleanup_close int lock = -1;

	if (!directory)
		return husk_fail_memory(err);
	if (dir_make(directory, 0700, err) < 0)
		return -1;
	lock = lock_home(home, err); /* the file marks the directory as such a one */
	return lock < 0 ? -1 : 0;
}

int disks_check_wish(struct husk_error *err)
{
	const char *wish = getenv("HUSK_DISK");

	if (!wish || !*wish || str_equal(wish, "memory"))
		return 0;
	return husk_fail(err, HUSK_INVALID,
			 "HUSK_DISK is '%.40s'; set it to memory for disks that are part of every image, or not at all",
			 wish);
}

bool disks_wanted(const struct gvisor_program *program)
{
	return program->date >= GVISOR_VERSION_NEW && !str_equal(getenv("HUSK_DISK"), "memory");
}

int disks_possible(const char *home, struct husk_error *err)
{
	if (!is_kernel_new())
		return husk_fail(err, HUSK_UNAVAILABLE, "they need Linux 5.15 or newer");
	if (is_there(home, LOCK_NAME) && is_there(home, FILE_NAME))
		return 0;
	if (!is_btrfs(home))
		return check_host(home, err);
	if (!has_quotas(home))
		return husk_fail(err, HUSK_UNAVAILABLE, "it is a btrfs without quotas: btrfs quota enable %s", home);
	return 0;
}

bool disks_ready(const char *home, const char *runtime, const struct gvisor_program *program)
{
	cleanup_free char *known = NULL;
	struct husk_error err = { 0 };

	if (!disks_wanted(program))
		return false;
	if (is_there(home, LOCK_NAME) && is_there(home, FILE_NAME))
		return true;
	if (disks_possible(home, &err) < 0)
		return false;
	if (is_btrfs(home))
		return make_here(home, NULL) == 0;
	if (engine_remembered(runtime, MEMORY_NAME, program->key, &known) == 0)
		return false;
	if (make_file(home, &err) == 0)
		return true;
	/* Cached for this boot, so that not every machine tries again. */
	log_line(LOG_WARN, "disks will be part of every image: %s", err.message);
	engine_remember(runtime, MEMORY_NAME, program->key, err.message);
	return false;
}

bool disks_belong(const char *path, const struct gvisor_program *program)
{
	cleanup_free char *home = disks_wanted(program) ? find_home(path) : NULL;

	return home != NULL;
}

void disks_describe(const char *home, const char *runtime, const struct gvisor_program *program, struct buf *out)
{
	cleanup_free char *known = NULL;
	struct husk_error err = { 0 };

	if (!disks_wanted(program))
		buf_printf(out, "part of every image (%s)",
			   program->date < GVISOR_VERSION_NEW ? "clones need a current runsc" : "HUSK_DISK=memory");
	else if (disks_possible(home, &err) < 0)
		buf_printf(out, "part of every image (clones are not possible in %s: %s)", home, err.message);
	else if (is_btrfs(home))
		buf_printf(out, "cloned by btrfs");
	else if (!is_there(home, FILE_NAME) && engine_remembered(runtime, MEMORY_NAME, program->key, &known) == 0)
		buf_printf(out, "part of every image (%s)", known);
	else
		buf_printf(out, "cloned by btrfs in %s/" FILE_NAME "%s", home,
			   is_there(home, FILE_NAME) ? "" : ", made when first needed");
}

/* Are there removed subvolumes whose blocks the kernel has not freed yet? */
static bool is_cleaning(int disks)
{
	struct btrfs_ioctl_search_args search = { .key = { .tree_id = BTRFS_ROOT_TREE_OBJECTID,
							   .min_objectid = BTRFS_ORPHAN_OBJECTID,
							   .max_objectid = BTRFS_ORPHAN_OBJECTID,
							   .min_type = BTRFS_ORPHAN_ITEM_KEY,
							   .max_type = BTRFS_ORPHAN_ITEM_KEY,
							   .max_offset = UINT64_MAX,
							   .max_transid = UINT64_MAX,
							   .nr_items = 1 } };

	return ioctl(disks, BTRFS_IOC_TREE_SEARCH, &search) == 0 && search.key.nr_items > 0;
}

void disks_trim(int disks)
{
	struct fstrim_range all = { .len = UINT64_MAX };

	/* A sync wakes the thread that frees them; an unmount would stop it. */
	for (int i = 0; i < CLEANING_MS / RETRY_MS && ioctl(disks, BTRFS_IOC_SYNC) == 0 && is_cleaning(disks); i++)
		usleep(RETRY_MS * 1000);
	if (ioctl(disks, BTRFS_IOC_SYNC) < 0 || ioctl(disks, FITRIM, &all) < 0)
		log_line(LOG_DEBUG, "disks: cannot give free blocks back: %s", strerror(errno));
}
