/*
 * /mcp: the Model Context Protocol over streamable HTTP, in both its eras (src/mcp has the protocol itself). A short
 * answer is JSON; one that takes long, or tells of progress, becomes a stream of server-sent events. No session is kept:
 * its id is signed, and its sandboxes are found by their metadata, so that any huskd of the instance, also one started
 * anew, can go on. Only the requests under way are known here, so that they can be cancelled.
 *
 * A command whose client was cut off goes on (in the legacy era, as its specification asks), and the ids of its events
 * say all that is needed to come back to it: the sandbox and the process, whose output the supervisor keeps.
 */
#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "mcp/mcp.h"
#include "server/server.h"
#include "server/templates.h"

#define STREAM_AFTER_MS 1000 /* what is answered sooner needs no stream */
#define SESSION_RANDOM 26
#define SESSION_SIGNATURE 32
#define SESSION_SIZE (SESSION_RANDOM + 1 + SESSION_SIGNATURE)
#define CLOSED_MAX 1024

/* One request and its answer. */
struct exchange {
	struct request *request;
	struct exchange *next; /* of those under way, in the legacy era */
	struct mcp_session session;
	struct mcp_call call;
	struct husk_egress egress;
	const char *allow[32];
	char *rules;                         /* what `allow` points into */
	char session_id[SESSION_RANDOM + 1]; /* without its signature: what sandboxes are marked with */
	const json_t *id;
	const char *version; /* what both sides speak */
	bool modern, takes_events, begun;
	char *event_id; /* names what can be come back to; NULL: nothing */
	unsigned event_count;
	int cancel_fd, wait_fd;
	int64_t started_ms, spoke_ms;
};

/* Who is under way, and which sessions were ended: what has to be known beyond one request, and only while we live. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct exchange *under_way;
static char closed[CLOSED_MAX][SESSION_RANDOM + 1];
static size_t closed_next;

/* ---- answers ---- */

static int refuse(struct request *request, unsigned status, const json_t *id, enum mcp_error code, const char *text,
		  struct husk_error *err)
{
	return respond_json(request, status, mcp_error(id, code, text, NULL), err);
}

/* From here on the answer is a stream. The empty event tells the client where to come back to; older ones choke on it. */
static int stream(struct exchange *exchange, struct husk_error *err)
{
	cleanup_buf struct buf first = { 0 };

	if (exchange->begun)
		return 0;
	exchange->begun = true;
	exchange->spoke_ms = time_monotonic_ms();
	if (sse_begin(exchange->request, err) < 0)
		return -1;
	if (!exchange->event_id || !str_equal(exchange->version, MCP_LEGACY))
		return 0;
	if (buf_printf(&first, "id: %s\nretry: 1000\ndata: \n\n", exchange->event_id) < 0)
		return husk_fail_memory(err);
	return stream_write(exchange->request, first.data, first.size, err);
}

static int send_event(struct exchange *exchange, json_t *message, struct husk_error *err)
{
	cleanup_json json_t *taken = message;

	if (stream(exchange, err) < 0)
		return -1;
	exchange->spoke_ms = time_monotonic_ms();
	return sse_send(exchange->request, "message", exchange->event_id, steal_pointer(taken), err);
}

/* ---- what src/mcp asks of us ---- */

static int create(void *data, const struct husk_create_options *options, struct husk_sandbox **out,
		  struct husk_error *err)
{
	struct exchange *exchange = data;
	struct husk *husk = request_husk(exchange->request);
	const char *template = options->template_name ? options->template_name : "base";
	int result = husk_create(husk, options, out, err);

	if (result == 0 || err->code != HUSK_NOT_FOUND || options->snapshot)
		return result;
	return template_ensure(exchange->request, template, err) > 0 ? husk_create(husk, options, out, err) : -1;
}

static int make_link(void *data, const char *sandbox, uint16_t port, int64_t seconds, char **url, int64_t *expires_ms,
		     struct husk_error *err)
{
	struct exchange *exchange = data;

	return ports_link(exchange->request, sandbox, port, seconds, url, expires_ms, err);
}

static int notify(void *data, json_t *message, struct husk_error *err)
{
	struct exchange *exchange = data;

	if (exchange->takes_events)
		return send_event(exchange, message, err);
	json_decref(message);
	return 0;
}

/* Keeps the line warm, and turns an answer that takes long into a stream. -1: nobody is there. */
static int keep_warm(struct exchange *exchange)
{
	int64_t now = time_monotonic_ms();

	if (!exchange->takes_events)
		return 0;
	if (!exchange->begun)
		return now - exchange->started_ms >= STREAM_AFTER_MS ? stream(exchange, NULL) : 0;
	if (now - exchange->spoke_ms < SSE_PING_MS)
		return 0;
	exchange->spoke_ms = now;
	return sse_ping(exchange->request, NULL);
}

static int wait_one(struct exchange *exchange, int timeout_ms)
{
	struct epoll_event event;
	int ready = request_wait(exchange->request, exchange->wait_fd, timeout_ms);

	if (ready < 0 && exchange->modern) /* there, hanging up is how a request is cancelled */
		atomic_store(&exchange->call.cancelled, true);
	if (ready <= 0)
		return ready;
	if (epoll_wait(exchange->wait_fd, &event, 1, 0) != 1)
		return 0;
	return event.data.fd == exchange->cancel_fd ? -1 : 1;
}

static int wait_for(void *data, int fd, int timeout_ms)
{
	struct exchange *exchange = data;
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };
	int64_t deadline = time_monotonic_ms() + timeout_ms;
	int result;

	if (fd >= 0 && epoll_ctl(exchange->wait_fd, EPOLL_CTL_ADD, fd, &event) < 0)
		return -1;
	do {
		int64_t left = timeout_ms < 0 ? STREAM_AFTER_MS : MAX(deadline - time_monotonic_ms(), 0);
		result = keep_warm(exchange);
		if (result == 0)
			result = wait_one(exchange, (int)MIN(left, STREAM_AFTER_MS));
	} while (result == 0 && (timeout_ms < 0 || time_monotonic_ms() < deadline));
	if (fd >= 0)
		epoll_ctl(exchange->wait_fd, EPOLL_CTL_DEL, fd, NULL);
	return atomic_load(&exchange->call.cancelled) ? -1 : result;
}

/* "<sandbox>.<pid>.<the request's id>" */
static void started(void *data, const char *sandbox, int64_t pid)
{
	struct exchange *exchange = data;
	cleanup_free char *id = json_dumps(exchange->id, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);

	if (exchange->modern || !id)
		return;
	free(exchange->event_id);
	exchange->event_id = str_format("%s.%" PRId64 ".%s", sandbox, pid, id);
}

/* ---- sessions ---- */

static int sign_session(struct request *request, const char *random, char out[static SESSION_SIZE + 1],
			struct husk_error *err)
{
	const char *tenant = request_tenant(request);
	cleanup_free char *text = str_format("mcp\n%s\n%s", random, tenant ? tenant : "");
	cleanup_free char *signature = NULL;

	if (!text)
		return husk_fail_memory(err);
	if (husk_sign(request_husk(request), text, &signature, err) < 0)
		return -1;
	snprintf(out, SESSION_SIZE + 1, "%s-%.*s", random, SESSION_SIGNATURE, signature);
	return 0;
}

static bool is_closed(const char *random)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < CLOSED_MAX && !found; i++)
		found = str_equal(closed[i], random);
	pthread_mutex_unlock(&lock);
	return found;
}

/* 1: a session of this caller's; 0: none was named; -1: it is unknown, or was ended. */
static int find_session(struct exchange *exchange)
{
	const char *given = request_header(exchange->request, "Mcp-Session-Id");
	char expected[SESSION_SIZE + 1];

	if (!given)
		return 0;
	if (strlen(given) != SESSION_SIZE || strspn(given, "abcdefghijklmnopqrstuvwxyz234567") != SESSION_RANDOM)
		return -1;
	memcpy(exchange->session_id, given, SESSION_RANDOM);
	if (sign_session(exchange->request, exchange->session_id, expected, NULL) < 0 ||
	    CRYPTO_memcmp(expected, given, SESSION_SIZE) != 0 || is_closed(exchange->session_id))
		return -1;
	exchange->session.id = exchange->session_id;
	return 1;
}

/* The answer when find_session gave no session. */
static int refuse_session(struct exchange *exchange, int found, struct husk_error *err)
{
	if (found == 0)
		return refuse(exchange->request, 400, exchange->id, MCP_INVALID_REQUEST,
			      "no Mcp-Session-Id; begin with initialize", err);
	return refuse(exchange->request, 404, exchange->id, MCP_INVALID_REQUEST,
		      "this session is not known, or was ended; begin again with initialize", err);
}

static int begin_session(struct exchange *exchange, struct husk_error *err)
{
	char id[SESSION_SIZE + 1];

	if (random_id("", SESSION_RANDOM, exchange->session_id) < 0)
		return husk_fail_errno(err, "no random bytes for a session");
	if (sign_session(exchange->request, exchange->session_id, id, err) < 0)
		return -1;
	return respond_header(exchange->request, "Mcp-Session-Id", id, err);
}

/* ---- cancelling ---- */

static void enter(struct exchange *exchange)
{
	pthread_mutex_lock(&lock);
	exchange->next = under_way;
	under_way = exchange;
	pthread_mutex_unlock(&lock);
}

static void leave(struct exchange *exchange)
{
	pthread_mutex_lock(&lock);
	for (struct exchange **link = &under_way; *link; link = &(*link)->next) {
		if (*link == exchange) {
			*link = exchange->next;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
}

/* `id` NULL: all of the session. */
static void cancel(const char *session, const json_t *id)
{
	pthread_mutex_lock(&lock);
	for (struct exchange *other = under_way; other; other = other->next) {
		if (!str_equal(other->session_id, session) || (id && !json_equal(other->id, id)))
			continue;
		atomic_store(&other->call.cancelled, true);
		eventfd_write(other->cancel_fd, 1);
	}
	pthread_mutex_unlock(&lock);
}

/* ---- an exchange ---- */

static void exchange_free(struct exchange *exchange)
{
	if (exchange->cancel_fd >= 0)
		close(exchange->cancel_fd);
	if (exchange->wait_fd >= 0)
		close(exchange->wait_fd);
	free(exchange->event_id);
	free(exchange->rules);
}

/* "?egress=open", "?allow=pypi.org,*.example.com" */
static int read_egress(struct exchange *exchange, struct husk_error *err)
{
	const char *allow = request_query(exchange->request, "allow");
	struct husk_egress *egress = &exchange->egress;
	char *rest, *rule;

	egress->mode = request_query(exchange->request, "egress");
	exchange->rules = rest = allow ? strdup(allow) : NULL;
	if (allow && !rest)
		return husk_fail_memory(err);
	while ((rule = strsep(&rest, ","))) {
		if (egress->allow_count == ARRAY_SIZE(exchange->allow))
			return husk_fail_field(err, "allow", "'allow' has more than %zu rules",
					       ARRAY_SIZE(exchange->allow));
		exchange->allow[egress->allow_count++] = rule;
	}
	egress->allow = exchange->allow;
	if (egress->mode || allow)
		exchange->session.defaults.egress = egress;
	return 0;
}

/* What the address asks of the sandboxes that are made: it comes with every request, so nothing has to be remembered. */
static int read_defaults(struct exchange *exchange, struct husk_error *err)
{
	static const char *const known[] = { "template", "snapshot", "ttl_seconds", "idle_seconds",
					     "memory",   "egress",   "allow",       NULL };
	struct request *request = exchange->request;
	struct husk_create_options *defaults = &exchange->session.defaults;
	const char *memory = request_query(request, "memory");

	defaults->template_name = request_query(request, "template");
	defaults->snapshot = request_query(request, "snapshot");
	if (request_query_known(request, known, err) < 0 ||
	    request_query_int(request, "ttl_seconds", 0, 60, 604800, &defaults->ttl_seconds, err) < 0 ||
	    request_query_int(request, "idle_seconds", 0, 1, 604800, &defaults->idle_seconds, err) < 0 ||
	    read_egress(exchange, err) < 0)
		return -1;
	if (memory && str_to_size(memory, 1 << 20, &defaults->memory_bytes) < 0)
		return husk_fail_field(err, "memory", "'memory' is not a size; give 512M or 2G");
	return mcp_session_defaults(defaults, err);
}

static int exchange_begin(struct exchange *exchange, struct request *request, struct husk_error *err)
{
	struct epoll_event event = { .events = EPOLLIN };

	exchange->request = request;
	exchange->session = (struct mcp_session){ .husk = request_husk(request),
						  .everything = true, /* the token says what the caller sees */
						  .create = create,
						  .link = make_link,
						  .data = exchange };
	exchange->call = (struct mcp_call){ .notify = notify, .wait = wait_for, .started = started, .data = exchange };
	exchange->takes_events = request_wants_events(request);
	exchange->started_ms = time_monotonic_ms();
	exchange->cancel_fd = eventfd(0, EFD_CLOEXEC);
	exchange->wait_fd = epoll_create1(EPOLL_CLOEXEC);
	event.data.fd = exchange->cancel_fd;
	if (exchange->cancel_fd < 0 || exchange->wait_fd < 0 ||
	    epoll_ctl(exchange->wait_fd, EPOLL_CTL_ADD, exchange->cancel_fd, &event) < 0)
		return husk_fail_errno(err, "cannot wait for a request");
	return read_defaults(exchange, err);
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

/* A page of another site must not reach us through the browser it is shown in, also when its name was made to point
 * here: on this machine itself only pages of this machine are let in, elsewhere only our own. */
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

/* 0: go on; 1: it was refused; -1: even that failed. */
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

/* ---- the modern era: what headers say must be what the body says ---- */

/* A name that no header can hold comes as "=?base64?…?=". Caller frees. */
static char *header_text(const char *value)
{
	size_t size = strlen(value);

	if (!str_starts(value, "=?base64?") || !str_ends(value, "?=") || size < 11)
		return strdup(value);
	size_t length = size - 11;
	cleanup_free char *text = calloc(1, length / 4 * 3 + 4);
	int count = !text || length % 4
			    ? -1
			    : EVP_DecodeBlock((unsigned char *)text, (const unsigned char *)value + 9, (int)length);
	return count < 0 ? NULL : steal_pointer(text); /* padding decodes to zero bytes: the end of the text */
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
	if (send_event(exchange, mcp_listen_begin(message), err) < 0)
		return -1;
	for (;;) {
		int ready = request_wait(exchange->request, -1, SSE_PING_MS);
		if (ready == 0 && sse_ping(exchange->request, err) == 0)
			continue;
		/* Of the two that end it, a server that stops is the one that can still be told of. */
		send_event(exchange, mcp_listen_end(message), NULL);
		return 0;
	}
}

/* Takes the answer; NULL: there is none to give. */
static int give(struct exchange *exchange, json_t *answer, struct husk_error *err)
{
	struct request *request = exchange->request;
	unsigned status = exchange->modern ? modern_status(answer) : 200;

	if (exchange->begun)
		return answer ? send_event(exchange, answer, err) : 0;
	if (answer)
		return respond_json(request, status, answer, err);
	if (request_over(request))
		return husk_fail(err, HUSK_GONE, "the client has gone");
	return respond_empty(request, 202, err); /* cancelled: an answer is not wanted, but HTTP must have one */
}

static int answer_request(struct exchange *exchange, const struct mcp_message *message, struct husk_error *err)
{
	exchange->id = message->id;
	enter(exchange);
	json_t *answer = mcp_answer(&exchange->session, &exchange->call, message);
	leave(exchange);
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

/* A version that is no legacy one, on a message that does not speak like the modern era. */
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
		if (begin_session(exchange, err) < 0)
			return -1;
		return answer_request(exchange, message, err);
	}
	if (!mcp_version_is_legacy(exchange->version))
		return refuse_version(exchange, message, err);
	int found = find_session(exchange);
	if (found <= 0)
		return refuse_session(exchange, found, err);
	if (message->kind == MCP_REQUEST)
		return answer_request(exchange, message, err);
	if (message->kind == MCP_NOTIFICATION && str_equal(message->method, "notifications/cancelled") &&
	    json_object_get(message->params, "requestId"))
		cancel(exchange->session_id, json_object_get(message->params, "requestId"));
	return respond_empty(exchange->request, 202, err);
}

/* Several messages in one: only 2025-03-26 has that. The answers come together, and without progress. */
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
	int found = find_session(exchange);
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
	cleanup(exchange_free) struct exchange exchange = { .cancel_fd = -1, .wait_fd = -1 };
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

/* A stream on which nothing is said: we never speak first. While it is open the session's sandboxes stay. */
static int hold(struct exchange *exchange, struct husk_error *err)
{
	int64_t every_ms = exchange->session.defaults.ttl_seconds * 250, renewed_ms = time_monotonic_ms();

	if (stream(exchange, err) < 0)
		return -1;
	while (request_wait(exchange->request, exchange->wait_fd, SSE_PING_MS) == 0 &&
	       sse_ping(exchange->request, err) == 0) {
		if (time_monotonic_ms() - renewed_ms < every_ms)
			continue;
		mcp_session_renew(&exchange->session);
		renewed_ms = time_monotonic_ms();
	}
	return 0;
}

/* "<sandbox>.<pid>.<id>" taken apart; the id is the caller's to drop. */
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
		return refuse(exchange->request, 400, NULL, MCP_INVALID_REQUEST, "Last-Event-ID is none of ours", err);
	exchange->id = id;
	enter(exchange);
	json_t *answer =
		stream(exchange, err) < 0 ? NULL : mcp_resume(&exchange->session, &exchange->call, id, sandbox, pid);
	leave(exchange);
	return give(exchange, answer, err);
}

/* GET and DELETE are of the legacy era, and of a session. */
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
	int found = find_session(exchange);
	if (found <= 0)
		return refuse_session(exchange, found, err);
	*refused = false;
	return 0;
}

static int handle_get(struct request *request, struct husk_error *err)
{
	cleanup(exchange_free) struct exchange exchange = { .cancel_fd = -1, .wait_fd = -1 };
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
	cleanup(exchange_free) struct exchange exchange = { .cancel_fd = -1, .wait_fd = -1 };
	bool refused;

	int result = begin_of_session(&exchange, request, &refused, err);
	if (refused)
		return result;
	cancel(exchange.session_id, NULL);
	if (mcp_session_end(&exchange.session, err) < 0)
		return -1;
	pthread_mutex_lock(&lock);
	memcpy(closed[closed_next], exchange.session_id, sizeof(closed[0]));
	closed_next = (closed_next + 1) % CLOSED_MAX;
	pthread_mutex_unlock(&lock);
	return respond_empty(request, 204, err);
}

const struct route mcp_routes[] = {
	{ "POST", "/mcp", handle_post, ROUTE_STREAM },
	{ "GET", "/mcp", handle_get, ROUTE_STREAM },
	{ "DELETE", "/mcp", handle_delete, ROUTE_STREAM },
	{ 0 },
};
