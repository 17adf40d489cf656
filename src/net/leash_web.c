/*
 * Carries HTTP requests of the guest one by one. Each is checked before any of its bytes is sent, because on a
 * persistent connection the next request may name another host. Used for plain HTTP, and for TLS to the hosts of
 * secrets, where TLS ends here. Answers are followed to their end, and pass unchanged except for one header.
 *
 * The host must never see a request that was not checked, even if it parses the bytes differently. So:
 * - a request is written again from its parsed head, and the host reads exactly what was checked;
 * - the next request is sent after the answer to the previous one has ended, and an answer without a request ends the
 *   connection;
 * - a request with a body is the last one on its connection. It is sent with "Connection: close", so that a host that
 *   ignores the body does not take it for the next request; and leash_http.c refuses a body that begins with a request
 *   line, of which the host sees no byte;
 * - a body that is cut short ends with a reset, never like a complete one;
 * - a request that is held (leash_hold.c) is the last one on its connection, and is answered here;
 * - only a WebSocket may take over a connection, on its first request: another protocol (h2c) could then name hosts
 *   unseen.
 */
#include "net/leash_web.h"

#include <poll.h>

#include "net/authority.h"

#define CHUNK 32768u
#define HOLD_MS 120000           /* for a request that is held to arrive */
#define PENDING_MAX (128u << 10) /* limit of bytes that wait to be written to one side */

struct web {
	struct flow *flow;
	struct stream guest, remote;
	const char *only;          /* TLS: the one host that requests may name; NULL: plain */
	const struct terms *terms; /* TLS: the terms that allowed the connection, with its secrets */
	struct mask mask;
	struct buf in;       /* from the guest, not parsed yet */
	struct buf opening;  /* of a body, while it may begin with a request line */
	struct buf up, down; /* waiting to be written to the host, to the guest */
	enum { HEAD, BODY, HOLDING, UPGRADING, RAW, CLOSING } state; /* of the guest's side */
	struct http_body body;
	struct hold *hold; /* HOLDING */
	int64_t hold_until_ms;
	enum {
		IDLE,
		ANSWER_HEAD,
		ANSWER_BODY
	} due;             /* state of the host's side: what is still due for the last request */
	struct buf answer; /* the head of the answer until it is complete */
	struct http_body answer_body;
	bool bodiless; /* the answer has no body, even if its head announces one */
	bool last;     /* the answer that is due ends the connection */
	bool over;     /* no more bytes of the host are wanted */
	size_t requests;
	uint64_t early; /* bytes that arrived before their destination was known */
	bool blocked;   /* a request waits for room towards the host */
	bool finished;  /* the host was informed that nothing more follows */
	char chunk[CHUNK];
};

/* ---- refusing ---- */

static int refuse(struct web *web, const char *status, const char *reason, const char *rule)
{
	cleanup_buf struct buf body = { 0 };

	web->state = CLOSING;
	flow_revoke(web->flow);
	buf_printf(&body, "husk: blocked: %s\n", reason);
	if (*rule)
		buf_printf(&body, "the rule that would allow it: %s (husk egress ID --allow %s)\n", rule, rule);
	return buf_printf(&web->down,
			  "HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\nX-Husk-Denied: %s\r\n"
			  "Connection: close\r\n\r\n%s",
			  status, body.size, reason, body.data ? body.data : "");
}

static int deny(struct web *web, const char *host, const char *reason, const char *rule)
{
	flow_denied(web->flow, host, reason, rule);
	return refuse(web, "403 Forbidden", reason, rule);
}

/* For a request that can be read in more than one way. Once the answer has begun, no error answer can be sent. */
static int refuse_malformed(struct web *web, const char *reason)
{
	flow_denied(web->flow, web->only ? web->only : web->flow->host, reason, "");
	if (web->due != IDLE && (web->due == ANSWER_BODY || web->answer.size))
		return -1;
	stream_free(&web->remote);
	web->remote.fd = -1;
	flow_disconnect(web->flow);
	buf_consume(&web->up, web->up.size);
	return refuse(web, "400 Bad Request", reason, "");
}

/* ---- one request ---- */

static bool is_websocket(const struct web *web, const struct http_request *request)
{
	if (!request->upgrade || web->requests > 0 || request->framing != BODY_NONE)
		return false;
	for (size_t i = 0; i < request->field_count; i++)
		if (http_is(request->fields[i].name, "upgrade") && !http_is(request->fields[i].value, "websocket"))
			return false;
	return true;
}

/* Headers that are not passed on: those that write_head writes itself; those about this connection only (a host that
 * obeys "Connection: content-length" would read another request); offers of other protocols; encodings that would hide
 * a secret in the answer; and headers that a secret replaces. */
static bool is_dropped(const struct web *web, const struct http_field *field, bool websocket)
{
	static const char *const dropped[] = { "host",       "connection", "proxy-connection",
					       "keep-alive", "te",         "http2-settings" };

	for (size_t i = 0; i < ARRAY_SIZE(dropped); i++)
		if (http_is(field->name, dropped[i]))
			return true;
	if (http_is(field->name, "upgrade"))
		return !websocket;
	return web->only && (http_is(field->name, "accept-encoding") ||
			     secret_replaces(web->terms, web->only, web->flow->port, field));
}

static int write_host(struct buf *out, const struct http_request *request)
{
	if (request->port)
		return buf_printf(out, "Host: %s:%u\r\n", request->host, request->port);
	return buf_printf(out, "Host: %s\r\n", request->host);
}

static int write_head(struct web *web, const struct http_request *request, bool websocket)
{
	struct buf *out = &web->up;
	int bad = buf_append(out, request->line.data, request->line.size) | buf_append_string(out, "\r\n");

	bad |= write_host(out, request);
	for (size_t i = 0; i < request->field_count; i++) {
		const struct http_field *field = &request->fields[i];

		if (is_dropped(web, field, websocket))
			continue;
		bad |= buf_append(out, field->name.data, field->name.size) | buf_append_string(out, ": ");
		bad |= web->only ? secret_swap(web->terms, web->only, web->flow->port, field, out)
				 : buf_append(out, field->value.data, field->value.size);
		bad |= buf_append_string(out, "\r\n");
	}
	if (web->only)
		bad |= buf_append_string(out, "Accept-Encoding: identity\r\n") |
		       secret_headers(web->terms, web->only, web->flow->port, out);
	if (websocket || web->last)
		bad |= buf_append_string(out, websocket ? "Connection: Upgrade\r\n" : "Connection: close\r\n");
	return bad | buf_append_string(out, "\r\n");
}

/* Checks a request. 1: allowed. 0: refused. -1: the connection has ended. */
static int check_request(struct web *web, const struct http_request *request)
{
	struct flow *flow = web->flow;
	char reason[FLOW_TEXT], rule[FLOW_TEXT];
	struct terms *terms;

	if (request->port && request->port != flow->port) {
		snprintf(reason, sizeof(reason), "the Host header names port %u on a connection to port %u",
			 request->port, flow->port);
		return deny(web, request->host, reason, "");
	}
	if (web->only && strcmp(request->host, web->only) != 0) {
		snprintf(reason, sizeof(reason), "the Host header names %s on a connection to %s", request->host,
			 web->only);
		return deny(web, request->host, reason, "");
	}
	terms = proxy_terms(flow->proxy);
	bool allowed = flow_check(flow, terms, request->host, reason, rule);
	terms_drop(terms);
	return allowed ? 1 : deny(web, request->host, reason, rule);
}

/* Connects for an allowed request, if need be. As above. */
static int open_remote(struct web *web, const struct http_request *request)
{
	struct flow *flow = web->flow;
	char reason[FLOW_TEXT];

	if (flow->remote < 0 && flow_connect(flow) < 0) {
		flow->reset = false;
		snprintf(reason, sizeof(reason), "cannot connect to %s (%s port %u)", request->host, flow->address_text,
			 flow->port);
		return refuse(web, "502 Bad Gateway", reason, "");
	}
	web->remote.fd = flow->remote;
	if (flow->permitted && strcmp(flow->host, request->host) == 0)
		flow_again(flow);
	else if (!flow_permit(flow, request->host))
		return -1;
	return 1;
}

/* ---- requests that are held ---- */

static int refuse_hold(struct web *web, const char *host, const struct hold_answer *refusal)
{
	flow_denied(web->flow, host, refusal->reason, "");
	hold_free(steal_pointer(web->hold));
	return refuse(web, refusal->status, refusal->reason, "");
}

static bool is_held_host(struct web *web, const char *host)
{
	struct terms *terms = proxy_terms(web->flow->proxy);
	bool held = policy_holds(terms->policy, host, web->flow->port);

	terms_drop(terms);
	return held;
}

/* Clients wait for this before they send a long body. False: it expects something else. */
static bool invite_body(struct web *web, const struct http_request *request)
{
	bool good = true;

	for (size_t i = 0; i < request->field_count && good; i++)
		if (http_is(request->fields[i].name, "expect"))
			good = http_is(request->fields[i].value, "100-continue") &&
			       buf_append_string(&web->down, "HTTP/1.1 100 Continue\r\n\r\n") == 0;
	return good;
}

/* 1: the request is being held, or refused. 0: it is sent as usual. */
static int begin_hold(struct web *web, const struct http_request *request, size_t size)
{
	struct hold_answer refusal = { .status = "417 Expectation Failed",
				       .reason = "it expects what is not supported" };

	if (!is_held_host(web, request->host))
		return 0;
	if (is_websocket(web, request)) {
		deny(web, request->host, "requests to this host are held, and a WebSocket cannot be", "");
		return 1;
	}
	if (!hold_changes(request))
		return 0;
	web->hold = hold_open(web->flow->proxy, request, web->only != NULL, web->flow->port, &refusal);
	if (!web->hold || !invite_body(web, request)) {
		refuse_hold(web, request->host, &refusal);
		return 1;
	}
	snprintf(web->flow->host, sizeof(web->flow->host), "%s", request->host);
	http_body_start(&web->body, request);
	web->state = HOLDING;
	web->hold_until_ms = time_monotonic_ms() + HOLD_MS;
	buf_consume(&web->in, size);
	return 1;
}

/* The request is complete. Waits until it is on disk. */
static int finish_hold(struct web *web)
{
	struct hold_answer answer = { 0 };
	struct flow *flow = web->flow;

	hold_store(web->hold, &answer);
	if (!answer.effect)
		return refuse_hold(web, flow->host, &answer);
	report_event(flow->proxy,
		     &(struct verdict){ "held", web->only ? "tls" : "http", flow->host, flow->port, "", "" });
	int result = hold_respond(web->hold, &answer, &web->down);

	hold_free(steal_pointer(web->hold));
	web->state = CLOSING;
	flow_revoke(flow);
	return result;
}

static int take_held(struct web *web)
{
	ssize_t taken = http_body_feed(&web->body, web->in.data, web->in.size);
	struct hold_answer refusal = { 0 };

	if (taken < 0)
		return refuse_malformed(web, "its body is not framed as it must be, or begins like a request") < 0 ? -1
														   : 1;
	if (hold_add(web->hold, web->in.data, (size_t)taken, &refusal) < 0)
		return refuse_hold(web, web->flow->host, &refusal) < 0 ? -1 : 1;
	buf_consume(&web->in, (size_t)taken);
	if (http_body_done(&web->body) && finish_hold(web) < 0)
		return -1;
	return taken > 0 || web->state != HOLDING;
}

/* Tells the supervisor of a request that is sent now. */
static void tell_request(struct web *web, const struct http_request *request)
{
	report_request(web->flow->proxy, &(struct request_report){ .method = request->method.data,
								   .method_size = request->method.size,
								   .scheme = web->only ? "https" : "http",
								   .host = request->host,
								   .port = web->flow->port,
								   .target = request->path.data,
								   .target_size = request->path.size });
}

static int take_head(struct web *web)
{
	struct http_request request;
	const char *why = NULL;
	ssize_t size = http_request_parse(web->in.data, web->in.size, &request, &why);

	if (size == 0)
		return 0;
	if (size < 0)
		return refuse_malformed(web, why) < 0 ? -1 : 1;
	int verdict = check_request(web, &request);
	if (verdict > 0 && begin_hold(web, &request, (size_t)size))
		return 1;
	if (verdict > 0)
		verdict = open_remote(web, &request);
	if (verdict <= 0)
		return verdict < 0 ? -1 : 1;
	bool websocket = is_websocket(web, &request);
	web->last = !websocket && (request.close || request.framing != BODY_NONE);
	web->bodiless = http_is(request.method, "HEAD");
	tell_request(web, &request);
	if (write_head(web, &request, websocket) != 0)
		return -1;
	http_body_start(&web->body, &request);
	web->state = websocket ? UPGRADING : BODY;
	web->due = ANSWER_HEAD;
	web->requests++;
	buf_consume(&web->in, (size_t)size);
	return 1;
}

static int take_body(struct web *web)
{
	ssize_t taken = http_body_feed(&web->body, web->in.data, web->in.size);

	if (taken < 0)
		return refuse_malformed(web, "its body is not framed as it must be, or begins like a request") < 0 ? -1
														   : 1;
	if (buf_append(&web->opening, web->in.data, (size_t)taken) < 0)
		return -1;
	buf_consume(&web->in, (size_t)taken);
	if (!http_body_undecided(&web->body)) {
		if (buf_append(&web->up, web->opening.data, web->opening.size) < 0)
			return -1;
		buf_consume(&web->opening, web->opening.size);
	}
	if (http_body_done(&web->body))
		web->state = web->last ? CLOSING : HEAD;
	return taken > 0 || web->state != BODY;
}

/* Parses the guest's bytes as far as the state allows. */
static int take_input(struct web *web)
{
	int more = 1;

	web->blocked = false;
	while (more > 0) {
		if (web->state == BODY) {
			more = take_body(web);
		} else if (web->state == HOLDING) {
			more = take_held(web);
		} else if (web->in.size == 0 || web->state == UPGRADING) {
			more = 0;
		} else if (web->state == HEAD) {
			web->blocked = web->up.size >= PENDING_MAX;
			more = web->blocked || web->due != IDLE ? 0 : take_head(web);
		} else {
			if (web->state == RAW && buf_append(&web->up, web->in.data, web->in.size) < 0)
				return -1;
			buf_consume(&web->in, web->in.size);
		}
	}
	return more;
}

/* ---- answers ---- */

/* Passes bytes to the guest; `last`: of this answer. */
static int pass(struct web *web, const char *data, size_t size, bool last)
{
	return web->only ? mask_feed(&web->mask, data, size, last, &web->down) : buf_append(&web->down, data, size);
}

static int end_answer(struct web *web)
{
	web->due = IDLE;
	web->over = web->last;
	return pass(web, "", 0, true);
}

/* Passes the head on, and informs the guest if the answer is the last on this connection. */
static int pass_head(struct web *web, size_t size)
{
	const char *data = web->answer.data;
	size_t first = (size_t)((const char *)memchr(data, '\n', size) - data) + 1;
	static const char closing[] = "Connection: close\r\n";

	if (!web->last)
		return pass(web, data, size, false);
	return pass(web, data, first, false) | pass(web, closing, sizeof(closing) - 1, false) |
	       pass(web, data + first, size - first, false);
}

/* An answer that is not HTTP/1 passes until the connection ends; the guest can send no more requests. */
static int pass_unread(struct web *web)
{
	const struct http_response open = { .framing = BODY_OPEN };

	http_body_start_answer(&web->answer_body, &open);
	web->due = ANSWER_BODY;
	web->state = CLOSING;
	int result = pass(web, web->answer.data, web->answer.size, false);
	buf_consume(&web->answer, web->answer.size);
	return result;
}

/* The head is complete: decides what follows. */
static int begin_answer(struct web *web, size_t size, const struct http_response *response)
{
	if (response->status == 101 && web->state != UPGRADING)
		return pass_unread(web);
	bool interim = response->status / 100 == 1;
	web->last = web->last || (response->close && !interim);
	int result = interim ? pass(web, web->answer.data, size, false) : pass_head(web, size);
	buf_consume(&web->answer, size);
	if (interim && response->status != 101)
		return result;
	if (web->state == UPGRADING)
		web->state = interim ? RAW : HEAD;
	if (web->last && web->state == HEAD)
		web->state = CLOSING;
	http_body_start_answer(&web->answer_body, response);
	web->due = ANSWER_BODY;
	return result;
}

/* Adds these bytes to the head. Returns how many of them come after it. */
static ssize_t take_answer_head(struct web *web, const char *data, size_t size)
{
	struct http_response response;

	if (buf_append(&web->answer, data, size) < 0)
		return -1;
	ssize_t head = http_response_parse(web->answer.data, web->answer.size, web->bodiless, &response);
	if (head == 0)
		return 0;
	if (head < 0)
		return pass_unread(web);
	size_t rest = web->answer.size - (size_t)head;
	if (begin_answer(web, (size_t)head, &response) < 0)
		return -1;
	buf_consume(&web->answer, web->answer.size);
	return (ssize_t)rest;
}

/* Takes bytes of the body. Returns how many are left. */
static ssize_t take_answer_body(struct web *web, const char *data, size_t size)
{
	ssize_t taken = http_body_feed(&web->answer_body, data, size);

	if (taken < 0) {
		web->answer_body.framing = BODY_OPEN;
		web->state = CLOSING;
		taken = (ssize_t)size;
	}
	return pass(web, data, (size_t)taken, false) < 0 ? -1 : (ssize_t)size - taken;
}

static int take_answer(struct web *web, const char *data, size_t size)
{
	while (size > 0) {
		ssize_t left;

		if (web->state == RAW)
			return pass(web, data, size, false);
		if (web->due == IDLE) {
			web->over = true;
			return 0;
		}
		left = web->due == ANSWER_HEAD ? take_answer_head(web, data, size) : take_answer_body(web, data, size);
		if (left < 0)
			return -1;
		data += size - (size_t)left;
		size = (size_t)left;
		if (web->due == ANSWER_BODY && web->state != RAW && http_body_done(&web->answer_body) &&
		    end_answer(web) < 0)
			return -1;
	}
	return 0;
}

/* The host has closed its side. */
static int end_answers(struct web *web)
{
	int result = pass(web, web->answer.size ? web->answer.data : "", web->answer.size, true);

	buf_consume(&web->answer, web->answer.size);
	return result;
}

/* ---- carrying ---- */

static bool count(struct web *web, uint64_t sent, uint64_t received)
{
	struct terms *terms;

	if (!web->flow->tally) {
		web->early += sent;
		return true;
	}
	terms = proxy_terms(web->flow->proxy);
	bool more = tally_count(web->flow->proxy, web->flow->tally, terms->policy, sent + web->early, received);
	web->early = 0;
	terms_drop(terms);
	return more;
}

static size_t chunk_size(struct web *web)
{
	struct terms *terms = proxy_terms(web->flow->proxy);
	size_t size = tally_chunk(terms->policy, CHUNK);

	terms_drop(terms);
	return size;
}

static int read_guest(struct web *web)
{
	ssize_t got = stream_read(&web->guest, web->chunk, chunk_size(web));

	if (got == STREAM_BROKEN || (got > 0 && !count(web, (uint64_t)got, 0)))
		return -1;
	return got > 0 && web->state != CLOSING ? buf_append(&web->in, web->chunk, (size_t)got) : 0;
}

static int read_remote(struct web *web)
{
	ssize_t got = stream_read(&web->remote, web->chunk, chunk_size(web));

	if (got == STREAM_BROKEN || (got > 0 && !count(web, 0, (uint64_t)got)))
		return -1;
	if (got == 0)
		return end_answers(web);
	return got > 0 ? take_answer(web, web->chunk, (size_t)got) : 0;
}

static int flush(struct stream *stream, struct buf *pending)
{
	while (pending->size > 0) {
		ssize_t put = stream_write(stream, pending->data, pending->size);

		if (put == STREAM_WAIT)
			return 0;
		if (put < 0)
			return -1;
		buf_consume(pending, (size_t)put);
	}
	return 0;
}

static bool wants_guest(const struct web *web)
{
	return !web->guest.over && web->up.size < PENDING_MAX &&
	       (web->state == CLOSING || web->in.size < HTTP_HEAD_MAX + CHUNK);
}

static bool wants_remote(const struct web *web)
{
	return web->remote.fd >= 0 && !web->remote.over && !web->over && web->down.size < PENDING_MAX;
}

static bool is_done(const struct web *web)
{
	if (web->down.size || (web->state == HOLDING && !web->guest.over)) /* a held request needs no host */
		return false;
	return (web->state == CLOSING && !web->flow->permitted) || web->remote.over || web->over ||
	       (web->guest.over && web->remote.fd < 0);
}

/* Waits for either side. TLS may first have to do the opposite of the wanted operation (a key update). */
static int wait_sides(struct web *web)
{
	bool up = wants_guest(web), down = wants_remote(web);
	struct pollfd sides[2] = {
		{ .fd = web->guest.fd, .events = (short)((up ? POLLIN : 0) | (web->down.size ? POLLOUT : 0)) },
		{ .fd = web->remote.fd, .events = (short)((down ? POLLIN : 0) | (web->up.size ? POLLOUT : 0)) },
	};

	if (up && web->guest.ssl && web->guest.want == POLLOUT)
		sides[0].events |= POLLOUT;
	if (down && web->remote.ssl && web->remote.want == POLLOUT)
		sides[1].events |= POLLOUT;
	for (size_t i = 0; i < 2; i++)
		if (!sides[i].events)
			sides[i].fd = -1;
	int64_t left = web->state == HOLDING ? MAX(0, web->hold_until_ms - time_monotonic_ms()) : -1;
	if (poll(sides, 2, (int)left) < 0 && errno != EINTR)
		return -1;
	return 0;
}

/* Passes the guest's bytes to the host, as many as it accepts. */
static int push(struct web *web)
{
	do {
		if (take_input(web) < 0 || (web->remote.fd >= 0 && flush(&web->remote, &web->up) < 0))
			return -1;
	} while (web->blocked && web->up.size < PENDING_MAX);
	return 0;
}

static int turn(struct web *web)
{
	if ((wants_guest(web) && read_guest(web) < 0) || push(web) < 0)
		return -1;
	if ((wants_remote(web) && read_remote(web) < 0) || push(web) < 0 || flush(&web->guest, &web->down) < 0)
		return -1;
	if (web->guest.over && (web->state == BODY || web->state == HOLDING))
		return -1; /* the request was cut short */
	if (web->state == HOLDING && time_monotonic_ms() >= web->hold_until_ms) {
		struct hold_answer late = { .status = "408 Request Timeout",
					    .reason = "a request that is held arrives within two minutes" };

		return refuse_hold(web, web->flow->host, &late);
	}
	if (web->guest.over && web->up.size == 0 && !web->blocked && web->state != UPGRADING && web->remote.fd >= 0 &&
	    !web->finished) {
		web->finished = true;
		stream_finish(&web->remote);
	}
	return 0;
}

static int carry(struct web *web)
{
	for (;;) {
		if (turn(web) < 0)
			return -1;
		if (is_done(web))
			break;
		if (stream_pending(&web->guest) && wants_guest(web))
			continue;
		if (stream_pending(&web->remote) && wants_remote(web))
			continue;
		if (wait_sides(web) < 0)
			return -1;
	}
	stream_finish(&web->guest);
	flow_linger(web->flow);
	return 0;
}

static void web_free(struct web *web)
{
	stream_free(&web->guest);
	stream_free(&web->remote);
	mask_free(&web->mask);
	hold_free(web->hold);
	buf_free(&web->in);
	buf_free(&web->opening);
	buf_free(&web->up);
	buf_free(&web->down);
	buf_free(&web->answer);
	free(web);
}

static struct web *web_new(struct flow *flow)
{
	struct web *web = calloc(1, sizeof(*web));

	if (!web)
		return NULL;
	web->flow = flow;
	web->guest.fd = flow->guest;
	web->remote.fd = -1;
	return web;
}

void web_run(struct flow *flow)
{
	struct web *web = web_new(flow);

	if (!web || carry(web) < 0)
		flow->reset = true;
	if (web)
		web_free(web);
}

void web_run_tls(struct flow *flow, struct terms *terms, const char *name)
{
	struct web *web = web_new(flow);
	struct husk_error err = { 0 };
	char reason[FLOW_TEXT];

	snprintf(flow->host, sizeof(flow->host), "%s", name);
	if (!web || flow_connect(flow) < 0) {
		flow->reset = true;
		free(web);
		return;
	}
	flow->secret = true;
	web->only = name;
	web->terms = terms;
	web->remote.fd = flow->remote;
	/* The host first: its certificate must be valid before the guest gets an answer in its name. */
	if (mask_open(&web->mask, terms, name, flow->port) < 0 ||
	    stream_connect_tls(flow->proxy, terms, &web->remote, name, &err) < 0) {
		snprintf(reason, sizeof(reason), "%s: %.300s", name, err.message);
		flow_failed(flow, reason);
		flow->reset = false;
		flow_refuse_tls(flow);
	} else if (stream_accept_tls(&web->guest, terms->authority, name, &err) < 0) {
		snprintf(reason, sizeof(reason), "the sandbox did not accept its own authority: %.300s", err.message);
		flow_failed(flow, reason);
	} else if (!flow_permit(flow, name) || carry(web) < 0) {
		flow->reset = true;
	}
	web_free(web);
}
