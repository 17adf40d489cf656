/*
 * The layer between libmicrohttpd and the handlers: libmicrohttpd calls back several times per request, a handler is called
 * once. Each connection has one thread. A plain handler runs on it. A streaming handler gets a second thread, because
 * libmicrohttpd pulls an answer's bytes while the handler pushes them. Everything that a client sends before it is
 * authenticated passes here and is bounded.
 *
 * libmicrohttpd accepts an answer at two moments only: after the headers, and after the whole body. An answer after the
 * headers costs the connection, so it is used only to refuse a large upload.
 */
#include "base/http_grammar.h"
#include "server/core.h"
#include "server/desktop_link.h"

#define IDLE_SECONDS 60               /* a connection without a request, or with half of one */
#define STALL_SECONDS 120             /* a client that reads nothing of its answer, or sends nothing of its body */
#define CONNECTION_MEMORY 36864u      /* of libmicrohttpd, for headers and buffers; it uses half of it at once */
#define WASTE_MAX (UINT64_C(1) << 30) /* sent after a refusal: then the connection is closed */

void http_patience(struct request *request, bool endless)
{
	/* libmicrohttpd restarts its clock when the timeout changes from 0, so the time of a handler does not count for
	 * the client. */
	MHD_set_connection_option(request->connection, MHD_CONNECTION_OPTION_TIMEOUT, endless ? 0u : STALL_SECONDS);
}

/* ---- after the headers ---- */

static enum MHD_Result copy_header(void *data, enum MHD_ValueKind kind, const char *name, const char *value)
{
	struct request *request = data;
	struct text_pair *grown = realloc(request->headers, (request->header_count + 1) * sizeof(*grown));
	size_t name_size = strlen(name) + 1, value_size = value ? strlen(value) + 1 : 1;

	(void)kind;
	if (!grown)
		return MHD_NO;
	request->headers = grown;
	char *both = malloc(name_size + value_size);
	if (!both)
		return MHD_NO;
	memcpy(both, name, name_size);
	memcpy(both + name_size, value ? value : "", value_size);
	request->headers[request->header_count++] = (struct text_pair){ both, both + name_size };
	return MHD_YES;
}

static void take_request_id(struct request *request)
{
	const char *given = request_header(request, "X-Request-Id");

	if (log_is_id(given))
		snprintf(request->id, sizeof(request->id), "%s", given);
}

/* The length of the body must be given once and in one way. Otherwise another server between the client and this one
 * could read it differently, and one of the two would take the rest for a second request. */
static int measure_body(struct request *request, const char *version, struct husk_error *err)
{
	const char *length = NULL, *coding = NULL;
	uint64_t size = 0;

	for (size_t i = 0; i < request->header_count; i++) {
		const struct text_pair *header = &request->headers[i];
		bool sizes = strcasecmp(header->name, "Content-Length") == 0;
		bool codes = strcasecmp(header->name, "Transfer-Encoding") == 0;

		if (!*header->name || strpbrk(header->name, " \t"))
			return husk_fail(err, HUSK_INVALID, "a header's name holds a blank");
		if ((sizes && length) || (codes && coding))
			return husk_fail(err, HUSK_INVALID, "the request has two headers %s", header->name);
		length = sizes ? header->value : length;
		coding = codes ? header->value : coding;
	}
	if (length && coding)
		return husk_fail(err, HUSK_INVALID, "the request has a Content-Length and a Transfer-Encoding");
	if (coding && (strcasecmp(coding, "chunked") != 0 || !str_equal(version, "HTTP/1.1")))
		return husk_fail(err, HUSK_INVALID, "the Transfer-Encoding is not 'chunked', of HTTP/1.1");
	if (length && http_length(length, strlen(length), &size) < 0)
		return husk_fail(err, HUSK_INVALID, "the Content-Length is not a number");
	if (length)
		request->length = (int64_t)size;
	if (coding)
		request->length = -1;
	return 0;
}

/* The next bytes cannot be distinguished from a body: this answer is the last one on the connection. */
static enum MHD_Result refuse_framing(struct request *request, const struct husk_error *failure)
{
	respond_error(request, NULL, failure);
	respond_header(request, "Connection", "close", NULL);
	return respond_queue(request);
}

static int handle_host(struct request *request, struct husk_error *err)
{
	int64_t port = 0;

	str_to_int64(request_path(request, "port"), 1, 65535, &port);
	return ports_proxy(request, request_path(request, "id"), (uint16_t)port, request_target(request), err);
}

static const struct route host_route = { "*", "<port>-<id>.localhost", handle_host, ROUTE_STREAM | ROUTE_SIGNED };

/* If the Host header names a port of a sandbox, the whole target belongs to the guest and is not checked here. */
static bool find_host(struct request *request)
{
	const char *host = request_header(request, "Host");
	uint16_t port = 0;

	if (!host || !ports_match(host, &port, request->host_sandbox, sizeof(request->host_sandbox)))
		return false;
	snprintf(request->host_port, sizeof(request->host_port), "%u", port);
	request->match = (struct route_match){ .route = &host_route,
					       .index = routes_count(),
					       .names = { "id", "port" },
					       .name_size = { 2, 4 },
					       .values = { request->host_sandbox, request->host_port },
					       .count = 2 };
	return true;
}

/* At some ports the clients of a dialect expect answers of the server itself, such as E2B's code interpreter. */
static void find_answered(struct request *request)
{
	const struct dialect *dialect = dialects_answering(request, (uint16_t)atoi(request->host_port));
	struct route_match match = { 0 };
	char allow[64];

	if (dialect && route_find(&request->target, request->method, &match, allow, sizeof(allow)) > 0 &&
	    match.dialect == dialect && match.route->flags & ROUTE_AUTHORISE)
		request->match = match;
}

static int find_route(struct request *request, struct husk_error *err)
{
	static const struct fault no_method = { 405, "method_not_allowed" };
	char allow[64];
	int parsed = target_parse(&request->target, err);

	if (find_host(request)) {
		if (parsed == 0)
			find_answered(request);
		return 0;
	}
	if (parsed < 0)
		return -1;
	int found = route_find(&request->target, request->method, &request->match, allow, sizeof(allow));
	if (found > 0)
		return 0;
	request->match.dialect = dialects_speaking(request);
	if (found == 0)
		return husk_fail(err, HUSK_NOT_FOUND,
				 "there is nothing at this path; GET /openapi.json lists what there is");
	husk_fail(err, HUSK_INVALID, "%s is not a method of this path; it supports %s", request->method, allow);
	respond_error(request, &no_method, err);
	respond_header(request, "Allow", allow, NULL);
	return -1;
}

static int authorise(struct request *request, struct husk_error *err)
{
	unsigned flags = request->match.route->flags;

	request->husk = request->server->husk;
	if (flags & ROUTE_SIGNED) {
		int64_t port = 0;
		if (str_to_int64(request_path(request, "port"), 1, 65535, &port) == 0 &&
		    ports_signed(request, request_path(request, "id"), (uint16_t)port))
			return 0;
	}
	if (((flags & ROUTE_VIEW) && link_signed(request, LINK_VIEW)) ||
	    ((flags & ROUTE_BROWSER) && link_signed(request, LINK_BROWSER)))
		return 0;
	if (flags & ROUTE_PUBLIC)
		return 0;
	if (flags & ROUTE_AUTHORISE)
		return request->match.dialect->authorise(request, err);
	request->husk = NULL;
	if (auth_request(request, err) < 0) {
		if ((flags & ROUTE_SIGNED) && dialects_port_open(request, request_path(request, "id"), err)) {
			request->husk = request->server->husk;
			return 0;
		}
		if (!request->fault.status)
			request->fault = (struct fault){ 401, "unauthorized" };
		return -1;
	}
	if ((flags & ROUTE_ADMIN) && request->caller != CALLER_INSTANCE)
		return husk_fail(err, HUSK_DENIED,
				 "this is for the instance's owner: root on the unix socket, or an admin token");
	return 0;
}

/* All checks that do not need the body. */
static int consider(struct request *request, struct husk_error *err)
{
	if (find_route(request, err) < 0 || authorise(request, err) < 0)
		return -1;
	if (!(request->match.route->flags & ROUTE_STREAM) && request->length > (int64_t)BODY_MAX) {
		request->fault = (struct fault){ 413, "too_large" };
		return husk_fail(err, HUSK_INVALID, "the body is larger than %u bytes", BODY_MAX);
	}
	return 0;
}

/* ---- handlers ---- */

static void *handler_main(void *data)
{
	struct request *request = data;
	struct husk_error err = { 0 };

	log_set_request(request->id);
	int result = (request->handle ? request->handle : request->match.route->handle)(request, &err);

	if (result < 0)
		respond_error(request, &request->fault, &err);
	if (result < 0 && err.code == HUSK_INTERNAL)
		log_line(LOG_ERROR, "%s", err.message);
	flow_finish(request, result < 0);
	request_unref(request);
	return NULL;
}

static void start_handler(struct request *request)
{
	struct husk_error err = { 0 };

	request_ref(request);
	request->threaded = thread_start(&request->thread, false, handler_main, request) == 0;
	if (request->threaded)
		return;
	request_unref(request);
	husk_fail(&err, HUSK_UNAVAILABLE, "no thread left for this request; try again later");
	respond_error(request, NULL, &err);
}

/* Waits until the handler has an answer or, with `or_reads`, asks for the body. Returns whether there is an answer. */
static bool await_handler(struct request *request, bool or_reads)
{
	if (!request->threaded)
		return true;
	http_patience(request, true);
	pthread_mutex_lock(&request->lock);
	while (!request->answered && !request->handled && !(or_reads && request->wants_body))
		pthread_cond_wait(&request->changed, &request->lock);
	bool answered = request->answered || request->handled;
	pthread_mutex_unlock(&request->lock);
	http_patience(request, false);
	return answered;
}

static void run_plain(struct request *request)
{
	struct husk_error err = { 0 };

	http_patience(request, true);
	if (request->match.route->handle(request, &err) < 0) {
		respond_error(request, &request->fault, &err);
		if (err.code == HUSK_INTERNAL)
			log_line(LOG_ERROR, "%s", err.message);
	}
	http_patience(request, false);
}

/* ---- libmicrohttpd's three kinds of call ---- */

static enum MHD_Result on_headers(struct request *request, const char *method, const char *version)
{
	struct husk_error err = { 0 };

	request->prepared = true;
	snprintf(request->method, sizeof(request->method), "%s", method);
	MHD_get_connection_values(request->connection, MHD_HEADER_KIND, copy_header, request);
	take_request_id(request);
	log_set_request(request->id); /* for the connection's thread, until log_request */
	/* If one of its headers is missing, it is a different request. */
	int count = MHD_get_connection_values(request->connection, MHD_HEADER_KIND, NULL, NULL);
	if (request->header_count != (size_t)MAX(count, 0))
		husk_fail_memory(&err);
	if (err.code || measure_body(request, version, &err) < 0)
		return refuse_framing(request, &err);
	bool refused = consider(request, &err) < 0;
	if (refused)
		respond_error(request, &request->fault, &err);
	else if (!(request->match.route->flags & ROUTE_PUBLIC))
		peers_known(request->connection, true);
	bool answered = refused;
	if (!refused && (request->match.route->flags & ROUTE_STREAM) && request->length != 0) {
		start_handler(request);
		answered = await_handler(request, true);
	}
	const struct dialect *dialect = request->match.dialect;
	bool endless = request->length < 0 && !(dialect && dialect->reads_refused);
	if (answered && (endless || request->length > DISCARD_MAX))
		return respond_queue(request);
	return MHD_YES;
}

/* A refused body is still read, so that the client gets the reason; but only up to a limit. */
static enum MHD_Result waste(struct request *request, size_t size)
{
	request->discarded += size;
	return request->length < 0 && request->discarded > WASTE_MAX ? MHD_NO : MHD_YES;
}

static enum MHD_Result on_body(struct request *request, const char *bytes, size_t size)
{
	if (request->threaded)
		return flow_upload(request, bytes, size) ? MHD_YES : waste(request, size);
	if (request->answer.kind != ANSWER_NONE)
		return waste(request, size);
	struct husk_error err = { 0 };
	if (body_add(request, bytes, size, &err) < 0)
		respond_error(request, &request->fault, &err);
	return MHD_YES;
}

static enum MHD_Result on_end(struct request *request)
{
	if (request->queued)
		return MHD_YES;
	if (request->threaded)
		flow_upload_end(request);
	else if (request->answer.kind == ANSWER_NONE && (request->match.route->flags & ROUTE_STREAM)) {
		flow_upload_end(request);
		start_handler(request);
	} else if (request->answer.kind == ANSWER_NONE) {
		run_plain(request);
		if (request->handle)
			start_handler(request);
	}
	await_handler(request, false);
	if (request->answer.kind == ANSWER_NONE) {
		struct husk_error err = { 0 };
		husk_fail(&err, HUSK_INTERNAL, "the request was not answered");
		respond_error(request, NULL, &err);
	}
	return respond_queue(request);
}

static enum MHD_Result on_access(void *data, struct MHD_Connection *connection, const char *url, const char *method,
				 const char *version, const char *bytes, size_t *size, void **context)
{
	struct request *request = *context;

	(void)data, (void)connection, (void)url;
	if (!request)
		return MHD_NO;
	if (!request->prepared)
		return on_headers(request, method, version);
	if (*size == 0)
		return on_end(request);
	enum MHD_Result result = on_body(request, bytes, *size);
	*size = 0;
	return result;
}

static void *on_target(void *data, const char *target, struct MHD_Connection *connection)
{
	return request_new(data, connection, target);
}

static void on_completed(void *data, struct MHD_Connection *connection, void **context,
			 enum MHD_RequestTerminationCode reason)
{
	struct request *request = *context;

	(void)data, (void)reason;
	*context = NULL;
	if (!request)
		return;
	if (!request->upgraded) {
		request_gone(request);
		peers_known(connection, false);
	}
	if (request->threaded)
		pthread_join(request->thread, NULL);
	if (request->answer.kind == ANSWER_UPGRADE && !request->upgraded)
		upgrade_abandon(request);
	request_unref(request);
}

/* libmicrohttpd would decode the target; target.c does that. */
static size_t leave_encoded(void *data, struct MHD_Connection *connection, char *text)
{
	(void)data, (void)connection;
	return strlen(text);
}

int http_start(struct listener *listener, int fd, struct husk_error *err)
{
	unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC |
			 MHD_ALLOW_UPGRADE | (fd < 0 ? MHD_USE_NO_LISTEN_SOCKET : 0);
	/* clang-format off */
	struct MHD_OptionItem listen[] = { { MHD_OPTION_LISTEN_SOCKET, fd, NULL }, { MHD_OPTION_END, 0, NULL } };
	struct MHD_OptionItem none[] = { { MHD_OPTION_END, 0, NULL } };
	listener->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_access, listener,
		MHD_OPTION_URI_LOG_CALLBACK, on_target, listener,
		MHD_OPTION_UNESCAPE_CALLBACK, leave_encoded, NULL,
		MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS,
		MHD_OPTION_CONNECTION_LIMIT, PEERS_MAX + PEERS_SPARE,
		MHD_OPTION_NOTIFY_CONNECTION, listener->local ? NULL : peers_notify, NULL,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
		MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK,
		MHD_OPTION_STRICT_FOR_CLIENT, 1,
		MHD_OPTION_ARRAY, fd < 0 ? none : listen,
		MHD_OPTION_END);
	/* clang-format on */
	if (!listener->daemon)
		return husk_fail(err, HUSK_INTERNAL, "cannot start the HTTP server");
	return 0;
}
