/*
 * An HTTP request and what follows it, from a hostile guest: the head, then its body, in pieces whose size the input says.
 * However the body is cut, it must end at the same byte. A chunked body that is held is taken apart. The input is read as an
 * answer too.
 */
#include "net/leash_web.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Where the body ends; -1: malformed, -2: not within these bytes. */
static ssize_t body_end(const struct http_request *request, const char *text, size_t size, size_t piece)
{
	struct http_body body;
	size_t taken = 0;

	http_body_start(&body, request);
	while (!http_body_done(&body)) {
		if (taken == size)
			return -2;
		ssize_t got = http_body_feed(&body, text + taken, MIN(piece, size - taken));

		if (got < 0)
			return -1;
		taken += (size_t)got;
	}
	return (ssize_t)taken;
}

/* The same bytes as an answer. */
static void follow_answer(const char *text, size_t size, size_t piece)
{
	struct http_response response;
	struct http_body body;
	ssize_t head = http_response_parse(text, size, size % 2, &response), got = 0;

	if (head > (ssize_t)size)
		abort();
	if (head <= 0)
		return;
	http_body_start_answer(&body, &response);
	for (size_t at = (size_t)head; at < size && !http_body_done(&body) && got >= 0; at += (size_t)MAX(got, 0))
		got = http_body_feed(&body, text + at, MIN(piece, size - at));
}

/* A whole chunked body, as leash_hold.c keeps it. */
static void take_apart(const char *text, size_t size)
{
	cleanup_buf struct buf body = { 0 };

	if (buf_append(&body, text, size) == 0 && hold_unchunk(body.data, body.size) > size)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct http_request request;
	const char *why = NULL;

	if (size < 1)
		return 0;
	size_t piece = (data[0] & 15u) + 1u;
	const char *text = (const char *)data + 1;
	size--;
	http_looks(text, size);
	follow_answer(text, size, piece);
	ssize_t head = http_request_parse(text, size, &request, &why);
	if (head <= 0)
		return 0;
	if ((size_t)head > size || memcmp(text + head - 4, "\r\n\r\n", 4) != 0 || !*request.host)
		abort();
	ssize_t end = body_end(&request, text + head, size - (size_t)head, size + 1);
	if (body_end(&request, text + head, size - (size_t)head, piece) != end)
		abort();
	hold_changes(&request);
	if (end > 0 && request.framing == BODY_CHUNKED)
		take_apart(text + head, (size_t)end);
	return 0;
}
