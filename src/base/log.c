/*
 * Log lines on stderr, for every process of Husk. Each line is one write, so that lines of processes that share a file do
 * not mix. The text may come from a guest: control characters and invalid UTF-8 are escaped, so that a guest can neither
 * forge a line nor control a terminal. Lines and log files are bounded. A line is written without allocating, because low
 * memory is one of the things to report.
 */
#include "base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#define LOG_ID_MAX 64
#define ROOM_TO_END 320 /* of a line: reserved for the names of its last members and its end, in case a value is cut */

static const char *const level_names[] = { "error", "warn", "info", "debug" };

/* Set by main before it starts threads; atomic because threads read them. */
static _Atomic int threshold = LOG_WARN;
static _Atomic bool as_json;
static const char *_Atomic process_role = "husk";

/* A pooled machine becomes another sandbox while threads log, so the new name is written to the other slot, then
 * shown. */
static char sandbox_names[2][LOG_ID_MAX + 1];
static _Atomic int sandbox_shown;

static _Thread_local char request_name[LOG_ID_MAX + 1];

/* The file behind stderr, if this process bounds it. */
static struct {
	pthread_mutex_t lock;
	char *path;
} file = { .lock = PTHREAD_MUTEX_INITIALIZER };
static _Atomic bool file_bounded;

/* ---- role, sandbox, request and level ---- */

bool log_is_id(const char *text)
{
	size_t size = text ? strlen(text) : 0;

	return size > 0 && size <= LOG_ID_MAX &&
	       strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == size;
}

void log_set_level(enum log_level level)
{
	atomic_store(&threshold, (int)level);
}

void log_set_json(bool on)
{
	atomic_store(&as_json, on);
}

void log_set_sandbox(const char *id)
{
	int other = !atomic_load(&sandbox_shown);

	snprintf(sandbox_names[other], sizeof(sandbox_names[other]), "%s", log_is_id(id) ? id : "");
	atomic_store(&sandbox_shown, other);
}

void log_set_request(const char *id)
{
	snprintf(request_name, sizeof(request_name), "%s", log_is_id(id) ? id : "");
}

const char *log_request_id(void)
{
	return request_name[0] ? request_name : NULL;
}

int log_parse_level(const char *what, const char *text, enum log_level *out, struct husk_error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(level_names); i++)
		if (str_equal(text, level_names[i])) {
			*out = (enum log_level)i;
			return 0;
		}
	return husk_fail(err, HUSK_INVALID, "%s '%s' is not a log level; give error, warn, info or debug", what, text);
}

int log_setup(const char *role, enum log_level level, struct husk_error *err)
{
	const char *wanted = getenv("HUSK_LOG");
	int result = 0;

	if (wanted && *wanted)
		result = log_parse_level("HUSK_LOG", wanted, &level, err);
	log_set_level(level);
	atomic_store(&process_role, role);
	log_set_sandbox(getenv("HUSK_LOG_SANDBOX"));
	log_set_request(getenv("HUSK_LOG_REQUEST"));
	return result;
}

void log_begin(const char *role, enum log_level level)
{
	struct husk_error err = { 0 };

	if (log_setup(role, level, &err) < 0)
		log_line(LOG_WARN, "%s", err.message);
}

char **log_environment(void)
{
	const char *sandbox = sandbox_names[atomic_load(&sandbox_shown)];
	const struct {
		const char *name, *value;
	} all[] = { { "HUSK_LOG", getenv("HUSK_LOG") },
		    { "HUSK_LOG_SANDBOX", *sandbox ? sandbox : NULL },
		    { "HUSK_LOG_REQUEST", log_request_id() } };
	cleanup_strv char **list = calloc(1, sizeof(char *));

	for (size_t i = 0; list && i < ARRAY_SIZE(all); i++) {
		cleanup_free char *pair = all[i].value ? str_format("%s=%s", all[i].name, all[i].value) : NULL;
		if (all[i].value && (!pair || strv_add(&list, pair) < 0))
			return NULL;
	}
	return steal_pointer(list);
}

/* ---- the file ---- */

static int open_file(const char *path)
{
	cleanup_close int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);

	return fd < 0 || dup2(fd, STDERR_FILENO) < 0 ? -1 : 0;
}

int log_to_file(const char *path, struct husk_error *err)
{
	char *copy = strdup(path);

	if (!copy)
		return husk_fail_memory(err);
	pthread_mutex_lock(&file.lock);
	int result = open_file(path) < 0 ? husk_fail_errno(err, "cannot open the log '%s'", path) : 0;
	if (result == 0) {
		char *before = file.path;
		file.path = copy;
		copy = before;
		atomic_store(&file_bounded, true);
	}
	pthread_mutex_unlock(&file.lock);
	free(copy);
	return result;
}

static bool fits(size_t size)
{
	struct stat now;

	return fstat(STDERR_FILENO, &now) == 0 && (size_t)now.st_size + size <= LOG_FILE_MAX;
}

/* False: the line cannot be written. */
static bool make_room(size_t size)
{
	if (!atomic_load(&file_bounded) || fits(size))
		return true;
	pthread_mutex_lock(&file.lock);
	bool good = fits(size); /* another thread may have made room */
	if (!good) {
		char old[4096];
		int length = snprintf(old, sizeof(old), "%s.old", file.path);
		good = (size_t)length < sizeof(old) && rename(file.path, old) == 0 && open_file(file.path) == 0;
	}
	pthread_mutex_unlock(&file.lock);
	return good;
}

/* ---- a line ---- */

struct line {
	char text[LOG_LINE_MAX];
	size_t size;
	bool json;
};

/* Adds trusted text. */
static void put(struct line *line, const char *text)
{
	size_t size = MIN(strlen(text), sizeof(line->text) - 1 - line->size);

	memcpy(line->text + line->size, text, size);
	line->size += size;
}

/* Inside quotes, the quote and the backslash are escaped as well. */
static void escape(const struct line *line, unsigned char c, char out[static 8])
{
	if (c == '\n' || c == '\t')
		snprintf(out, 8, "\\%c", c == '\n' ? 'n' : 't');
	else if (c == '"' || c == '\\')
		snprintf(out, 8, "\\%c", c);
	else if (line->json && c >= 0x80)
		snprintf(out, 8, "\\ufffd");
	else
		snprintf(out, 8, line->json ? "\\u%04x" : "\\x%02x", c);
}

/* Adds untrusted text. */
static void put_value(struct line *line, const char *text, bool quoted)
{
	put(line, quoted ? "\"" : "");
	while (*text) {
		size_t size = str_printable(text, strnlen(text, 4));
		char form[8] = { 0 };

		if (size == 0 || (quoted && (*text == '"' || *text == '\\'))) {
			escape(line, (unsigned char)*text, form);
			size = 1;
		} else {
			memcpy(form, text, size);
		}
		if (line->size + strlen(form) > sizeof(line->text) - ROOM_TO_END) {
			put(line, "...");
			break;
		}
		put(line, form);
		text += size;
	}
	put(line, quoted ? "\"" : "");
}

static void put_member(struct line *line, const char *name, const char *value, bool number)
{
	if (line->json) {
		put(line, line->size > 1 ? ",\"" : "\"");
		put(line, name);
		put(line, "\":");
		put_value(line, value ? value : "null", value && !number);
	} else {
		put(line, " ");
		put(line, name);
		put(line, "=");
		put_value(line, value, !*value || strpbrk(value, " \"="));
	}
}

static void begin_line(struct line *line, enum log_level level)
{
	const char *sandbox = sandbox_names[atomic_load(&sandbox_shown)], *role = atomic_load(&process_role);
	char at[25];

	line->json = atomic_load(&as_json);
	line->size = 0;
	time_format(time_wall_ms(), at);
	if (line->json) {
		put(line, "{");
		put_member(line, "time", at, false);
		put_member(line, "level", level_names[level], false);
		put_member(line, "process", role, false);
	} else {
		put(line, at);
		put(line, " ");
		put(line, level_names[level]);
		put(line, " ");
		put(line, role);
	}
	if (*sandbox)
		put_member(line, "sandbox", sandbox, false);
	if (request_name[0])
		put_member(line, "request", request_name, false);
}

static void put_message(struct line *line, const char *message)
{
	if (line->json) {
		put_member(line, "message", message, false);
		return;
	}
	put(line, ": ");
	put_value(line, message, false);
}

static void end_line(struct line *line)
{
	put(line, line->json ? "}" : "");
	line->text[line->size++] = '\n'; /* `put` has left room for the newline */
	/* A failure to write the log cannot be reported anywhere. */
	if (make_room(line->size))
		(void)!write_full(STDERR_FILENO, line->text, line->size);
}

static bool wanted(enum log_level level)
{
	return (int)level <= atomic_load(&threshold) && (size_t)level < ARRAY_SIZE(level_names);
}

void log_line(enum log_level level, const char *format, ...)
{
	int saved = errno;
	char message[LOG_LINE_MAX];
	struct line line;
	va_list arguments;

	if (!wanted(level))
		return;
	va_start(arguments, format);
	vsnprintf(message, sizeof(message), format, arguments);
	va_end(arguments);
	begin_line(&line, level);
	put_message(&line, message);
	end_line(&line);
	errno = saved;
}

void log_fields(enum log_level level, const char *message, const struct log_field *fields, size_t count)
{
	int saved = errno;
	struct line line;

	if (!wanted(level))
		return;
	begin_line(&line, level);
	put_message(&line, message);
	for (size_t i = 0; i < count; i++)
		if (line.json || fields[i].value)
			put_member(&line, fields[i].name, fields[i].value, fields[i].number);
	end_line(&line);
	errno = saved;
}
