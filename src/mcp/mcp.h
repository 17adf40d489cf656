/*
 * The Model Context Protocol over libhusk: what an agent's host sends in (JSON-RPC messages) and what comes back. The
 * two transports know this header alone: `husk mcp` (src/cli/cmd_mcp.c, one message a line) and huskd's /mcp
 * (src/server/api_mcp.c, streamable HTTP). Nothing here reads or writes a descriptor of theirs.
 *
 * Two eras of the protocol are spoken. In the legacy one (up to 2025-11-25) a client begins with `initialize`, and the
 * session that follows has a sandbox of its own. In the modern one (2026-07-28) each request stands alone and says its
 * version in _meta; a sandbox is named in each call, and made by the call that names none.
 */
#ifndef HUSK_MCP_H
#define HUSK_MCP_H

#include <stdatomic.h>

#include "base/base.h"
#include "husk.h"
#include "json/json.h"

#define MCP_MESSAGE_MAX (16u << 20)
#define MCP_DEPTH_MAX 64
#define MCP_BATCH_MAX 32
#define MCP_MODERN "2026-07-28"
#define MCP_LEGACY "2025-11-25"       /* the newest of the legacy era */
#define MCP_UNNEGOTIATED "2025-03-26" /* what a legacy HTTP request without a version is taken for */

enum mcp_error {
	MCP_PARSE_ERROR = -32700,
	MCP_INVALID_REQUEST = -32600,
	MCP_METHOD_NOT_FOUND = -32601,
	MCP_INVALID_PARAMS = -32602,
	MCP_INTERNAL_ERROR = -32603,
	MCP_HEADER_MISMATCH = -32020,
	MCP_UNSUPPORTED_VERSION = -32022,
};

/* ---- messages (message.c) ---- */

enum mcp_kind { MCP_REQUEST = 1, MCP_NOTIFICATION, MCP_RESPONSE };

/* One message, checked for shape; everything but `document` points into it. */
struct mcp_message {
	json_t *document;
	enum mcp_kind kind;
	const char *method;  /* not of a response */
	json_t *id;          /* of a request: a string or a whole number */
	json_t *params;      /* an object; NULL: none */
	json_t *token;       /* the progress token; NULL: no progress is wanted */
	const char *version; /* what _meta claims; NULL: nothing, so it is of the legacy era */
};

/* Text to one document, within the bounds above. NULL: *code says what is wrong, and `err` in words. */
json_t *mcp_parse(const char *text, size_t size, enum mcp_error *code, struct husk_error *err);
/* What the document (borrowed) says. -1: it is no message; `message->id` is set when there was a usable one. */
int mcp_message_read(json_t *document, struct mcp_message *message, struct husk_error *err);
/* New documents; NULL: no memory. `id` NULL: null. `data` is taken and may be NULL. */
json_t *mcp_error(const json_t *id, enum mcp_error code, const char *text, json_t *data);
json_t *mcp_result(const json_t *id, json_t *result);
json_t *mcp_notification(const char *method, json_t *params);
bool mcp_version_is_legacy(const char *version);
json_t *mcp_versions(void);

/* ---- a conversation (mcp_session.c) ---- */

struct mcp_session {
	struct husk *husk;
	const char *id;    /* marks the sandboxes made in it, which go when it does; NULL: nothing ends, only time */
	const char *fixed; /* the sandbox of the calls that name none, which is not ours to kill; NULL: none */
	bool everything;   /* all that the caller sees, not only what was made over MCP */
	struct husk_create_options defaults; /* of a new sandbox */
	/* Makes a sandbox, building a bundled template that was never built. */
	int (*create)(void *data, const struct husk_create_options *options, struct husk_sandbox **out,
		      struct husk_error *err);
	/* A link to a port that needs no login; NULL: there is no server to link to. */
	int (*link)(void *data, const char *sandbox, uint16_t port, int64_t seconds, char **url, int64_t *expires_ms,
		    struct husk_error *err);
	void *data;
};

#define MCP_TTL_SECONDS 3600
#define MCP_IDLE_SECONDS 600

/* HUSK_MCP_TEMPLATE, _SNAPSHOT, _TTL, _IDLE, _MEMORY and _CPUS into what is not set yet; the strings are the
 * environment's. Then the defaults above. INVALID names the variable. */
int mcp_session_defaults(struct husk_create_options *options, struct husk_error *err);
/* Removes every sandbox made in the session, save those to be kept. How many; -1 when one would not go. */
int mcp_session_end(struct mcp_session *session, struct husk_error *err);
/* Starts the clock of the session's sandboxes again: its client is there. */
void mcp_session_renew(struct mcp_session *session);

/* ---- a request that is being answered (protocol.c, tool_run.c) ---- */

struct mcp_call {
	/* Sends a notification (taken) that belongs to the request. May fail: the client has gone. */
	int (*notify)(void *data, json_t *message, struct husk_error *err);
	/* Waits until `fd` (-1: none) is readable. 1: it is; 0: time is up; -1: cancelled, or nobody is there any more. */
	int (*wait)(void *data, int fd, int timeout_ms);
	/* Told once a process runs for it that can be come back to (mcp_resume); may be NULL. */
	void (*started)(void *data, const char *sandbox, int64_t pid);
	void *data;
	_Atomic bool cancelled; /* whatever runs for it is to be stopped, and no answer is wanted */
};

/* The answer to a request; for a notification NULL. NULL for a request: it was cancelled, its client has gone (a
 * command goes on then, unless it was cancelled), or memory ran out. Cancellation is the transport's: it knows the
 * requests under way. */
json_t *mcp_answer(struct mcp_session *session, struct mcp_call *call, const struct mcp_message *message);
/* What a request of the modern era must say of itself: the error that answers one that does not; NULL: it does. */
json_t *mcp_refuse(const struct mcp_message *message);
/* The answer to request `id`, a run_command whose process is `pid` of the sandbox, which is followed to its end. */
json_t *mcp_resume(struct mcp_session *session, struct mcp_call *call, const json_t *id, const char *sandbox,
		   int64_t pid);
/* Whether a method may take long, so that others should be answered meanwhile. */
bool mcp_takes_long(const struct mcp_message *message);
/* subscriptions/listen: the acknowledgement to send at once, and the answer once it ends by our doing. */
bool mcp_is_listen(const struct mcp_message *message);
json_t *mcp_listen_begin(const struct mcp_message *message);
json_t *mcp_listen_end(const struct mcp_message *message);

#endif
