/*
 * Answers and sessions of MCP over HTTP; see mcp_exchange.h. A quick answer is JSON. An answer that takes long or
 * reports progress is a stream of server-sent events. A session is a signed id whose sandboxes are found by their
 * metadata. Called by api_mcp.c, and by src/mcp while a tool runs. All state beyond one request is here, and is lost
 * with the server.
 *
 * If a client is disconnected, its command continues (in the legacy era, as its specification requires). The ids of its
 * events name the sandbox and the process, whose output the agent keeps, so that the client can reconnect.
 */
#include <inttypes.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "server/api_templates.h"
#include "server/mcp_exchange.h"

#define STREAM_AFTER_MS 1000 /* a quicker answer needs no stream */
#define CLOSED_MAX 1024

/* Running requests and ended sessions: state beyond one request, lost with the server. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct exchange *under_way;
static char closed[CLOSED_MAX][SESSION_RANDOM + 1];
static size_t closed_next;

/* ---- answers ---- */

/* The empty event gives the client an id to reconnect with; older clients fail on it. */
int exchange_stream(struct exchange *exchange, struct husk_error *err)
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

int exchange_send(struct exchange *exchange, json_t *message, struct husk_error *err)
{
	cleanup_json json_t *taken = message;

	if (exchange_stream(exchange, err) < 0)
		return -1;
	exchange->spoke_ms = time_monotonic_ms();
	return sse_send(exchange->request, "message", exchange->event_id, steal_pointer(taken), err);
}

/* ---- callbacks for src/mcp ---- */

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
		return exchange_send(exchange, message, err);
	json_decref(message);
	return 0;
}

/* Sends keep-alive comments, and turns a long answer into a stream. -1: the client is gone. */
static int keep_warm(struct exchange *exchange)
{
	int64_t now = time_monotonic_ms();

	if (!exchange->takes_events)
		return 0;
	if (!exchange->begun)
		return now - exchange->started_ms >= STREAM_AFTER_MS ? exchange_stream(exchange, NULL) : 0;
	if (now - exchange->spoke_ms < SSE_PING_MS)
		return 0;
	exchange->spoke_ms = now;
	return sse_ping(exchange->request, NULL);
}

static int wait_one(struct exchange *exchange, int timeout_ms)
{
	struct epoll_event event;
	int ready = request_wait(exchange->request, exchange->wait_fd, timeout_ms);

	if (ready < 0 && exchange->modern) /* in the modern era, a disconnect cancels the request */
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

int exchange_idle(struct exchange *exchange)
{
	if (request_wait(exchange->request, exchange->cancel_fd, STREAM_AFTER_MS) != 0 ||
	    request_stopping(exchange->request))
		return -1;
	return keep_warm(exchange);
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

int session_find(struct exchange *exchange)
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

int session_begin(struct exchange *exchange, struct husk_error *err)
{
	char id[SESSION_SIZE + 1];

	if (random_id("", SESSION_RANDOM, exchange->session_id) < 0)
		return husk_fail_errno(err, "no random bytes for a session");
	if (sign_session(exchange->request, exchange->session_id, id, err) < 0)
		return -1;
	return respond_header(exchange->request, "Mcp-Session-Id", id, err);
}

/* ---- cancelling ---- */

void exchange_enter(struct exchange *exchange)
{
	pthread_mutex_lock(&lock);
	exchange->next = under_way;
	under_way = exchange;
	pthread_mutex_unlock(&lock);
}

void exchange_leave(struct exchange *exchange)
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

/* `id` NULL: everything in the session. */
void exchange_cancel(const char *session, const json_t *id)
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

int session_close(struct exchange *exchange, struct husk_error *err)
{
	exchange_cancel(exchange->session_id, NULL);
	if (mcp_session_end(&exchange->session, err) < 0)
		return -1;
	pthread_mutex_lock(&lock);
	snprintf(closed[closed_next], sizeof(closed[0]), "%s", exchange->session_id);
	closed_next = (closed_next + 1) % CLOSED_MAX;
	pthread_mutex_unlock(&lock);
	return 0;
}

/* ---- an exchange ---- */

void exchange_free(struct exchange *exchange)
{
	fd_close(&exchange->cancel_fd);
	fd_close(&exchange->wait_fd);
	free(exchange->event_id);
	free(exchange->rules);
}

/* "?egress=open", "?allow=docs.example.com,*.example.org" */
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

/* The options in the URL for new sandboxes. They come with every request, so nothing has to be stored. */
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

int exchange_begin(struct exchange *exchange, struct request *request, struct husk_error *err)
{
	struct epoll_event event = { .events = EPOLLIN };

	exchange->request = request;
	exchange->session = (struct mcp_session){ .husk = request_husk(request),
						  .everything = true, /* the token decides what the caller sees */
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
