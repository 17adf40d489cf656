/*
 * The HTTP/1 parser of the leash. For requests it is strict on purpose: line ends are CRLF, one Host, one way to give
 * the length of the body, no chunk extensions, no trailers. If a server could split a request differently than this
 * parser, a second request would pass unchecked:
 *
 *     GET / HTTP/1.1 | Host: allowed.test | Content-Length: 47 | | GET /stolen HTTP/1.1 | Host: forbidden.test | |
 *
 * To a server that ignores the body of a GET these are two requests. So the body of a request may not begin with a
 * request line, and leash_web.c makes a request with a body the last one on its connection.
 */
#include "net/leash_http.h"

#include <ctype.h>
#include <strings.h>

#include "base/http_grammar.h"

#define METHOD_MAX 20
#define LENGTH_DIGITS 20

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

/* The size of the head including its empty line; 0: incomplete. -1: too long, or with forbidden bytes. */
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
	const char *end = strchr(*at, '\r'); /* head_size has made sure that there is one */
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
		if (!http_is_token((unsigned char)*c))
			return "a header's name holds a character that does not belong there";
	if (out->field_count == HTTP_FIELDS_MAX)
		return "there are too many headers";
	field->name = (struct http_text){ line.data, (size_t)(colon - line.data) };
	field->value = trim((struct http_text){ colon + 1, line.size - field->name.size - 1 });
	out->field_count++;
	return NULL;
}

/* ---- headers ---- */

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
	return policy_name_normalise(text.data, size, host) < 0 ? "its Host header is not a host name" : NULL;
}

static const char *parse_length(struct http_text value, uint64_t *out)
{
	bool good = value.size < LENGTH_DIGITS && http_length(value.data, value.size, out) == 0;

	return good ? NULL : "its Content-Length is not a number";
}

/* Gateways (CGI, WSGI) read "Content_Length" as "Content-Length", other servers do not. */
static bool is_disguised(struct http_text name)
{
	static const char *const names[] = { "content-length", "transfer-encoding" };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		char plain[32] = "";

		if (name.size != strlen(names[i]) || http_is(name, names[i]))
			continue;
		for (size_t j = 0; j < name.size; j++)
			plain[j] = name.data[j] == '_' ? '-' : name.data[j];
		if (strcasecmp(plain, names[i]) == 0)
			return true;
	}
	return false;
}

/* Reads the headers that decide about the destination and the end of the request. */
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
		} else if (http_is(field->name, "connection")) {
			out->close = out->close || http_list_has(field->value.data, field->value.size, "close");
		} else if (is_disguised(field->name)) {
			why = "a header's name differs from Content-Length or Transfer-Encoding by an underscore";
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

/* "GET /path HTTP/1.1". A full URL must name the same host as the Host header: servers differ in which of the two they
 * use. */
static const char *read_line(struct http_request *request)
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
	for (size_t i = 0; i < method.size; i++)
		if (!http_is_token((unsigned char)method.data[i]))
			return "its method is not a word";
	if (method.size == 0 || http_is(method, "CONNECT"))
		return method.size ? "CONNECT asks for a tunnel" : "it has no method";
	if (end[-1] == '0' && request->framing == BODY_CHUNKED)
		return "HTTP/1.0 has no Transfer-Encoding";
	request->method = method;
	request->close = request->close || end[-1] == '0';
	if (target.size == 0 || memchr(target.data, ' ', target.size) || memchr(target.data, '\t', target.size))
		return "its target holds a blank";
	request->path = target;
	if (target.data[0] == '/' || (target.size == 1 && target.data[0] == '*'))
		return NULL;
	if (target.size < 8 || strncasecmp(target.data, "http://", 7) != 0)
		return "its target is neither a path nor an http url";
	struct http_text authority = { target.data + 7, 0 };
	while (authority.size < target.size - 7 && !strchr("/?#", authority.data[authority.size]))
		authority.size++;
	if (parse_authority(authority, host, &port) || strcmp(host, request->host) != 0 || port != request->port)
		return "its url and its Host header name two hosts";
	size_t before = 7 + authority.size;
	request->path = before == target.size ? (struct http_text){ "/", 1 }
					      : (struct http_text){ target.data + before, target.size - before };
	return request->path.data[0] == '/' ? NULL : "its url has no path before its query";
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
			*why = "a header continues in a second line";
		else
			*why = parse_field(line, out);
	}
	if (!*why)
		*why = read_fields(out);
	if (!*why)
		*why = read_line(out);
	return *why ? -1 : head;
}

/* ---- answers ---- */

/* A line of the head without its end, which may be a plain line feed; false: incomplete. */
static bool answer_line(const char **at, const char *end, struct http_text *line)
{
	const char *found = memchr(*at, '\n', (size_t)(end - *at));

	if (!found)
		return false;
	*line = (struct http_text){ *at, (size_t)(found - *at) };
	if (line->size && line->data[line->size - 1] == '\r')
		line->size--;
	*at = found + 1;
	return true;
}

/* "HTTP/1.1 200 OK" */
static bool read_status(struct http_text line, struct http_response *out)
{
	if (line.size < 12 || memcmp(line.data, "HTTP/1.", 7) != 0 || line.data[8] != ' ')
		return false;
	for (size_t i = 9; i < 12; i++)
		if (!isdigit((unsigned char)line.data[i]))
			return false;
	out->status = (line.data[9] - '0') * 100 + (line.data[10] - '0') * 10 + (line.data[11] - '0');
	out->close = line.data[7] == '0';
	out->framing = BODY_OPEN;
	return true;
}

/* A header of an answer. If a header is repeated or malformed, the body lasts until the connection ends. */
static void read_answer_field(struct http_text line, struct http_response *out, bool *sized, bool *coded)
{
	const char *colon = memchr(line.data, ':', line.size);
	uint64_t length = 0;

	if (!colon)
		return;
	struct http_text name = trim((struct http_text){ line.data, (size_t)(colon - line.data) });
	struct http_text value = trim((struct http_text){ colon + 1, line.size - (size_t)(colon - line.data) - 1 });
	if (http_is(name, "content-length")) {
		bool good = !parse_length(value, &length) && (!*sized || length == out->length);

		out->framing = !good || *coded ? BODY_OPEN : BODY_LENGTH;
		out->length = length;
		*sized = true;
	} else if (http_is(name, "transfer-encoding")) {
		out->framing = !*coded && !*sized && http_is(value, "chunked") ? BODY_CHUNKED : BODY_OPEN;
		*coded = true;
	} else if (http_is(name, "connection")) {
		out->close = out->close || http_list_has(value.data, value.size, "close");
	}
}

ssize_t http_response_parse(const char *data, size_t size, bool bodiless, struct http_response *out)
{
	const char *at = data, *end = data + MIN(size, HTTP_HEAD_MAX);
	struct http_text line;
	bool sized = false, coded = false;

	memset(out, 0, sizeof(*out));
	if (memcmp(data, "HTTP/1.", MIN(size, 7)) != 0)
		return -1;
	if (!answer_line(&at, end, &line))
		return size < HTTP_HEAD_MAX ? 0 : -1;
	if (!read_status(line, out))
		return -1;
	for (;;) {
		if (!answer_line(&at, end, &line))
			return size < HTTP_HEAD_MAX ? 0 : -1;
		if (line.size == 0)
			break;
		read_answer_field(line, out, &sized, &coded);
	}
	if (bodiless || out->status / 100 == 1 || out->status == 204 || out->status == 304)
		out->framing = BODY_NONE;
	out->close = out->close || out->framing == BODY_OPEN;
	return at - data;
}

/* ---- how a request's body begins ---- */

/* At the end of the line: was it "METHOD target HTTP/1.1", or the "GET target" of HTTP/0.9? */
static bool is_request_line(const struct http_opening *opening)
{
	if (opening->word == 1)
		return opening->simple;
	return opening->word > 1 && opening->size > 5 && opening->size < sizeof(opening->text) &&
	       strncasecmp(opening->text, "HTTP/", 5) == 0 && isdigit((unsigned char)opening->text[5]);
}

static void next_word(struct http_opening *opening)
{
	if (opening->word == 0)
		opening->simple = opening->size == 3 && strncasecmp(opening->text, "GET", 3) == 0;
	opening->word++;
	opening->size = 0;
	opening->gap = false;
}

/* Servers differ in which blanks they accept, and skip those before a request: all of them count here. */
static bool opens_request(struct http_opening *opening, const char *data, size_t size)
{
	for (size_t i = 0; i < size && !opening->settled; i++) {
		unsigned char c = (unsigned char)data[i];
		bool begun = opening->word || opening->size;

		if (begun && (c == '\n' || c == '\r')) {
			opening->settled = true;
			return is_request_line(opening);
		}
		if (c <= ' ') {
			opening->gap = begun;
			continue;
		}
		if (opening->gap)
			next_word(opening);
		/* No server accepts a longer line. */
		if ((opening->word == 0 && !http_is_token(c)) || ++opening->length > HTTP_HEAD_MAX)
			opening->settled = true;
		if (opening->word == 1 && opening->size == 0)
			opening->simple = opening->simple && (c == '/' || tolower(c) == 'h');
		if (opening->size < sizeof(opening->text))
			opening->text[opening->size++] = (char)c;
	}
	return false;
}

/* ---- bodies ---- */

void http_body_start(struct http_body *body, const struct http_request *request)
{
	*body = (struct http_body){
		.framing = request->framing, .left = request->length, .state = CHUNK_SIZE, .strict = true
	};
}

void http_body_start_answer(struct http_body *body, const struct http_response *response)
{
	*body = (struct http_body){ .framing = response->framing, .left = response->length, .state = CHUNK_SIZE };
}

bool http_body_done(const struct http_body *body)
{
	return body->framing == BODY_NONE || (body->framing == BODY_LENGTH && body->left == 0) ||
	       (body->framing == BODY_CHUNKED && body->state == CHUNK_DONE);
}

bool http_body_undecided(const struct http_body *body)
{
	return body->strict && !http_body_done(body) && !body->opening.settled &&
	       (body->opening.word || body->opening.size);
}

/* "1a3f"; in an answer also "1a3f ;extension". */
static int read_chunk_size(struct http_body *body)
{
	uint64_t size = 0;
	size_t digits = 0;

	for (; digits < body->line_size && isxdigit((unsigned char)body->line[digits]); digits++) {
		size = size << 4 | (uint64_t)http_hex_digit(body->line[digits]);
	}
	bool more = digits < body->line_size;
	if (digits == 0 || digits > 15 || (more && (body->strict || !strchr("; \t", body->line[digits]))))
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
	else if (body->strict)
		return -1;
	body->trailer_size += body->line_size;
	return body->trailer_size > HTTP_HEAD_MAX ? -1 : 0;
}

/* Takes one byte of a line; acts on a complete line, without its CRLF. */
static int feed_line(struct http_body *body, char c)
{
	bool returned = body->line_size && body->line[body->line_size - 1] == '\r';

	if (c == '\n' && returned) {
		body->line_size--;
		int result = read_chunk_line(body);

		body->line_size = 0;
		return result;
	}
	bool full = body->line_size == sizeof(body->line);
	if (returned || (full && body->strict) || (body->state == CHUNK_END && c != '\r') ||
	    ((unsigned char)c < 0x20 && c != '\r' && c != '\t'))
		return -1;
	if (full)
		body->line_size--; /* bytes beyond this are not used */
	body->line[body->line_size++] = c;
	return 0;
}

/* Bytes of the content itself. */
static int feed_content(struct http_body *body, const char *data, size_t size)
{
	body->left -= size;
	if (body->framing == BODY_CHUNKED && body->left == 0)
		body->state = CHUNK_END;
	return body->strict && opens_request(&body->opening, data, size) ? -1 : 0;
}

ssize_t http_body_feed(struct http_body *body, const char *data, size_t size)
{
	size_t taken = 0;

	if (body->framing == BODY_OPEN)
		return (ssize_t)size;
	while (taken < size && !http_body_done(body)) {
		if (body->framing == BODY_LENGTH || body->state == CHUNK_DATA) {
			size_t part = (size_t)MIN((uint64_t)(size - taken), body->left);

			if (feed_content(body, data + taken, part) < 0)
				return -1;
			taken += part;
		} else if (feed_line(body, data[taken++]) < 0) {
			return -1;
		}
	}
	bool whole = taken > 0 && http_body_done(body);
	return whole && body->strict && !body->opening.settled && is_request_line(&body->opening) ? -1 : (ssize_t)taken;
}
