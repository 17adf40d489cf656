/*
 * Connections and calls to the supervisor of a sandbox; see connect.c.
 */
#ifndef HUSK_CONNECT_H
#define HUSK_CONNECT_H

#include "instance/instance.h"

/* A fresh connection to the supervisor of a sandbox, with HELLO exchanged, ready for wire_send(OPEN). A hibernated
 * sandbox is woken first. Returns the descriptor. NOT_FOUND: unknown; GONE: it has ended, and why. */
int husk_connect(struct husk *husk, const char *sandbox, struct husk_error *err);
/* Arguments in, results out, no streams: opens a connection, makes the call, closes it. `results` may be NULL. */
int husk_call(struct husk *husk, const char *sandbox, uint16_t method, const struct buf *arguments, struct buf *results,
	      struct husk_error *err);

/* A connection to a supervisor by its sandbox's id, HELLO exchanged; no wake. GONE: no supervisor; TIMEOUT: there is one,
 * and it did not answer in time. */
int supervisor_dial(struct husk *husk, const char *id, int timeout_ms, struct husk_error *err);
#define SUPERVISOR_DIAL_MS 5000 /* for a call that is not in a hurry, on a host that is */
/* One call on such a connection. `results` (may be NULL) gets the END payload. */
int supervisor_call(int fd, uint16_t method, const struct buf *arguments, struct buf *results, int timeout_ms,
		    struct husk_error *err);
/* The time a supervisor may take over a call of this method. */
int supervisor_patience(uint16_t method);

#endif
