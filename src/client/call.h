/*
 * One call to a sandbox: one channel of the wire protocol on a connection of its own. The files of libhusk that talk to
 * the agent (exec, files, watch, dial, code) are written on this.
 *
 * Threads: one thread may read (call_wait, call_next, call_finish) while others send. Whoever has to wait for the peer,
 * reader or sender, takes in what arrives; only one does so at a time, and the others are woken when it has filed a
 * frame. So a sender never depends on a reader being there, and what nobody reads is queued, bounded by the credit that
 * was given for it.
 *
 * The bytes come from the guest, by way of the supervisor: every length, tag and order is checked, and a peer that breaks
 * the protocol ends the call with HUSK_PROTOCOL.
 */
#ifndef HUSK_CALL_H
#define HUSK_CALL_H

#include "instance/instance.h"
#include "wire/wire.h"

struct call;

/* One thing from the peer. `data` stays valid until the next call_next, call_finish or call_free. */
struct call_event {
	enum wire_type type;     /* WIRE_DATA, WIRE_EOF, WIRE_MSG or WIRE_END */
	enum wire_stream stream; /* of DATA and EOF: STREAM_OUT or STREAM_ERR */
	const char *data;        /* DATA: bytes. MSG, END: well-formed fields */
	size_t size;
};

/* Takes over `fd` (a connected unix socket, HELLO done; closed also when this fails) and sends OPEN. `arguments` may be
 * NULL. call_free frees. */
int call_open(int fd, enum wire_method method, const struct buf *arguments, struct call **out, struct husk_error *err);
/* husk_connect and call_open in one. */
int call_start(struct husk *husk, const char *sandbox, enum wire_method method, const struct buf *arguments,
	       struct call **out, struct husk_error *err);
/* Loses interest when the call has not ended yet, and hangs up. No other thread may be inside a call_ function. */
void call_free(struct call *call);
void call_cleanup(struct call **call);
#define cleanup_call cleanup(call_cleanup)

/* A call fails with TIMEOUT when the peer says nothing for 45 s while it is waited for. From now on the peer may be
 * silent for as long as it likes: a process that runs, a watch. */
void call_be_patient(struct call *call);
/* 1: call_next would not block; 0: `deadline_ms` (time_monotonic_ms; 0: do not wait, -1: no limit) passed. */
int call_wait(struct call *call, int64_t deadline_ms);
/* The next event, in the order sent. The peer may then send as much again. -1 when the link broke (HUSK_GONE,
 * HUSK_PROTOCOL), and after END. */
int call_next(struct call *call, struct call_event *event, struct husk_error *err);
/* Throws away what comes before END, and reads END: 0 when it says success, with its fields in `results` (may be NULL);
 * else -1 with the error it carries. HUSK_TIMEOUT when it has not come by the deadline (-1: no limit). */
int call_finish(struct call *call, int64_t deadline_ms, struct buf *results, struct husk_error *err);
/* Reads the first event of a method that answers with a MSG once it is under way: 0 with the MSG in `event`; -1 with the
 * error when it ended instead. */
int call_first_message(struct call *call, struct call_event *event, struct husk_error *err);

/* All of it to STREAM_IN; blocks while the peer is slow. -1 also when the call ended: HUSK_GONE, and END says why. */
int call_write(struct call *call, const void *data, size_t size, struct husk_error *err);
/* What there is credit for, and never waits for more: the count, 0 when there is none now. */
ssize_t call_write_some(struct call *call, const void *data, size_t size, struct husk_error *err);
/* Sent to STREAM_IN and not credited back yet; the peer gives credit in steps of WIRE_WINDOW / 4. */
size_t call_unread(struct call *call);
int call_write_eof(struct call *call, struct husk_error *err);
int call_message(struct call *call, const struct buf *fields, struct husk_error *err);
int call_cancel(struct call *call, struct husk_error *err);

/* Before other threads know the call: gives it a descriptor that is readable when something has come, or is queued
 * already. Not all that comes is an event: ask call_wait(call, 0), which takes it in. */
int call_make_pollable(struct call *call, struct husk_error *err);
int call_poll_fd(const struct call *call);

/* For the callers' arguments: INVALID, naming `field`, unless it is an absolute path of fewer than 4096 bytes. */
int check_path(const char *field, const char *path, struct husk_error *err);
/* The arguments were put together with `failed` wire_put_ calls going wrong: 0, or LIMIT. */
int check_arguments(int failed, struct husk_error *err);

#endif
