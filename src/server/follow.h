/*
 * A process of a sandbox on behalf of a request: follows its output while it feeds its stdin and watches the client, as
 * server-sent events or collected; see follow.c. api_exec.c starts processes with it, api_process.c attaches to them,
 * api_pty.c uses the structures. A client that disconnects never ends a process; a caller that wants that kills the
 * process (see `abandoned`).
 */
#ifndef HUSK_SERVER_FOLLOW_H
#define HUSK_SERVER_FOLLOW_H

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
	const char *input; /* still to be written to its stdin */
	size_t input_size;
	bool close_input;   /* once it is fed */
	int64_t started_ms; /* wall clock; denials since then are part of a failure. 0: not reported */
	int64_t offset[2];  /* of the next byte of stdout and stderr for the client */

	bool abandoned; /* set if the client disconnected (or the server stops) before the end */
	unsigned turns;
	struct {
		char bytes[4];
		size_t size;
	} held[2];             /* the beginning of an incomplete character */
	char last_errors[512]; /* the end of the last piece of stderr */
	size_t last_errors_size;
};

/* Returns the next event, and feeds meanwhile: 1; 0: none within the time; -1: no more events. */
int follow_next(struct follow *follow, int timeout_ms, struct husk_process_event *event, struct husk_error *err);
/* Sends everything to the client: sse_begin, `start` (takes ownership of the document), output as it arrives,
 * `exit`. */
int follow_stream(struct follow *follow, json_t *start, struct husk_error *err);

/* Writes these bytes to the process, and waits for it to read as long as the client is connected. CONFLICT: it
 * ended. */
int process_feed(struct follow *follow, const char *bytes, size_t size, struct husk_error *err);
/* After the last bytes: closes stdin if requested, and waits until the input is in the sandbox, where later input follows
 * it. The handle can only be freed then. */
int process_feed_end(struct follow *follow, bool close, struct husk_error *err);

/* {exit_code, signal, timed_out, out_of_memory, duration_ms} */
json_t *process_exit_document(const struct husk_process_event *event);
/* The same with "denied" (see json_denied), which is empty if the process succeeded. `errors`: the end of its stderr,
 * if known. */
json_t *process_end_document(const struct follow *follow, const struct husk_process_event *event, const char *errors,
			     size_t size);

#endif
