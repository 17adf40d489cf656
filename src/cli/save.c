/*
 * See save.h.
 */
#include "cli/save.h"

#include <fcntl.h>

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

int save_file(const char *path, save_from from, void *data, uint64_t *bytes, struct husk_error *err)
{
	if (interrupt_hold(err) < 0)
		return -1;
	if (str_equal(path, "-"))
		return isatty(STDOUT_FILENO)
			       ? husk_fail(err, HUSK_INVALID, "not to a terminal: give a file, or redirect the output")
			       : fill("stdout", STDOUT_FILENO, from, data, bytes, err);
	cleanup_free char *partial = str_format("%s.partial", path);
	cleanup_close int fd = partial ? open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
	if (fd < 0)
		return husk_fail_errno(err, "cannot write '%s'", path);
	int result = fill(path, fd, from, data, bytes, err);
	if (result == 0 && rename(partial, path) < 0)
		result = husk_fail_errno(err, "cannot write '%s'", path);
	if (result < 0)
		unlink(partial);
	return result;
}
