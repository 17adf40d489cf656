/*
 * Held requests: a request that would change something at a host of the policy's "hold" is not sent. The leash collects it
 * to its end, hands it to the supervisor, which writes it down, and only then answers 202:
 *
 *     guest       POST /v1/orders to api.example.com, with a body
 *     leash       collects the body; hands the request over (leash_parcel.h)
 *     supervisor  adds it to the sandbox's effects, on disk (supervisor/holding.c), and answers with its number
 *     leash       202, {"held": true, "effect": 3, …}
 *
 * leash_web.c calls it on the thread of the connection, which may wait. Header lines are kept as the guest sent them, with
 * placeholders for secrets: no value of a secret is ever kept. Sizes are bounded for each request and for all that are
 * being collected.
 */
#include <jansson.h>

#include "base/thread.h"
#include "net/leash_parcel.h"
#include "net/leash_web.h"

#define COLLECTED_MAX (16u << 20) /* of all requests that are being collected */
#define STORE_MS 30000            /* to wait for the supervisor */
#define URL_TEXT 400

struct hold {
	struct proxy *proxy;
	bool chunked;
	char method[24];
	char *host, *target;
	const char *scheme;
	uint16_t port;
	struct buf lines; /* "Name: value\r\n", and the empty line */
	struct buf body;  /* as it was framed */
	size_t counted;   /* of `collected` in the proxy */
	/* Under the lock of the proxy's holds. */
	uint64_t key;
	bool answered;
	struct hold_answer answer;
	struct hold *next;
};

static int refuse(struct hold_answer *out, const char *status, const char *reason)
{
	*out = (struct hold_answer){ 0 };
	snprintf(out->status, sizeof(out->status), "%s", status);
	snprintf(out->reason, sizeof(out->reason), "%s", reason);
	return -1;
}

/* ---- which requests ---- */

/* Frameworks let a header say the method that is meant. Gateways (CGI, WSGI) read "X_HTTP_Method" as "X-HTTP-Method". */
static bool is_override(struct http_text name)
{
	static const char *const words[] = { "x-http-method-override", "x-http-method", "x-method-override" };
	char plain[32] = "";

	if (name.size >= sizeof(plain))
		return false;
	for (size_t i = 0; i < name.size; i++)
		plain[i] = name.data[i] == '_' ? '-' : name.data[i];
	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		if (strcasecmp(plain, words[i]) == 0)
			return true;
	return false;
}

bool hold_changes(const struct http_request *request)
{
	static const char *const safe[] = { "GET", "HEAD", "OPTIONS", "TRACE" };
	bool changes = true;

	for (size_t i = 0; i < ARRAY_SIZE(safe); i++)
		changes = changes && (request->method.size != strlen(safe[i]) ||
				      memcmp(request->method.data, safe[i], strlen(safe[i])) != 0);
	for (size_t i = 0; i < request->field_count; i++)
		changes = changes || is_override(request->fields[i].name);
	return changes;
}

/* ---- collecting ---- */

/* Lines about this connection and its framing, which are written anew when the request is sent. */
static bool is_kept(struct http_text name)
{
	static const char *const dropped[] = { "host",    "connection",     "proxy-connection",  "keep-alive",
					       "te",      "http2-settings", "upgrade",           "expect",
					       "trailer", "content-length", "transfer-encoding", "accept-encoding" };

	for (size_t i = 0; i < ARRAY_SIZE(dropped); i++)
		if (http_is(name, dropped[i]))
			return false;
	return true;
}

static int keep_lines(struct hold *hold, const struct http_request *request)
{
	int bad = 0;

	for (size_t i = 0; i < request->field_count; i++) {
		const struct http_field *field = &request->fields[i];

		if (is_kept(field->name))
			bad |= buf_append(&hold->lines, field->name.data, field->name.size) |
			       buf_append_string(&hold->lines, ": ") |
			       buf_append(&hold->lines, field->value.data, field->value.size) |
			       buf_append_string(&hold->lines, "\r\n");
	}
	return bad | buf_append_string(&hold->lines, "\r\n");
}

/* True if there is room for `size` bytes more. */
static bool count(struct hold *hold, size_t size)
{
	hold->counted += size;
	return atomic_fetch_add(&hold->proxy->collected, size) + size <= COLLECTED_MAX;
}

void hold_free(struct hold *hold)
{
	if (!hold)
		return;
	atomic_fetch_sub(&hold->proxy->collected, hold->counted);
	buf_free(&hold->lines);
	buf_free(&hold->body);
	free(hold->host);
	free(hold->target);
	free(hold);
}

static int fill(struct hold *hold, const struct http_request *request)
{
	snprintf(hold->method, sizeof(hold->method), "%.*s", (int)MIN(request->method.size, sizeof(hold->method) - 1),
		 request->method.data);
	hold->host = strdup(request->host);
	hold->target = request->path.data[0] == '/' ? strndup(request->path.data, request->path.size) : NULL;
	return hold->host ? keep_lines(hold, request) : -1;
}

struct hold *hold_open(struct proxy *proxy, const struct http_request *request, bool tls, uint16_t port,
		       struct hold_answer *refusal)
{
	if (request->framing == BODY_LENGTH && request->length > PARCEL_BODY_MAX) {
		refuse(refusal, "413 Content Too Large",
		       "requests to this host are held, and a held request has a body of at most 1 MiB");
		return NULL;
	}
	if (request->path.size > PARCEL_TARGET_MAX) {
		refuse(refusal, "414 URI Too Long",
		       "requests to this host are held, and a held request has a path of at most 8 KiB");
		return NULL;
	}
	if (request->method.size >= sizeof(((struct hold *)0)->method)) {
		refuse(refusal, "501 Not Implemented", "its method is too long to be held");
		return NULL;
	}
	struct hold *hold = calloc(1, sizeof(*hold));
	if (!hold) {
		refuse(refusal, "503 Service Unavailable", "out of memory");
		return NULL;
	}
	hold->proxy = proxy;
	hold->chunked = request->framing == BODY_CHUNKED;
	hold->scheme = tls ? "https" : "http";
	hold->port = port;
	if (fill(hold, request) != 0 || !count(hold, hold->lines.size))
		refuse(refusal, "503 Service Unavailable", "too many requests are being held at one time; try again");
	else if (!hold->target || !str_is_utf8(hold->target, strlen(hold->target)))
		refuse(refusal, "400 Bad Request", "a request that is held names a path, in UTF-8");
	else
		return hold;
	hold_free(hold);
	return NULL;
}

int hold_add(struct hold *hold, const char *data, size_t size, struct hold_answer *refusal)
{
	if (hold->body.size + size > PARCEL_BODY_MAX)
		return refuse(refusal, "413 Content Too Large",
			      "requests to this host are held, and a held request has a body of at most 1 MiB");
	if (!count(hold, size) || buf_append(&hold->body, data, size) < 0)
		return refuse(refusal, "503 Service Unavailable",
			      "too many requests are being held at one time; try again");
	return 0;
}

/* ---- handing over ---- */

/* "5\r\nhello\r\n0\r\n\r\n" into "hello", in place. The framing was checked while it arrived. */
size_t hold_unchunk(char *data, size_t size)
{
	size_t out = 0, at = 0;

	while (at < size) {
		char *end;
		size_t length = strtoul(data + at, &end, 16);

		at = (size_t)(end - data) + 2;
		if (length == 0 || at > size || length > size - at)
			break;
		memmove(data + out, data + at, length);
		out += length;
		at += length + 2;
	}
	return out;
}

static json_t *describe(const struct hold *hold)
{
	return json_pack("{s:s,s:s,s:s,s:i,s:s}", "method", hold->method, "scheme", hold->scheme, "host", hold->host,
			 "port", hold->port, "target", hold->target);
}

static void enlist(struct hold *hold)
{
	struct holds *holds = &hold->proxy->holds;

	pthread_mutex_lock(&holds->lock);
	hold->key = ++holds->last;
	hold->next = holds->first;
	holds->first = hold;
	pthread_mutex_unlock(&holds->lock);
}

static void delist(struct hold *hold)
{
	struct holds *holds = &hold->proxy->holds;

	pthread_mutex_lock(&holds->lock);
	for (struct hold **at = &holds->first; *at; at = &(*at)->next)
		if (*at == hold) {
			*at = hold->next;
			break;
		}
	pthread_mutex_unlock(&holds->lock);
}

static int await_answer(struct hold *hold)
{
	struct holds *holds = &hold->proxy->holds;
	int64_t end = time_monotonic_ms() + STORE_MS;
	int late = 0;

	pthread_mutex_lock(&holds->lock);
	while (!hold->answered && late != ETIMEDOUT)
		late = cond_wait_until(&holds->changed, &holds->lock, end);
	bool answered = hold->answered;
	pthread_mutex_unlock(&holds->lock);
	return answered ? 0 : -1;
}

/* One at a time (leash_parcel.h). */
static int send_request(struct hold *hold)
{
	struct holds *holds = &hold->proxy->holds;
	json_t *head = describe(hold);

	pthread_mutex_lock(&holds->sending);
	int result =
		head ? parcel_send(hold->proxy->control, "hold", head, hold->key, hold->lines.data, hold->lines.size)
		     : -1;
	pthread_mutex_unlock(&holds->sending);
	json_decref(head);
	return result;
}

void hold_store(struct hold *hold, struct hold_answer *out)
{
	if (hold->chunked)
		hold->body.size = hold_unchunk(hold->body.data, hold->body.size);
	if (buf_append(&hold->lines, hold->body.size ? hold->body.data : "", hold->body.size) < 0) {
		refuse(out, "503 Service Unavailable", "out of memory");
		return;
	}
	enlist(hold);
	if (send_request(hold) < 0)
		refuse(out, "503 Service Unavailable", "the request could not be held; try again");
	else if (await_answer(hold) < 0)
		refuse(out, "503 Service Unavailable",
		       "it is not known whether the request is held; look at husk effects before you try again");
	else
		*out = hold->answer;
	delist(hold);
}

/* {"held":KEY,"effect":N} or {"held":KEY,"status":"507 …","reason":"…"} */
void hold_answered(struct proxy *proxy, const json_t *message)
{
	uint64_t key = (uint64_t)json_integer_value(json_object_get(message, "held"));
	const char *status = json_string_value(json_object_get(message, "status"));
	const char *reason = json_string_value(json_object_get(message, "reason"));

	pthread_mutex_lock(&proxy->holds.lock);
	for (struct hold *hold = proxy->holds.first; hold; hold = hold->next) {
		if (hold->key != key)
			continue;
		if (status)
			refuse(&hold->answer, status, reason ? reason : "the request could not be held");
		hold->answer.effect = (uint64_t)json_integer_value(json_object_get(message, "effect"));
		hold->answered = true;
	}
	pthread_cond_broadcast(&proxy->holds.changed);
	pthread_mutex_unlock(&proxy->holds.lock);
}

/* ---- the answer to the guest ---- */

int hold_respond(const struct hold *hold, const struct hold_answer *answer, struct buf *out)
{
	bool usual = hold->port == (str_equal(hold->scheme, "https") ? 443 : 80);
	char port[8] = "", url[URL_TEXT], message[512];

	if (!usual)
		snprintf(port, sizeof(port), ":%u", hold->port);
	snprintf(url, sizeof(url), "%s://%s%s%s", hold->scheme, hold->host, port, hold->target);
	snprintf(
		message, sizeof(message),
		"This request has not been sent. It is held as effect %llu, and is sent when the owner of this sandbox "
		"sends it (husk effects SANDBOX send %llu) or promotes this sandbox. Do not repeat it.",
		(unsigned long long)answer->effect, (unsigned long long)answer->effect);
	json_t *root = json_pack("{s:b,s:I,s:s,s:s%,s:s}", "held", 1, "effect", (json_int_t)answer->effect, "method",
				 hold->method, "url", url, str_is_utf8(url, strlen(url)) ? strlen(url) : (size_t)0,
				 "message", message);
	cleanup_free char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
	json_decref(root);
	if (!text)
		return -1;
	return buf_printf(out,
			  "HTTP/1.1 202 Accepted\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
			  "X-Husk-Effect: %llu\r\nConnection: close\r\n\r\n%s\n",
			  strlen(text) + 1, (unsigned long long)answer->effect, text);
}
