/*
 * What the first boot needs and a restore does not: the guest kernel, an initramfs with the agent and kernel modules,
 * and an empty disk. microvm.c calls it when a template is baked. All files come from Husk's build (scripts/kernel
 * downloads the kernel).
 */
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "engine/microvm/microvm.h"
#include "vmm/disk.h"

#define FILE_MAX_BYTES (64u << 20)
#define MKFS_TIMEOUT_MS 60000
#define COPY_BYTES (1u << 20)

int microvm_kernel_open(struct husk_error *err)
{
	cleanup_free char *path = place_find("kernel/vmlinuz");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	if (!path)
		return place_missing("kernel/vmlinuz", err);
	return fd < 0 ? husk_fail_errno(err, "cannot open the guest kernel '%s'", path) : fd;
}

/* ---- the initramfs ---- */

static int archive_fail(struct archive *archive, struct husk_error *err)
{
	return husk_fail(err, HUSK_INTERNAL, "cannot write the initramfs: %s", archive_error_string(archive));
}

static int add_entry(struct archive *archive, const char *name, mode_t type, mode_t mode, const void *data, size_t size,
		     struct husk_error *err)
{
	struct archive_entry *entry = archive_entry_new();
	int result = 0;

	if (!entry)
		return husk_fail_memory(err);
	archive_entry_set_pathname(entry, name);
	archive_entry_set_filetype(entry, type);
	archive_entry_set_perm(entry, mode);
	archive_entry_set_size(entry, (la_int64_t)size);
	if (archive_write_header(archive, entry) != ARCHIVE_OK ||
	    (size > 0 && archive_write_data(archive, data, size) != (la_ssize_t)size))
		result = archive_fail(archive, err);
	archive_entry_free(entry);
	return result;
}

static int add_file(struct archive *archive, const char *name, const char *path, mode_t mode, struct husk_error *err)
{
	size_t size = 0;
	cleanup_free char *data = file_read(path, FILE_MAX_BYTES, &size, err);

	return data ? add_entry(archive, name, AE_IFREG, mode, data, size, err) : -1;
}

static int add_modules(struct archive *archive, const char *directory, struct husk_error *err)
{
	cleanup_free char *list = str_format("%s/order", directory);
	cleanup_free char *order = list ? file_read(list, 64u << 10, NULL, err) : NULL;
	char *rest = order;

	if (!order || add_entry(archive, "modules", AE_IFDIR, 0755, NULL, 0, err) < 0 ||
	    add_file(archive, "modules/order", list, 0644, err) < 0)
		return -1;
	for (char *name = strsep(&rest, "\n"); name; name = strsep(&rest, "\n")) {
		cleanup_free char *path = str_format("%s/%s", directory, name);
		cleanup_free char *inside = str_format("modules/%s", name);

		if (!path || !inside)
			return husk_fail_memory(err);
		if (name[0] && add_file(archive, inside, path, 0644, err) < 0)
			return -1;
	}
	return 0;
}

static int write_all(struct archive *archive, int fd, struct husk_error *err)
{
	cleanup_free char *agent = place_find("husk-agent");
	cleanup_free char *modules = place_find("kernel/modules");

	if (!agent || !modules)
		return place_missing(agent ? "kernel/modules" : "husk-agent", err);
	if (archive_write_set_format_cpio_newc(archive) != ARCHIVE_OK ||
	    archive_write_open_fd(archive, fd) != ARCHIVE_OK)
		return archive_fail(archive, err);
	/* The kernel starts the agent with a console if there is a device for one. */
	if (add_entry(archive, "dev", AE_IFDIR, 0755, NULL, 0, err) < 0 ||
	    add_file(archive, "init", agent, 0755, err) < 0 || add_modules(archive, modules, err) < 0)
		return -1;
	return archive_write_close(archive) == ARCHIVE_OK ? 0 : archive_fail(archive, err);
}

int microvm_initramfs_make(struct husk_error *err)
{
	cleanup_close int fd = memfd_create("initramfs", MFD_CLOEXEC);
	struct archive *archive = archive_write_new();
	int result;

	if (fd < 0 || !archive) {
		archive_write_free(archive);
		return husk_fail_errno(err, "cannot make the initramfs");
	}
	result = write_all(archive, fd, err);
	archive_write_free(archive);
	return result < 0 ? -1 : steal_fd(&fd);
}

/* ---- the disk ---- */

/* Without a journal: a machine whose host goes down is lost, and a snapshot holds disk and memory together. The block
 * size is a page, because a small disk would get smaller blocks, which the device does not support. */
static int make_filesystem(const char *path, struct husk_error *err)
{
	const char *const argv[] = { "mke2fs",
				     "-q",
				     "-F",
				     "-t",
				     "ext4",
				     "-O",
				     "^has_journal",
				     "-m",
				     "0",
				     "-b",
				     "4096",
				     "-E",
				     "lazy_itable_init=1,nodiscard",
				     path,
				     NULL };
	const struct command command = { COMMAND_INIT, .argv = argv, .timeout_ms = MKFS_TIMEOUT_MS };

	return command_run(&command, err) < 0 ? husk_wrap(err, "cannot make an empty disk") : 0;
}

static int copy_extent(int from, struct disk *disk, off_t at, off_t end, char *buffer, struct husk_error *err)
{
	while (at < end) {
		size_t size = (size_t)MIN((off_t)COPY_BYTES, end - at);
		ssize_t got = pread(from, buffer, size, at);
		struct iovec vector = { .iov_base = buffer, .iov_len = (size_t)MAX(got, 0) };

		if (got <= 0 || disk_write(disk, (uint64_t)at, &vector, 1, (size_t)got) < 0)
			return husk_fail_errno(err, "cannot write an empty disk");
		at += got;
	}
	return 0;
}

/* Copies only what the filesystem wrote; the rest is a hole. */
static int copy_extents(int from, struct disk *disk, struct husk_error *err)
{
	cleanup_free char *buffer = malloc(COPY_BYTES);
	off_t end = 0, at;

	if (!buffer)
		return husk_fail_memory(err);
	while ((at = lseek(from, end, SEEK_DATA)) >= 0) {
		end = lseek(from, at, SEEK_HOLE);
		if (end < 0)
			return husk_fail_errno(err, "cannot read an empty disk");
		if (copy_extent(from, disk, at, MIN(end, (off_t)disk->bytes), buffer, err) < 0)
			return -1;
	}
	return errno == ENXIO ? 0 : husk_fail_errno(err, "cannot read an empty disk");
}

static int make_layer(const char *raw, const char *path, uint64_t bytes, struct husk_error *err)
{
	cleanup_close int from = open(raw, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	cleanup(disk_close) struct disk disk = DISK_INIT;
	int fd;
	size_t needed;

	if (from < 0 || ftruncate(from, (off_t)bytes) < 0)
		return husk_fail_errno(err, "cannot make '%s'", raw);
	if (make_filesystem(raw, err) < 0)
		return -1;
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return husk_fail_errno(err, "cannot make '%s'", path);
	if (disk_add_layer(&disk, fd, bytes, err) < 0) {
		fd_close(&fd);
		return -1;
	}
	return copy_extents(from, &disk, err) < 0 ? -1 : disk_seal(&disk, &needed, err);
}

int microvm_disk_make(const char *directory, const char *path, uint64_t bytes, struct husk_error *err)
{
	cleanup_free char *raw = str_format("%s/disk.raw", directory);
	int result;

	if (!raw)
		return husk_fail_memory(err);
	unlink(raw);
	result = make_layer(raw, path, bytes, err);
	unlink(raw);
	return result;
}
