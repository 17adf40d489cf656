/*
 * What an MCP client sends, as a fuzzer would: any bytes as a message, and any JSON as the arguments of any tool. What
 * comes through must be of the shape that was promised, and its answer must be JSON again.
 */
#include "mcp/mcp.h"
#include "mcp/tools.h"

/* The protocol's objects are not among those that fuzzers are linked with. */
#include "mcp/message.c"
#include "mcp/protocol.c"
#include "mcp/schema.c"
#include "mcp/tool_output.c"
#include "json/json.c"

/* Of the tools only the check of their arguments is driven: what they do then is libhusk's. */
#include "mcp/tools.c"

#define NO_TOOL(name)                                                                                                  \
	int name(struct tool_call *call, struct husk_error *err)                                                       \
	{                                                                                                              \
		return tool_sayf(call, err, "called");                                                                 \
	}
NO_TOOL(tool_run_code)
NO_TOOL(tool_run_command)
NO_TOOL(tool_read_file)
NO_TOOL(tool_write_file)
NO_TOOL(tool_list_files)
NO_TOOL(tool_create_sandbox)
NO_TOOL(tool_list_sandboxes)
NO_TOOL(tool_fork_sandbox)
NO_TOOL(tool_explore_sandbox)
NO_TOOL(tool_snapshot_sandbox)
NO_TOOL(tool_checkpoint_sandbox)
NO_TOOL(tool_rewind_sandbox)
NO_TOOL(tool_sandbox_history)
NO_TOOL(tool_promote_sandbox)
NO_TOOL(tool_held_effects)
NO_TOOL(tool_merge_sandbox)
NO_TOOL(tool_diff_sandbox)
NO_TOOL(tool_hibernate_sandbox)
NO_TOOL(tool_kill_sandbox)
NO_TOOL(tool_expose_port)
NO_TOOL(tool_egress_log)
NO_TOOL(tool_computer)
NO_TOOL(tool_browser_open)
NO_TOOL(tool_request_human)

static void must(bool holds)
{
	if (!holds)
		abort();
}

static int wait_for(void *data, int fd, int timeout_ms)
{
	(void)data, (void)fd, (void)timeout_ms;
	return 0;
}

static void check_answer(json_t *answer, const struct mcp_message *message)
{
	must(answer != NULL);
	must(json_equal(json_object_get(answer, "id"), message->id));
	must(!json_object_get(answer, "result") != !json_object_get(answer, "error"));
	char *text = json_dumps(answer, 0);
	must(text && str_is_utf8(text, strlen(text)));
	free(text);
	json_decref(answer);
}

static void try_message(json_t *document)
{
	struct mcp_session session = { 0 };
	struct mcp_call call = { .wait = wait_for };
	struct husk_error err = { 0 };
	struct mcp_message message;

	if (mcp_message_read(document, &message, &err) < 0) {
		must(err.code == HUSK_INVALID && err.message[0]);
		return;
	}
	must(message.kind == MCP_RESPONSE || message.method);
	must((message.kind == MCP_REQUEST) == (message.kind != MCP_RESPONSE && message.id));
	mcp_takes_long(&message);
	if (mcp_is_listen(&message))
		json_decref(mcp_listen_begin(&message));
	if (message.kind == MCP_REQUEST)
		check_answer(mcp_answer(&session, &call, &message), &message);
}

static void try_output(const uint8_t *data, size_t size)
{
	struct clip clip = { 0 };
	struct tool_progress progress;
	cleanup_buf struct buf text = { 0 };
	uint64_t left_out, total = 0;

	tool_progress_begin(&progress);
	for (size_t i = 0; i < 64; i++, total += size) {
		must(clip_add(&clip, (const char *)data, size, NULL) == 0);
		tool_progress_output(&progress, (const char *)data, size);
	}
	must(clip_text(&clip, &text, &left_out, NULL) == 0 && left_out <= total);
	must(text.size <= CLIP_HEAD + CLIP_TAIL + 64 && progress.last_size <= sizeof(progress.last));
	must(left_out || text.size == total);
	clip_free(&clip);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct husk_error err = { 0 };
	enum mcp_error code = 0;

	if (size == 0)
		return 0;
	const struct tool *tool = &tools[data[0] % ARRAY_SIZE(tools)];
	const char *text = (const char *)data + 1;
	json_t *document = mcp_parse(text, size - 1, &code, &err);
	if (!document) {
		must(code == MCP_PARSE_ERROR || code == MCP_INVALID_REQUEST);
		try_output(data + 1, size - 1);
		return 0;
	}
	try_message(document);
	json_t *arguments = json_is_object(document) ? tools_arguments(tool->name, document, &err) : NULL;
	must(!json_is_object(document) || arguments || err.code == HUSK_INVALID);
	json_decref(arguments);
	json_decref(document);
	return 0;
}
