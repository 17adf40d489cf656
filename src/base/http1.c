/*
 * Parses HTTP/1 answers of programs inside sandboxes; see http1.h. It is strict where two readers of the same bytes could
 * disagree about the end of a message (lengths, encodings, folded lines), and lenient where small servers are sloppy (a
 * bare line feed, a missing reason). It must never read past its input, nor keep more than its bounds.
 */
#include "base/http1.h"

#include "base/http_grammar.h"

#define SKIPPED_MAX (64u << 10)

static int bad(struct husk_error *err, const char *what)
{
	return husk_fail(err, HUSK_PROTOCOL, "its answer is not HTTP: %s", what);
}

/* ---- the head ---- */

static bool is_token(const char *name)
{
	const char *c = name;

	while (http_is_token((unsigned char)*c))
		c++;
	return c > name && !*c;
}

/* Removes blanks around the value and turns tabs into spaces. Any other control character makes the value invalid. */
static char *clean_value(char *value)
{
	value += strspn(value, " \t");
	for (size_t size = strlen(value); size && strchr(" \t", value[size - 1]); size--)
		value[size - 1] = '\0';
	for (char *c = value; *c; c++) {
		if (*c == '\t')
			*c = ' ';
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			return NULL;
	}
	return value;
}

/* "HTTP/1.1 200 OK" */
static int parse_status(const char *line, unsigned *status, struct husk_error *err)
{
	if ((!str_starts(line, "HTTP/1.1 ") && !str_starts(line, "HTTP/1.0 ")) || strspn(line + 9, "0123456789") != 3 ||
	    (line[12] != '\0' && line[12] != ' '))
		return bad(err, "it does not begin with a status line");
	*status = (unsigned)(line[9] - '0') * 100 + (unsigned)(line[10] - '0') * 10 + (unsigned)(line[11] - '0');
	return *status < 100 || *status > 599 ? bad(err, "its status is no HTTP status") : 0;
}

static int parse_length(struct http1_head *head, const char *value, struct husk_error *err)
{
	uint64_t length;

	if (http_length(value, strlen(value), &length) < 0)
		return bad(err, "its Content-Length is no number");
	if (head->length >= 0 && head->length != (int64_t)length)
		return bad(err, "it has two lengths");
	head->length = (int64_t)length;
	return 0;
}

static int parse_header(struct http1_head *head, char *line, struct husk_error *err)
{
	char *colon = strchr(line, ':');

	if (!colon || strchr(" \t", line[0]))
		return bad(err, "a header is folded or has no colon");
	*colon = '\0';
	char *value = clean_value(colon + 1);
	if (!is_token(line) || !value)
		return bad(err, "a header has characters that may not be in one");
	if (head->count == HTTP1_HEADERS_MAX)
		return bad(err, "it has too many headers");
	head->headers[head->count++] = (struct http1_header){ line, value };
	if (strcasecmp(line, "Content-Length") == 0)
		return parse_length(head, value, err);
	if (strcasecmp(line, "Transfer-Encoding") != 0)
		return 0;
	if (head->chunked || strcasecmp(value, "chunked") != 0)
		return bad(err, "its Transfer-Encoding is not 'chunked'");
	head->chunked = true;
	return 0;
}

/* The size of the head up to the blank line; 0 if there is no blank line yet. */
static size_t head_size(const char *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		if (bytes[i] != '\n')
			continue;
		if (i + 1 < size && bytes[i + 1] == '\n')
			return i + 2;
		if (i + 2 < size && bytes[i + 1] == '\r' && bytes[i + 2] == '\n')
			return i + 3;
	}
	return 0;
}

static int parse_lines(struct http1_head *head, struct husk_error *err)
{
	char *line = head->text;

	for (size_t number = 0;; number++) {
		char *end = strchr(line, '\n');
		if (!end)
			return bad(err, "its head does not end");
		*end = '\0';
		if (end > line && end[-1] == '\r')
			end[-1] = '\0';
		if (number && !*line)
			return 0;
		if ((number ? parse_header(head, line, err) : parse_status(line, &head->status, err)) < 0)
			return -1;
		line = end + 1;
	}
}

ssize_t http1_head_parse(const char *bytes, size_t size, struct http1_head *out, struct husk_error *err)
{
	size_t used = head_size(bytes, MIN(size, HTTP1_HEAD_MAX));

	*out = (struct http1_head){ .length = -1 };
	if (!used)
		return size < HTTP1_HEAD_MAX ? 0 : bad(err, "its head is too large");
	if (memchr(bytes, '\0', used))
		return bad(err, "there is a NUL in its head");
	out->text = strndup(bytes, used);
	if (!out->text)
		return husk_fail_memory(err);
	if (parse_lines(out, err) < 0) {
		http1_head_free(out);
		return -1;
	}
	if (out->chunked && out->length >= 0) {
		http1_head_free(out);
		return bad(err, "it has a Content-Length and a Transfer-Encoding");
	}
	return (ssize_t)used;
}

void http1_head_free(struct http1_head *head)
{
	free(head->text);
	*head = (struct http1_head){ .length = -1 };
}

const char *http1_head_find(const struct http1_head *head, const char *name)
{
	for (size_t i = 0; i < head->count; i++)
		if (strcasecmp(head->headers[i].name, name) == 0)
			return head->headers[i].value;
	return NULL;
}

/* ---- chunks ---- */

/* The line with the size of a chunk is complete. */
static int begin_data(struct http1_chunks *chunks, struct husk_error *err)
{
	if (!chunks->digits)
		return bad(err, "a chunk has no size");
	chunks->at = chunks->left ? CHUNK_DATA : CHUNK_TRAILER;
	chunks->digits = 0;
	chunks->blank = true;
	return 0;
}

static int size_byte(struct http1_chunks *chunks, char c, struct husk_error *err)
{
	int digit = http_hex_digit(c);

	if (digit >= 0 && chunks->digits < 15) {
		chunks->left = chunks->left << 4 | (uint64_t)digit;
		chunks->digits++;
		return 0;
	}
	if (digit >= 0)
		return bad(err, "a chunk is too large");
	if (c == '\n')
		return begin_data(chunks, err);
	if (!chunks->digits || !strchr(" \t;\r", c))
		return bad(err, "a chunk's size is no number");
	chunks->at = CHUNK_EXTENSION;
	return 0;
}

/* Every byte that is not data. */
static int other_byte(struct http1_chunks *chunks, char c, struct husk_error *err)
{
	switch (chunks->at) {
	case CHUNK_SIZE:
		return size_byte(chunks, c, err);
	case CHUNK_EXTENSION:
		if (c == '\n')
			return begin_data(chunks, err);
		break;
	case CHUNK_END:
		if (c == '\n')
			chunks->at = CHUNK_SIZE;
		else if (c != '\r')
			return bad(err, "a chunk does not end where it should");
		break;
	case CHUNK_TRAILER:
		if (c == '\n' && chunks->blank)
			chunks->at = CHUNK_DONE;
		chunks->blank = c == '\n' || (c == '\r' && chunks->blank);
		break;
	case CHUNK_DATA:
	case CHUNK_DONE:
		break;
	}
	/* Line ends count too. The bound is generous for small chunks, because data resets the counter. */
	return ++chunks->skipped > SKIPPED_MAX ? bad(err, "it has too much between its chunks") : 0;
}

int http1_chunks_decode(struct http1_chunks *chunks, char *bytes, size_t *size, struct husk_error *err)
{
	size_t from = 0, to = 0;

	while (from < *size && chunks->at != CHUNK_DONE) {
		if (chunks->at != CHUNK_DATA) {
			if (!bytes[from] || other_byte(chunks, bytes[from], err) < 0)
				return bytes[from] ? -1 : bad(err, "there is a NUL between its chunks");
			from++;
			continue;
		}
		size_t part = (size_t)MIN((uint64_t)(*size - from), chunks->left);
		memmove(bytes + to, bytes + from, part);
		from += part;
		to += part;
		chunks->left -= part;
		chunks->skipped = 0;
		if (!chunks->left)
			chunks->at = CHUNK_END;
	}
	*size = to;
	return chunks->at == CHUNK_DONE;
}
