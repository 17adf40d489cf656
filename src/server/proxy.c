/*
 * Forwards a request to a program inside a sandbox, and its answer back; see proxy.h. Called by api_ports.c on the
 * request's own thread. The program is hostile: its answer passes through http1.c, only fixed buffers hold it, and
 * headers that would speak for the server itself are dropped. The program must never see a token of ours, nor the
 * cookie that replaces one.
 *
 * libmicrohttpd accepts an answer only after the whole body. If the program answers earlier, its answer waits here, up
 * to EARLY_MAX; beyond that the rest of the body is not sent.
 */
#include <poll.h>
#include <sys/socket.h>

#include "base/http1.h"
#include "base/http_grammar.h"
#include "server/dialect.h"
#include "server/proxy.h"

#define PIECE (32u << 10)
#define EARLY_MAX (256u << 10)
#define INFORMATIONAL_MAX 16 /* 1xx heads before the real one */
#define RELAY_MAX (64u << 10)
#define LINGER_MS 10000 /* for one side of an upgraded connection after the other side has ended */
#define HELD_MS 250     /* between two questions whether the client is held */

struct exchange {
	struct request *request;
	const struct proxy *proxy;
	int fd;
	struct buf in; /* received bytes of the answer, not parsed yet */
	bool ended;    /* the program sends no more */
	bool upgrade;  /* the client asked for one */
};

/* Headers that belong to one connection only (RFC 9110, 7.6.1). */
static bool is_hop_by_hop(const char *name, const char *connection)
{
	static const char *const names[] = {
		"Connection", "Keep-Alive",          "Proxy-Connection", "Proxy-Authenticate",
		"TE",         "Proxy-Authorization", "Trailer",          "Transfer-Encoding",
		"Upgrade"
	};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (strcasecmp(name, names[i]) == 0)
			return true;
	return connection && http_list_has(connection, strlen(connection), name);
}

/* ---- the request ---- */

struct head {
	struct exchange *exchange;
	const char *connection; /* the client's Connection header */
	struct buf text;
	const char *forwarded_for;
	int failed;
};

static bool is_ours(const char *name)
{
	static const char *const names[] = { "Host",
					     "Content-Length",
					     "Expect",
					     "X-Husk-Token",
					     "Forwarded",
					     "X-Forwarded-For",
					     "X-Forwarded-Host",
					     "X-Forwarded-Proto",
					     "X-Forwarded-Prefix" };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (strcasecmp(name, names[i]) == 0)
			return true;
	return dialects_private(name);
}

/* The client's cookies without our own. */
static int put_cookies(struct buf *text, const char *value)
{
	const char *separator = "Cookie: ";
	int bad = 0;

	while (*value) {
		value += strspn(value, " ;");
		size_t size = strcspn(value, ";");
		if (size && strncmp(value, ACCESS_COOKIE "=", strlen(ACCESS_COOKIE) + 1) != 0) {
			bad |= buf_printf(text, "%s%.*s", separator, (int)size, value);
			separator = "; ";
		}
		value += size;
	}
	return separator[0] == ';' ? bad | buf_append_string(text, "\r\n") : bad;
}

static int put_header(void *data, const char *name, const char *value)
{
	struct head *head = data;
	bool authorization = strcasecmp(name, "Authorization") == 0;

	if (strcasecmp(name, "X-Forwarded-For") == 0)
		head->forwarded_for = value;
	if (is_hop_by_hop(name, head->connection) || is_ours(name))
		return 0;
	if (head->exchange->proxy->drop_origin && strcasecmp(name, "Origin") == 0)
		return 0;
	/* In any case: a token of ours is never passed to a guest. */
	if (authorization && (!head->exchange->proxy->keep_authorization || strcasestr(value, "husk_")))
		return 0;
	if (strcasecmp(name, "Cookie") == 0)
		head->failed |= put_cookies(&head->text, value);
	else
		head->failed |= buf_printf(&head->text, "%s: %s\r\n", name, value);
	return 0;
}

/* "127.0.0.1:41234" without the port; nothing for a client on the unix socket. */
static int put_forwarded_for(struct head *head, const char *remote)
{
	const char *before = head->forwarded_for ? head->forwarded_for : "";
	const char *colon = strrchr(remote, ':');

	if (!colon && !*before)
		return 0;
	return buf_printf(&head->text, "X-Forwarded-For: %s%s%.*s\r\n", before, *before && colon ? ", " : "",
			  colon ? (int)(colon - remote) : 0, remote);
}

static int put_body_headers(struct head *head, int64_t length, const char *method)
{
	if (length < 0)
		return buf_append_string(&head->text, "Transfer-Encoding: chunked\r\n");
	if (length > 0 || str_equal(method, "POST") || str_equal(method, "PUT") || str_equal(method, "PATCH"))
		return buf_printf(&head->text, "Content-Length: %lld\r\n", (long long)length);
	return 0;
}

/* The whole head of the request for the guest. */
static int make_head(struct exchange *x, struct buf *out, struct husk_error *err)
{
	struct request *request = x->request;
	const struct proxy *proxy = x->proxy;
	const char *connection = request_header(request, "Connection"), *upgrade = request_header(request, "Upgrade");
	const char *host = request_header(request, "Host");
	struct head head = { .exchange = x, .connection = connection };

	x->upgrade = upgrade && connection && http_list_has(connection, strlen(connection), "upgrade") &&
		     request_length(request) == 0;
	head.failed |= buf_printf(&head.text, "%s %s HTTP/1.1\r\nHost: %s\r\n", request_method(request), proxy->target,
				  proxy->host);
	request_headers(request, put_header, &head);
	head.failed |= put_forwarded_for(&head, request_remote(request));
	head.failed |= buf_printf(&head.text, "X-Forwarded-Proto: %s\r\n", request_secure(request) ? "https" : "http");
	if (host)
		head.failed |= buf_printf(&head.text, "X-Forwarded-Host: %s\r\n", host);
	if (proxy->prefix)
		head.failed |= buf_printf(&head.text, "X-Forwarded-Prefix: %s\r\n", proxy->prefix);
	if (x->upgrade)
		head.failed |= buf_printf(&head.text, "Connection: Upgrade\r\nUpgrade: %s\r\n", upgrade);
	else
		head.failed |= put_body_headers(&head, request_length(request), request_method(request)) |
			       buf_append_string(&head.text, "Connection: close\r\n");
	head.failed |= buf_append_string(&head.text, "\r\n");
	*out = head.text;
	return head.failed ? husk_fail_memory(err) : 0;
}

/* ---- bytes to and from the program ---- */

static int fail_gone(struct husk_error *err)
{
	return husk_fail(err, HUSK_GONE, "the client has gone");
}

/* Reads what has arrived of the answer, without waiting. */
static int take_in(struct exchange *x, struct husk_error *err)
{
	if (buf_reserve(&x->in, PIECE) < 0)
		return husk_fail_memory(err);
	ssize_t count = recv(x->fd, x->in.data + x->in.size, PIECE, MSG_DONTWAIT);
	if (count > 0)
		x->in.size += (size_t)count;
	else if (count == 0 || (errno != EAGAIN && errno != EINTR))
		x->ended = true; /* a reset ends it too: the length shows whether it came too early */
	return 0;
}

/* Waits for more of the answer. */
static int await(struct exchange *x, struct husk_error *err)
{
	if (request_wait(x->request, x->fd, -1) < 0)
		return fail_gone(err);
	return take_in(x, err);
}

/* 0: sent; 1: the program accepts no more, but may have sent the reason. */
static int send_bytes(struct exchange *x, const char *bytes, size_t size, struct husk_error *err)
{
	while (size) {
		ssize_t count = send(x->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (count > 0) {
			bytes += count;
			size -= (size_t)count;
			continue;
		}
		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0 && errno != EAGAIN)
			return 1;
		struct pollfd wait = { .fd = x->fd, .events = POLLIN | POLLOUT };
		if (poll(&wait, 1, 1000) < 0 && errno != EINTR)
			return husk_fail_errno(err, "cannot wait for %s", x->proxy->what);
		if (request_over(x->request))
			return fail_gone(err);
		if ((wait.revents & (POLLIN | POLLHUP | POLLERR)) && take_in(x, err) < 0)
			return -1;
		if (x->ended || x->in.size >= EARLY_MAX)
			return 1;
	}
	return 0;
}

static int send_body(struct exchange *x, struct husk_error *err)
{
	bool chunked = request_length(x->request) < 0;
	cleanup_free char *piece = malloc(PIECE);
	char size[24];
	int sent = 0;

	if (!piece)
		return husk_fail_memory(err);
	while (sent == 0) {
		ssize_t count = request_read(x->request, piece, PIECE);
		if (count < 0)
			return fail_gone(err);
		snprintf(size, sizeof(size), "%zx\r\n", (size_t)count);
		if (chunked)
			sent = send_bytes(x, size, strlen(size), err);
		if (sent == 0)
			sent = send_bytes(x, piece, (size_t)count, err);
		if (sent == 0 && chunked)
			sent = send_bytes(x, "\r\n", 2, err);
		if (count == 0)
			break;
	}
	return sent < 0 ? -1 : 0;
}

/* ---- the answer ---- */

static int read_head(struct exchange *x, struct http1_head *head, struct husk_error *err)
{
	for (;;) {
		ssize_t used = x->in.size ? http1_head_parse(x->in.data, x->in.size, head, err) : 0;
		if (used < 0)
			return husk_wrap(err, "%s", x->proxy->what);
		if (used > 0) {
			buf_consume(&x->in, (size_t)used);
			return 0;
		}
		if (x->ended)
			return husk_fail(err, HUSK_PROTOCOL, "%s closed the connection without an answer",
					 x->proxy->what);
		if (await(x, err) < 0)
			return -1;
	}
}

/* Reads the final head. Heads with 1xx are between the program and this server, except a requested one. */
static int read_final_head(struct exchange *x, struct http1_head *head, struct husk_error *err)
{
	for (int i = 0; i < INFORMATIONAL_MAX; i++) {
		if (read_head(x, head, err) < 0)
			return -1;
		if (head->status >= 200 || (head->status == 101 && x->upgrade))
			return 0;
		bool unasked = head->status == 101;
		http1_head_free(head);
		if (unasked)
			return husk_fail(err, HUSK_PROTOCOL, "%s changes to a protocol that was not requested",
					 x->proxy->what);
	}
	return husk_fail(err, HUSK_PROTOCOL, "%s sends one provisional answer after the other", x->proxy->what);
}

/* Below a path of ours, the guest's pages share our origin: headers with an effect beyond that path are not passed
 * on. */
static bool is_allowed(const struct proxy *proxy, const struct http1_header *header)
{
	static const char *const ours[] = { "Content-Length", "X-Request-Id", "X-Husk-Version" };
	static const char *const origin[] = { "Service-Worker-Allowed", "Clear-Site-Data", "Alt-Svc",
					      "Strict-Transport-Security" };

	for (size_t i = 0; i < ARRAY_SIZE(ours); i++)
		if (strcasecmp(header->name, ours[i]) == 0)
			return false;
	for (size_t i = 0; i < ARRAY_SIZE(origin) && proxy->prefix; i++)
		if (strcasecmp(header->name, origin[i]) == 0)
			return false;
	return strcasecmp(header->name, "Set-Cookie") != 0 || !str_starts(header->value, ACCESS_COOKIE "=");
}

/* A redirect to "/login" means the guest's "/login". */
static int pass_location(struct exchange *x, const char *value, struct husk_error *err)
{
	const char *prefix = x->proxy->prefix;
	bool inside = prefix && value[0] == '/' && value[1] != '/' && !str_starts(value, prefix);
	cleanup_free char *moved = inside ? str_format("%s%s", prefix, value) : NULL;

	if (inside && !moved)
		return husk_fail_memory(err);
	return respond_header(x->request, "Location", inside ? moved : value, err);
}

static int pass_headers(struct exchange *x, const struct http1_head *head, struct husk_error *err)
{
	const char *connection = http1_head_find(head, "Connection");

	for (size_t i = 0; i < head->count; i++) {
		const struct http1_header *header = &head->headers[i];
		bool upgrade = head->status == 101 && strcasecmp(header->name, "Upgrade") == 0;
		if ((is_hop_by_hop(header->name, connection) && !upgrade) || !is_allowed(x->proxy, header))
			continue;
		int passed = strcasecmp(header->name, "Location") == 0
				     ? pass_location(x, header->value, err)
				     : respond_header(x->request, header->name, header->value, err);
		if (passed < 0)
			return -1;
	}
	return x->proxy->cookie ? respond_header(x->request, "Set-Cookie", x->proxy->cookie, err) : 0;
}

/* Passes on the buffered bytes: 1 if the body is complete, 0 if more is to come. *left: of a known length; -1:
 * unknown. */
static int pass_piece(struct exchange *x, struct http1_chunks *chunks, int64_t *left, struct husk_error *err)
{
	size_t size = x->in.size;
	int done = 0;

	if (*left >= 0)
		size = (size_t)MIN((uint64_t)size, (uint64_t)*left);
	if (chunks) {
		done = http1_chunks_decode(chunks, x->in.data, &size, err);
		if (done < 0)
			return husk_wrap(err, "%s", x->proxy->what);
	}
	if (size && stream_write(x->request, x->in.data, size, err) < 0)
		return -1;
	x->in.size = 0;
	if (*left >= 0)
		*left -= (int64_t)size;
	return done || *left == 0;
}

/* An early end is a failure, so that the client does not take half an answer for a whole one. */
static int pass_body(struct exchange *x, const struct http1_head *head, struct husk_error *err)
{
	struct http1_chunks chunks = { 0 };
	int64_t left = head->length;

	for (;;) {
		if (x->in.size) {
			int done = pass_piece(x, head->chunked ? &chunks : NULL, &left, err);
			if (done != 0)
				return done < 0 ? -1 : 0;
		}
		if (x->ended && !head->chunked && left < 0)
			return 0;
		if (x->ended)
			return husk_fail(err, HUSK_PROTOCOL, "%s broke its answer off", x->proxy->what);
		if (await(x, err) < 0)
			return -1;
	}
}

static int pass_answer(struct exchange *x, const struct http1_head *head, struct husk_error *err)
{
	bool silent = head->status == 204 || head->status == 304;
	bool asked_head = str_equal(request_method(x->request), "HEAD");
	int64_t length = silent ? 0 : asked_head ? MAX(head->length, 0) : head->length;

	if (stream_begin(x->request, head->status, NULL, length, err) < 0)
		return -1;
	return silent || asked_head || length == 0 ? 0 : pass_body(x, head, err);
}

/* ---- after an upgrade: any bytes, both ways ---- */

struct tunnel {
	int fd;
	struct buf early; /* received with the guest's head */
	struct request *request;
	bool (*held)(struct request *request); /* of struct proxy */
	bool is_held;
	int64_t asked_ms;
};

struct side {
	int fd;
	struct buf to_send;
	bool ended, shut; /* it sends no more; it was told that the other side sends no more */
};

static short side_events(const struct side *side, const struct side *other)
{
	return (short)((!side->ended && other->to_send.size < RELAY_MAX ? POLLIN : 0) |
		       (side->to_send.size ? POLLOUT : 0));
}

/* False if the side has failed. */
static bool side_read(struct side *side, struct side *other)
{
	if (buf_reserve(&other->to_send, PIECE) < 0)
		return false;
	ssize_t count = recv(side->fd, other->to_send.data + other->to_send.size, PIECE, MSG_DONTWAIT);
	if (count > 0)
		other->to_send.size += (size_t)count;
	side->ended |= count == 0;
	return count >= 0 || errno == EAGAIN || errno == EINTR;
}

static bool side_write(struct side *side)
{
	ssize_t count = send(side->fd, side->to_send.data, side->to_send.size, MSG_DONTWAIT | MSG_NOSIGNAL);

	if (count > 0)
		buf_consume(&side->to_send, (size_t)count);
	return count >= 0 || errno == EAGAIN || errno == EINTR;
}

/* Moves as many bytes as possible; false at the end. */
static bool side_serve(struct side *side, struct side *other, short seen)
{
	if ((seen & (POLLIN | POLLHUP | POLLERR)) && !side->ended && other->to_send.size < RELAY_MAX &&
	    !side_read(side, other))
		return false;
	if (side->to_send.size && (seen & (POLLOUT | POLLHUP | POLLERR)) && !side_write(side))
		return false;
	if (other->ended && !side->to_send.size && !side->shut) {
		shutdown(side->fd, SHUT_WR);
		side->shut = true;
	}
	return true;
}

/* Asks when the client has sent something, and while it is held. */
static bool tunnel_held(struct tunnel *tunnel)
{
	int64_t now = time_monotonic_ms();

	if (!tunnel->held || now - tunnel->asked_ms < HELD_MS)
		return tunnel->is_held;
	tunnel->asked_ms = now;
	tunnel->is_held = tunnel->held(tunnel->request);
	return tunnel->is_held;
}

static int relay_patience(const struct tunnel *tunnel, bool ending)
{
	return tunnel->is_held ? HELD_MS : ending ? LINGER_MS : -1;
}

static void relay(struct tunnel *tunnel, struct side *client, struct side *guest, int over_fd)
{
	while (!(client->ended && guest->ended && !client->to_send.size && !guest->to_send.size)) {
		short from_client = side_events(client, guest), from_guest = side_events(guest, client);
		if (tunnel->is_held && tunnel_held(tunnel))
			from_client &= (short)~POLLIN;
		struct pollfd wait[] = {
			{ .fd = from_client ? client->fd : -1, .events = from_client },
			{ .fd = from_guest ? guest->fd : -1, .events = from_guest },
			{ .fd = over_fd, .events = POLLIN },
		};
		int ready = poll(wait, ARRAY_SIZE(wait), relay_patience(tunnel, client->ended || guest->ended));

		if ((ready < 0 && errno == EINTR) || (ready == 0 && tunnel->is_held))
			continue;
		if (ready <= 0 || wait[2].revents)
			return;
		if ((wait[0].revents & POLLIN) && tunnel_held(tunnel))
			wait[0].revents &= (short)~POLLIN;
		if (!side_serve(client, guest, wait[0].revents) || !side_serve(guest, client, wait[1].revents))
			return;
	}
}

static void run_tunnel(struct request *request, int fd, const void *first, size_t size, void *data)
{
	struct tunnel *tunnel = data;
	struct side client = { .fd = fd, .to_send = tunnel->early };
	struct side guest = { .fd = tunnel->fd };

	if (size == 0 || buf_append(&guest.to_send, first, size) == 0)
		relay(tunnel, &client, &guest, request_over_fd(request));
	buf_free(&client.to_send);
	buf_free(&guest.to_send);
	fd_close(&tunnel->fd);
	free(tunnel);
}

static int begin_tunnel(struct exchange *x, struct husk_error *err)
{
	struct tunnel *tunnel = calloc(1, sizeof(*tunnel));

	if (!tunnel)
		return husk_fail_memory(err);
	*tunnel = (struct tunnel){
		.fd = x->fd, .early = x->in, .request = x->request, .held = x->proxy ? x->proxy->held : NULL
	};
	if (respond_upgrade(x->request, run_tunnel, tunnel, err) < 0) {
		free(tunnel);
		return -1;
	}
	x->fd = -1; /* the tunnel owns both now */
	x->in = (struct buf){ 0 };
	return 0;
}

int proxy_tunnel(struct request *request, int fd, struct husk_error *err)
{
	struct exchange x = { .request = request, .fd = fd };
	int result = begin_tunnel(&x, err);

	fd_close(&x.fd);
	return result;
}

/* ---- */

static int converse(struct exchange *x, struct http1_head *head, struct husk_error *err)
{
	cleanup_buf struct buf request = { 0 };

	if (make_head(x, &request, err) < 0 || send_bytes(x, request.data, request.size, err) < 0)
		return -1;
	if (request_length(x->request) != 0 && send_body(x, err) < 0)
		return -1;
	if (read_final_head(x, head, err) < 0 || pass_headers(x, head, err) < 0)
		return -1;
	return head->status == 101 ? begin_tunnel(x, err) : pass_answer(x, head, err);
}

int proxy_run(struct request *request, int fd, const struct proxy *proxy, struct husk_error *err)
{
	struct exchange x = { .request = request, .proxy = proxy, .fd = fd };
	struct http1_head head = { 0 };

	int result = converse(&x, &head, err);
	http1_head_free(&head);
	buf_free(&x.in);
	fd_close(&x.fd);
	return result;
}
