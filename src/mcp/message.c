/*
 * JSON-RPC messages: parses text to a checked message, and builds answers. Both transports call it with bytes from any
 * client; so does the fuzzer. A document whose depth is not bounded must never be walked recursively, and a member must
 * never be used before its type is checked.
 */
#include "mcp/mcp.h"

#define ID_MAX 256
#define META_VERSION "io.modelcontextprotocol/protocolVersion"

static const char *const legacy_versions[] = { MCP_LEGACY, "2025-06-18", "2025-03-26", "2024-11-05", "2024-10-07" };

bool mcp_version_is_legacy(const char *version)
{
	for (size_t i = 0; version && i < ARRAY_SIZE(legacy_versions); i++)
		if (str_equal(version, legacy_versions[i]))
			return true;
	return false;
}

json_t *mcp_versions(void)
{
	cleanup_json json_t *list = json_pack("[s]", MCP_MODERN);

	for (size_t i = 0; list && i < ARRAY_SIZE(legacy_versions); i++)
		if (json_array_append_new(list, json_string(legacy_versions[i])) < 0)
			return NULL;
	return steal_pointer(list);
}

json_t *mcp_parse(const char *text, size_t size, enum mcp_error *code, struct husk_error *err)
{
	json_error_t problem;

	if (size > MCP_MESSAGE_MAX) {
		*code = MCP_INVALID_REQUEST;
		husk_fail(err, HUSK_INVALID, "the message is larger than %u bytes", MCP_MESSAGE_MAX);
		return NULL;
	}
	if (str_json_deeper(text, size, MCP_DEPTH_MAX)) {
		*code = MCP_INVALID_REQUEST;
		husk_fail(err, HUSK_INVALID, "the message is nested more than %d levels deep", MCP_DEPTH_MAX);
		return NULL;
	}
	json_t *document = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &problem);
	if (!document) {
		*code = MCP_PARSE_ERROR;
		husk_fail(err, HUSK_INVALID, "the message is not JSON: %s (line %d, column %d)", problem.text,
			  problem.line, problem.column);
	}
	return document;
}

/* ---- reading ---- */

static bool is_id(const json_t *value)
{
	return json_is_integer(value) || (json_is_string(value) && json_string_length(value) <= ID_MAX);
}

static int read_params(struct mcp_message *message, struct husk_error *err)
{
	json_t *params = json_object_get(message->document, "params");

	if (!params)
		return 0;
	if (!json_is_object(params))
		return husk_fail(err, HUSK_INVALID, "'params' must be an object");
	message->params = params;
	json_t *meta = json_object_get(params, "_meta");
	if (!meta)
		return 0;
	if (!json_is_object(meta))
		return husk_fail(err, HUSK_INVALID, "'params._meta' must be an object");
	json_t *token = json_object_get(meta, "progressToken");
	if (token && !is_id(token))
		return husk_fail(err, HUSK_INVALID, "'progressToken' must be a string or a whole number");
	message->token = token;
	json_t *version = json_object_get(meta, META_VERSION);
	if (version && !json_is_string(version))
		return husk_fail(err, HUSK_INVALID, "'" META_VERSION "' must be a string");
	message->version = json_string_value(version);
	return 0;
}

int mcp_message_read(json_t *document, struct mcp_message *message, struct husk_error *err)
{
	json_t *id = json_object_get(document, "id"), *method = json_object_get(document, "method");

	*message = (struct mcp_message){ .document = document };
	if (!json_is_object(document))
		return husk_fail(err, HUSK_INVALID, "a message is a JSON object");
	if (is_id(id))
		message->id = id;
	if (!str_equal(json_string_value(json_object_get(document, "jsonrpc")), "2.0"))
		return husk_fail(err, HUSK_INVALID, "'jsonrpc' must be \"2.0\"");
	if (!method && (json_object_get(document, "result") || json_object_get(document, "error"))) {
		message->kind = MCP_RESPONSE;
		return 0;
	}
	if (!json_is_string(method))
		return husk_fail(err, HUSK_INVALID, "'method' must be a string");
	if (id && !message->id)
		return husk_fail(err, HUSK_INVALID, "'id' must be a whole number or a string of at most %d bytes",
				 ID_MAX);
	message->kind = id ? MCP_REQUEST : MCP_NOTIFICATION;
	message->method = json_string_value(method);
	return read_params(message, err);
}

/* ---- writing ---- */

static json_t *id_or_null(const json_t *id)
{
	return id ? json_incref((json_t *)id) : json_null(); /* only its reference count changes */
}

json_t *mcp_error(const json_t *id, enum mcp_error code, const char *text, json_t *data)
{
	json_t *error = json_pack("{s:i, s:o, s:o*}", "code", (int)code, "message", json_text0(text), "data", data);

	return json_pack("{s:s, s:o, s:o}", "jsonrpc", "2.0", "id", id_or_null(id), "error", error);
}

json_t *mcp_result(const json_t *id, json_t *result)
{
	return json_pack("{s:s, s:o, s:o}", "jsonrpc", "2.0", "id", id_or_null(id), "result", result);
}

json_t *mcp_notification(const char *method, json_t *params)
{
	return json_pack("{s:s, s:s, s:o}", "jsonrpc", "2.0", "method", method, "params", params);
}
