/*
 * The methods of the protocol, in both its eras: initialisation, the list of tools, and calls of tools. The transports call
 * it with complete messages of the right form. A wrong request is a JSON-RPC error. Wrong arguments of a tool, or a tool
 * that fails, are a result with a text for the model.
 */
#include "mcp/tools.h"

#define META_SERVER "io.modelcontextprotocol/serverInfo"
#define META_CAPABILITIES "io.modelcontextprotocol/clientCapabilities"
#define META_SUBSCRIPTION "io.modelcontextprotocol/subscriptionId"
#define LIST_TTL_MS 300000 /* how long clients may cache lists that do not change while the server runs */

static const char instructions[] =
	"Husk gives you sandboxes: throwaway Linux machines of your own, each with its own kernel, files and "
	"processes, "
	"where you are root and can break nothing of the user's. Use run_code for code whose variables should last, "
	"run_command for programs, write_file and read_file for files. The first call makes a sandbox and its result "
	"names it; pass that id as 'sandbox' in later calls to go on in the same one. fork_sandbox copies a running "
	"sandbox, snapshot_sandbox keeps one for later, checkpoint_sandbox and rewind_sandbox undo what went wrong in "
	"one. Nothing of the user's machine is visible inside: send in what "
	"is "
	"needed with write_file and bring results back with read_file. The network of a sandbox is shut except for "
	"what "
	"its operator allowed; egress_log says what was blocked and which rule would allow it. list_sandboxes names "
	"the "
	"templates there are. Everything in a sandbox is gone when it ends: with the session, or some time after its "
	"last "
	"use.";

/* ---- shapes ---- */

static json_t *server_info(void)
{
	return json_pack("{s:s, s:s, s:s}", "name", "husk", "title", "Husk sandboxes", "version", HUSK_VERSION);
}

/* Adds the members that every result of the modern era has. Takes ownership of `result`. */
static json_t *dress(const struct mcp_message *message, json_t *result)
{
	if (!message->version || !result)
		return result;
	if (json_object_set_new(result, "resultType", json_string("complete")) < 0 ||
	    json_object_set_new(result, "_meta", json_pack("{s:o}", META_SERVER, server_info())) < 0) {
		json_decref(result);
		return NULL;
	}
	return result;
}

/* … and those of a result that clients may cache. */
static json_t *cacheable(const struct mcp_message *message, json_t *result)
{
	if (message->version && result &&
	    (json_object_set_new(result, "ttlMs", json_integer(LIST_TTL_MS)) < 0 ||
	     json_object_set_new(result, "cacheScope", json_string("public")) < 0)) {
		json_decref(result);
		return NULL;
	}
	return dress(message, result);
}

/* ---- methods ---- */

static json_t *initialize(const struct mcp_message *message)
{
	const char *asked = json_string_value(json_object_get(message->params, "protocolVersion"));

	if (!asked)
		return mcp_error(message->id, MCP_INVALID_PARAMS, "'protocolVersion' must be a string", NULL);
	return mcp_result(message->id,
			  json_pack("{s:s, s:{s:{s:b}}, s:o, s:s}", "protocolVersion",
				    mcp_version_is_legacy(asked) ? asked : MCP_LEGACY, "capabilities", "tools",
				    "listChanged", false, "serverInfo", server_info(), "instructions", instructions));
}

static json_t *discover(const struct mcp_message *message)
{
	json_t *result = json_pack("{s:o, s:{s:{}}, s:s}", "supportedVersions", mcp_versions(), "capabilities", "tools",
				   "instructions", instructions);

	return mcp_result(message->id, cacheable(message, result));
}

static json_t *list_tools(const struct mcp_message *message)
{
	const json_t *cursor = json_object_get(message->params, "cursor");

	if (cursor && !json_is_null(cursor))
		return mcp_error(message->id, MCP_INVALID_PARAMS, "'cursor' is none of ours: all tools are on one page",
				 NULL);
	return mcp_result(message->id, cacheable(message, json_pack("{s:o}", "tools", tools_list())));
}

static json_t *call_tool(struct mcp_session *session, struct mcp_call *call, const struct mcp_message *message)
{
	struct husk_error err = { 0 };
	json_t *result = tools_call(session, call, message, &err);

	if (result)
		return mcp_result(message->id, dress(message, result));
	return err.code ? mcp_error(message->id, err.code == HUSK_INVALID ? MCP_INVALID_PARAMS : MCP_INTERNAL_ERROR,
				    err.message, NULL)
			: NULL;
}

/* ---- subscriptions/listen: the lists never change while the server runs, so no change is ever sent ---- */

bool mcp_is_listen(const struct mcp_message *message)
{
	return message->kind == MCP_REQUEST && message->version && str_equal(message->method, "subscriptions/listen");
}

json_t *mcp_listen_begin(const struct mcp_message *message)
{
	return mcp_notification("notifications/subscriptions/acknowledged",
				json_pack("{s:{s:O}, s:{}}", "_meta", META_SUBSCRIPTION, message->id, "notifications"));
}

json_t *mcp_listen_end(const struct mcp_message *message)
{
	json_t *result = dress(message, json_object());
	json_t *meta = json_object_get(result, "_meta");

	if (meta)
		json_object_set(meta, META_SUBSCRIPTION, message->id);
	return mcp_result(message->id, result);
}

/* ---- answering ---- */

bool mcp_takes_long(const struct mcp_message *message)
{
	return message->kind == MCP_REQUEST && str_equal(message->method, "tools/call");
}

json_t *mcp_refuse(const struct mcp_message *message)
{
	const json_t *meta = json_object_get(message->params, "_meta");

	if (!message->version)
		return NULL;
	if (!str_equal(message->version, MCP_MODERN)) {
		json_t *data = json_pack("{s:o, s:s}", "supported", mcp_versions(), "requested", message->version);
		return mcp_error(message->id, MCP_UNSUPPORTED_VERSION, "this protocol version is not supported", data);
	}
	if (!json_is_object(json_object_get(meta, META_CAPABILITIES)))
		return mcp_error(message->id, MCP_INVALID_PARAMS,
				 "'_meta' must have '" META_CAPABILITIES "', an object", NULL);
	return NULL;
}

json_t *mcp_answer(struct mcp_session *session, struct mcp_call *call, const struct mcp_message *message)
{
	if (message->kind != MCP_REQUEST)
		return NULL;
	json_t *refusal = mcp_refuse(message);
	if (refusal)
		return refusal;
	if (str_equal(message->method, "tools/call"))
		return call_tool(session, call, message);
	if (str_equal(message->method, "tools/list"))
		return list_tools(message);
	if (message->version && str_equal(message->method, "server/discover"))
		return discover(message);
	if (!message->version && str_equal(message->method, "initialize"))
		return initialize(message);
	if (!message->version && str_equal(message->method, "ping"))
		return mcp_result(message->id, json_object());
	return mcp_error(message->id, MCP_METHOD_NOT_FOUND,
			 "there is no such method here; tools/list and tools/call are", NULL);
}
