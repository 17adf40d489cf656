/*
 * One request to /mcp and its answer, as api_mcp.c sees it: the session it belongs to, how its answer is given, and how it
 * is cancelled by another. mcp_exchange.c is behind it.
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
	struct exchange *next; /* of those under way, in the legacy era */
	struct mcp_session session;
	struct mcp_call call;
	struct husk_egress egress;
	const char *allow[32];
	char *rules;                         /* what `allow` points into */
	char session_id[SESSION_RANDOM + 1]; /* without its signature: what sandboxes are marked with */
	const json_t *id;
	const char *version; /* what both sides speak */
	bool modern, takes_events, begun;
	char *event_id; /* names what can be come back to; NULL: nothing */
	unsigned event_count;
	int cancel_fd, wait_fd;
	int64_t started_ms, spoke_ms;
};

/* Zero-initialise with both descriptors -1; then exchange_free. INVALID names what is wrong with the address's query.
 * */
int exchange_begin(struct exchange *exchange, struct request *request, struct husk_error *err);
void exchange_free(struct exchange *exchange);
#define cleanup_exchange cleanup(exchange_free)
#define EXCHANGE_INIT .cancel_fd = -1, .wait_fd = -1

/* ---- sessions: an id is signed, so that nothing has to be kept of it ---- */

/* A new one, in the answer's header. */
int session_begin(struct exchange *exchange, struct husk_error *err);
/* 1: a session of this caller's; 0: none was named; -1: it is unknown, or was ended. */
int session_find(struct exchange *exchange);
/* Ends it, and all that is under way in it. */
int session_close(struct exchange *exchange, struct husk_error *err);

/* ---- the answer ---- */

/* From here on the answer is a stream of events. */
int exchange_stream(struct exchange *exchange, struct husk_error *err);
/* An event with a message (taken), which begins the stream. */
int exchange_send(struct exchange *exchange, json_t *message, struct husk_error *err);

/* Sits on a stream on which nothing is said, and keeps the line warm. 0: go on; -1: it is over. */
int exchange_idle(struct exchange *exchange);

/* ---- cancelling: while a request is entered, others can cancel it ---- */

void exchange_enter(struct exchange *exchange);
void exchange_leave(struct exchange *exchange);
void exchange_cancel(const char *session, const json_t *id);

#endif
