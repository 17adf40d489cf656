/*
 * The Connect protocol over HTTP/1 with its JSON codec, server side: messages in frames of one flag byte and a 32-bit
 * length, and its errors. For e2b_process.c and e2b_filesystem.c. Calls with one answer use only the error document;
 * streaming calls run through connect_serve.
 */
#ifndef HUSK_SERVER_CONNECT_H
#define HUSK_SERVER_CONNECT_H

#include "server/server.h"

#define CONNECT_KEEPALIVE_MS 90000

struct connect {
	struct request *request;
	bool begun;
	int64_t deadline_ms; /* monotonic, of Connect-Timeout-Ms; 0: none */
	int64_t timeout_ms;  /* the same as it was given */
	int keepalive_ms;    /* how often the client expects a message */
};

/* The whole work of a streaming route: reads the client's one message, calls `run`, and ends the stream with the
 * outcome, including an error (a client of a stream does not read the status). `run` answers with connect_send. */
int connect_serve(struct request *request, int (*run)(struct connect *connect, json_t *message, struct husk_error *err),
		  struct husk_error *err);
/* Another message of a client that streams: 1, 0 at the end of its stream, or -1. The caller drops it. */
int connect_next(struct connect *connect, json_t **message, struct husk_error *err);
/* Takes ownership of the message; NULL: memory ran out while it was made. */
int connect_send(struct connect *connect, json_t *message, struct husk_error *err);
/* How long to wait for an event: until the next keepalive, or the deadline. */
int connect_patience(const struct connect *connect);
/* TIMEOUT if the deadline has passed. */
int connect_check(const struct connect *connect, struct husk_error *err);

/* {"code", "message"}; the code follows from the status if that is more precise than the failure. */
json_t *connect_error(const struct husk_error *failure, unsigned status);

#endif
