/*
 * Framing and errors of the Connect protocol; see connect.h. Input is the client's: lengths are bounded before anything is
 * kept, and compressed frames, which were not negotiated, are refused.
 */
#include "server/dialects/e2b/connect.h"

#include <arpa/inet.h>

#include "server/core.h"
#include "server/dialects/e2b/e2b.h"

#define FRAME_HEAD 5
#define FLAG_COMPRESSED 1
#define FLAG_END 2
#define DEPTH_MAX 64

/* ---- errors ---- */

static const char *code_of(const struct husk_error *failure, unsigned status)
{
	static const char *const names[] = {
		[HUSK_INVALID] = "invalid_argument",
		[HUSK_NOT_FOUND] = "not_found",
		[HUSK_CONFLICT] = "failed_precondition",
		[HUSK_LIMIT] = "resource_exhausted",
		[HUSK_DENIED] = "permission_denied",
		[HUSK_TIMEOUT] = "deadline_exceeded",
		[HUSK_UNAVAILABLE] = "unavailable",
		[HUSK_GONE] = "unavailable",
		[HUSK_PROTOCOL] = "internal",
		[HUSK_INTERNAL] = "internal",
	};

	if (status == 401)
		return "unauthenticated";
	if (status == 409)
		return "already_exists";
	if (status == 501)
		return "unimplemented";
	if (status == 502)
		return "unavailable";
	return (size_t)failure->code < ARRAY_SIZE(names) && names[failure->code] ? names[failure->code] : "internal";
}

json_t *connect_error(const struct husk_error *failure, unsigned status)
{
	return json_pack("{s:s, s:o}", "code", code_of(failure, status), "message",
			 json_text(failure->message, strlen(failure->message)));
}

/* ---- in ---- */

static int read_exactly(struct request *request, void *bytes, size_t size, struct husk_error *err)
{
	for (size_t at = 0; at < size;) {
		ssize_t count = request_read(request, (char *)bytes + at, size - at);
		if (count < 0)
			return husk_fail(err, HUSK_GONE, "the client has gone");
		if (count == 0)
			return husk_fail(err, HUSK_INVALID, "the message is cut off");
		at += (size_t)count;
	}
	return 0;
}

/* NULL without an error: the client's stream has ended. */
static json_t *read_message(struct request *request, struct husk_error *err)
{
	unsigned char head[FRAME_HEAD];
	uint32_t size;

	ssize_t first = request_read(request, head, 1);
	if (first <= 0)
		return first < 0 ? husk_fail(err, HUSK_GONE, "the client has gone"), NULL : NULL;
	if (read_exactly(request, head + 1, sizeof(head) - 1, err) < 0)
		return NULL;
	memcpy(&size, head + 1, sizeof(size));
	size = ntohl(size);
	if (head[0] & FLAG_COMPRESSED)
		return husk_fail(err, HUSK_INVALID, "compressed messages are not understood; send them as they are"),
		       NULL;
	if (size > BODY_MAX)
		return husk_fail(err, HUSK_INVALID, "the message is larger than %u bytes", BODY_MAX), NULL;
	cleanup_free char *text = malloc(size + 1);
	if (!text)
		return husk_fail_memory(err), NULL;
	if (read_exactly(request, text, size, err) < 0)
		return NULL;
	json_t *message = str_json_deeper(text, size, DEPTH_MAX) ? NULL : json_loadb(text, size, 0, NULL);
	if (json_is_object(message))
		return message;
	json_decref(message);
	return husk_fail(err, HUSK_INVALID, "the message is not a JSON object"), NULL;
}

/* ---- out ---- */

static int begin(struct connect *connect, struct husk_error *err)
{
	if (connect->begun)
		return 0;
	connect->begun = true;
	return stream_begin(connect->request, 200, "application/connect+json", -1, err);
}

static int send_frame(struct connect *connect, unsigned char flags, json_t *message, struct husk_error *err)
{
	cleanup_json json_t *taken = message;
	size_t size = message ? json_dumpb(message, NULL, 0, JSON_COMPACT) : 0;
	cleanup_free unsigned char *frame = size ? malloc(FRAME_HEAD + size) : NULL;
	uint32_t length = htonl((uint32_t)size);

	if (!frame || json_dumpb(message, (char *)frame + FRAME_HEAD, size, JSON_COMPACT) != size)
		return husk_fail_memory(err);
	frame[0] = flags;
	memcpy(frame + 1, &length, sizeof(length));
	return begin(connect, err) < 0 ? -1 : stream_write(connect->request, frame, FRAME_HEAD + size, err);
}

int connect_send(struct connect *connect, json_t *message, struct husk_error *err)
{
	return send_frame(connect, 0, message, err);
}

int connect_next(struct connect *connect, json_t **message, struct husk_error *err)
{
	struct husk_error failure = { 0 };

	*message = read_message(connect->request, &failure);
	if (*message)
		return connect_check(connect, err) < 0 ? (json_decref(*message), -1) : 1;
	if (!failure.code)
		return 0;
	*err = failure;
	return -1;
}

int connect_patience(const struct connect *connect)
{
	if (!connect->deadline_ms)
		return connect->keepalive_ms;
	return (int)MAX(0, MIN(connect->deadline_ms - time_monotonic_ms(), connect->keepalive_ms));
}

int connect_check(const struct connect *connect, struct husk_error *err)
{
	if (!connect->deadline_ms || time_monotonic_ms() < connect->deadline_ms)
		return 0;
	return husk_fail(err, HUSK_TIMEOUT, "the time of the call is over");
}

int connect_serve(struct request *request, int (*run)(struct connect *connect, json_t *message, struct husk_error *err),
		  struct husk_error *err)
{
	struct connect connect = { .request = request, .keepalive_ms = CONNECT_KEEPALIVE_MS };
	const char *timeout = request_header(request, "Connect-Timeout-Ms");
	const char *keepalive = request_header(request, "Keepalive-Ping-Interval");
	struct husk_error failure = { 0 };
	int64_t seconds;

	if (timeout && str_to_int64(timeout, 1, INT32_MAX * INT64_C(1000), &connect.timeout_ms) == 0)
		connect.deadline_ms = time_monotonic_ms() + connect.timeout_ms;
	if (keepalive && str_to_int64(keepalive, 1, 3600, &seconds) == 0)
		connect.keepalive_ms = (int)seconds * 1000;
	cleanup_json json_t *message = read_message(request, &failure);
	if (!message && !failure.code)
		husk_fail(&failure, HUSK_INVALID, "the message is cut off");
	int result = message ? run(&connect, message, &failure) : -1;
	if (request_over(request)) {
		*err = failure;
		return result;
	}
	if (result < 0 && failure.code == HUSK_GONE)
		e2b_explain_end(request, &failure);
	json_t *end = result < 0 ? json_pack("{s:o}", "error", connect_error(&failure, request->fault.status))
				 : json_object();
	return send_frame(&connect, FLAG_END, end, err);
}
