/*
 * The writable layer as a directory of the host. If the instance has a btrfs for it (disks.c), and runsc can save open
 * files of such a directory, the layer is a subvolume. An image of the machine then names a snapshot of the subvolume.
 * The snapshot shares its blocks, and takes the time of a commit for any amount of data. Called by gvisor.c. Otherwise
 * the layer is a file, saved with the memory.
 *
 *     <disks>/m-x7k2mqab/        what the guest has mounted: private to the machine, owned by DISK_UID
 *     <disks>/m-x7k2mqab/data/   the subvolume: upper/ and work/ of the guest's overlay
 *     <disks>/i-b5qonr3d/        the snapshot of one, read-only
 *     <disks>/volumes/v-5zr7sqm2/    the files of a volume; an earlier Husk, which knows no such files, cannot remove them there
 *     <machine>/disk.name        "m-x7k2mqab", <image>/disk.name "i-b5qonr3d", <volume>/disk.name "v-5zr7sqm2": written
 *                                before there is such a subvolume
 *
 * So a subvolume that no such file names has no owner, and disk_collect removes it. On disk every file belongs to the
 * DISK_UID range. The mount of each machine shows that range as the machine's own. So a clone needs no change of
 * owners, and no machine has a right to another's files. The guest controls the content: nothing here may open a name
 * below data/.
 */
#include <fcntl.h>
#include <linux/btrfs.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "engine/gvisor/gvisor.h"
#include "jail/jail.h"

#define DISK_UID 0x0fff0000u /* below every range of a machine */
#define UIDS 65536
/* Processes that serve volumes have uids of their own (volume/process.h). What they make has such an owner on disk, until
 * they give it to the guest's. */
#define SERVER_UID_DISK 0x0ffe0000u
#define SERVER_UID 0x0fff4000u
#define SERVER_UIDS 16384
#define DATA "data"
#define VOLUMES "volumes"
#define PATH_SIZE 32 /* of a disk, at the top */
#define NAME_FILE ENGINE_IMAGE_OUTSIDE
#define NAME_LETTERS 8
#define NAME_MAX_SIZE 16
#define NAME_DEPTH 3         /* of such files below a removed directory: a template's version has baked/<image>/ */
#define SPARE (4ull << 20)   /* a restored guest can write this much in any case, first of all its name */
#define OUTSIDE (1ull << 20) /* limit for writes beside data/, where the guest should not write */
#define EMPTY (16ull << 10)  /* the size of a subvolume without a file */
#define ARRIVAL_MAX (1ull << 50)
#define RECEIVE_TIMEOUT_MS (30 * 60 * 1000)
#define YOUNG_S 600 /* newer subvolumes are not collected */

/* ---- names ---- */

/* An incomplete file names nothing. */
static int name_read(const char *directory, char out[static NAME_MAX_SIZE])
{
	cleanup_free char *path = str_format("%s/" NAME_FILE, directory);
	cleanup_free char *text = path ? file_read(path, NAME_MAX_SIZE, NULL, NULL) : NULL;

	if (!text || strlen(text) != 2 + NAME_LETTERS || text[1] != '-' || strchr(text, '/'))
		return -1;
	snprintf(out, NAME_MAX_SIZE, "%s", text);
	return 0;
}

/* Chooses a new name for the disk of `directory`, and writes it before the subvolume exists. */
static int name_new(const char *directory, const char *kind, char out[static NAME_MAX_SIZE], struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/" NAME_FILE, directory);

	if (!path || random_id(kind, NAME_LETTERS, out) < 0)
		return husk_fail_errno(err, "cannot name a disk");
	return file_write_atomic(path, out, strlen(out), 0600, err);
}

/* ---- subvolumes ---- */

static int open_directory(int parent, const char *name)
{
	return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int set_limit(int fd, uint64_t bytes, struct husk_error *err)
{
	struct btrfs_ioctl_qgroup_limit_args limit = { .lim = { .flags = BTRFS_QGROUP_LIMIT_MAX_RFER,
								.max_rfer = bytes } };

	if (ioctl(fd, BTRFS_IOC_QGROUP_LIMIT, &limit) < 0)
		return husk_fail_errno(err, "cannot limit the disk (btrfs quotas must be on; or set HUSK_DISK=memory)");
	return 0;
}

/* The size of the subvolume, as of the last commit; 0: the kernel does not report it. */
static uint64_t used_bytes(int fd)
{
	struct btrfs_ioctl_get_subvol_info_args info = { 0 };
	char path[DISKS_QUOTAS_MAX], file[DISKS_QUOTAS_MAX + 64];

	if (disks_quotas(fd, path, sizeof(path)) < 0 || ioctl(fd, BTRFS_IOC_GET_SUBVOL_INFO, &info) < 0)
		return 0;
	snprintf(file, sizeof(file), "%s/0_%llu/referenced", path, (unsigned long long)info.treeid);
	cleanup_free char *text = file_read(file, 64, NULL, NULL);
	return text ? strtoull(text, NULL, 10) : 0;
}

/* The path of a disk, relative to the top. */
static void disk_path(const char *name, char out[static PATH_SIZE])
{
	snprintf(out, PATH_SIZE, "%s%s", name[0] == 'v' ? VOLUMES "/" : "", name);
}

static int open_disk(int disks, const char *name)
{
	char path[PATH_SIZE];

	disk_path(name, path);
	return open_directory(disks, path);
}

/* The directory that has the disk in it. */
static int open_above(int disks, const char *name)
{
	return open_directory(disks, name[0] == 'v' ? VOLUMES : ".");
}

/* A new, empty subvolume, for its machine only. */
static int subvolume_make(int parent, const char *name, uint64_t bytes, struct husk_error *err)
{
	struct btrfs_ioctl_vol_args order = { 0 };

	snprintf(order.name, sizeof(order.name), "%s", name);
	if (ioctl(parent, BTRFS_IOC_SUBVOL_CREATE, &order) < 0)
		return husk_fail_errno(err, "cannot make the disk '%s'", name);
	cleanup_close int fd = open_directory(parent, name);
	if (fd < 0 || fchown(fd, DISK_UID, DISK_UID) < 0 || fchmod(fd, 0700) < 0)
		return husk_fail_errno(err, "cannot give the disk '%s' to the machine", name);
	return set_limit(fd, bytes, err);
}

static int subvolume_clone(int source, int directory, const char *name, bool readonly, struct husk_error *err)
{
	struct btrfs_ioctl_vol_args_v2 order = { .fd = source, .flags = readonly ? BTRFS_SUBVOL_RDONLY : 0 };

	snprintf(order.name, sizeof(order.name), "%s", name);
	if (ioctl(directory, BTRFS_IOC_SNAP_CREATE_V2, &order) < 0)
		return husk_fail_errno(err, "cannot clone the disk");
	return 0;
}

static int subvolume_remove(int parent, const char *name)
{
	struct btrfs_ioctl_vol_args order = { 0 };

	snprintf(order.name, sizeof(order.name), "%s", name);
	return ioctl(parent, BTRFS_IOC_SNAP_DESTROY, &order) < 0 && errno != ENOENT ? -1 : 0;
}

/* Removes the subvolumes that arrived in a carrier. An entry that is no subvolume stays: the kernel refuses to remove it so. */
static void remove_arrived(int outer)
{
	int own = open_directory(outer, ".");
	cleanup_dir DIR *dir = own < 0 ? NULL : fdopendir(own);

	if (!dir)
		fd_close(&own);
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		if (entry->d_type == DT_DIR && !str_equal(entry->d_name, ".") && !str_equal(entry->d_name, ".."))
			(void)subvolume_remove(outer, entry->d_name);
}

/* Removes a disk with its content: a machine's disk contains one more subvolume, and so does a carrier (disk_receive). */
static int disk_remove(int disks, const char *name)
{
	cleanup_close int outer = name[0] == 'm' ? open_directory(disks, name) : -1;
	cleanup_close int above = open_above(disks, name);

	if (outer >= 0 && subvolume_remove(outer, DATA) < 0)
		return -1;
	if (above < 0)
		return -1;
	if (subvolume_remove(above, name) == 0)
		return 0;
	if (errno != ENOTEMPTY || outer < 0)
		return -1;
	remove_arrived(outer);
	return subvolume_remove(above, name);
}

/* ---- the disk of a machine, and of an image ---- */

int disk_make(int disks, const char *machine, struct husk_error *err)
{
	char name[NAME_MAX_SIZE];

	return name_new(machine, "m-", name, err) < 0 ? -1 : subvolume_make(disks, name, OUTSIDE, err);
}

int disk_make_volume(int disks, const char *directory, uint64_t bytes, struct husk_error *err)
{
	cleanup_close int above = -1, fd = -1;
	char name[NAME_MAX_SIZE];

	if (mkdirat(disks, VOLUMES, 0700) < 0 && errno != EEXIST)
		return husk_fail_errno(err, "cannot make the place of volumes");
	if ((above = open_directory(disks, VOLUMES)) < 0)
		return husk_fail_errno(err, "cannot open the place of volumes");
	if (name_new(directory, "v-", name, err) < 0 || subvolume_make(above, name, bytes, err) < 0)
		return -1;
	fd = open_directory(above, name);
	return fd < 0 || fchmod(fd, 0777) < 0 || fsync(fd) < 0
		       ? husk_fail_errno(err, "cannot open the volume '%s'", name)
		       : 0;
}

static int open_outer(int disks, const char *machine, struct husk_error *err)
{
	char name[NAME_MAX_SIZE] = "";
	int fd = name_read(machine, name) < 0 ? -1 : open_disk(disks, name);

	return fd < 0 ? husk_fail_errno(err, "cannot open the disk '%s' of '%s'", name, machine) : fd;
}

int disk_begin(int disks, const char *machine, uint64_t bytes, struct husk_error *err)
{
	cleanup_close int outer = open_outer(disks, machine, err);

	return outer < 0 ? -1 : subvolume_make(outer, DATA, bytes, err);
}

static int open_saved(int disks, const char *image, struct husk_error *err)
{
	char name[NAME_MAX_SIZE];
	int fd = name_read(image, name) < 0 ? -1 : open_directory(disks, name);

	return fd < 0 ? husk_fail(err, HUSK_INVALID, "the image in '%s' is damaged: its disk is missing", image) : fd;
}

int disk_restore(int disks, const char *image, const char *machine, uint64_t bytes, struct husk_error *err)
{
	cleanup_close int saved = open_saved(disks, image, err), outer = -1, data = -1;

	if (saved < 0 || (outer = open_outer(disks, machine, err)) < 0 ||
	    subvolume_clone(saved, outer, DATA, false, err) < 0)
		return -1;
	data = open_directory(outer, DATA);
	if (data < 0)
		return husk_fail_errno(err, "cannot open the disk of '%s'", machine);
	return set_limit(data, MAX(bytes, used_bytes(data) + SPARE), err);
}

int disk_save(int disks, const char *machine, const char *image, struct husk_error *err)
{
	cleanup_close int outer = open_outer(disks, machine, err), data = -1;
	char name[NAME_MAX_SIZE];

	if (outer < 0)
		return -1;
	data = open_directory(outer, DATA);
	if (data < 0)
		return husk_fail_errno(err, "cannot open the disk of '%s'", machine);
	/* A commit: on return the snapshot is on disk, with everything that the guest had written. */
	return name_new(image, "i-", name, err) < 0 ? -1 : subvolume_clone(data, disks, name, true, err);
}

int disk_used(int disks, const char *machine, uint64_t *bytes)
{
	cleanup_close int outer = open_outer(disks, machine, NULL);
	cleanup_close int data = outer < 0 ? -1 : open_directory(outer, DATA);

	*bytes = data < 0 ? 0 : used_bytes(data);
	return data < 0 ? -1 : 0;
}

int disk_volume_used(int disks, const char *directory, bool now, uint64_t *bytes, struct husk_error *err)
{
	cleanup_close int fd = open_outer(disks, directory, err);

	if (fd < 0)
		return -1;
	if (now && ioctl(fd, BTRFS_IOC_SYNC) < 0) /* the kernel counts at a commit */
		return husk_fail_errno(err, "cannot flush the disks");
	uint64_t used = used_bytes(fd);
	*bytes = used > EMPTY ? used - EMPTY : 0;
	return 0;
}

bool disk_in_image(const char *image)
{
	char name[NAME_MAX_SIZE];

	return name_read(image, name) == 0;
}

int disk_check(const char *image, struct husk_error *err)
{
	cleanup_close int disks = disks_open(image, err);
	cleanup_close int saved = disks < 0 ? -1 : open_saved(disks, image, err);

	return saved < 0 ? -1 : 0;
}

/* ---- to another host and back ---- */

int disk_send(const char *image, int fd, struct husk_error *err)
{
	struct btrfs_ioctl_send_args order = { .send_fd = fd };

	if (!disk_in_image(image))
		return 0;
	cleanup_close int disks = disks_open(image, err);
	cleanup_close int saved = disks < 0 ? -1 : open_saved(disks, image, err);
	if (saved < 0)
		return -1;
	if (ioctl(saved, BTRFS_IOC_SEND, &order) < 0)
		return husk_fail_errno(err, "cannot read the disk of '%s'", image);
	return 1;
}

/* The mount of the carrier, and where `btrfs receive` finds it, in a mount namespace of its own. */
struct arrival {
	int tree;
	const char *place;
};

static int mount_arrival(void *data)
{
	const struct arrival *arrival = data;

	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    move_mount(arrival->tree, "", AT_FDCWD, arrival->place, MOVE_MOUNT_F_EMPTY_PATH) < 0)
		return 124;
	return 0;
}

/* The stream becomes a subvolume in the carrier. The program is confined to it (-C): names in a stream lead nowhere else. */
static int run_receive(const char *image, int disks, const char *carrier, int fd, struct husk_error *err)
{
	cleanup_free char *place = str_format("%s/arrival", image);
	cleanup_close int tree = place ? disks_mount(image, disks, carrier, err) : -1;
	struct arrival arrival = { tree, place };
	const char *const argv[] = { "btrfs", "receive", "-C", place, NULL };
	const struct command command = { .argv = argv,
					 .stdin_fd = fd,
					 .stdout_fd = -1,
					 .stderr_fd = -1,
					 .before_exec = mount_arrival,
					 .data = &arrival,
					 .timeout_ms = RECEIVE_TIMEOUT_MS };

	if (tree < 0)
		return place ? -1 : husk_fail_memory(err);
	if (lseek(fd, 0, SEEK_SET) < 0 || mkdir(place, 0700) < 0)
		return husk_fail_errno(err, "cannot make '%s'", place);
	int result = command_run(&command, err);
	rmdir(place);
	return result;
}

/* The name of the one subvolume that arrived. */
static int find_arrived(int outer, char out[static NAME_MAX_SIZE], struct husk_error *err)
{
	int own = open_directory(outer, ".");
	cleanup_dir DIR *dir = own < 0 ? NULL : fdopendir(own);

	if (!dir)
		fd_close(&own);
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		if (str_starts(entry->d_name, "i-") && strlen(entry->d_name) == 2 + NAME_LETTERS) {
			snprintf(out, NAME_MAX_SIZE, "%.*s", 2 + NAME_LETTERS, entry->d_name);
			return 0;
		}
	return husk_fail(err, HUSK_INVALID, "the disk of the portable machine is damaged");
}

static int keep_arrived(const char *image, int disks, const char *carrier, struct husk_error *err)
{
	char arrived[NAME_MAX_SIZE], name[NAME_MAX_SIZE];
	cleanup_close int outer = open_directory(disks, carrier), source = -1;

	if (outer < 0 || find_arrived(outer, arrived, err) < 0)
		return outer < 0 ? husk_fail_errno(err, "cannot open the disk '%s'", carrier) : -1;
	source = open_directory(outer, arrived);
	int result = source < 0 ? husk_fail_errno(err, "cannot open the disk '%s'", arrived)
				: name_new(image, "i-", name, err);
	if (result == 0)
		result = subvolume_clone(source, disks, name, true, err);
	return result;
}

int disk_receive(const char *image, int fd, struct husk_error *err)
{
	cleanup_close int disks = disks_open(image, err);
	char carrier[NAME_MAX_SIZE];

	if (disks < 0)
		return -1;
	if (random_id("m-", NAME_LETTERS, carrier) < 0)
		return husk_fail_errno(err, "cannot name a disk");
	if (subvolume_make(disks, carrier, ARRIVAL_MAX, err) < 0)
		return -1;
	int result = run_receive(image, disks, carrier, fd, err);
	if (result == 0)
		result = keep_arrived(image, disks, carrier, err);
	if (disk_remove(disks, carrier) < 0)
		log_line(LOG_WARN, "the disk %s stays until husk gc: %s", carrier, strerror(errno));
	return result;
}

/* ---- removal ---- */

typedef void visit_fn(void *data, const char *name);

/* Visits every name in `directory` and below; these are Husk's own directories. The one with files of guests is left
 * out: a volume that is no disk has its files in "data". */
static void visit_names(const char *directory, unsigned depth, visit_fn *visit, void *data)
{
	char name[NAME_MAX_SIZE];

	if (name_read(directory, name) == 0)
		visit(data, name);
	cleanup_dir DIR *dir = depth > 0 ? opendir(directory) : NULL;
	for (struct dirent *entry; dir && (entry = readdir(dir));) {
		cleanup_free char *below =
			entry->d_type == DT_DIR && entry->d_name[0] != '.' && !str_equal(entry->d_name, DATA)
				? str_format("%s/%s", directory, entry->d_name)
				: NULL;
		if (below)
			visit_names(below, depth - 1, visit, data);
	}
}

static void add_name(void *data, const char *name)
{
	strv_add(data, name);
}

void disk_drop(const char *directory)
{
	cleanup_strv char **names = NULL;
	cleanup_close int disks = -1;
	struct husk_error err = { 0 };

	visit_names(directory, NAME_DEPTH, add_name, &names);
	if (!names)
		return;
	disks = disks_open(directory, &err);
	if (disks < 0)
		log_line(LOG_WARN, "disks of '%s' stay until husk gc: %s", directory, err.message);
	for (size_t i = 0; disks >= 0 && names[i]; i++)
		if (disk_remove(disks, names[i]) < 0)
			log_line(LOG_WARN, "the disk %s of '%s' stays until husk gc: %s", names[i], directory,
				 strerror(errno));
}

/* May a machine or an image still be about to name it? Also true if the kernel does not report the age. */
static bool is_young(int disks, const char *name)
{
	struct btrfs_ioctl_get_subvol_info_args info = { 0 };
	cleanup_close int fd = open_disk(disks, name);

	return fd < 0 || ioctl(fd, BTRFS_IOC_GET_SUBVOL_INFO, &info) < 0 ||
	       (uint64_t)time(NULL) < info.otime.sec + YOUNG_S;
}

static bool is_listed(char *const *names, const char *name)
{
	for (size_t i = 0; names && names[i]; i++)
		if (str_equal(names[i], name))
			return true;
	return false;
}

/* Removes the disks in one directory that no machine, image or volume names. */
static void collect_unnamed(int disks, const char *below, char *const *names)
{
	int own = open_directory(disks, below);
	cleanup_dir DIR *dir = own < 0 ? NULL : fdopendir(own);

	if (!dir)
		fd_close(&own);
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		if (entry->d_name[0] && entry->d_name[1] == '-' && !is_listed(names, entry->d_name) &&
		    !is_young(disks, entry->d_name) && disk_remove(disks, entry->d_name) == 0)
			log_line(LOG_INFO, "removed the disk %s, which belonged to no machine or image", entry->d_name);
}

void disk_collect(const char *home, const char *const *directories)
{
	cleanup_strv char **names = NULL;
	cleanup_close int disks = disks_open(home, NULL);

	if (disks < 0)
		return;
	for (size_t i = 0; directories[i]; i++) {
		cleanup_free char *path = str_format("%s/%s", home, directories[i]);
		if (!path)
			return;
		visit_names(path, NAME_DEPTH + 1, add_name, &names);
	}
	collect_unnamed(disks, ".", names);
	collect_unnamed(disks, VOLUMES, names);
	disks_trim(disks);
}

/* ---- the mount ---- */

static void wait_to_be_killed(void *data)
{
	(void)data;
	for (;;)
		pause();
}

static int write_map(pid_t pid, const char *name, uint32_t uid_base)
{
	char path[64], map[128];
	cleanup_close int fd = -1;
	int length = uid_base ? snprintf(map, sizeof(map), "%u %u %d\n", DISK_UID, uid_base, UIDS)
			      : snprintf(map, sizeof(map), "%u 0 %d\n%u %u %d\n", DISK_UID, UIDS, SERVER_UID_DISK,
					 SERVER_UID, SERVER_UIDS);

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	return fd < 0 || write(fd, map, (size_t)length) != length ? -1 : 0;
}

/* A user namespace that maps the ids on disk to the machine's; no process ever runs in it. */
static int open_mapping(uint32_t uid_base, struct husk_error *err)
{
	cleanup_close int process = -1, mapping = -1;
	char path[64];
	pid_t pid = jail_clone(CLONE_NEWUSER, wait_to_be_killed, NULL, &process);

	if (pid < 0)
		return husk_fail_errno(err, "cannot make a user namespace for the disk");
	snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
	if (write_map(pid, "uid_map", uid_base) == 0 && write_map(pid, "gid_map", uid_base) == 0)
		mapping = open(path, O_RDONLY | O_CLOEXEC);
	if (mapping < 0)
		husk_fail_errno(err, "cannot map the owners of the disk");
	syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	return steal_fd(&mapping);
}

int disk_mount(int disks, const char *directory, uint32_t uid_base, bool read_only, struct husk_error *err)
{
	cleanup_close int mapping = open_mapping(uid_base, err), tree = -1;
	char name[NAME_MAX_SIZE], path[PATH_SIZE];

	if (mapping < 0)
		return -1;
	if (name_read(directory, name) < 0)
		return husk_fail(err, HUSK_INTERNAL, "'%s' has no disk", directory);
	disk_path(name, path);
	tree = disks_mount(directory, disks, path, err);
	if (tree < 0)
		return -1;
	struct mount_attr attributes = { .attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
						     (read_only ? MOUNT_ATTR_RDONLY : 0u),
					 .userns_fd = (uint64_t)mapping };
	if (mount_setattr(tree, "", AT_EMPTY_PATH, &attributes, sizeof(attributes)) < 0)
		return husk_fail_errno(
			err, "cannot map the owners of '%s' (Linux 5.15 or newer; or set HUSK_DISK=memory)", directory);
	return steal_fd(&tree);
}
