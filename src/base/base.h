/*
 * The functions that all of Husk uses: errors that collect context, cleanup attributes, growable buffers, strings,
 * files, child processes, time and random ids. This folder uses no other part of Husk. It is compiled into the guest
 * agent as well as into the host side, so it depends on the C library alone.
 *
 * Convention: a function that can fail returns 0 (or a count or descriptor) on success. On failure it returns -1 and
 * fills `err`, which may be NULL if the caller does not need it.
 */
#ifndef HUSK_BASE_H
#define HUSK_BASE_H

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "husk_error.h"

/* ---- error.c: errors ---------------------------------------------------------------------------------------------------- */

/* Each fills `err` and returns -1, so that a caller can write `return husk_fail(...)`. */
int husk_fail(struct husk_error *err, enum husk_code code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* INVALID, with the name of the option that is wrong. */
int husk_fail_field(struct husk_error *err, const char *field, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* As husk_fail, with ": <strerror(errno)>" added; the code follows errno (ENOENT: NOT_FOUND, ENOSPC: LIMIT, …). */
int husk_fail_errno(struct husk_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Puts "<context>: " before the existing message; keeps the code. */
int husk_wrap(struct husk_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Out of memory. */
int husk_fail_memory(struct husk_error *err);

/* ---- error.c: cleanup --------------------------------------------------------------------------------------------------- */

#define cleanup(function) __attribute__((cleanup(function)))
#define cleanup_free cleanup(base_cleanup_free)
#define cleanup_close cleanup(fd_close)
#define cleanup_file cleanup(base_cleanup_file)
#define cleanup_dir cleanup(base_cleanup_dir)
#define cleanup_buf cleanup(buf_free)
#define cleanup_strv cleanup(base_cleanup_strv)
#define cleanup_wipe cleanup(base_cleanup_wipe)

void base_cleanup_free(void *pointer_to_pointer);
void base_cleanup_file(FILE **file);
void base_cleanup_dir(DIR **dir);
void base_cleanup_strv(char ***list);
void base_cleanup_wipe(char **secret);

/* Takes the value out of a cleanup variable so that it survives the scope. */
#define steal_pointer(p)                                                                                               \
	({                                                                                                             \
		__typeof__(p) steal_value_ = (p);                                                                      \
		(p) = NULL;                                                                                            \
		steal_value_;                                                                                          \
	})
static inline int steal_fd(int *fd)
{
	int value = *fd;
	*fd = -1;
	return value;
}

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* ---- buf.c: buffers --------------------------------------------------------------------------------------------------- */

/* A growable byte buffer. Zero-initialise it. Once bytes were added, `data` always has a NUL after its `size` bytes. */
struct buf {
	char *data;
	size_t size;
	size_t capacity;
};

int buf_append(struct buf *b, const void *data, size_t size); /* -1 when out of memory, buffer unchanged */
int buf_append_string(struct buf *b, const char *s);
int buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
int buf_reserve(struct buf *b, size_t extra); /* room for `extra` more bytes after `size` */
void buf_consume(struct buf *b, size_t size); /* drops bytes from the front */
void buf_free(struct buf *b);
/* Bytes that are given out piece by piece; bytes_give is a husk_source of them. */
struct bytes {
	const void *at;
	size_t left;
};
ssize_t bytes_give(void *bytes, void *out, size_t size);
char *buf_steal(struct buf *b); /* the bytes as a string, which the caller frees; NULL only without memory */

/* ---- str.c: strings --------------------------------------------------------------------------------------------------- */

char *str_format(const char *format, ...) __attribute__((format(printf, 1, 2))); /* caller frees; NULL: no memory */
void str_wipe(char *secret); /* overwrites the text, then frees it; NULL is allowed */
bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);
static inline bool str_equal(const char *a, const char *b)
{
	return a && b && strcmp(a, b) == 0;
}
/* Parses the whole string as a decimal within [min, max]; otherwise -1. */
int str_to_int64(const char *s, int64_t min, int64_t max, int64_t *out);
/* "512", "512M", "2G", "64K" (powers of 1024) to bytes; a bare number counts `unit` bytes. -1 when malformed. */
int str_to_size(const char *s, uint64_t unit, uint64_t *out);
/* "90", "90s", "15m", "2h", "1d" to seconds. */
int str_to_seconds(const char *s, int64_t *out);
/* The one of `count` candidates that is nearest to `word` by edit distance, or NULL if none is near: for "did you
 * mean". */
const char *str_nearest(const char *word, const char *const *candidates, size_t count);
bool str_is_utf8(const char *s, size_t size);
/* Bytes of the character at `s`, of at most `left`; 0 for a control character (C0, DEL, C1) or invalid UTF-8. */
size_t str_printable(const char *s, size_t left);
/* Returns true if brackets in JSON text are nested deeper than `limit`. Call it before a parser recurses over untrusted
 * text. Brackets in strings do not count; the text need not be valid. */
bool str_json_deeper(const char *s, size_t size, size_t limit);
/* NULL-terminated string lists. */
size_t strv_length(char *const *list);
int strv_add(char ***list, const char *s); /* copies s */
void strv_sort(char **list);               /* by bytes; NULL: nothing to do */
void strv_free(char **list);

/* ---- file.c: files and descriptors ------------------------------------------------------------------------------------- */

/* Closes a descriptor and resets it to -1; does nothing if it is -1 already. errno is unchanged. If the number is not
 * open, other code has closed it, and could later close an unrelated descriptor. That is a bug: it is logged, and with
 * HUSK_STRICT in the environment (as in the tests) it ends the process. */
void fd_close(int *fd);

/* Repeat on EINTR and short counts. read_full returns the count read (short only at end of file) or -1. */
ssize_t read_full(int fd, void *data, size_t size);
int write_full(int fd, const void *data, size_t size);
/* The whole file as a string, which the caller frees; fails if the file has more than `limit` bytes. */
char *file_read(const char *path, size_t limit, size_t *size, struct husk_error *err);
/* Writes beside the target and renames over it. */
int file_write_atomic(const char *path, const void *data, size_t size, mode_t mode, struct husk_error *err);
/* Writes one value into an existing kernel file (cgroup, proc); no create, no truncate. */
int file_poke(const char *path, const char *value, struct husk_error *err);
int dir_make(const char *path, mode_t mode, struct husk_error *err); /* with parents; succeeds if it exists */
/* Removes a tree without following links or crossing mounts; succeeds if there is none. */
int dir_remove(const char *path, struct husk_error *err);
/* Disk space used by everything below a directory. */
uint64_t dir_bytes(const char *path);
int fd_set_cloexec(int fd, bool on);
int fd_set_nonblocking(int fd, bool on);
/* TCP: small writes are sent at once, and a vanished peer is noticed: probed after `idle` silent seconds, `count` times
 * with `interval` seconds between. A connection works without these options, so failures are ignored. */
void fd_set_keepalive(int fd, int idle, int interval, int count);

/* ---- command.c: child processes ------------------------------------------------------------------------------------------- */

struct command {
	const char *const *argv;        /* argv[0] is looked up in PATH */
	const char *const *environment; /* NULL: a clean one with PATH, HOME=/ and LANG only */
	const char *directory;          /* NULL: / */
	int stdin_fd;                   /* -1: /dev/null */
	int stdout_fd;                  /* -1: collected into `output` if that is set, otherwise /dev/null */
	int stderr_fd;                  /* -1: collected into the error message's tail */
	struct buf *output;             /* may be NULL; bounded to 16 MiB */
	int (*before_exec)(void *data); /* runs in the child; a non-zero return is the child's exit status */
	void *data;
	int timeout_ms; /* 0: none; on expiry the process group is killed */
};
#define COMMAND_INIT .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1

/* Starts a command and waits for it. Returns 0 if it exited with 0. Otherwise -1, with the exit status or signal and
 * the tail of stderr in err. */
int command_run(const struct command *command, struct husk_error *err);
/* Starts a command without waiting. Returns the pid, or -1. Descriptors above 2 are closed in the child. */
pid_t command_start(const struct command *command, struct husk_error *err);

/* As `before_exec`, for a program that reads what a guest wrote: no privileges, no new ones, 512 MiB of memory, and no file can
 * grow. Root becomes nobody. */
#define COMMAND_NOBODY 65534
int command_unprivileged(void *data);

/* In a child before exec: resets every signal to its default; signals_reset also unblocks them. Async-signal-safe. */
void signals_default(void);
void signals_reset(void);

/* ---- place.c: files shipped with Husk -------------------------------------------------------------------------------------- */

/* Directories in which shipped files may be, best first; caller frees. */
char **place_list(void);
/* The path of a shipped file, which the caller frees. NULL if it was not found: place_missing makes the error. */
char *place_find(const char *name);
int place_missing(const char *name, struct husk_error *err);

/* ---- time.c, log.c: time, random, log ----------------------------------------------------------------------------------------- */

int64_t time_monotonic_ms(void);
int64_t time_monotonic_us(void);
int64_t time_boot_ms(void); /* monotonic; includes the time in which the host sleeps */
int64_t time_wall_ms(void);
/* RFC 3339 UTC with milliseconds into out[25]. */
void time_format(int64_t wall_ms, char out[static 25]);
/* Parses such a time, with or without milliseconds; -1 if it is malformed. */
int64_t time_parse(const char *text);
int random_bytes(void *data, size_t size);
/* `prefix` then `length` characters of [a-z2-7], into out (size at least strlen(prefix)+length+1). */
int random_id(const char *prefix, size_t length, char *out);
/* Has the text the form of such an id? */
bool is_random_id(const char *text, const char *prefix, size_t length);

/* Writes a line to stderr if its level is enabled (base/log.h). Never log a secret. */
enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
