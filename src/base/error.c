/*
 * Errors that collect context on their way up, and the functions behind the cleanup_* attributes. All of Husk reports
 * failures through this file. Nothing here may allocate, because the error is often "out of memory", and nothing may change
 * errno.
 */
#include "base/base.h"

static void error_fill(struct husk_error *err, enum husk_code code, const char *format, va_list arguments)
{
	if (!err)
		return;
	err->code = code;
	err->field[0] = '\0';
	vsnprintf(err->message, sizeof(err->message), format, arguments);
}

int husk_fail(struct husk_error *err, enum husk_code code, const char *format, ...)
{
	int saved = errno;
	va_list arguments;

	va_start(arguments, format);
	error_fill(err, code, format, arguments);
	va_end(arguments);
	errno = saved;
	return -1;
}

int husk_fail_field(struct husk_error *err, const char *field, const char *format, ...)
{
	int saved = errno;
	va_list arguments;

	va_start(arguments, format);
	error_fill(err, HUSK_INVALID, format, arguments);
	va_end(arguments);
	if (err)
		snprintf(err->field, sizeof(err->field), "%s", field);
	errno = saved;
	return -1;
}

/* Only an errno that concerns the caller's request has a code of its own; all others are internal failures. */
static enum husk_code code_of_errno(int number)
{
	switch (number) {
	case ENOENT:
		return HUSK_NOT_FOUND;
	case EEXIST:
	case EBUSY:
	case ENOTEMPTY:
	case ETXTBSY:
		return HUSK_CONFLICT;
	case ENOSPC:
	case EDQUOT:
	case ENOMEM:
	case EMFILE:
	case ENFILE:
	case EFBIG:
		return HUSK_LIMIT;
	case ETIMEDOUT:
		return HUSK_TIMEOUT;
	case ENAMETOOLONG:
	case ENOTDIR:
	case EISDIR:
	case ELOOP:
		return HUSK_INVALID;
	case ENOSYS:
	case EOPNOTSUPP:
	case ENODEV:
		return HUSK_UNAVAILABLE;
	case EPIPE:
	case ECONNRESET:
	case ECONNREFUSED:
		return HUSK_GONE;
	default:
		return HUSK_INTERNAL;
	}
}

int husk_fail_errno(struct husk_error *err, const char *format, ...)
{
	int saved = errno;
	va_list arguments;
	size_t used;

	va_start(arguments, format);
	error_fill(err, code_of_errno(saved), format, arguments);
	va_end(arguments);
	if (err) {
		used = strlen(err->message);
		/* strerror is thread-safe for known numbers in glibc and musl. */
		snprintf(err->message + used, sizeof(err->message) - used, ": %s", strerror(saved));
	}
	errno = saved;
	return -1;
}

int husk_wrap(struct husk_error *err, const char *format, ...)
{
	int saved = errno;
	char inner[sizeof(err->message)];
	va_list arguments;
	size_t used;

	if (!err)
		return -1;
	memcpy(inner, err->message, sizeof(inner));
	inner[sizeof(inner) - 1] = '\0';
	va_start(arguments, format);
	error_fill(err, err->code, format, arguments);
	va_end(arguments);
	used = strlen(err->message);
	snprintf(err->message + used, sizeof(err->message) - used, ": %.*s", (int)(sizeof(inner) - 1), inner);
	errno = saved;
	return -1;
}

int husk_fail_memory(struct husk_error *err)
{
	return husk_fail(err, HUSK_LIMIT, "out of memory on the machine that runs this");
}

void base_cleanup_free(void *pointer_to_pointer)
{
	void *pointer;

	/* The attribute passes the address of a pointer of any type: copying the bytes is the portable way to read
	 * it. */
	memcpy(&pointer, pointer_to_pointer, sizeof(pointer));
	free(pointer);
}

void base_cleanup_file(FILE **file)
{
	int saved = errno;

	if (*file)
		fclose(*file);
	errno = saved;
}

void base_cleanup_dir(DIR **dir)
{
	int saved = errno;

	if (*dir)
		closedir(*dir);
	errno = saved;
}

void base_cleanup_strv(char ***list)
{
	strv_free(*list);
}

void base_cleanup_wipe(char **secret)
{
	str_wipe(*secret);
}
