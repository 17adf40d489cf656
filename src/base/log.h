/*
 * How a process of Husk logs: who it is, how much it says, and where its lines go. log_line in base.h is all that most
 * files need; this is for `main`s, for the server's access log, and for whoever begins work for a request.
 *
 *   2026-11-16T18:01:24.123Z info supervisor sandbox=sb-37qlfkbfsx request=rq6ht2: text
 *
 * Every process writes this form, or one JSON object a line with the same members. The level comes from HUSK_LOG.
 */
#ifndef HUSK_BASE_LOG_H
#define HUSK_BASE_LOG_H

#include "base/base.h"

#define LOG_LINE_MAX 2048
#define LOG_FILE_MAX (2u << 20) /* of a log file; one old file of this size is kept beside it */

/* Names this process in its lines. The level is HUSK_LOG's, else `level`; sandbox and request are those of
 * log_environment, if whoever started us passed them on. -1 when HUSK_LOG is not a level: then `level` holds. */
int log_setup(const char *role, enum log_level level, struct husk_error *err);
/* As log_setup, for processes that nobody reads the exit status of: a bad HUSK_LOG is a warning in the log. */
void log_begin(const char *role, enum log_level level);
/* "error", "warn", "info" or "debug"; else -1, naming `what`. */
int log_parse_level(const char *what, const char *text, enum log_level *out, struct husk_error *err);
void log_set_level(enum log_level level);
void log_set_json(bool on);
void log_set_sandbox(const char *id); /* of the process; NULL: none */

/* The request that this thread works for; NULL, or what is not an id: none. */
void log_set_request(const char *id);
const char *log_request_id(void); /* NULL: none */
/* 1 to 64 of A-Z a-z 0-9 . _ - */
bool log_is_id(const char *text);

/* HUSK_LOG, sandbox and request for a child process, as K=V; the caller frees. NULL: out of memory. */
char **log_environment(void);

/* Standard error becomes this file, of LOG_FILE_MAX bytes at most: before it grows larger it is renamed to
 * "<path>.old", over the one before it. May be called again, to go on in another file. */
int log_to_file(const char *path, struct husk_error *err);

struct log_field {
	const char *name, *value; /* value NULL: left out as text, null in JSON */
	bool number;
};
/* A line with members of its own. */
void log_fields(enum log_level level, const char *message, const struct log_field *fields, size_t count);

#endif
