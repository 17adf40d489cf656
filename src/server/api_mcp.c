/*
 * /mcp: the Model Context Protocol over streamable HTTP, in both its eras (src/mcp has the protocol). This file checks
 * who may ask and the headers of each era, and handles GET, POST and DELETE. mcp_exchange.c has answers and sessions.
 * No message may be handled before its origin, headers and session were checked.
 */
#include "server/mcp_exchange.h"

/* ---- refusals ---- */

static int refuse(struct request *request, unsigned status, const json_t *id, enum mcp_error code, const char *text,
		  struct husk_error *err)
{
	return respond_json(request, status, mcp_error(id, code, text, NULL), err);
}

/* The answer if session_find found no session. */
static int refuse_session(struct exchange *exchange, int found, struct husk_error *err)
{
	if (found == 0)
		return refuse(exchange->request, 400, exchange->id, MCP_INVALID_REQUEST,
			      "no Mcp-Session-Id; begin with initialize", err);
	return refuse(exchange->request, 404, exchange->id, MCP_INVALID_REQUEST,
		      "this session is not known, or was ended; begin again with initialize", err);
}

/* ---- who may ask ---- */

static bool is_loopback(const char *host, size_t size)
{
	static const char *const names[] = { "localhost", "127.0.0.1", "[::1]" };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (strlen(names[i]) == size && strncasecmp(names[i], host, size) == 0)
			return true;
	return false;
}

static size_t host_size(const char *host)
{
	return host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/");
}

/* A page of another site must not reach this server through a browser, also not by a name that was made to point here.
 * On loopback, only pages of this machine are allowed; elsewhere only the server's own. */
static bool origin_is_good(struct request *request)
{
	const char *origin = request_header(request, "Origin"), *host = request_header(request, "Host");
	const char *start = origin ? strstr(origin, "://") : NULL;
	const char *remote = request_remote(request);

	if (!origin)
		return true;
	if (!start)
		return false;
	start += 3;
	size_t size = host_size(start);
	if (is_loopback(start, size))
		return true;
	bool here = str_starts(remote, "127.") || str_starts(remote, "[::1]") || str_equal(remote, "unix");
	return !here && host && strcasecmp(start, host) == 0;
}

static bool is_json(struct request *request)
{
	const char *type = request_header(request, "Content-Type");

	return type && strncasecmp(type, "application/json", 16) == 0 && (!type[16] || strchr("; \t", type[16]));
}

/* 0: continue; 1: refused; -1: the refusal itself failed. */
static int check_caller(struct request *request, struct husk_error *err)
{
	if (!origin_is_good(request))
		return refuse(request, 403, NULL, MCP_INVALID_REQUEST, "pages of this Origin may not connect", err) < 0
			       ? -1
			       : 1;
	if (str_equal(request_method(request), "POST") && !is_json(request))
		return refuse(request, 415, NULL, MCP_INVALID_REQUEST, "Content-Type must be application/json", err) < 0
			       ? -1
			       : 1;
	return 0;
}

/* ---- the modern era: headers and body must agree ---- */

/* A name that no header can hold is sent as "=?base64?…?=". Caller frees. */
static char *header_text(const char *value)
{
	cleanup_buf struct buf text = { 0 };
	size_t size = strlen(value);

	if (!str_starts(value, "=?base64?") || !str_ends(value, "?=") || size < 11)
		return strdup(value);
	return base64_decode("Mcp-Name", value + 9, size - 11, &text, NULL) < 0 ? NULL : buf_steal(&text);
}

static const char *header_problem(struct request *request, const struct mcp_message *message)
{
	const char *version = request_header(request, "MCP-Protocol-Version");
	const char *method = request_header(request, "Mcp-Method"), *name = request_header(request, "Mcp-Name");

	if (!str_equal(version, message->version))
		return "the MCP-Protocol-Version header is missing, or is not what _meta says";
	if (message->kind == MCP_REQUEST && str_equal(version, MCP_MODERN) && !str_equal(method, message->method))
		return "the Mcp-Method header is missing, or is not the method";
	if (!mcp_takes_long(message) || !str_equal(version, MCP_MODERN))
		return NULL;
	cleanup_free char *decoded = name ? header_text(name) : NULL;
	const char *tool = json_string_value(json_object_get(message->params, "name"));
	return tool && !str_equal(decoded, tool) ? "the Mcp-Name header is missing, or is not the tool's name" : NULL;
}

static unsigned modern_status(const json_t *answer)
{
	json_int_t code = json_integer_value(json_object_get(json_object_get(answer, "error"), "code"));

	return code == MCP_METHOD_NOT_FOUND ? 404 : 200;
}

/* ---- answering ---- */

static int listen_to(struct exchange *exchange, const struct mcp_message *message, struct husk_error *err)
{
	if (!exchange->takes_events)
		return refuse(exchange->request, 406, message->id, MCP_INVALID_REQUEST,
			      "Accept must name text/event-stream", err);
	if (exchange_send(exchange, mcp_listen_begin(message), err) < 0)
		return -1;
	while (exchange_idle(exchange) == 0)
		;
	/* The stream ends with the client or with the server; only in the second case the client can be told. */
	exchange_send(exchange, mcp_listen_end(message), NULL);
	return 0;
}

/* Takes ownership of the answer; NULL: none. */
static int give(struct exchange *exchange, json_t *answer, struct husk_error *err)
{
	struct request *request = exchange->request;
	unsigned status = exchange->modern ? modern_status(answer) : 200;

	if (exchange->begun)
		return answer ? exchange_send(exchange, answer, err) : 0;
	if (answer)
		return respond_json(request, status, answer, err);
	if (request_over(request))
		return husk_fail(err, HUSK_GONE, "the client has gone");
	return respond_empty(request, 202, err); /* cancelled: nobody wants an answer, but HTTP requires one */
}

static int answer_request(struct exchange *exchange, const struct mcp_message *message, struct husk_error *err)
{
	exchange->id = message->id;
	exchange_enter(exchange);
	json_t *answer = mcp_answer(&exchange->session, &exchange->call, message);
	exchange_leave(exchange);
	return give(exchange, answer, err);
}

static int take_modern(struct exchange *exchange, const struct mcp_message *message, struct husk_error *err)
{
	struct request *request = exchange->request;
	const char *problem = header_problem(request, message);

	exchange->modern = true;
	exchange->version = MCP_MODERN;
	if (problem)
		return refuse(request, 400, message->id, MCP_HEADER_MISMATCH, problem, err);
	if (message->kind != MCP_REQUEST)
		return respond_empty(request, 202, err);
	json_t *refusal = mcp_refuse(message);
	if (refusal)
		return respond_json(request, 400, refusal, err);
	return mcp_is_listen(message) ? listen_to(exchange, message, err) : answer_request(exchange, message, err);
}

/* The version is not a legacy one, but the message has not the form of the modern era. */
static int refuse_version(struct exchange *exchange, const struct mcp_message *message, struct husk_error *err)
{
	const char *header = request_header(exchange->request, "MCP-Protocol-Version");

	if (str_equal(header, MCP_MODERN))
		return refuse(
			exchange->request, 400, message->id, MCP_INVALID_PARAMS,
			"a request of this version must have _meta with io.modelcontextprotocol/protocolVersion and "
			"clientCapabilities",
			err);
	return respond_json(
		exchange->request, 400,
		mcp_error(message->id, MCP_UNSUPPORTED_VERSION, "this protocol version is not supported",
			  json_pack("{s:o, s:o}", "supported", mcp_versions(), "requested", json_text0(header))),
		err);
}

static int take_legacy(struct exchange *exchange, const struct mcp_message *message, struct husk_error *err)
{
	const char *header = request_header(exchange->request, "MCP-Protocol-Version");

	exchange->id = message->id;
	exchange->version = header ? header : MCP_UNNEGOTIATED;
	if (message->kind == MCP_REQUEST && str_equal(message->method, "initialize")) {
		if (session_begin(exchange, err) < 0)
			return -1;
		return answer_request(exchange, message, err);
	}
	if (!mcp_version_is_legacy(exchange->version))
		return refuse_version(exchange, message, err);
	int found = session_find(exchange);
	if (found <= 0)
		return refuse_session(exchange, found, err);
	if (message->kind == MCP_REQUEST)
		return answer_request(exchange, message, err);
	if (message->kind == MCP_NOTIFICATION && str_equal(message->method, "notifications/cancelled") &&
	    json_object_get(message->params, "requestId"))
		exchange_cancel(exchange->session_id, json_object_get(message->params, "requestId"));
	return respond_empty(exchange->request, 202, err);
}

/* Several messages in one, which only 2025-03-26 has. The answers are sent together, without progress. */
static int take_batch(struct exchange *exchange, json_t *batch, struct husk_error *err)
{
	const char *header = request_header(exchange->request, "MCP-Protocol-Version");
	cleanup_json json_t *answers = json_array();
	struct mcp_message message;
	json_t *document;
	size_t i;

	if ((header && !str_equal(header, MCP_UNNEGOTIATED)) || json_array_size(batch) > MCP_BATCH_MAX ||
	    json_array_size(batch) == 0)
		return refuse(exchange->request, 400, NULL, MCP_INVALID_REQUEST,
			      "send one message at a time; batches are of 2025-03-26 only, with at most 32", err);
	int found = session_find(exchange);
	if (found <= 0)
		return refuse_session(exchange, found, err);
	exchange->takes_events = false;
	json_array_foreach(batch, i, document)
	{
		struct husk_error why = { 0 };
		json_t *answer = NULL;
		if (mcp_message_read(document, &message, &why) < 0)
			answer = mcp_error(message.id, MCP_INVALID_REQUEST, why.message, NULL);
		else if (!message.version && !str_equal(message.method, "initialize"))
			answer = mcp_answer(&exchange->session, &exchange->call, &message);
		if (answer && json_array_append_new(answers, answer) < 0)
			return husk_fail_memory(err);
	}
	if (!json_array_size(answers))
		return respond_empty(exchange->request, 202, err);
	return respond_json(exchange->request, 200, steal_pointer(answers), err);
}

/* ---- the routes ---- */

static json_t *read_body(struct request *request, enum mcp_error *code, struct husk_error *err)
{
	cleanup_buf struct buf body = { 0 };
	char piece[16384];
	ssize_t size;

	while ((size = request_read(request, piece, sizeof(piece))) > 0) {
		*code = MCP_INVALID_REQUEST;
		if (body.size + (size_t)size > MCP_MESSAGE_MAX)
			return husk_fail(err, HUSK_INVALID, "the message is larger than %u bytes", MCP_MESSAGE_MAX),
			       NULL;
		if (buf_append(&body, piece, (size_t)size) < 0)
			return husk_fail_memory(err), NULL;
	}
	if (size < 0)
		return husk_fail(err, HUSK_GONE, "the client has gone"), NULL;
	return mcp_parse(body.data ? body.data : "", body.size, code, err);
}

static int handle_post(struct request *request, struct husk_error *err)
{
	cleanup_exchange struct exchange exchange = { EXCHANGE_INIT };
	enum mcp_error code = MCP_PARSE_ERROR;
	struct husk_error why = { 0 };
	struct mcp_message message;

	int refused = check_caller(request, err);
	if (refused)
		return refused < 0 ? -1 : 0;
	cleanup_json json_t *document = read_body(request, &code, &why);
	if (!document && why.code == HUSK_INVALID)
		return refuse(request, 400, NULL, code, why.message, err);
	if (!document) {
		*err = why;
		return -1;
	}
	if (exchange_begin(&exchange, request, err) < 0)
		return -1;
	if (json_is_array(document))
		return take_batch(&exchange, document, err);
	if (mcp_message_read(document, &message, &why) < 0)
		return refuse(request, 400, message.id, MCP_INVALID_REQUEST, why.message, err);
	return message.version ? take_modern(&exchange, &message, err) : take_legacy(&exchange, &message, err);
}

/* A stream without messages: the server never sends first. While it is open, the session's sandboxes stay. */
static int hold(struct exchange *exchange, struct husk_error *err)
{
	int64_t every_ms = exchange->session.defaults.ttl_seconds * 250, renewed_ms = time_monotonic_ms();

	if (exchange_stream(exchange, err) < 0)
		return -1;
	exchange_enter(exchange);
	while (exchange_idle(exchange) == 0) {
		if (time_monotonic_ms() - renewed_ms < every_ms)
			continue;
		mcp_session_renew(&exchange->session);
		renewed_ms = time_monotonic_ms();
	}
	exchange_leave(exchange);
	return 0;
}

/* Splits "<sandbox>.<pid>.<id>"; the caller drops the id. */
static json_t *read_event_id(const char *text, char *sandbox, size_t size, int64_t *pid)
{
	const char *dot = strchr(text, '.'), *next = dot ? strchr(dot + 1, '.') : NULL;
	char number[24] = "";

	if (!next || (size_t)(dot - text) >= size || (size_t)(next - dot - 1) >= sizeof(number))
		return NULL;
	memcpy(sandbox, text, (size_t)(dot - text));
	sandbox[dot - text] = '\0';
	memcpy(number, dot + 1, (size_t)(next - dot - 1));
	if (!sandbox[0] || str_to_int64(number, 1, INT32_MAX, pid) < 0)
		return NULL;
	cleanup_json json_t *id = json_loads(next + 1, JSON_DECODE_ANY, NULL);
	return json_is_integer(id) || json_is_string(id) ? steal_pointer(id) : NULL;
}

static int come_back(struct exchange *exchange, const char *event, struct husk_error *err)
{
	char sandbox[64];
	int64_t pid;
	cleanup_json json_t *id = read_event_id(event, sandbox, sizeof(sandbox), &pid);

	if (!id)
		return refuse(exchange->request, 400, NULL, MCP_INVALID_REQUEST,
			      "Last-Event-ID does not belong to this server", err);
	exchange->id = id;
	exchange_enter(exchange);
	json_t *answer = exchange_stream(exchange, err) < 0
				 ? NULL
				 : mcp_resume(&exchange->session, &exchange->call, id, sandbox, pid);
	exchange_leave(exchange);
	return give(exchange, answer, err);
}

/* GET and DELETE belong to the legacy era, and require a session. */
static int begin_of_session(struct exchange *exchange, struct request *request, bool *refused, struct husk_error *err)
{
	int result = check_caller(request, err);

	*refused = true;
	if (result)
		return result < 0 ? -1 : 0;
	if (!request_header(request, "Mcp-Session-Id")) {
		if (respond_header(request, "Allow", "POST", err) < 0)
			return -1;
		return refuse(request, 405, NULL, MCP_INVALID_REQUEST, "without a session there is only POST", err);
	}
	if (exchange_begin(exchange, request, err) < 0)
		return -1;
	const char *version = request_header(request, "MCP-Protocol-Version");
	exchange->version = version ? version : MCP_UNNEGOTIATED;
	int found = session_find(exchange);
	if (found <= 0)
		return refuse_session(exchange, found, err);
	*refused = false;
	return 0;
}

static int handle_get(struct request *request, struct husk_error *err)
{
	cleanup_exchange struct exchange exchange = { EXCHANGE_INIT };
	const char *event = request_header(request, "Last-Event-ID");
	bool refused;

	int result = begin_of_session(&exchange, request, &refused, err);
	if (refused)
		return result;
	if (!exchange.takes_events)
		return refuse(request, 406, NULL, MCP_INVALID_REQUEST, "Accept must name text/event-stream", err);
	return event && *event ? come_back(&exchange, event, err) : hold(&exchange, err);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	cleanup_exchange struct exchange exchange = { EXCHANGE_INIT };
	bool refused;

	int result = begin_of_session(&exchange, request, &refused, err);
	if (refused)
		return result;
	if (session_close(&exchange, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

const struct route mcp_routes[] = {
	{ "POST", "/mcp", handle_post, ROUTE_STREAM },
	{ "GET", "/mcp", handle_get, ROUTE_STREAM },
	{ "DELETE", "/mcp", handle_delete, ROUTE_STREAM },
	{ 0 },
};
