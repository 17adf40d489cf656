/*
 * One request to a server, and its answer: HTTP/1.1 on a connection of its own. The answer's bytes are not trusted:
 * heads and chunks are parsed by base/http1.c, documents are bounded in size and depth, and a missing field or one of
 * the wrong type is a failure. An error document becomes the husk_error that the local call would return.
 */
#include "remote/remote_http.h"

#include <ctype.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/log.h"

#define PIECE (64u << 10)
#define DEPTH_MAX 64
#define ERROR_MAX (64u << 10)
#define STOP_MS 200

/* ---- targets ---- */

static int put_escaped(struct buf *out, const char *text)
{
	int bad = 0;

	for (const unsigned char *c = (const unsigned char *)(text ? text : ""); *c && !bad; c++)
		bad = isalnum(*c) || strchr("-_.~", *c) ? buf_append(out, c, 1) : buf_printf(out, "%%%02X", *c);
	return bad;
}

char *target_make(const char *format, ...)
{
	cleanup_buf struct buf out = { 0 };
	va_list arguments;
	int bad = 0;

	va_start(arguments, format);
	for (const char *c = format; *c && !bad; c++) {
		if (*c != '%')
			bad = buf_append(&out, c, 1);
		else if (*++c == 's')
			bad = put_escaped(&out, va_arg(arguments, const char *));
		else
			bad = buf_printf(&out, "%lld", (long long)va_arg(arguments, int64_t));
	}
	va_end(arguments);
	return bad ? NULL : buf_steal(&out);
}

char *target_add(char *target, const char *name, const char *value)
{
	cleanup_buf struct buf out = { 0 };
	cleanup_free char *taken = target;

	if (!taken || !value)
		return steal_pointer(taken);
	if (buf_printf(&out, "%s%c", taken, strchr(taken, '?') ? '&' : '?') < 0 || put_escaped(&out, name) < 0 ||
	    buf_append(&out, "=", 1) < 0 || put_escaped(&out, value) < 0)
		return NULL;
	return buf_steal(&out);
}

char *target_add_int(char *target, const char *name, int64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%lld", (long long)value);
	return target_add(target, name, text);
}

/* ---- sending ---- */

int http_lost(const struct remote *remote, struct husk_error *err)
{
	return husk_fail(
		err, HUSK_GONE,
		"the connection to %s was lost; look at what came of it, and try again once the server answers",
		remote->url);
}

int http_send(struct remote *remote, int fd, const char *bytes, size_t size, struct husk_error *err)
{
	while (size > 0) {
		ssize_t count = send(fd, bytes, size, MSG_NOSIGNAL);
		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0)
			return http_lost(remote, err);
		bytes += count;
		size -= (size_t)count;
	}
	return 0;
}

int http_put_head(struct remote *remote, struct buf *out, const char *method, const char *target)
{
	const char *request = log_request_id();
	int bad = buf_printf(out, "%s %s HTTP/1.1\r\nUser-Agent: husk/" HUSK_VERSION "\r\n", method, target);

	if (remote->path)
		bad |= buf_append_string(out, "Host: husk\r\n");
	else if (strchr(remote->host, ':'))
		bad |= buf_printf(out, "Host: [%s]:%s\r\n", remote->host, remote->port);
	else
		bad |= buf_printf(out, "Host: %s:%s\r\n", remote->host, remote->port);
	if (remote->token)
		bad |= buf_printf(out, "Authorization: Bearer %s\r\n", remote->token);
	if (request)
		bad |= buf_printf(out, "X-Request-Id: %s\r\n", request);
	return bad;
}

/* Sends the head, and the body if it is a document. */
static int send_request(struct remote *remote, int fd, const struct exchange *x, struct husk_error *err)
{
	cleanup_wipe char *text = x->body ? json_dumps(x->body, JSON_COMPACT) : NULL;
	cleanup_buf struct buf out = { 0 };

	if (x->body && !text)
		return husk_fail_memory(err);
	int bad = http_put_head(remote, &out, x->method, x->target);
	bad |= buf_append_string(&out, "Connection: close\r\n");
	if (x->idempotency_key)
		bad |= buf_printf(&out, "Idempotency-Key: %s\r\n", x->idempotency_key);
	if (x->no_build)
		bad |= buf_printf(&out, "Husk-Build: never\r\n");
	if (text)
		bad |= buf_printf(&out, "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(text),
				  text);
	else if (x->source)
		bad |= buf_printf(&out, "Content-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n", x->type);
	else
		bad |= buf_append_string(&out, str_equal(x->method, "GET") ? "\r\n" : "Content-Length: 0\r\n\r\n");
	int result = bad ? husk_fail_memory(err) : http_send(remote, fd, out.data, out.size, err);
	if (out.data)
		explicit_bzero(out.data, out.size); /* the token, and values of secrets */
	return result;
}

/* Returns 1 if the server reads no more; it may have answered why. */
static int send_source(struct remote *remote, int fd, const struct exchange *x, struct husk_error *err)
{
	cleanup_free char *piece = malloc(PIECE + 32);
	ssize_t size;

	if (!piece)
		return husk_fail_memory(err);
	do {
		size = x->source(x->source_data, piece + 16, PIECE);
		if (size < 0)
			return husk_fail(err, HUSK_GONE, "the content broke off; nothing was changed");
		char head[17];
		int length = snprintf(head, sizeof(head), "%zx\r\n", (size_t)size);
		char *start = piece + 16 - length;
		memcpy(start, head, (size_t)length);
		piece[16 + size] = '\r';
		piece[17 + size] = '\n';
		if (http_send(remote, fd, start, (size_t)(length + size + 2), NULL) < 0)
			return 1;
	} while (size > 0);
	return 0;
}

/* ---- receiving ---- */

/* Until there is something to read, if the exchange can be stopped; `x` may be NULL. */
static int wait_or_stop(int fd, const struct exchange *x, struct husk_error *err)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };

	while (x && x->stop && poll(&wait, 1, STOP_MS) <= 0)
		if (x->stop(x->stop_data))
			return husk_fail(err, HUSK_GONE, "interrupted");
	return 0;
}

/* Receives bytes at the end of `in`. Returns how many, 0 at the end of the stream. */
static ssize_t receive(struct remote *remote, int fd, const struct exchange *x, struct buf *in, struct husk_error *err)
{
	ssize_t count;

	if (buf_reserve(in, PIECE) < 0)
		return husk_fail_memory(err);
	if (wait_or_stop(fd, x, err) < 0)
		return -1;
	do
		count = recv(fd, in->data + in->size, PIECE, 0);
	while (count < 0 && errno == EINTR);
	if (count < 0)
		return http_lost(remote, err);
	in->size += (size_t)count;
	return count;
}

/* Reads the head. `in` keeps the bytes after it. Answers 1xx except 101 are skipped. */
static int read_head(struct remote *remote, int fd, const struct exchange *x, struct buf *in, struct http1_head *head,
		     struct husk_error *err)
{
	for (;;) {
		ssize_t used = in->size ? http1_head_parse(in->data, in->size, head, err) : 0;
		if (used < 0)
			return husk_wrap(err, "%s", remote->url);
		if (used > 0) {
			buf_consume(in, (size_t)used);
			if (head->status >= 200 || head->status == 101)
				return 0;
			http1_head_free(head);
			continue;
		}
		ssize_t count = receive(remote, fd, x, in, err);
		if (count <= 0 && !in->size && remote->host && !remote->tls)
			return husk_fail(err, HUSK_GONE,
					 "%s hung up without an answer; if the server has TLS, use https:// instead",
					 remote->url);
		if (count <= 0)
			return count < 0 ? -1 : http_lost(remote, err);
	}
}

/* Passes the answer's body on, piece by piece. */
static int read_body(struct remote *remote, int fd, const struct exchange *x, struct buf *in,
		     const struct http1_head *head, husk_sink sink, void *data, struct husk_error *err)
{
	struct http1_chunks chunks = { 0 };
	int64_t left = head->length;
	int done = head->status == 204 || left == 0;

	while (!done) {
		size_t size = left >= 0 ? (size_t)MIN((uint64_t)in->size, (uint64_t)left) : in->size;
		if (head->chunked && (done = http1_chunks_decode(&chunks, in->data, &size, err)) < 0)
			return husk_wrap(err, "%s", remote->url);
		if (size && sink(data, in->data, size) != 0)
			return husk_fail(err, HUSK_GONE, "the answer of %s was not taken to its end", remote->url);
		left -= left >= 0 ? (int64_t)size : 0;
		in->size = 0;
		if (done || left == 0)
			break;
		ssize_t count = receive(remote, fd, x, in, err);
		if (count < 0)
			return -1;
		if (count == 0 && (head->chunked || left > 0))
			return http_lost(remote, err);
		done = count == 0;
	}
	return 0;
}

struct gathering {
	struct buf bytes;
	size_t limit;
};

static int gather(void *data, const void *bytes, size_t size)
{
	struct gathering *gathering = data;

	return size > gathering->limit - gathering->bytes.size || buf_append(&gathering->bytes, bytes, size) < 0;
}

static json_t *parse_document(const struct buf *bytes)
{
	if (!bytes->size || str_json_deeper(bytes->data, bytes->size, DEPTH_MAX))
		return NULL;
	return json_loadb(bytes->data, bytes->size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
}

/* ---- errors ---- */

enum husk_code http_code(const json_t *error, unsigned status)
{
	const char *name = json_string_value(json_object_get(error, "code"));
	static const struct {
		const char *name;
		enum husk_code code;
	} known[] = {
		{ "invalid", HUSK_INVALID },         { "unauthorized", HUSK_DENIED }, { "forbidden", HUSK_DENIED },
		{ "not_found", HUSK_NOT_FOUND },     { "conflict", HUSK_CONFLICT },   { "gone", HUSK_GONE },
		{ "too_large", HUSK_INVALID },       { "limit", HUSK_LIMIT },         { "protocol", HUSK_PROTOCOL },
		{ "unavailable", HUSK_UNAVAILABLE }, { "timeout", HUSK_TIMEOUT },     { "internal", HUSK_INTERNAL },
	};

	for (size_t i = 0; i < ARRAY_SIZE(known); i++)
		if (str_equal(name, known[i].name))
			return known[i].code;
	return status == 401 || status == 403 ? HUSK_DENIED : HUSK_UNAVAILABLE;
}

/* NULL: the server is not huskd. */
static const char *server_version(const struct http1_head *head)
{
	return http1_head_find(head, "X-Husk-Version");
}

/* If the server does not know a path or a field, its version probably differs: adds that to the error. */
static void add_version(const struct http1_head *head, const char *message, struct husk_error *err)
{
	const char *version = server_version(head);
	bool unknown = strstr(message, "nothing at this path") || strstr(message, "unknown field") ||
		       strstr(message, "unknown parameter") || head->status == 405;

	if (!err || !unknown || !version || str_equal(version, HUSK_VERSION))
		return;
	size_t used = strlen(err->message);
	snprintf(err->message + used, sizeof(err->message) - used,
		 " (the server is version %.40s, this is " HUSK_VERSION "; install the same version on both)", version);
	err->code = HUSK_UNAVAILABLE;
}

static int fail_document(const struct remote *remote, const struct http1_head *head, const json_t *document,
			 struct husk_error *err)
{
	const json_t *error = json_object_get(document, "error");
	const char *message = json_string_value(json_object_get(error, "message"));
	const char *hint = json_string_value(json_object_get(error, "hint"));
	const char *field = json_string_value(json_object_get(error, "field"));

	if (!message && server_version(head))
		return husk_fail(err, HUSK_PROTOCOL, "%s answered with status %u and no reason", remote->url,
				 head->status);
	if (!message)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "%s answers with status %u and is not a Husk server; check --host and HUSK_HOST",
				 remote->url, head->status);
	if (head->status == 401 && !remote->token && !remote->path)
		return husk_fail(err, HUSK_DENIED,
				 "%s wants a token; make one there with 'husk token create NAME', and set HUSK_TOKEN",
				 remote->url);
	husk_fail(err, http_code(error, head->status), "%s%s%s", message, hint ? "; " : "", hint ? hint : "");
	if (err && field)
		snprintf(err->field, sizeof(err->field), "%s", field);
	add_version(head, message, err);
	return -1;
}

int http_fail(struct remote *remote, int fd, struct buf *in, const struct http1_head *head, struct husk_error *err)
{
	struct gathering text = { .limit = ERROR_MAX };

	read_body(remote, fd, NULL, in, head, gather, &text, NULL);
	cleanup_json json_t *document = parse_document(&text.bytes);
	buf_free(&text.bytes);
	return fail_document(remote, head, document, err);
}

/* ---- the exchange ---- */

static int take_answer(struct remote *remote, int fd, struct exchange *x, json_t **out, struct husk_error *err)
{
	cleanup_buf struct buf in = { 0 };
	struct gathering text = { .limit = ANSWER_MAX };
	struct http1_head head = { 0 };

	if (read_head(remote, fd, x, &in, &head, err) < 0)
		return -1;
	int result = 0;
	const char *value = x->wanted_header ? http1_head_find(&head, x->wanted_header) : NULL;
	if (head.status >= 300 || head.status < 200)
		result = http_fail(remote, fd, &in, &head, err);
	else if (value && !(x->header = strdup(value)))
		result = husk_fail_memory(err);
	else
		result = read_body(remote, fd, x, &in, &head, x->sink ? x->sink : gather,
				   x->sink ? x->sink_data : &text, err);
	if (result == 0 && out && !(*out = parse_document(&text.bytes)))
		result = husk_fail(err, HUSK_PROTOCOL, "the answer of %s is not JSON; is it a Husk server?",
				   remote->url);
	buf_free(&text.bytes);
	http1_head_free(&head);
	return result;
}

static int run(struct remote *remote, struct exchange *x, json_t **out, struct husk_error *err)
{
	if (!x->target)
		return husk_fail_memory(err);
	cleanup_close int fd = remote_connect(remote, err);
	if (fd < 0 || send_request(remote, fd, x, err) < 0)
		return -1;
	int sent = x->source ? send_source(remote, fd, x, err) : 0;
	return sent < 0 ? -1 : take_answer(remote, fd, x, out, err);
}

int exchange_run(struct remote *remote, struct exchange *x, json_t **out, struct husk_error *err)
{
	int result = run(remote, x, out, err);

	free(x->target);
	json_decref(x->body);
	x->target = NULL;
	x->body = NULL;
	return result;
}

int exchange_get(struct remote *remote, char *target, json_t **out, struct husk_error *err)
{
	struct exchange x = { .method = "GET", .target = target };

	return exchange_run(remote, &x, out, err);
}
