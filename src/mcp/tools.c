/*
 * The table of tools, and how a call is handled: the arguments are checked against the definition that clients see, the
 * tool runs, and its result is returned, or an error that a model can act on. Called by protocol.c. The definitions are
 * in tools.json, which the assembler includes; make runs at the top of the tree, so the path is right.
 */
#include <pthread.h>

#include "mcp/schema.h"
#include "mcp/tools.h"

__asm__(".pushsection .rodata\n"
	".global mcp_tools_text\n"
	"mcp_tools_text:\n"
	".incbin \"src/mcp/tools.json\"\n"
	".global mcp_tools_end\n"
	"mcp_tools_end:\n"
	".byte 0\n"
	".popsection\n");
extern const char mcp_tools_text[], mcp_tools_end[];

#define TIMEOUT_MAX_MS (INT64_C(3600) * 1000)

static const struct tool tools[] = {
	{ "run_code", tool_run_code },
	{ "run_command", tool_run_command },
	{ "read_file", tool_read_file },
	{ "write_file", tool_write_file },
	{ "list_files", tool_list_files },
	{ "create_sandbox", tool_create_sandbox },
	{ "list_sandboxes", tool_list_sandboxes },
	{ "fork_sandbox", tool_fork_sandbox },
	{ "explore_sandbox", tool_explore_sandbox },
	{ "snapshot_sandbox", tool_snapshot_sandbox },
	{ "checkpoint_sandbox", tool_checkpoint_sandbox },
	{ "rewind_sandbox", tool_rewind_sandbox },
	{ "sandbox_history", tool_sandbox_history },
	{ "promote_sandbox", tool_promote_sandbox },
	{ "held_effects", tool_held_effects },
	{ "merge_sandbox", tool_merge_sandbox },
	{ "diff_sandbox", tool_diff_sandbox },
	{ "hibernate_sandbox", tool_hibernate_sandbox },
	{ "kill_sandbox", tool_kill_sandbox },
	{ "expose_port", tool_expose_port },
	{ "egress_log", tool_egress_log },
	{ "computer", tool_computer },
	{ "browser_open", tool_browser_open },
	{ "request_human", tool_request_human },
};

/* ---- definitions ---- */

/* Parsed once; read-only afterwards, by any thread. */
static json_t *definitions;
static pthread_once_t definitions_once = PTHREAD_ONCE_INIT;

static void definitions_load(void)
{
	definitions =
		json_loadb(mcp_tools_text, (size_t)(mcp_tools_end - mcp_tools_text), JSON_REJECT_DUPLICATES, NULL);
}

static const struct tool *tool_find(const char *name)
{
	for (size_t i = 0; name && i < ARRAY_SIZE(tools); i++)
		if (str_equal(tools[i].name, name))
			return &tools[i];
	return NULL;
}

static const json_t *definition_of(const char *name)
{
	json_t *definition;
	size_t i;

	pthread_once(&definitions_once, definitions_load);
	json_array_foreach(definitions, i,
			   definition) if (str_equal(json_string_value(json_object_get(definition, "name")),
						     name)) return definition;
	return NULL;
}

json_t *tools_list(void)
{
	cleanup_json json_t *list = json_array();
	json_t *definition;
	size_t i;

	pthread_once(&definitions_once, definitions_load);
	json_array_foreach(definitions, i, definition)
	{
		const struct tool *tool = tool_find(json_string_value(json_object_get(definition, "name")));
		/* A copy, because several threads must not change the reference counts of shared values. */
		if (tool && json_array_append_new(list, json_deep_copy(definition)) < 0)
			return NULL;
	}
	return definitions ? steal_pointer(list) : NULL;
}

/* ---- arguments ---- */

json_t *tools_arguments(const char *tool, const json_t *given, struct husk_error *err)
{
	const json_t *schema = json_object_get(definition_of(tool), "inputSchema");
	cleanup_json json_t *arguments = json_object();
	const char *name;
	json_t *value;

	if (!schema)
		return husk_fail(err, HUSK_INTERNAL, "tool '%s' has no schema", tool), NULL;
	if (!arguments)
		return husk_fail_memory(err), NULL;
	json_object_foreach((json_t *)given, name,
			    value) if (!json_is_null(value) &&
				       json_object_set(arguments, name, value) < 0) return husk_fail_memory(err),
		NULL;
	return schema_check(schema, arguments, err) < 0 ? NULL : steal_pointer(arguments);
}

const char *tool_string(const struct tool_call *call, const char *name)
{
	return json_string_value(json_object_get(call->arguments, name));
}

int64_t tool_int(const struct tool_call *call, const char *name, int64_t fallback)
{
	const json_t *value = json_object_get(call->arguments, name);

	return value ? (int64_t)json_number_value(value) : fallback; /* the schema has checked its range */
}

bool tool_bool(const struct tool_call *call, const char *name)
{
	return json_is_true(json_object_get(call->arguments, name));
}

int64_t tool_timeout_ms(const struct tool_call *call, int64_t fallback)
{
	const json_t *value = json_object_get(call->arguments, "timeout_seconds");

	return value ? MIN((int64_t)(json_number_value(value) * 1000), TIMEOUT_MAX_MS) : fallback;
}

int tool_pairs(const struct tool_call *call, const char *name, struct husk_pair **out, size_t *count,
	       struct husk_error *err)
{
	json_t *object = json_object_get(call->arguments, name), *value;
	const char *key;

	*count = 0;
	*out = calloc(json_object_size(object) + 1, sizeof(**out));
	if (!*out)
		return husk_fail_memory(err);
	json_object_foreach(object, key, value)(*out)[(*count)++] = (struct husk_pair){ key, json_string_value(value) };
	return 0;
}

/* ---- the result ---- */

static int add_content(struct tool_call *call, json_t *block, struct husk_error *err)
{
	if (!call->content)
		call->content = json_array();
	return json_array_append_new(call->content, block) < 0 ? husk_fail_memory(err) : 0;
}

int tool_say(struct tool_call *call, const char *bytes, size_t size, struct husk_error *err)
{
	return add_content(call, json_pack("{s:s, s:o}", "type", "text", "text", json_text(bytes, size)), err);
}

int tool_sayf(struct tool_call *call, struct husk_error *err, const char *format, ...)
{
	char *text = NULL;
	va_list arguments;

	va_start(arguments, format);
	int size = vasprintf(&text, format, arguments);
	va_end(arguments);
	if (size < 0)
		return husk_fail_memory(err);
	int result = tool_say(call, text, (size_t)size, err);
	free(text);
	return result;
}

int tool_show_image(struct tool_call *call, const char *type, json_t *base64, struct husk_error *err)
{
	return add_content(call, json_pack("{s:s, s:o, s:s}", "type", "image", "data", base64, "mimeType", type), err);
}

int tool_give(struct tool_call *call, json_t *structured, struct husk_error *err)
{
	json_decref(call->structured);
	call->structured = structured;
	if (!structured ||
	    (call->sandbox && json_object_set_new(structured, "sandbox", json_string(call->sandbox)) < 0))
		return husk_fail_memory(err);
	return 0;
}

/* Advice for the model, if the message itself has none. */
static const char *advice(const struct husk_error *failure)
{
	if (strstr(failure->message, "; "))
		return "";
	switch (failure->code) {
	case HUSK_LIMIT:
		return "; free something, or ask the operator for more";
	case HUSK_DENIED:
		return "; the operator's token does not allow it";
	case HUSK_TIMEOUT:
		return "; try again, or with a longer timeout_seconds";
	case HUSK_GONE:
		return "; call again without 'sandbox' to get a new one";
	case HUSK_INTERNAL:
	case HUSK_UNAVAILABLE:
	case HUSK_PROTOCOL:
		return "; this is Husk's trouble, not yours: try again, then tell the user";
	default:
		return "";
	}
}

/* Adds the note as text, because some clients show only the text to the model. */
static int say_note(struct tool_call *call, struct husk_error *err)
{
	return call->note ? tool_sayf(call, err, "note: %s", call->note) : 0;
}

json_t *tool_result(struct tool_call *call, int status, const struct husk_error *failure)
{
	if (status < 0) {
		json_decref(call->content);
		json_decref(call->structured);
		call->content = call->structured = NULL;
		call->is_error = true;
		if (tool_sayf(call, NULL, "%s%s", failure->message, advice(failure)) < 0)
			return NULL;
	}
	if (say_note(call, NULL) < 0)
		return NULL;
	if (!call->content && !(call->content = json_array()))
		return NULL;
	return json_pack("{s:O, s:O*, s:b}", "content", call->content, "structuredContent", call->structured, "isError",
			 call->is_error);
}

void tool_call_free(struct tool_call *call)
{
	free(call->sandbox);
	free(call->note);
	json_decref(call->content);
	json_decref(call->structured);
}

/* ---- calling ---- */

static int fail_unknown_tool(const char *name, struct husk_error *err)
{
	const char *names[ARRAY_SIZE(tools)];

	for (size_t i = 0; i < ARRAY_SIZE(tools); i++)
		names[i] = tools[i].name;
	const char *near = str_nearest(name, names, ARRAY_SIZE(names));
	if (near)
		return husk_fail(err, HUSK_INVALID, "unknown tool '%.64s'; did you mean '%s'?", name, near);
	return husk_fail(err, HUSK_INVALID, "unknown tool '%.64s'; tools/list names those there are", name);
}

json_t *tools_call(struct mcp_session *session, struct mcp_call *call, const struct mcp_message *message,
		   struct husk_error *err)
{
	const char *name = json_string_value(json_object_get(message->params, "name"));
	const json_t *given = json_object_get(message->params, "arguments");
	const struct tool *tool = tool_find(name);
	cleanup(tool_call_free) struct tool_call state = {
		.session = session, .call = call, .token = message->token, .shared = !message->version
	};
	struct husk_error failure = { 0 };

	if (!name)
		return husk_fail(err, HUSK_INVALID, "'name' must be the name of a tool"), NULL;
	if (!tool)
		return fail_unknown_tool(name, err), NULL;
	if (given && !json_is_object(given) && !json_is_null(given))
		return husk_fail(err, HUSK_INVALID, "'arguments' must be an object"), NULL;
	cleanup_json json_t *arguments = tools_arguments(name, given, &failure);
	state.arguments = arguments;
	int status = arguments ? tool->run(&state, &failure) : -1;
	/* No answer: the call was cancelled, or a client that comes back finds the command still running. */
	if (atomic_load(&call->cancelled) ||
	    (status < 0 && failure.code == HUSK_GONE && call->wait(call->data, -1, 0) < 0))
		return NULL;
	return tool_result(&state, status, &failure);
}
