/*
 * See save.h.
 */
#include "cli/save.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "cli/interrupt.h"

struct target {
	int fd;
	uint64_t bytes;
	int failure; /* an errno */
};

static int write_target(void *data, const void *bytes, size_t size)
{
	struct target *target = data;

	target->bytes += size;
	if (write_full(target->fd, bytes, size) < 0)
		target->failure = errno;
	return target->failure || interrupt_seen() ? -1 : 0;
}

static int fill(const char *path, int fd, save_from from, void *data, uint64_t *bytes, struct husk_error *err)
{
	struct target target = { .fd = fd };
	int result = from(data, write_target, &target, err);

	*bytes = target.bytes;
	if (!target.failure)
		return result;
	errno = target.failure;
	return husk_fail_errno(err, "cannot write '%s'", path);
}

/* A device or a pipe is written to as it is. Else the file has its name when it is complete; before that it has none,
 * so that a kill leaves nothing; or a random name, if the filesystem does not support unnamed files. */
struct output_file {
	int fd;
	char *temporary; /* NULL: it has none */
	bool nameless;
};

static void output_file_close(struct output_file *file)
{
	if (file->temporary)
		unlink(file->temporary);
	free(file->temporary);
	fd_close(&file->fd);
}

static int output_file_open(struct output_file *file, const char *path, struct husk_error *err)
{
	const char *slash = strrchr(path, '/');
	cleanup_free char *directory = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
	struct stat found;

	if (!directory)
		return husk_fail_memory(err);
	if (stat(path, &found) == 0 && !S_ISREG(found.st_mode)) {
		file->fd = open(path, O_WRONLY | O_CLOEXEC);
		return file->fd < 0 ? husk_fail_errno(err, "cannot write '%s'", path) : 0;
	}
	file->fd = open(directory, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
	file->nameless = file->fd >= 0;
	if (file->nameless || errno == ENOENT)
		return file->nameless ? 0 : husk_fail_errno(err, "cannot write '%s'", path);
	char *temporary = str_format("%s.XXXXXX", path);
	file->fd = temporary ? mkostemp(temporary, O_CLOEXEC) : -1;
	if (file->fd >= 0)
		file->temporary = steal_pointer(temporary);
	free(temporary);
	return file->fd < 0 ? husk_fail_errno(err, "cannot write '%s'", path) : 0;
}

static int output_file_keep(struct output_file *file, const char *path, struct husk_error *err)
{
	char self[64], tail[16];

	if (!file->nameless && !file->temporary)
		return 0;
	if (file->nameless) {
		snprintf(self, sizeof(self), "/proc/self/fd/%d", file->fd);
		file->temporary = random_id(".", 8, tail) < 0 ? NULL : str_format("%s%s", path, tail);
		if (!file->temporary)
			return husk_fail_memory(err);
		if (linkat(AT_FDCWD, self, AT_FDCWD, file->temporary, AT_SYMLINK_FOLLOW) < 0)
			return husk_fail_errno(err, "cannot write '%s'", path);
	}
	if (fsync(file->fd) < 0 || rename(file->temporary, path) < 0)
		return husk_fail_errno(err, "cannot write '%s'", path);
	free(steal_pointer(file->temporary));
	return 0;
}

int save_file(const char *path, save_from from, void *data, uint64_t *bytes, struct husk_error *err)
{
	cleanup(output_file_close) struct output_file file = { .fd = -1 };

	if (interrupt_hold(err) < 0)
		return -1;
	if (str_equal(path, "-"))
		return isatty(STDOUT_FILENO)
			       ? husk_fail(err, HUSK_INVALID, "not to a terminal: give a file, or redirect the output")
			       : fill("stdout", STDOUT_FILENO, from, data, bytes, err);
	if (output_file_open(&file, path, err) < 0 || fill(path, file.fd, from, data, bytes, err) < 0)
		return -1;
	return output_file_keep(&file, path, err);
}
