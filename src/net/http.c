/*
 * The HTTP/1 request parser of the leash. It is strict on purpose: line ends are CRLF, one Host, one way to say how long
 * the body is. A request that a server might split elsewhere than we do would let a second one through unseen.
 */
#include "net/http.h"

#include <ctype.h>
#include <strings.h>

#define METHOD_MAX 20

static bool is_token(unsigned char c)
{
	return isalnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

bool http_is(struct http_text text, const char *word)
{
	return text.size == strlen(word) && strncasecmp(text.data, word, text.size) == 0;
}

int http_looks(const char *data, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		if (data[i] == ' ')
			return i > 0 ? 1 : -1;
		if (i >= METHOD_MAX || !isupper((unsigned char)data[i]))
			return -1;
	}
	return 0;
}

/* ---- the head, line by line ---- */

/* The size of the head with the empty line that ends it; 0: not whole yet. -1: it is too long, or holds what must not be. */
static ssize_t head_size(const char *data, size_t size, const char **why)
{
	for (size_t i = 0; i < MIN(size, HTTP_HEAD_MAX); i++) {
		unsigned char c = (unsigned char)data[i];

		if (c == '\n' && (i == 0 || data[i - 1] != '\r'))
			*why = "a line of the head ends without a carriage return";
		else if (c == '\r' ? i + 1 < size && data[i + 1] != '\n'
				   : (c < 0x20 && c != '\t' && c != '\n') || c == 0x7f)
			*why = "the head holds a control character";
		else if (c == '\n' && i >= 3 && data[i - 2] == '\n')
			return (ssize_t)i + 1;
		else
			continue;
		return -1;
	}
	if (size < HTTP_HEAD_MAX)
		return 0;
	*why = "the head is too long";
	return -1;
}

static struct http_text take_line(const char **at)
{
	const char *end = strchr(*at, '\r'); /* head_size has seen that there is one */
	struct http_text line = { *at, (size_t)(end - *at) };

	*at = end + 2;
	return line;
}

static struct http_text trim(struct http_text text)
{
	while (text.size && (text.data[0] == ' ' || text.data[0] == '\t')) {
		text.data++;
		text.size--;
	}
	while (text.size && (text.data[text.size - 1] == ' ' || text.data[text.size - 1] == '\t'))
		text.size--;
	return text;
}

static const char *parse_field(struct http_text line, struct http_request *out)
{
	const char *colon = memchr(line.data, ':', line.size);
	struct http_field *field = &out->fields[out->field_count];

	if (!colon || colon == line.data)
		return "a header line has no name";
	for (const char *c = line.data; c < colon; c++)
		if (!is_token((unsigned char)*c))
			return "a header's name holds a character that does not belong there";
	if (out->field_count == HTTP_FIELDS_MAX)
		return "there are too many headers";
	field->name = (struct http_text){ line.data, (size_t)(colon - line.data) };
	field->value = trim((struct http_text){ colon + 1, line.size - field->name.size - 1 });
	out->field_count++;
	return NULL;
}

/* ---- what the headers say ---- */

/* "example.com:8080" into a name and a port. */
static const char *parse_authority(struct http_text text, char *host, uint16_t *port)
{
	const char *colon = memchr(text.data, ':', text.size);
	size_t size = colon ? (size_t)(colon - text.data) : text.size;
	char digits[8] = "";
	int64_t number;

	*port = 0;
	if (colon) {
		size_t rest = text.size - size - 1;

		if (rest == 0 || rest >= sizeof(digits))
			return "the port in its Host header is not a number";
		memcpy(digits, colon + 1, rest);
		if (str_to_int64(digits, 1, 65535, &number) < 0)
			return "the port in its Host header is not a number";
		*port = (uint16_t)number;
	}
	return policy_name_normalise(text.data, size, host) < 0 ? "its Host header is no host name" : NULL;
}

static const char *parse_length(struct http_text value, uint64_t *out)
{
	char digits[20] = "";
	int64_t number;

	if (value.size == 0 || value.size >= sizeof(digits))
		return "its Content-Length is not a number";
	memcpy(digits, value.data, value.size);
	if (!isdigit((unsigned char)digits[0]) || str_to_int64(digits, 0, INT64_MAX, &number) < 0)
		return "its Content-Length is not a number";
	*out = (uint64_t)number;
	return NULL;
}

/* The headers that decide where it goes and where it ends. */
static const char *read_fields(struct http_request *out)
{
	const char *why = NULL;
	bool hosted = false, sized = false, chunked = false;

	for (size_t i = 0; i < out->field_count && !why; i++) {
		const struct http_field *field = &out->fields[i];

		if (http_is(field->name, "host")) {
			why = hosted ? "it has two Host headers" : parse_authority(field->value, out->host, &out->port);
			hosted = true;
		} else if (http_is(field->name, "content-length")) {
			why = sized ? "it has two Content-Length headers" : parse_length(field->value, &out->length);
			sized = true;
		} else if (http_is(field->name, "transfer-encoding")) {
			if (chunked || !http_is(field->value, "chunked"))
				why = "its Transfer-Encoding is not plain chunked";
			chunked = true;
		} else if (http_is(field->name, "upgrade")) {
			out->upgrade = true;
		}
	}
	if (why)
		return why;
	if (!hosted)
		return "it has no Host header";
	if (sized && chunked)
		return "it says twice how long its body is";
	out->framing = chunked ? BODY_CHUNKED : sized && out->length ? BODY_LENGTH : BODY_NONE;
	return NULL;
}

/* "GET /path HTTP/1.1". A full URL must name the same host as the Host header: which of them a server obeys differs. */
static const char *read_line(const struct http_request *request)
{
	const struct http_text line = request->line;
	const char *first = memchr(line.data, ' ', line.size), *end = line.data + line.size;
	const char *last = memrchr(line.data, ' ', line.size);
	char host[POLICY_NAME_MAX + 1];
	uint16_t port;

	if (!first || last == first || end - last != 9 || memcmp(last + 1, "HTTP/1.", 7) != 0 ||
	    (end[-1] != '0' && end[-1] != '1'))
		return "its first line is not one of HTTP/1";
	struct http_text method = { line.data, (size_t)(first - line.data) };
	struct http_text target = { first + 1, (size_t)(last - first - 1) };
	if (http_is(method, "CONNECT"))
		return "CONNECT asks for a tunnel";
	if (target.size == 0 || memchr(target.data, ' ', target.size) || memchr(target.data, '\t', target.size))
		return "its target holds a blank";
	if (target.data[0] == '/' || (target.size == 1 && target.data[0] == '*'))
		return NULL;
	if (target.size < 8 || strncasecmp(target.data, "http://", 7) != 0)
		return "its target is neither a path nor an http url";
	struct http_text authority = { target.data + 7, 0 };
	while (authority.size < target.size - 7 && !strchr("/?#", authority.data[authority.size]))
		authority.size++;
	if (parse_authority(authority, host, &port) || strcmp(host, request->host) != 0 || port != request->port)
		return "its url and its Host header name two hosts";
	return NULL;
}

ssize_t http_request_parse(const char *data, size_t size, struct http_request *out, const char **why)
{
	ssize_t head = head_size(data, size, why);

	if (head <= 0)
		return head;
	memset(out, 0, sizeof(*out));
	const char *at = data, *end = data + head - 2;
	out->line = take_line(&at);
	*why = NULL;
	while (at < end && !*why) {
		struct http_text line = take_line(&at);

		if (line.data[0] == ' ' || line.data[0] == '\t')
			*why = "a header goes on in a second line";
		else
			*why = parse_field(line, out);
	}
	if (!*why)
		*why = read_fields(out);
	if (!*why)
		*why = read_line(out);
	return *why ? -1 : head;
}

ssize_t http_response_parse(const char *data, size_t size, int *status)
{
	const char *end = memmem(data, size, "\r\n\r\n", 4);

	if (size >= 7 && memcmp(data, "HTTP/1.", 7) != 0)
		return -1;
	if (!end)
		return size < HTTP_HEAD_MAX ? 0 : -1;
	if (end - data < 12 || data[8] != ' ' || !isdigit((unsigned char)data[9]) ||
	    !isdigit((unsigned char)data[10]) || !isdigit((unsigned char)data[11]))
		return -1;
	*status = (data[9] - '0') * 100 + (data[10] - '0') * 10 + (data[11] - '0');
	return end - data + 4;
}

/* ---- bodies ---- */

void http_body_start(struct http_body *body, const struct http_request *request)
{
	*body = (struct http_body){ .framing = request->framing, .left = request->length, .state = CHUNK_SIZE };
}

bool http_body_done(const struct http_body *body)
{
	return body->framing == BODY_NONE || (body->framing == BODY_LENGTH && body->left == 0) ||
	       (body->framing == BODY_CHUNKED && body->state == CHUNK_DONE);
}

/* "1a3f" or "1a3f;extension". */
static int read_chunk_size(struct http_body *body)
{
	uint64_t size = 0;
	size_t digits = 0;

	for (; digits < body->line_size && isxdigit((unsigned char)body->line[digits]); digits++) {
		int c = tolower((unsigned char)body->line[digits]);

		size = size << 4 | (uint64_t)(isdigit(c) ? c - '0' : c - 'a' + 10);
	}
	if (digits == 0 || digits > 15 || (digits < body->line_size && body->line[digits] != ';'))
		return -1;
	body->left = size;
	body->state = size ? CHUNK_DATA : CHUNK_TRAILER;
	return 0;
}

static int read_chunk_line(struct http_body *body)
{
	if (body->state == CHUNK_SIZE)
		return read_chunk_size(body);
	if (body->state == CHUNK_END) {
		body->state = CHUNK_SIZE;
		return body->line_size ? -1 : 0;
	}
	if (body->line_size == 0)
		body->state = CHUNK_DONE;
	body->trailer_size += body->line_size;
	return body->trailer_size > HTTP_HEAD_MAX ? -1 : 0;
}

/* One byte of a line; a whole line, without its CRLF, is acted on. */
static int feed_line(struct http_body *body, char c)
{
	bool returned = body->line_size && body->line[body->line_size - 1] == '\r';

	if (c == '\n' && returned) {
		body->line_size--;
		int result = read_chunk_line(body);

		body->line_size = 0;
		return result;
	}
	if (returned || body->line_size == sizeof(body->line) || (body->state == CHUNK_END && c != '\r') ||
	    ((unsigned char)c < 0x20 && c != '\r' && c != '\t'))
		return -1;
	body->line[body->line_size++] = c;
	return 0;
}

ssize_t http_body_feed(struct http_body *body, const char *data, size_t size)
{
	size_t taken = 0;

	while (taken < size && !http_body_done(body)) {
		if (body->framing == BODY_LENGTH || body->state == CHUNK_DATA) {
			size_t part = (size_t)MIN((uint64_t)(size - taken), body->left);

			body->left -= part;
			taken += part;
			if (body->framing == BODY_CHUNKED && body->left == 0)
				body->state = CHUNK_END;
		} else if (feed_line(body, data[taken++]) < 0) {
			return -1;
		}
	}
	return (ssize_t)taken;
}
