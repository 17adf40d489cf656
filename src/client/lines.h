/*
 * JSON lines to and from a long-running process of the guest: a code kernel (code.c), the desktop helper (desktop.c).
 * The process is an ordinary one of the agent, known by its label. So it is found in the process list, is copied by a
 * fork, and needs no state on the host. Several clients may talk to it at once: each follows its own request and skips
 * the rest.
 *
 * All output comes from the guest: a line that is not a JSON object is skipped, and the length and depth of lines are limited.
 */
#ifndef HUSK_LINES_H
#define HUSK_LINES_H

#include "base/jansson.h"
#include "client/call.h"

#define LINES_MAX_BYTES (32u * 1024u * 1024u) /* of one line */

/* One client's side of it. Zero-initialise, then set the fields that the caller knows. */
struct lines {
	struct husk *husk;
	const char *sandbox;
	const char *what, *name; /* for messages: "context", "default" */
	/* Waits until `fd` is readable or timeout_ms passed; negative: the client gave up. NULL: poll. */
	int (*wait)(void *data, int fd, int timeout_ms);
	void *wait_data;
	/* Says how the process ended; returns -1. */
	int (*ended)(struct lines *lines, const struct husk_process_event *event, struct husk_error *err);
	void *data; /* of `ended` */

	struct husk_process *process;
	int64_t pid;
	bool starting;   /* has not sent "ready" yet */
	struct buf text; /* output; the current line begins at `start` */
	size_t start;
	struct buf complaint; /* the end of its stderr */
};

void lines_close(struct lines *lines);

/* The running process whose label `matches` accepts: its pid and the ends of its output so far; pid 0: none. If two clients started
 * one at the same moment, the oldest is used, so that all agree. Remains of dead ones are removed. */
int lines_find(const struct lines *lines, bool (*matches)(const void *data, const char *label), const void *data,
	       struct husk_process_info *out, struct husk_error *err);
/* Starts it and waits for {"type":"ready"}, at most limit_ms. */
int lines_start(struct lines *lines, const struct husk_exec_options *exec, int limit_ms, struct husk_error *err);
/* Joins a process that lines_find returned. */
int lines_attach(struct lines *lines, const struct husk_process_info *found, struct husk_error *err);
/* Finds it or starts it. Two clients may do so at once. Each checks again afterwards, and the younger process is ended. */
int lines_open(struct lines *lines, bool (*matches)(const void *data, const char *label), const void *data,
	       const struct husk_exec_options *exec, int limit_ms, struct husk_error *err);
/* Ends the process and removes it. */
int lines_forget(const struct lines *lines, int64_t pid, struct husk_error *err);

/* Sends one object as one line, in one write, so that the request of another client cannot come in between. */
int lines_send(struct lines *lines, const json_t *request, struct husk_error *err);
/* Reads the next line that is a JSON object: 1 (the caller drops it); 0: the deadline (-1: none) passed; -1: the process ended. */
int lines_read(struct lines *lines, int64_t deadline_ms, json_t **out, struct husk_error *err);

/* A string of an object; "" if it is absent. */
const char *lines_text(const json_t *object, const char *key);
/* The last line of its stderr, fit for a terminal; "" if there is none. */
const char *lines_complaint(struct lines *lines);

#endif
