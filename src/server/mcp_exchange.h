/*
 * One request to /mcp and its answer, for api_mcp.c: the session of the request, how its answer is sent, and how
 * another request cancels it. Implemented in mcp_exchange.c.
 */
#ifndef HUSK_SERVER_MCP_EXCHANGE_H
#define HUSK_SERVER_MCP_EXCHANGE_H

#include "mcp/mcp.h"
#include "server/server.h"

#define SESSION_RANDOM 26
#define SESSION_SIGNATURE 32
#define SESSION_SIZE (SESSION_RANDOM + 1 + SESSION_SIGNATURE)

/* One request and its answer. */
struct exchange {
	struct request *request;
	struct exchange *next; /* in the list of running requests, legacy era */
	struct mcp_session session;
	struct mcp_call call;
	struct husk_egress egress;
	const char *allow[32];
	char *rules;                         /* what `allow` points into */
	char session_id[SESSION_RANDOM + 1]; /* without its signature: the mark in the metadata of sandboxes */
	const json_t *id;
	const char *version; /* what both sides speak */
	bool modern, takes_events, begun;
	char *event_id; /* the id to reconnect with; NULL: none */
	unsigned event_count;
	int cancel_fd, wait_fd;
	int64_t started_ms, spoke_ms;
};

/* Zero-initialise with both descriptors -1; free with exchange_free. INVALID names the error in the URL's query. */
int exchange_begin(struct exchange *exchange, struct request *request, struct husk_error *err);
void exchange_free(struct exchange *exchange);
#define cleanup_exchange cleanup(exchange_free)
#define EXCHANGE_INIT .cancel_fd = -1, .wait_fd = -1

/* ---- sessions: an id is signed, so that nothing has to be stored ---- */

/* A new session; its id is in a header of the answer. */
int session_begin(struct exchange *exchange, struct husk_error *err);
/* 1: a session of this caller; 0: none was given; -1: unknown or ended. */
int session_find(struct exchange *exchange);
/* Ends the session and all of its running requests. */
int session_close(struct exchange *exchange, struct husk_error *err);

/* ---- the answer ---- */

/* From here on the answer is a stream of events. */
int exchange_stream(struct exchange *exchange, struct husk_error *err);
/* Sends an event with a message (takes ownership); begins the stream if necessary. */
int exchange_send(struct exchange *exchange, json_t *message, struct husk_error *err);

/* Waits on a silent stream, with keep-alive comments. 0: continue; -1: the stream is over. */
int exchange_idle(struct exchange *exchange);

/* ---- cancelling: while a request is registered, others can cancel it ---- */

void exchange_enter(struct exchange *exchange);
void exchange_leave(struct exchange *exchange);
void exchange_cancel(const char *session, const json_t *id);

#endif
