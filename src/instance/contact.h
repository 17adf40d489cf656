/*
 * Connections and calls to the supervisor of a sandbox; see contact.c.
 */
#ifndef HUSK_CONNECT_H
#define HUSK_CONNECT_H

#include "instance/instance.h"

/* Returns a new connection to the supervisor of a sandbox, with HELLO exchanged, ready for wire_send(OPEN). A
 * hibernated sandbox is woken first. NOT_FOUND: unknown sandbox; GONE: the sandbox has ended, with the reason. */
int husk_connect(struct husk *husk, const char *sandbox, struct husk_error *err);
/* A call without streams: opens a connection, sends the arguments, receives the results, closes it. `results` may be
 * NULL. */
int husk_call(struct husk *husk, const char *sandbox, uint16_t method, const struct buf *arguments, struct buf *results,
	      struct husk_error *err);

/* Returns a connection to a supervisor by its sandbox's id, with HELLO exchanged; does not wake. GONE: no supervisor;
 * TIMEOUT: the supervisor did not answer in time. */
int supervisor_dial(struct husk *husk, const char *id, int timeout_ms, struct husk_error *err);
#define SUPERVISOR_DIAL_MS 5000 /* for calls that can wait, on a busy host */
/* One call on such a connection. `results` (may be NULL) gets the END payload. */
int supervisor_call(int fd, uint16_t method, const struct buf *arguments, struct buf *results, int timeout_ms,
		    struct husk_error *err);
/* How long a supervisor may take for a call of this method. */
int supervisor_patience(uint16_t method);

#endif
