/*
 * One call to a sandbox: one channel of the wire protocol on its own connection. The files of libhusk that talk to the
 * agent (exec, files, watch, dial, code) use this.
 *
 * Threads: one thread may read (call_wait, call_next, call_finish) while others send. A thread that has to wait for the
 * peer, reader or sender, receives the frames that arrive. Only one thread does so at a time; it wakes the others after
 * each frame. So a sender never depends on a reader, and unread frames are queued, bounded by the credit that was given
 * for them.
 *
 * The bytes come from the guest, through the supervisor. Every length, tag and order is checked. If a peer breaks the
 * protocol, the call ends with HUSK_PROTOCOL.
 */
#ifndef HUSK_CALL_H
#define HUSK_CALL_H

#include "instance/instance.h"
#include "wire/wire.h"

struct call;

/* One event from the peer. `data` stays valid until the next call_next, call_finish or call_free. */
struct call_event {
	enum wire_type type;     /* WIRE_DATA, WIRE_EOF, WIRE_MSG or WIRE_END */
	enum wire_stream stream; /* of DATA and EOF: STREAM_OUT or STREAM_ERR */
	const char *data;        /* DATA: bytes. MSG, END: well-formed fields */
	size_t size;
};

/* Takes ownership of `fd` (a connected unix socket, HELLO done; closed also on failure) and sends OPEN. `arguments` may
 * be NULL. Free with call_free. */
int call_open(int fd, enum wire_method method, const struct buf *arguments, struct call **out, struct husk_error *err);
/* husk_connect and call_open in one. */
int call_start(struct husk *husk, const char *sandbox, enum wire_method method, const struct buf *arguments,
	       struct call **out, struct husk_error *err);
/* Cancels the call if it has not ended, and closes the connection. No other thread may be inside a call_ function. */
void call_free(struct call *call);
void call_cleanup(struct call **call);
#define cleanup_call cleanup(call_cleanup)

/* By default, a waiting call fails with TIMEOUT if the peer is silent for 45 s. After this call, the peer may be silent
 * without a limit: for a running process or a watch. */
void call_be_patient(struct call *call);
/* 1: call_next would not block; 0: `deadline_ms` (time_monotonic_ms; 0: do not wait, -1: no limit) has passed. */
int call_wait(struct call *call, int64_t deadline_ms);
/* Returns the next event, in the order sent, and gives its credit back. -1 if the connection failed (HUSK_GONE,
 * HUSK_PROTOCOL), and after END. */
int call_next(struct call *call, struct call_event *event, struct husk_error *err);
/* Discards everything before END, and reads END. 0: success, with its fields in `results` (may be NULL). -1: the error
 * in END, or HUSK_TIMEOUT if END did not arrive by the deadline (-1: no limit). */
int call_finish(struct call *call, int64_t deadline_ms, struct buf *results, struct husk_error *err);
/* Reads the first event of a method that answers with a MSG when it has started: 0 with the MSG in `event`; -1 with the
 * error if the call ended instead. */
int call_first_message(struct call *call, struct call_event *event, struct husk_error *err);

/* Writes everything to STREAM_IN; blocks while the peer is slow. -1 also if the call ended: HUSK_GONE, and END has the
 * reason. */
int call_write(struct call *call, const void *data, size_t size, struct husk_error *err);
/* Writes as much as there is credit for, and never waits for more. Returns the count; 0: no credit now. */
ssize_t call_write_some(struct call *call, const void *data, size_t size, struct husk_error *err);
/* Bytes that were sent to STREAM_IN and not credited back yet; the peer gives credit in steps of WIRE_WINDOW / 4. */
size_t call_unread(struct call *call);
int call_write_eof(struct call *call, struct husk_error *err);
int call_message(struct call *call, const struct buf *fields, struct husk_error *err);
int call_cancel(struct call *call, struct husk_error *err);

/* Called before other threads know the call: gives it a descriptor that is readable when something has arrived or is
 * queued. Not everything that arrives is an event: call_wait(call, 0) receives it and tells. */
int call_make_pollable(struct call *call, struct husk_error *err);
int call_poll_fd(const struct call *call);

/* Checks an argument of a caller: INVALID with the name `field`, unless it is an absolute path of fewer than 4096
 * bytes. */
int check_path(const char *field, const char *path, struct husk_error *err);
/* Checks arguments after `failed` wire_put_ calls failed: 0, or LIMIT. */
int check_arguments(int failed, struct husk_error *err);

#endif
