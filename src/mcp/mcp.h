/*
 * The Model Context Protocol over libhusk: handles the JSON-RPC messages of an agent's host. The two transports use
 * only this header: `husk mcp` (src/cli/cmd_mcp.c, one message per line) and huskd's /mcp (src/server/api_mcp.c,
 * streamable HTTP). Nothing here reads or writes a descriptor of a transport.
 *
 * Two eras of the protocol are supported. In the legacy era (up to 2025-11-25) a client begins with `initialize`, and
 * the session that follows has a sandbox of its own. In the modern era (2026-07-28) each request is independent and has
 * its version in _meta. There a call names its sandbox; a call that names none creates one.
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
#define MCP_UNNEGOTIATED "2025-03-26" /* assumed for a legacy HTTP request without a version */

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

/* One message with a checked form. All other members point into `document`. */
struct mcp_message {
	json_t *document;
	enum mcp_kind kind;
	const char *method;  /* NULL in a response */
	json_t *id;          /* of a request: a string or a whole number */
	json_t *params;      /* an object; NULL: none */
	json_t *token;       /* the progress token; NULL: progress is not wanted */
	const char *version; /* the version in _meta; NULL: none, so the message is of the legacy era */
};

/* Parses text to one document, within the bounds above. NULL on failure, with *code and `err`. */
json_t *mcp_parse(const char *text, size_t size, enum mcp_error *code, struct husk_error *err);
/* Reads the document (borrowed). -1: not a message; `message->id` is set if there was a usable id. */
int mcp_message_read(json_t *document, struct mcp_message *message, struct husk_error *err);
/* New documents; NULL: no memory. `id` NULL: null. Takes ownership of `data`, which may be NULL. */
json_t *mcp_error(const json_t *id, enum mcp_error code, const char *text, json_t *data);
json_t *mcp_result(const json_t *id, json_t *result);
json_t *mcp_notification(const char *method, json_t *params);
bool mcp_version_is_legacy(const char *version);
json_t *mcp_versions(void);

/* ---- a conversation (mcp_session.c) ---- */

struct mcp_session {
	struct husk *husk;
	const char *id;    /* marks its sandboxes, which are removed at its end; NULL: only their TTL ends them */
	const char *fixed; /* the sandbox of calls that name none, which the session must not kill; NULL: none */
	bool everything;   /* every sandbox that the caller can see, not only those made over MCP */
	struct husk_create_options defaults; /* of a new sandbox */
	/* Creates a sandbox. Builds a bundled template first if it was never built. */
	int (*create)(void *data, const struct husk_create_options *options, struct husk_sandbox **out,
		      struct husk_error *err);
	/* A link to a port that needs no login; NULL: there is no server for links. */
	int (*link)(void *data, const char *sandbox, uint16_t port, int64_t seconds, char **url, int64_t *expires_ms,
		    struct husk_error *err);
	void *data;
};

#define MCP_TTL_SECONDS 3600
#define MCP_IDLE_SECONDS 600

/* Sets the options that are not set yet from HUSK_MCP_TEMPLATE, _SNAPSHOT, _TTL, _IDLE, _MEMORY and _CPUS, then from
 * the defaults above. The strings belong to the environment. INVALID names the variable. */
int mcp_session_defaults(struct husk_create_options *options, struct husk_error *err);
/* Removes every sandbox made in the session, except those to be kept. Returns how many; -1 if one could not be
 * removed. */
int mcp_session_end(struct mcp_session *session, struct husk_error *err);
/* Restarts the TTL of the session's sandboxes, because its client is active. */
void mcp_session_renew(struct mcp_session *session);

/* ---- a request that is being answered (protocol.c, tool_run.c) ---- */

struct mcp_call {
	/* Sends a notification of the request, and takes ownership of it. Fails if the client has gone. */
	int (*notify)(void *data, json_t *message, struct husk_error *err);
	/* Waits until `fd` (-1: none) is readable. 1: readable; 0: timeout; -1: cancelled, or the client has gone. */
	int (*wait)(void *data, int fd, int timeout_ms);
	/* Called once a process runs for the request that mcp_resume can follow later; may be NULL. */
	void (*started)(void *data, const char *sandbox, int64_t pid);
	void *data;
	_Atomic bool cancelled; /* the process of the request must be stopped, and no answer is wanted */
};

/* The answer to a request; NULL for a notification. NULL for a request: it was cancelled, its client has gone (a
 * command then continues, unless it was cancelled), or memory ran out. The transport handles cancellation, because it
 * knows the open requests. */
json_t *mcp_answer(struct mcp_session *session, struct mcp_call *call, const struct mcp_message *message);
/* Checks the fields that a request of the modern era requires. Returns the error to answer with; NULL: the request is
 * valid. */
json_t *mcp_refuse(const struct mcp_message *message);
/* The answer to request `id`, a run_command whose process is `pid` of the sandbox. Follows the process to its end. */
json_t *mcp_resume(struct mcp_session *session, struct mcp_call *call, const json_t *id, const char *sandbox,
		   int64_t pid);
/* True if a method may take long, so that others should be answered meanwhile. */
bool mcp_takes_long(const struct mcp_message *message);
/* subscriptions/listen: the acknowledgement to send at once, and the answer when the server ends it. */
bool mcp_is_listen(const struct mcp_message *message);
json_t *mcp_listen_begin(const struct mcp_message *message);
json_t *mcp_listen_end(const struct mcp_message *message);

#endif
