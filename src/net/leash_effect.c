/*
 * Sends a held request: the supervisor hands it over (leash_parcel.h), a separate thread connects, sends it once, and
 * reports the result. The values of secrets are inserted here, as for any request of the guest. The policy in force
 * decides whether the host may be reached.
 *
 *     {"sent":KEY,"status":201}                          the host has answered
 *     {"sent":KEY,"failed":"why","maybe":false}          nothing has left; it can be sent later
 *     {"sent":KEY,"failed":"why","maybe":true}           the host may have got it: it must not be sent again
 *
 * The request comes from the guest. It is parsed again, by the parser of requests, before anything is done with it.
 */
#include <arpa/inet.h>
#include <jansson.h>
#include <openssl/crypto.h>
#include <poll.h>

#include "net/leash_parcel.h"
#include "net/leash_web.h"

#define ADDRESSES_MAX 8
#define WRITE_MS 60000
#define ANSWER_MS 60000
#define ANSWER_MAX (256u << 10) /* of the answer that is read to see its end */

struct effect {
	struct proxy *proxy;
	struct terms *terms;
	uint64_t key;
	json_t *head;
	struct buf data; /* header lines, an empty line, the body */
	struct buf text; /* what is parsed: the request line, Host, and the data */
	struct buf out;  /* what is sent; may hold values of secrets */
	struct flow *flow;
	struct stream stream;
	bool tls, begun; /* begun: the host may have got something */
	int status;
};

static const char *text_of(const struct effect *effect, const char *key)
{
	const char *value = json_string_value(json_object_get(effect->head, key));

	return value ? value : "";
}

/* ---- writing it ---- */

static int put_host(const struct effect *effect, struct buf *out)
{
	uint16_t port = effect->flow->port;

	if (port == (effect->tls ? 443 : 80))
		return buf_printf(out, "Host: %s\r\n", effect->flow->host);
	return buf_printf(out, "Host: %s:%u\r\n", effect->flow->host, port);
}

static int put_field(struct effect *effect, const struct http_field *field, struct buf *out)
{
	const char *host = effect->flow->host;
	uint16_t port = effect->flow->port;

	if (http_is(field->name, "host") || (effect->tls && secret_replaces(effect->terms, host, port, field)))
		return 0;
	int bad = buf_append(out, field->name.data, field->name.size) | buf_append_string(out, ": ");
	bad |= effect->tls ? secret_swap(effect->terms, host, port, field, out)
			   : buf_append(out, field->value.data, field->value.size);
	return bad | buf_append_string(out, "\r\n");
}

/* The bytes for the host, with its secrets. NULL, or why not. */
static const char *compose(struct effect *effect)
{
	struct http_request request;
	const char *why = NULL;
	int bad =
		buf_printf(&effect->text, "%s %s HTTP/1.1\r\n", text_of(effect, "method"), text_of(effect, "target")) |
		put_host(effect, &effect->text);
	size_t before = effect->text.size;

	bad |= buf_append(&effect->text, effect->data.data, effect->data.size);
	if (bad)
		return "out of memory";
	ssize_t head = http_request_parse(effect->text.data, effect->text.size, &request, &why);
	if (head <= 0 || request.framing != BODY_NONE || request.upgrade || (size_t)head < before)
		return why ? why : "what was held is not a request";
	bad |= buf_append(&effect->out, request.line.data, request.line.size) |
	       buf_append_string(&effect->out, "\r\n") | put_host(effect, &effect->out);
	for (size_t i = 0; i < request.field_count; i++)
		bad |= put_field(effect, &request.fields[i], &effect->out);
	if (effect->tls)
		bad |= secret_headers(effect->terms, effect->flow->host, effect->flow->port, &effect->out);
	size_t body = effect->text.size - (size_t)head;
	bad |= buf_printf(&effect->out, "Content-Length: %zu\r\nConnection: close\r\n\r\n", body) |
	       buf_append(&effect->out, effect->text.data + head, body);
	return bad ? "out of memory" : NULL;
}

/* ---- reaching the host ---- */

/* Tries the addresses of the host that the policy allows. */
static int reach(struct effect *effect, char *reason)
{
	struct flow *flow = effect->flow;
	uint32_t addresses[ADDRESSES_MAX], ttl;
	char rule[FLOW_TEXT];

	dns_learn(effect->proxy, effect->terms, flow->host);
	size_t count = book_addresses(&effect->proxy->book, flow->host, addresses, ADDRESSES_MAX, &ttl);
	snprintf(reason, FLOW_TEXT, "%s has no address, or is not allowed", flow->host);
	for (size_t i = 0; i < count; i++) {
		struct in_addr address = { htonl(addresses[i]) };

		flow->address = addresses[i];
		inet_ntop(AF_INET, &address, flow->address_text, sizeof(flow->address_text));
		flow->place = proxy_place(effect->proxy, flow->address);
		if (!flow_check(flow, effect->terms, flow->host, reason, rule))
			continue;
		if (flow_connect(flow) == 0)
			return 0;
		snprintf(reason, FLOW_TEXT, "cannot connect to %s (%s port %u)", flow->host, flow->address_text,
			 flow->port);
	}
	return -1;
}

static int open_stream(struct effect *effect, char *reason)
{
	struct husk_error err = { 0 };

	if (reach(effect, reason) < 0)
		return -1;
	effect->stream.fd = effect->flow->remote;
	if (effect->tls &&
	    stream_connect_tls(effect->proxy, effect->terms, &effect->stream, effect->flow->host, &err) < 0) {
		snprintf(reason, FLOW_TEXT, "%.200s: %.280s", effect->flow->host, err.message);
		return -1;
	}
	return 0;
}

/* ---- sending it ---- */

static int write_all(struct effect *effect)
{
	int64_t end = time_monotonic_ms() + WRITE_MS;

	for (size_t at = 0; at < effect->out.size;) {
		ssize_t put = stream_write(&effect->stream, effect->out.data + at, effect->out.size - at);

		if (put > 0) {
			effect->begun = true;
			at += (size_t)put;
			tally_count(effect->proxy, effect->flow->tally, effect->terms->policy, (uint64_t)put, 0);
		} else if (put != STREAM_WAIT ||
			   !flow_wait(effect->stream.fd, effect->stream.want, (int)MAX(0, end - time_monotonic_ms()))) {
			return -1;
		}
	}
	return 0;
}

/* Reads the answer to its end, as far as that comes soon. 0 once its status is known. */
static int read_answer(struct effect *effect)
{
	int64_t end = time_monotonic_ms() + ANSWER_MS;
	cleanup_buf struct buf answer = { 0 };
	struct http_response response;
	struct http_body body = { 0 };
	char chunk[4096];
	size_t total = 0;

	while (total < ANSWER_MAX && !(effect->status && http_body_done(&body))) {
		ssize_t got = stream_read(&effect->stream, chunk, sizeof(chunk));

		if (got == STREAM_WAIT &&
		    flow_wait(effect->stream.fd, effect->stream.want, (int)MAX(0, end - time_monotonic_ms())))
			continue;
		if (got <= 0)
			break;
		total += (size_t)got;
		tally_count(effect->proxy, effect->flow->tally, effect->terms->policy, 0, (uint64_t)got);
		if (effect->status) {
			if (http_body_feed(&body, chunk, (size_t)got) < 0)
				break;
			continue;
		}
		if (buf_append(&answer, chunk, (size_t)got) < 0)
			break;
		ssize_t head;
		while ((head = http_response_parse(answer.data, answer.size, false, &response)) > 0 &&
		       response.status / 100 == 1)
			buf_consume(&answer, (size_t)head);
		if (head < 0)
			break;
		if (head == 0)
			continue;
		effect->status = response.status;
		http_body_start_answer(&body, &response);
		if (http_body_feed(&body, answer.data + head, answer.size - (size_t)head) < 0)
			break;
	}
	return effect->status ? 0 : -1;
}

/* 0: the host has answered. */
static int send_once(struct effect *effect, char *reason)
{
	const char *why = compose(effect);

	if (why) {
		snprintf(reason, FLOW_TEXT, "%s", why);
		return -1;
	}
	if (open_stream(effect, reason) < 0)
		return -1;
	effect->flow->tally = tally_get(effect->proxy, effect->flow->host, effect->flow->port);
	report_event(effect->proxy, &(struct verdict){ "allowed", effect->tls ? "tls" : "http", effect->flow->host,
						       effect->flow->port, "", "" });
	const char *method = text_of(effect, "method"), *target = text_of(effect, "target");
	report_request(effect->proxy, &(struct request_report){ .method = method,
								.method_size = strlen(method),
								.scheme = effect->tls ? "https" : "http",
								.host = effect->flow->host,
								.port = effect->flow->port,
								.target = target,
								.target_size = strlen(target) });
	if (write_all(effect) < 0) {
		snprintf(reason, FLOW_TEXT, "the connection to %s broke while the request was being sent",
			 effect->flow->host);
		return -1;
	}
	if (read_answer(effect) < 0) {
		snprintf(reason, FLOW_TEXT, "%s got the request and did not answer", effect->flow->host);
		return -1;
	}
	return 0;
}

static void report(struct effect *effect, int result, const char *reason)
{
	json_t *root = result == 0 ? json_pack("{s:I,s:i}", "sent", (json_int_t)effect->key, "status", effect->status)
				   : json_pack("{s:I,s:s,s:b}", "sent", (json_int_t)effect->key, "failed", reason,
					       "maybe", effect->begun);
	cleanup_free char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;

	json_decref(root);
	if (text)
		report_send(effect->proxy, "%s", text);
}

/* ---- its thread ---- */

static void effect_free(struct effect *effect)
{
	if (effect->out.data)
		OPENSSL_cleanse(effect->out.data, effect->out.capacity);
	stream_free(&effect->stream);
	if (effect->flow) {
		tally_put(effect->proxy, effect->flow->tally);
		fd_close(&effect->flow->remote);
	}
	free(effect->flow);
	terms_drop(effect->terms);
	buf_free(&effect->out);
	buf_free(&effect->text);
	buf_free(&effect->data);
	json_decref(effect->head);
	free(effect);
}

static void *effect_run(void *argument)
{
	struct effect *effect = argument;
	char reason[FLOW_TEXT] = "out of memory";
	const char *host = text_of(effect, "host");
	int result = -1;

	effect->tls = str_equal(text_of(effect, "scheme"), "https");
	effect->terms = proxy_terms(effect->proxy);
	effect->flow = calloc(1, sizeof(*effect->flow));
	if (effect->flow) {
		*effect->flow = (struct flow){ .proxy = effect->proxy, .guest = -1, .remote = -1 };
		effect->flow->kind = effect->tls ? FLOW_TLS : FLOW_HTTP;
		effect->flow->port = (uint16_t)json_integer_value(json_object_get(effect->head, "port"));
		if (!effect->terms)
			snprintf(reason, sizeof(reason), "the leash has no policy yet");
		else if (policy_name_normalise(host, strlen(host), effect->flow->host) < 0)
			snprintf(reason, sizeof(reason), "its host is not a name");
		else
			result = send_once(effect, reason);
	}
	report(effect, result, reason);
	effect_free(effect);
	return NULL;
}

void effect_start(struct proxy *proxy, struct parcel *parcel)
{
	struct effect *effect = calloc(1, sizeof(*effect));

	if (!effect)
		return;
	*effect = (struct effect){
		.proxy = proxy, .key = parcel->key, .head = json_incref(parcel->head), .data = parcel->data
	};
	parcel->data = (struct buf){ 0 };
	effect->stream.fd = -1;
	if (proxy_thread(effect_run, effect) < 0) {
		report(effect, -1, "the leash has no thread for it");
		effect_free(effect);
	}
}
