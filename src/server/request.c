/*
 * The life of a request, and the accessors of server.h for handlers. A request is created when libmicrohttpd has read
 * the request line, and freed by its last holder. Header values and bodies may hold secrets, so nothing here logs.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include "server/core.h"

#define JSON_DEPTH_MAX 64       /* the parser is recursive, and its stack is small */
#define BODIES_MAX (512u << 20) /* in memory, over all running requests */

/* ---- life ---- */

static void describe_remote(struct request *request)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	const struct sockaddr *address = info ? info->client_addr : NULL;
	char host[INET6_ADDRSTRLEN] = "";

	snprintf(request->remote, sizeof(request->remote), "%s", "unix");
	if (!address || request->listener->local)
		return;
	if (address->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)address;
		inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		snprintf(request->remote, sizeof(request->remote), "%s:%u", host, ntohs(in->sin_port));
	} else if (address->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;
		inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
		snprintf(request->remote, sizeof(request->remote), "[%s]:%u", host, ntohs(in6->sin6_port));
	}
}

struct request *request_new(const struct listener *listener, struct MHD_Connection *connection, const char *target)
{
	struct request *request = calloc(1, sizeof(*request));
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

	if (!request)
		return NULL;
	request->target.raw = strdup(target);
	if (!request->target.raw || random_id("rq", 16, request->id) < 0) {
		free(request->target.raw);
		free(request);
		return NULL;
	}
	request->server = listener->server;
	request->listener = listener;
	request->connection = connection;
	request->socket = info ? info->connect_fd : -1;
	request->references = 1;
	request->started_us = time_monotonic_us();
	pthread_mutex_init(&request->lock, NULL);
	pthread_cond_init(&request->changed, NULL);
	describe_remote(request);

	struct server *server = request->server;
	pthread_mutex_lock(&server->lock);
	request->next = server->requests;
	if (request->next)
		request->next->previous = request;
	server->requests = request;
	server->request_count++;
	pthread_mutex_unlock(&server->lock);
	return request;
}

void request_ref(struct request *request)
{
	atomic_fetch_add(&request->references, 1);
}

static void body_drop(struct request *request)
{
	atomic_fetch_sub(&request->server->held, request->body.capacity);
	buf_free(&request->body);
	request->body = (struct buf){ 0 };
}

static void unlist(struct request *request)
{
	struct server *server = request->server;

	pthread_mutex_lock(&server->lock);
	if (request->previous)
		request->previous->next = request->next;
	else
		server->requests = request->next;
	if (request->next)
		request->next->previous = request->previous;
	server->request_count--;
	if (request->answer.kind > ANSWER_PLAIN)
		server->stream_count--;
	pthread_mutex_unlock(&server->lock);
}

void request_unref(struct request *request)
{
	if (atomic_fetch_sub(&request->references, 1) != 1)
		return;
	metrics_count(request, time_monotonic_us() - request->started_us);
	log_request(request);
	unlist(request);
	body_drop(request);
	if (request->husk && request->husk != request->server->husk)
		husk_close(request->husk);
	target_free(&request->target);
	for (size_t i = 0; i < request->header_count; i++)
		free(request->headers[i].name);
	free(request->headers);
	free(request->tenant);
	free(request->port_host);
	json_decref(request->json);
	flow_free(&request->in);
	flow_free(&request->out);
	answer_free(&request->answer);
	pthread_mutex_destroy(&request->lock);
	pthread_cond_destroy(&request->changed);
	free(request);
}

void request_gone(struct request *request)
{
	pthread_mutex_lock(&request->lock);
	request->gone = true;
	pthread_cond_broadcast(&request->changed);
	pthread_mutex_unlock(&request->lock);
}

/* ---- what it says ---- */

struct husk *request_husk(struct request *request)
{
	return request->husk;
}

struct husk *request_owner(struct request *request)
{
	return request->server->husk;
}

const char *request_tenant(const struct request *request)
{
	return request->tenant;
}

const char *request_id(const struct request *request)
{
	return request->id;
}

const char *request_method(const struct request *request)
{
	return request->method;
}

const char *request_target(const struct request *request)
{
	return request->target.raw;
}

const char *request_path(const struct request *request, const char *name)
{
	const struct route_match *match = &request->match;

	for (size_t i = 0; i < match->count; i++)
		if (strlen(name) == match->name_size[i] && memcmp(name, match->names[i], match->name_size[i]) == 0)
			return match->values[i];
	return "";
}

const char *request_query(const struct request *request, const char *name)
{
	for (size_t i = 0; i < request->target.query_count; i++)
		if (str_equal(request->target.query[i].name, name))
			return request->target.query[i].value;
	return NULL;
}

void request_queries(struct request *request, int (*each)(void *data, const char *name, const char *value), void *data)
{
	for (size_t i = 0; i < request->target.query_count; i++)
		if (each(data, request->target.query[i].name, request->target.query[i].value) != 0)
			return;
}

bool request_port_tls(const struct request *request)
{
	return request->port_tls;
}

const char *request_port_host(const struct request *request)
{
	return request->port_host;
}

const char *request_header(const struct request *request, const char *name)
{
	for (size_t i = 0; i < request->header_count; i++)
		if (strcasecmp(request->headers[i].name, name) == 0)
			return request->headers[i].value;
	return NULL;
}

void request_headers(struct request *request, int (*each)(void *data, const char *name, const char *value), void *data)
{
	for (size_t i = 0; i < request->header_count; i++)
		if (each(data, request->headers[i].name, request->headers[i].value) != 0)
			return;
}

const char *request_remote(const struct request *request)
{
	return request->remote;
}

bool request_open(const struct request *request)
{
	return request->open;
}

bool request_secure(const struct request *request)
{
	return !request->listener->local && request->server->options->certificate;
}

uint16_t request_server_port(const struct request *request)
{
	return request->server->port;
}

int request_over_fd(const struct request *request)
{
	return request->server->over_fd;
}

int64_t request_length(const struct request *request)
{
	return request->length;
}

/* "metadata.*" in the list matches every name with that beginning. */
static bool name_known(const char *const *names, const char *name)
{
	for (; *names; names++) {
		size_t size = strlen(*names);
		if (str_equal(*names, name))
			return true;
		if ((*names)[size - 1] == '*' && strncmp(*names, name, size - 1) == 0 && name[size - 1])
			return true;
	}
	return false;
}

int request_query_known(struct request *request, const char *const *names, struct husk_error *err)
{
	size_t count = 0;

	while (names[count])
		count++;
	for (size_t i = 0; i < request->target.query_count; i++) {
		const char *name = request->target.query[i].name;
		if (name_known(names, name))
			continue;
		const char *near = str_nearest(name, names, count);
		if (near)
			return husk_fail_field(err, name, "unknown query parameter '%s'; did you mean '%s'?", name,
					       near);
		return husk_fail_field(err, name, "unknown query parameter '%s'", name);
	}
	return 0;
}

int request_query_int(const struct request *request, const char *name, int64_t fallback, int64_t min, int64_t max,
		      int64_t *out, struct husk_error *err)
{
	const char *text = request_query(request, name);

	*out = fallback;
	if (!text || str_to_int64(text, min, max, out) == 0)
		return 0;
	return husk_fail_field(err, name, "'%s' is '%s'; give a whole number from %lld to %lld", name, text,
			       (long long)min, (long long)max);
}

int request_query_bool(const struct request *request, const char *name, bool fallback, bool *out,
		       struct husk_error *err)
{
	const char *text = request_query(request, name);

	*out = fallback;
	if (!text)
		return 0;
	*out = str_equal(text, "true") || str_equal(text, "1") || *text == '\0';
	if (*out || str_equal(text, "false") || str_equal(text, "0"))
		return 0;
	return husk_fail_field(err, name, "'%s' is '%s'; give true or false", name, text);
}

/* ---- the body as JSON ---- */

int body_add(struct request *request, const char *bytes, size_t size, struct husk_error *err)
{
	size_t before = request->body.capacity;

	if (request->body.size + size > BODY_MAX) {
		request->fault = (struct fault){ 413, "too_large" };
		return husk_fail(err, HUSK_INVALID, "the body is larger than %u bytes", BODY_MAX);
	}
	if (atomic_load(&request->server->held) > BODIES_MAX)
		return husk_fail(err, HUSK_UNAVAILABLE, "too many large requests are under way; try again later");
	if (buf_append(&request->body, bytes, size) < 0)
		return husk_fail_memory(err);
	atomic_fetch_add(&request->server->held, request->body.capacity - before);
	return 0;
}

static json_t *parse_body(struct request *request, const char *bytes, size_t size, struct husk_error *err)
{
	json_error_t problem;
	const char *rest = bytes;

	if (request->json)
		return request->json;
	while (rest < bytes + size && strchr(" \t\r\n", *rest) && *rest)
		rest++;
	if (rest == bytes + size) {
		request->json = json_object();
		if (!request->json)
			husk_fail_memory(err);
		return request->json;
	}
	if (str_json_deeper(bytes, size, JSON_DEPTH_MAX)) {
		husk_fail(err, HUSK_INVALID, "the body is nested more than %d levels deep", JSON_DEPTH_MAX);
		return NULL;
	}
	cleanup_json json_t *document = json_loadb(bytes, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &problem);
	if (!document) {
		husk_fail(err, HUSK_INVALID, "the body is not JSON: %s (line %d, column %d)", problem.text,
			  problem.line, problem.column);
		return NULL;
	}
	if (!json_is_object(document)) {
		husk_fail(err, HUSK_INVALID, "the body must be a JSON object");
		return NULL;
	}
	return request->json = steal_pointer(document);
}

json_t *request_json(struct request *request, struct husk_error *err)
{
	json_t *document = parse_body(request, request->body.data ? request->body.data : "", request->body.size, err);

	/* A stream may continue for hours after its request was read. */
	body_drop(request);
	return document;
}

/* ---- waiting ---- */

bool request_stopping(const struct request *request)
{
	return atomic_load(&request->server->stopping);
}

bool request_over(struct request *request)
{
	struct pollfd client = { .fd = request->socket, .events = POLLRDHUP };

	pthread_mutex_lock(&request->lock);
	bool gone = request->gone;
	pthread_mutex_unlock(&request->lock);
	if (gone || atomic_load(&request->server->over))
		return true;
	return poll(&client, 1, 0) > 0;
}

int request_wait(struct request *request, int fd, int timeout_ms)
{
	struct pollfd wait[] = {
		{ .fd = fd, .events = POLLIN },
		{ .fd = request->socket, .events = POLLRDHUP },
		{ .fd = request->server->over_fd, .events = POLLIN },
	};
	int64_t deadline = time_monotonic_ms() + timeout_ms;

	for (;;) {
		int64_t left = timeout_ms < 0 ? -1 : MAX(deadline - time_monotonic_ms(), 0);
		int ready = poll(wait, ARRAY_SIZE(wait), (int)left);

		if (ready < 0 && errno == EINTR)
			continue;
		if (ready < 0 || wait[1].revents || wait[2].revents)
			return -1;
		return wait[0].revents ? 1 : 0;
	}
}

bool request_wants_events(const struct request *request)
{
	const char *accept = request_header(request, "Accept");

	return accept && strstr(accept, "text/event-stream");
}
