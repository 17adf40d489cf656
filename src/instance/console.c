/*
 * The log and console files of a sandbox (console.h), and husk_logs, which reads them. The content of a console is the
 * guest's: the file is never followed as a link, never blocks a reader, and its control characters never reach a terminal.
 */
#include "instance/console.h"

#include <fcntl.h>
#include <sys/stat.h>

#define READ_MAX (1024u * 1024u) /* the newest bytes, when a reader begins */
#define FILES_MAX 3

/* ---- writing ---- */

static int join(char **out, const char *directory, const char *name, struct husk_error *err)
{
	*out = directory ? str_format("%s/%s", directory, name) : NULL;
	return *out ? 0 : husk_fail_memory(err);
}

int sandbox_log_open(const struct paths *paths, const char *id, struct husk_error *err)
{
	cleanup_free char *directory = path_sandbox(paths, id);
	cleanup_free char *path = NULL;

	if (join(&path, directory, "log", err) < 0 || dir_make(directory, 0700, err) < 0)
		return -1;
	log_set_sandbox(id);
	return log_to_file(path, err);
}

int sandbox_log_move(const struct paths *paths, const char *from, const char *to, struct husk_error *err)
{
	static const char *const names[] = { "log", "log.old" };
	cleanup_free char *old = path_sandbox(paths, from);

	if (sandbox_log_open(paths, to, err) < 0)
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		cleanup_free char *path = NULL;
		if (join(&path, old, names[i], err) < 0)
			return -1;
		unlink(path);
	}
	rmdir(old);
	return 0;
}

/* Opens a regular file for reading; -1 with errno, ENOENT if it is anything else. */
static int open_regular(const char *path, struct stat *status)
{
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	if (fd < 0 || fstat(fd, status) < 0)
		return -1;
	if (!S_ISREG(status->st_mode)) {
		errno = ENOENT;
		return -1;
	}
	return steal_fd(&fd);
}

/* Appends the last CONSOLE_KEPT bytes of one file to the other. */
static void append_tail(const char *from, const char *to)
{
	struct stat status;
	cleanup_close int in = open_regular(from, &status);
	cleanup_close int out = in < 0 || status.st_size == 0
					? -1
					: open(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	cleanup_free char *bytes = out < 0 ? NULL : malloc(CONSOLE_KEPT);

	if (!bytes)
		return;
	ssize_t size = pread(in, bytes, CONSOLE_KEPT, MAX(0, status.st_size - CONSOLE_KEPT));
	if (size > 0)
		(void)!write_full(out, bytes, (size_t)size);
}

void console_keep(const struct paths *paths, uint32_t slot, const char *id)
{
	cleanup_free char *machine = path_machine(paths, slot), *sandbox = path_sandbox(paths, id);
	cleanup_free char *live = NULL, *panic = NULL, *kept = NULL, *old = NULL;
	struct stat status;

	if (join(&panic, machine, "panic.log", NULL) < 0 || join(&live, machine, "console.log", NULL) < 0 ||
	    join(&kept, sandbox, "console", NULL) < 0 || join(&old, sandbox, "console.old", NULL) < 0)
		return;
	append_tail(panic, live); /* written by the engine itself if it crashed */
	unlink(panic);
	if (lstat(live, &status) < 0 || !S_ISREG(status.st_mode) || status.st_size == 0)
		return;
	rename(kept, old); /* of the machine before a hibernation, if there was one */
	if (rename(live, kept) < 0 && errno == EXDEV)
		append_tail(live, kept);
}

/* ---- reading ---- */

static void drop_sandbox(struct catalog_sandbox **row)
{
	catalog_sandbox_free(*row);
}

struct source {
	int fd; /* -1: not there */
	struct stat status;
};

static void sources_close(struct source (*sources)[FILES_MAX])
{
	for (size_t i = 0; i < FILES_MAX; i++)
		fd_close(&(*sources)[i].fd);
}

/* Oldest first. */
static int sources_open(struct husk *husk, const struct catalog_sandbox *row, enum husk_log_source which,
			struct source out[FILES_MAX], struct husk_error *err)
{
	static const char *const kept[][2] = {
		[HUSK_LOG_SUPERVISOR] = { "log.old", "log" }, [HUSK_LOG_CONSOLE] = { "console.old", "console" }
	};
	cleanup_free char *sandbox = path_sandbox(&husk->paths, row->id);
	cleanup_free char *machine = path_machine(&husk->paths, row->slot);
	/* If the sandbox is hibernated or has ended, its slot belongs to another machine. */
	bool live = row->slot && row->state != CATALOG_HIBERNATED && row->state != CATALOG_ENDED;

	for (size_t i = 0; i < FILES_MAX; i++) {
		cleanup_free char *path = NULL;
		if (i == 2 && (which != HUSK_LOG_CONSOLE || !live))
			break;
		if (join(&path, i == 2 ? machine : sandbox, i == 2 ? "console.log" : kept[which][i], err) < 0)
			return -1;
		out[i].fd = open_regular(path, &out[i].status);
		if (out[i].fd < 0 && errno != ENOENT)
			return husk_fail_errno(err, "cannot read '%s'", path);
	}
	return 0;
}

/* Adds `size` bytes from `offset`; fewer if the file has become shorter. */
static int add_bytes(struct buf *out, const struct source *source, off_t offset, size_t size, struct husk_error *err)
{
	if (buf_reserve(out, size + 1) < 0)
		return husk_fail_memory(err);
	if (lseek(source->fd, offset, SEEK_SET) < 0)
		return husk_fail_errno(err, "cannot read a log");
	ssize_t got = read_full(source->fd, out->data + out->size, size);
	if (got < 0)
		return husk_fail_errno(err, "cannot read a log");
	out->size += (size_t)got;
	out->data[out->size] = '\0';
	return 0;
}

/* Finds the file and the position of a reader: everything after it is new. If the reader begins, or its file is gone,
 * it gets the newest READ_MAX bytes. */
static size_t find_start(const struct source sources[FILES_MAX], const struct husk_log_position *position,
			 off_t *offset, bool *cut)
{
	size_t room = READ_MAX, first = FILES_MAX;

	for (size_t i = 0; position->file && i < FILES_MAX; i++)
		if (sources[i].fd >= 0 && (uint64_t)sources[i].status.st_ino == position->file) {
			*offset = (off_t)position->offset;
			/* An engine truncated its console to continue in it. */
			if (sources[i].status.st_size < *offset)
				*offset = 0;
			*cut = false;
			return i;
		}
	*offset = 0;
	*cut = false;
	for (size_t i = FILES_MAX; i-- > 0 && !*cut;) {
		if (sources[i].fd < 0)
			continue;
		size_t size = (size_t)sources[i].status.st_size;
		*cut = size > room;
		*offset = *cut ? (off_t)(size - room) : 0;
		room -= MIN(room, size);
		first = i;
	}
	return first;
}

static int read_sources(const struct source sources[FILES_MAX], struct husk_log_position *position, struct buf *out,
			struct husk_error *err)
{
	off_t offset;
	bool cut;
	size_t first = find_start(sources, position, &offset, &cut);

	if (cut && buf_append_string(out, "(earlier lines left out)\n") < 0)
		return husk_fail_memory(err);
	for (size_t i = first; i < FILES_MAX; i++, offset = 0) {
		const struct source *source = &sources[i];
		if (source->fd < 0)
			continue;
		if (add_bytes(out, source, offset, (size_t)(source->status.st_size - offset), err) < 0)
			return -1;
		*position =
			(struct husk_log_position){ (uint64_t)source->status.st_ino, (uint64_t)source->status.st_size };
	}
	return 0;
}

/* Keeps newlines and tabs, drops a carriage return before a newline, and escapes every other control character. */
static int make_printable(const struct buf *text, struct buf *out)
{
	int bad = buf_reserve(out, text->size + 1);

	for (size_t i = 0, size; i < text->size && !bad; i += size) {
		const char *at = text->data + i;
		size = str_printable(at, text->size - i);
		if (size > 0 || *at == '\n' || *at == '\t')
			bad = buf_append(out, at, size = MAX(size, 1));
		else if (!(*at == '\r' && at[1] == '\n' && (size = 1)))
			bad = buf_printf(out, "\\x%02x", (unsigned char)*at), size = 1;
	}
	return bad;
}

int husk_logs(struct husk *husk, const char *sandbox, enum husk_log_source source, struct husk_log_position *position,
	      char **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_logs(husk->remote, sandbox, source, position, out, err);
	cleanup(drop_sandbox) struct catalog_sandbox *row = NULL;
	cleanup(sources_close) struct source sources[FILES_MAX] = { { .fd = -1 }, { .fd = -1 }, { .fd = -1 } };
	cleanup_buf struct buf bytes = { 0 }, text = { 0 };
	struct husk_log_position begin = { 0 };

	if (source != HUSK_LOG_SUPERVISOR && source != HUSK_LOG_CONSOLE)
		return husk_fail_field(err, "source", "source %d is not known", (int)source);
	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0 ||
	    sources_open(husk, row, source, sources, err) < 0 ||
	    read_sources(sources, position ? position : &begin, &bytes, err) < 0)
		return -1;
	if (make_printable(&bytes, &text) < 0 || !(*out = buf_steal(&text)))
		return husk_fail_memory(err);
	return 0;
}
