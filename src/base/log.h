/*
 * Logging of a process: its role, its level, and where its lines are written. Most files need only log_line in base.h.
 * This header is for `main` functions, for the server's access log, and for code that starts to work for a request.
 *
 *   2026-11-16T18:01:24.123Z info supervisor sandbox=sb-37qlfkbfsx request=rq6ht2: text
 *
 * Every process writes this form, or one JSON object per line with the same members. HUSK_LOG sets the level.
 */
#ifndef HUSK_BASE_LOG_H
#define HUSK_BASE_LOG_H

#include "base/base.h"

#define LOG_LINE_MAX 2048
#define LOG_FILE_MAX (2u << 20) /* size limit of a log file; one old file of this size is kept beside it */

/* Sets the role of this process in its lines. The level is HUSK_LOG, or `level` without HUSK_LOG. Sandbox and request
 * are taken from the environment if the parent passed them (log_environment). -1 if HUSK_LOG is not a level: then
 * `level` is used. */
int log_setup(const char *role, enum log_level level, struct husk_error *err);
/* As log_setup, for processes whose exit status is not read: an invalid HUSK_LOG is a warning in the log. */
void log_begin(const char *role, enum log_level level);
/* "error", "warn", "info" or "debug"; otherwise -1, and the error names `what`. */
int log_parse_level(const char *what, const char *text, enum log_level *out, struct husk_error *err);
void log_set_level(enum log_level level);
void log_set_json(bool on);
void log_set_sandbox(const char *id); /* of the process; NULL: none */

/* The request that this thread works for. NULL, or text that is not an id: none. */
void log_set_request(const char *id);
const char *log_request_id(void); /* NULL: none */
/* 1 to 64 of A-Z a-z 0-9 . _ - */
bool log_is_id(const char *text);

/* HUSK_LOG, sandbox and request for a child process, as K=V; the caller frees. NULL: out of memory. */
char **log_environment(void);

/* Redirects standard error to this file, of at most LOG_FILE_MAX bytes. Before it grows larger, it is renamed to
 * "<path>.old", which replaces an older one. May be called again to switch to another file. */
int log_to_file(const char *path, struct husk_error *err);

struct log_field {
	const char *name, *value; /* value NULL: omitted as text, null in JSON */
	bool number;
};
/* A line with members of its own. */
void log_fields(enum log_level level, const char *message, const struct log_field *fields, size_t count);

#endif
