/*
 * A process of a sandbox on behalf of a request: following its output while feeding its stdin and watching the client,
 * as server-sent events or collected. exec.c starts processes with it, process.c attaches to them, pty.c takes the
 * shapes. A client that goes away never ends a process by itself; whoever wants that kills it (see `abandoned`).
 */
#ifndef HUSK_SERVER_PROCESS_H
#define HUSK_SERVER_PROCESS_H

#include "server/server.h"

static inline void process_cleanup(struct husk_process **process)
{
	husk_process_free(*process);
}
#define cleanup_process cleanup(process_cleanup)

/* One conversation with one process. Zero-initialise, set the first group. */
struct follow {
	struct request *request;
	struct husk_process *process; /* borrowed */
	int64_t pid;
	const char *input; /* still to be fed to its stdin */
	size_t input_size;
	bool close_input;  /* once it is fed */
	int64_t offset[2]; /* of the next byte of stdout and stderr to the client */

	bool abandoned; /* set when the client went away (or the server stops) before the end */
	unsigned turns;
	struct {
		char bytes[4];
		size_t size;
	} held[2]; /* the beginning of a character whose rest has not come */
};

/* The next event, feeding meanwhile: 1; 0 when none came within the time; -1 when there will be none. */
int follow_next(struct follow *follow, int timeout_ms, struct husk_process_event *event, struct husk_error *err);
/* All of it to the client: sse_begin, `start` (the document is taken), output as it comes, `exit`. */
int follow_stream(struct follow *follow, json_t *start, struct husk_error *err);

/* Gives the process these bytes, waiting for it to read as long as the client is there. CONFLICT: it ended. */
int process_feed(struct follow *follow, const char *bytes, size_t size, struct husk_error *err);
/* After the last: closes stdin when asked to, and waits until nothing would be lost by letting go of the handle. */
int process_feed_end(struct follow *follow, bool close, struct husk_error *err);

/* {exit_code, signal, timed_out, out_of_memory, duration_ms} */
json_t *process_exit_document(const struct husk_process_event *event);
/* 15, "TERM" or "SIGTERM" to the number; INVALID otherwise. */
int process_signal_number(const json_t *value, int *out, struct husk_error *err);

/* The process as it is now; its strings are not filled. NOT_FOUND when the sandbox knows none of that number. */
int process_find(struct request *request, int64_t pid, struct husk_process_info *out, struct husk_error *err);

/* To feed or resize one that runs: attached from where its output stands now. CONFLICT: it has ended. */
int process_attach(struct request *request, int64_t pid, struct husk_process **out, struct husk_error *err);

/* process.c's routes, in exec.c's table */
int processes_list(struct request *request, struct husk_error *err);
int processes_output(struct request *request, struct husk_error *err);
int processes_signal(struct request *request, struct husk_error *err);
int processes_stdin(struct request *request, struct husk_error *err);

#endif
