/*
 * Between libmicrohttpd and the handlers: its callbacks, which come several times per request, become one call of one
 * handler. One thread per connection: a plain handler runs on it; a streaming handler gets a second one beside it,
 * since libmicrohttpd pulls an answer's bytes while a handler pushes them. Everything that a client sends before it
 * is known who it is passes here: nothing may be kept of it beyond fixed bounds.
 *
 * libmicrohttpd takes an answer at two moments only: when the headers are in, and when the whole body is. An answer
 * at the first moment costs the connection, so it is given there only to spare a large upload that nobody wants.
 */
#include "server/core.h"
#include "server/e2b.h"

#define IDLE_SECONDS 60          /* a connection without a request, or with half of one */
#define STALL_SECONDS 120        /* a client that takes nothing of its answer, or sends nothing of its body */
#define CONNECTION_MEMORY 36864u /* of libmicrohttpd, for headers and buffers; it touches half of it at once */
#define CONNECTIONS_MAX 4096u
#define WASTE_MAX (UINT64_C(1) << 30) /* sent after a refusal: then the connection is cut */

void http_patience(struct request *request, bool endless)
{
	/* From 0 to a number libmicrohttpd counts anew, which is what makes the time of a handler not the client's. */
	MHD_set_connection_option(request->connection, MHD_CONNECTION_OPTION_TIMEOUT, endless ? 0u : STALL_SECONDS);
}

/* ---- the headers are in ---- */

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
	size_t size = given ? strlen(given) : 0;

	if (size == 0 || size >= sizeof(request->id))
		return;
	if (strspn(given, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == size)
		memcpy(request->id, given, size + 1);
}

static void measure_body(struct request *request)
{
	const char *text = request_header(request, "Content-Length");

	if (request_header(request, "Transfer-Encoding"))
		request->length = -1;
	else if (!text || str_to_int64(text, 0, INT64_MAX, &request->length) < 0)
		request->length = 0;
}

static int handle_host(struct request *request, struct husk_error *err)
{
	int64_t port = 0;

	str_to_int64(request_path(request, "port"), 1, 65535, &port);
	return ports_proxy(request, request_path(request, "id"), (uint16_t)port, request_target(request), err);
}

static const struct route host_route = { "*", "<port>-<id>.localhost", handle_host, ROUTE_STREAM | ROUTE_SIGNED };

/* A Host header that names a port of a sandbox: the whole target is the guest's, and nothing of it is ours to judge. */
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

static int find_route(struct request *request, struct husk_error *err)
{
	static const struct fault no_method = { 405, "method_not_allowed" };
	char allow[64];
	int parsed = target_parse(&request->target, err);

	if (find_host(request))
		return 0;
	if (parsed < 0)
		return -1;
	int found = route_find(&request->target, request->method, &request->match, allow, sizeof(allow));
	if (found > 0)
		return 0;
	if (found == 0)
		return husk_fail(err, HUSK_NOT_FOUND,
				 "there is nothing at this path; GET /openapi.json lists what there is");
	husk_fail(err, HUSK_INVALID, "%s is not a method of this path; it takes %s", request->method, allow);
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
	if (flags & ROUTE_PUBLIC)
		return 0;
	if (flags & ROUTE_E2B_DATA)
		return e2b_authorise(request, err);
	request->husk = NULL;
	if (auth_request(request, err) < 0) {
		if ((flags & ROUTE_SIGNED) && e2b_port_open(request, request_path(request, "id"))) {
			request->husk = request->server->husk;
			return 0;
		}
		request->fault = (struct fault){ 401, "unauthorized" };
		return -1;
	}
	if ((flags & ROUTE_ADMIN) && !request->owner)
		return husk_fail(err, HUSK_DENIED,
				 "this is for the instance's owner; use the unix socket or an admin token");
	return 0;
}

/* Everything that can be said of the request without its body. */
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
	int result = (request->handle ? request->handle : request->match.route->handle)(request, &err);

	if (result < 0)
		respond_error(request, &request->fault, &err);
	if (result < 0 && err.code == HUSK_INTERNAL)
		log_server(request->server, "request %s: %s", request->id, err.message);
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

/* Until the handler has an answer or, with `or_reads`, asks for the body. Tells whether there is an answer. */
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
			log_server(request->server, "request %s: %s", request->id, err.message);
	}
	http_patience(request, false);
}

/* ---- libmicrohttpd's three kinds of call ---- */

static enum MHD_Result on_headers(struct request *request, const char *method)
{
	struct husk_error err = { 0 };

	request->prepared = true;
	snprintf(request->method, sizeof(request->method), "%s", method);
	MHD_get_connection_values(request->connection, MHD_HEADER_KIND, copy_header, request);
	take_request_id(request);
	measure_body(request);
	bool refused = consider(request, &err) < 0;
	if (refused)
		respond_error(request, &request->fault, &err);
	bool answered = refused;
	if (!refused && (request->match.route->flags & ROUTE_STREAM) && request->length != 0) {
		start_handler(request);
		answered = await_handler(request, true);
	}
	/* E2B's clients send bodies without a length, and take a cut connection for no answer at all. */
	bool endless = request->length < 0 && !e2b_speaks(request);
	if (answered && (endless || request->length > DISCARD_MAX))
		return respond_queue(request);
	return MHD_YES;
}

/* What nobody wants is still read, so that the client comes to hear why; but not for ever. */
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

	(void)data, (void)connection, (void)url, (void)version;
	if (!request)
		return MHD_NO;
	if (!request->prepared)
		return on_headers(request, method);
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

	(void)data, (void)connection, (void)reason;
	*context = NULL;
	if (!request)
		return;
	if (!request->upgraded)
		request_gone(request);
	if (request->threaded)
		pthread_join(request->thread, NULL);
	if (request->answer.kind == ANSWER_UPGRADE && !request->upgraded)
		upgrade_abandon(request);
	request_unref(request);
}

/* libmicrohttpd would decode the target before we see it; we do that ourselves. */
static size_t leave_encoded(void *data, struct MHD_Connection *connection, char *text)
{
	(void)data, (void)connection;
	return strlen(text);
}

int http_start(struct listener *listener, int fd, const char *certificate, const char *key, struct husk_error *err)
{
	unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC |
			 MHD_ALLOW_UPGRADE | (certificate ? MHD_USE_TLS : 0);
	/* clang-format off */
	struct MHD_OptionItem tls[] = {
		{ MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)certificate },
		{ MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)key },
		{ MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)"NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2" },
		{ MHD_OPTION_END, 0, NULL },
	};
	struct MHD_OptionItem none[] = { { MHD_OPTION_END, 0, NULL } };
	listener->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_access, listener,
		MHD_OPTION_LISTEN_SOCKET, fd,
		MHD_OPTION_URI_LOG_CALLBACK, on_target, listener,
		MHD_OPTION_UNESCAPE_CALLBACK, leave_encoded, NULL,
		MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS,
		MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
		MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK,
		MHD_OPTION_STRICT_FOR_CLIENT, 1,
		MHD_OPTION_ARRAY, certificate ? tls : none,
		MHD_OPTION_END);
	/* clang-format on */
	if (!listener->daemon)
		return husk_fail(err, HUSK_INTERNAL, "cannot start the HTTP server%s",
				 certificate ? "; are certificate and key a PEM pair?" : "");
	return 0;
}
