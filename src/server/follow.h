/*
 * A process of a sandbox on behalf of a request: following its output while feeding its stdin and watching the client, as
 * server-sent events or collected; see follow.c. api_exec.c starts processes with it, api_process.c attaches to them,
 * api_pty.c uses the shapes. A client that goes away never ends a process by itself; whoever wants that kills it (see
 * `abandoned`).
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
	const char *input; /* still to be fed to its stdin */
	size_t input_size;
	bool close_input;   /* once it is fed */
	int64_t started_ms; /* wall clock; what was denied since goes with a failure. 0: it is not told */
	int64_t offset[2];  /* of the next byte of stdout and stderr to the client */

	bool abandoned; /* set when the client went away (or the server stops) before the end */
	unsigned turns;
	struct {
		char bytes[4];
		size_t size;
	} held[2];             /* the beginning of a character whose rest has not come */
	char last_errors[512]; /* the end of the last piece of stderr */
	size_t last_errors_size;
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
/* The same with "denied" (see json_denied), which is empty for a process that succeeded. `errors`: the end of its stderr,
 * where that is known. */
json_t *process_end_document(const struct follow *follow, const struct husk_process_event *event, const char *errors,
			     size_t size);

#endif
