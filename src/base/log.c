/*
 * Lines on stderr, for every process of Husk. Each line is one write, so that lines of processes sharing a log file do
 * not mix. Text may hold what a guest said: control characters never reach a terminal from here.
 */
#include "base/base.h"

#include <stdatomic.h>

#define LOG_LINE_MAX 2048

/* Set once by main from the command line; atomic because threads read it. */
static _Atomic int log_threshold = LOG_WARN;

void log_set_level(enum log_level level)
{
	atomic_store(&log_threshold, (int)level);
}

void log_line(enum log_level level, const char *format, ...)
{
	static const char *const names[] = { "error", "warning", "info", "debug" };
	int saved = errno;
	char line[LOG_LINE_MAX];
	size_t start, size;
	va_list arguments;

	if ((int)level > atomic_load(&log_threshold) || (size_t)level >= ARRAY_SIZE(names))
		return;
	start = (size_t)snprintf(line, sizeof(line), "husk: %s: ", names[level]);
	va_start(arguments, format);
	/* One byte less than there is: room for the newline. */
	vsnprintf(line + start, sizeof(line) - start - 1, format, arguments);
	va_end(arguments);
	size = start + strlen(line + start);
	for (size_t i = start; i < size; i++) {
		unsigned char c = (unsigned char)line[i];

		if (c < 0x20 || c == 0x7f)
			line[i] = c == '\n' || c == '\t' ? ' ' : '?';
	}
	line[size++] = '\n';
	/* Nowhere to report that the log itself cannot be written. */
	(void)!write_full(STDERR_FILENO, line, size);
	errno = saved;
}
