/*
 * Declarations that the tools share: the call as a tool sees it, its sandbox, and how its result is built. One file per
 * family of tools: tool_run.c, tool_code.c, tool_files.c, tool_sandboxes.c; tools.c has the table and the definitions
 * that clients see (tools.json). A tool uses libhusk through husk.h, and does not know its transport.
 */
#ifndef HUSK_MCP_TOOLS_H
#define HUSK_MCP_TOOLS_H

#include "mcp/mcp.h"

/* Metadata of sandboxes made over MCP: the session at whose end they are removed (or one of the words), the session
 * whose calls use them by default, and how long they live after their last use. */
#define MARK_SESSION "husk.mcp_session"
#define MARK_DEFAULT "husk.mcp_default"
#define MARK_TTL "husk.mcp_ttl"
#define MARK_PARENT "husk.mcp_parent" /* of a fork made over MCP: forks inherit marks, even forks made elsewhere */
#define MARK_KEPT "kept"
#define MARK_NONE "none"

struct tool_call {
	struct mcp_session *session;
	struct mcp_call *call;
	const json_t *token;     /* for progress; NULL: not wanted */
	const json_t *arguments; /* checked against the tool's schema */
	bool shared;             /* calls that name no sandbox share one */

	char *sandbox; /* the sandbox of the call, once known */
	char *note;    /* a note for the caller about the sandbox; NULL: none */

	/* the result */
	json_t *content, *structured;
	bool is_error;
};

struct tool {
	const char *name;
	int (*run)(struct tool_call *call, struct husk_error *err); /* -1: `err` becomes the result, as an error */
};
/* ---- the tools: tool_code.c, tool_run.c, tool_files.c, tool_sandboxes.c, tool_history.c, tool_effects.c, tool_egress.c,
 * tool_desktop.c, tool_human.c ---- */

int tool_run_code(struct tool_call *call, struct husk_error *err);
int tool_run_command(struct tool_call *call, struct husk_error *err);
int tool_read_file(struct tool_call *call, struct husk_error *err);
int tool_write_file(struct tool_call *call, struct husk_error *err);
int tool_list_files(struct tool_call *call, struct husk_error *err);
int tool_create_sandbox(struct tool_call *call, struct husk_error *err);
int tool_list_sandboxes(struct tool_call *call, struct husk_error *err);
int tool_fork_sandbox(struct tool_call *call, struct husk_error *err);
int tool_explore_sandbox(struct tool_call *call, struct husk_error *err);
int tool_snapshot_sandbox(struct tool_call *call, struct husk_error *err);
int tool_checkpoint_sandbox(struct tool_call *call, struct husk_error *err);
int tool_rewind_sandbox(struct tool_call *call, struct husk_error *err);
int tool_sandbox_history(struct tool_call *call, struct husk_error *err);
int tool_promote_sandbox(struct tool_call *call, struct husk_error *err);
int tool_held_effects(struct tool_call *call, struct husk_error *err);
int tool_merge_sandbox(struct tool_call *call, struct husk_error *err);
int tool_diff_sandbox(struct tool_call *call, struct husk_error *err);
int tool_hibernate_sandbox(struct tool_call *call, struct husk_error *err);
int tool_kill_sandbox(struct tool_call *call, struct husk_error *err);
int tool_expose_port(struct tool_call *call, struct husk_error *err);
int tool_egress_log(struct tool_call *call, struct husk_error *err);
int tool_computer(struct tool_call *call, struct husk_error *err);
int tool_browser_open(struct tool_call *call, struct husk_error *err);
int tool_request_human(struct tool_call *call, struct husk_error *err);

/* ---- tools.c ---- */

/* The result of tools/list. */
json_t *tools_list(void);
/* tools/call: the CallToolResult. NULL: no answer (see mcp_answer), or `err` is a protocol error: INVALID. */
json_t *tools_call(struct mcp_session *session, struct mcp_call *call, const struct mcp_message *message,
		   struct husk_error *err);
/* The arguments checked against the schema, without those that are null; `err` names the invalid one. */
json_t *tools_arguments(const char *tool, const json_t *given, struct husk_error *err);
void tool_call_free(struct tool_call *call);
/* The result of a call whose tool returned `status`. */
json_t *tool_result(struct tool_call *call, int status, const struct husk_error *failure);

const char *tool_string(const struct tool_call *call, const char *name); /* NULL: not given */
int64_t tool_int(const struct tool_call *call, const char *name, int64_t fallback);
bool tool_bool(const struct tool_call *call, const char *name);
int64_t tool_timeout_ms(const struct tool_call *call, int64_t fallback);
/* An object of strings; the caller frees the array. */
int tool_pairs(const struct tool_call *call, const char *name, struct husk_pair **out, size_t *count,
	       struct husk_error *err);

/* ---- tools.c: the result ---- */

/* A block of text from untrusted bytes. */
int tool_say(struct tool_call *call, const char *bytes, size_t size, struct husk_error *err);
int tool_sayf(struct tool_call *call, struct husk_error *err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
int tool_show_image(struct tool_call *call, const char *type, json_t *base64, struct husk_error *err); /* takes it */
/* Sets the structured result, takes ownership of it, and adds `sandbox`. `structured` NULL: fails, out of memory. */
int tool_give(struct tool_call *call, json_t *structured, struct husk_error *err);

/* ---- tool_output.c: long output is cut in the middle ---- */

struct clip {
	struct buf head, tail; /* the tail holds up to twice as much as is shown */
	uint64_t total;
};
#define CLIP_HEAD 12000u
#define CLIP_TAIL 20000u
int clip_add(struct clip *clip, const char *bytes, size_t size, struct husk_error *err);
/* The output as one text, with a line for the omitted part. Returns 0; *left_out is the number of omitted bytes. */
int clip_text(struct clip *clip, struct buf *out, uint64_t *left_out, struct husk_error *err);
void clip_free(struct clip *clip);

/* ---- tool_egress.c: blocked connections ---- */

/* Connections denied to the sandbox since then, one line each with the rule that would allow it (see json_denied). The
 * lines are added to `text` and returned as a list of strings, which may be empty. NULL: out of memory. */
json_t *denied_add(struct tool_call *call, int64_t since_ms, const char *errors, size_t size, struct buf *text);

/* ---- tool_output.c: progress ---- */

struct tool_progress {
	int64_t started_ms, told_ms;
	uint64_t bytes, told_bytes;
	char last[160]; /* the last line of output, possibly cut */
	size_t last_size;
	bool line_ended; /* the next byte starts a new line */
};
#define PROGRESS_MS 1000
void tool_progress_begin(struct tool_progress *progress);
void tool_progress_output(struct tool_progress *progress, const char *bytes, size_t size);
/* Reports progress when it is due. A client that has gone is noticed by the next wait, not here. */
void tool_progress_tick(struct tool_call *call, struct tool_progress *progress);

/* ---- mcp_session.c ---- */

enum need { NEED_EXISTING, NEED_ANY /* creates one if there is none */ };
/* Finds the sandbox of the call: fills call->sandbox and call->note, and makes sure that it lives for `ms` more. */
int session_sandbox(struct tool_call *call, enum need need, int64_t ms, struct husk_error *err);
/* Checks that `name` is a live sandbox that the session may use; NULL is fine. Errors name the argument `field`. */
int session_check(struct tool_call *call, const char *field, const char *name, struct husk_error *err);
/* The same for a state (husk_moment_open): a sandbox, a checkpoint of one, or a template. */
int session_check_state(struct tool_call *call, const char *field, const char *word, struct husk_error *err);
/* Creates a sandbox; the caller frees *made. `keep`: it is not removed at the end of the session. */
int session_create(struct tool_call *call, struct husk_create_options *options, bool keep, bool as_default,
		   const char *key, struct husk_sandbox **made, struct husk_error *err);
/* The default sandbox of calls that name none, even if it has ended. *out NULL: none. */
int session_default(struct tool_call *call, struct husk_sandbox **out, struct husk_error *err);
/* True if the session may see and use the sandbox. */
bool session_has(const struct mcp_session *session, const struct husk_sandbox *sandbox);
bool session_has_snapshot(const struct mcp_session *session, const struct husk_snapshot *snapshot);
const char *session_mark(const struct husk_sandbox *sandbox, const char *key); /* NULL: it has none */

#endif
