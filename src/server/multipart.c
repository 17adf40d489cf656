/*
 * Parses multipart/form-data; see multipart.h. A part ends where its delimiter begins, so bytes that could be the start of
 * a delimiter are held back until more arrive.
 */
#include "server/multipart.h"

#define PIECE 65536u

/* The value of a parameter: name="…" or name=…, up to the end of the line; NULL: missing. Caller frees. */
static char *parameter(const char *header, const char *name)
{
	size_t size = strlen(name);

	for (const char *at = strchr(header, ';'); at; at = strchr(at, ';')) {
		at++;
		at += strspn(at, " \t");
		if (strncasecmp(at, name, size) != 0 || at[size] != '=')
			continue;
		at += size + 1;
		if (*at == '"')
			return strndup(at + 1, strcspn(at + 1, "\""));
		return strndup(at, strcspn(at, "; \t\r\n"));
	}
	return NULL;
}

/* Decodes what browsers write for the three characters that are not allowed between quotes. */
static void unescape(char *text)
{
	static const struct {
		const char *code;
		char character;
	} codes[] = { { "%22", '"' }, { "%0D", '\r' }, { "%0A", '\n' } };
	char *out = text;

	for (const char *at = text; at && *at;) {
		char character = *at;
		size_t size = 1;
		for (size_t i = 0; i < ARRAY_SIZE(codes); i++) {
			if (strncasecmp(at, codes[i].code, 3) == 0) {
				character = codes[i].character;
				size = 3;
			}
		}
		*out++ = character;
		at += size;
	}
	if (out)
		*out = '\0';
}

int multipart_open(struct multipart *multipart, const char *type, multipart_source source, void *data,
		   struct husk_error *err)
{
	cleanup_free char *boundary = type ? parameter(type, "boundary") : NULL;

	*multipart = (struct multipart){ .source = source, .data = data };
	if (!type || strncasecmp(type, "multipart/form-data", 19) != 0 || !boundary || !*boundary ||
	    strlen(boundary) > MULTIPART_BOUNDARY_MAX)
		return husk_fail_field(err, "Content-Type", "the body is not multipart/form-data with a boundary");
	snprintf(multipart->delimiter, sizeof(multipart->delimiter), "\r\n--%s", boundary);
	/* The first delimiter may be at the start of the body. */
	return buf_append(&multipart->bytes, "\r\n", 2) < 0 ? husk_fail_memory(err) : 0;
}

void multipart_close(struct multipart *multipart)
{
	buf_free(&multipart->bytes);
}

/* Reads more bytes: false at the end, or without memory. */
static bool fill(struct multipart *multipart)
{
	if (multipart->ended || buf_reserve(&multipart->bytes, PIECE) < 0)
		return false;
	ssize_t count = multipart->source(multipart->data, multipart->bytes.data + multipart->bytes.size, PIECE);
	if (count <= 0) {
		multipart->ended = true;
		return false;
	}
	multipart->bytes.size += (size_t)count;
	return true;
}

static char *find_delimiter(const struct multipart *multipart)
{
	const struct buf *bytes = &multipart->bytes;

	return bytes->size ? memmem(bytes->data, bytes->size, multipart->delimiter, strlen(multipart->delimiter))
			   : NULL;
}

ssize_t multipart_read(void *data, void *bytes, size_t size)
{
	struct multipart *multipart = data;
	size_t delimiter = strlen(multipart->delimiter);

	for (;;) {
		const char *end = find_delimiter(multipart);
		size_t ready = end                                  ? (size_t)(end - multipart->bytes.data)
			       : multipart->bytes.size >= delimiter ? multipart->bytes.size - delimiter + 1
								    : 0;
		if (ready) {
			size_t taken = MIN(ready, size);
			memcpy(bytes, multipart->bytes.data, taken);
			buf_consume(&multipart->bytes, taken);
			return (ssize_t)taken;
		}
		if (end)
			return 0;
		if (!fill(multipart)) {
			multipart->broken = true;
			return -1;
		}
	}
}

static int skip_part(struct multipart *multipart, struct husk_error *err)
{
	char waste[4096];
	ssize_t count;

	while ((count = multipart_read(multipart, waste, sizeof(waste))) > 0)
		;
	return count < 0 ? husk_fail(err, HUSK_INVALID, "the multipart body breaks off before its last boundary") : 0;
}

/* Reads the headers of a part: the one needed line, NULL if it is missing. */
static int read_head(struct multipart *multipart, char **disposition, struct husk_error *err)
{
	struct buf *bytes = &multipart->bytes;
	char *end = NULL, *save = NULL;

	while (!end) {
		end = bytes->size ? memmem(bytes->data, bytes->size, "\r\n\r\n", 4) : NULL;
		if (end ? (size_t)(end - bytes->data) > MULTIPART_HEAD_MAX : bytes->size > MULTIPART_HEAD_MAX)
			return husk_fail(err, HUSK_INVALID, "a part's headers are larger than %u bytes",
					 MULTIPART_HEAD_MAX);
		if (!end && !fill(multipart))
			return husk_fail(err, HUSK_INVALID, "the multipart body breaks off in a part's headers");
	}
	size_t size = (size_t)(end - bytes->data);
	cleanup_free char *head = strndup(bytes->data, size);
	if (!head)
		return husk_fail_memory(err);
	buf_consume(bytes, size + 4);
	for (char *line = strtok_r(head, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save))
		if (strncasecmp(line, "Content-Disposition:", 20) == 0 && !*disposition)
			*disposition = strdup(line + 20);
	return 0;
}

int multipart_next(struct multipart *multipart, char **name, char **filename, struct husk_error *err)
{
	struct buf *bytes = &multipart->bytes;
	cleanup_free char *disposition = NULL;

	*name = *filename = NULL;
	if (skip_part(multipart, err) < 0)
		return -1;
	buf_consume(bytes, strlen(multipart->delimiter));
	while (bytes->size < 2 && fill(multipart))
		;
	if (bytes->size >= 2 && memcmp(bytes->data, "--", 2) == 0)
		return 0;
	/* A form has no part without headers: then this blank line ends no headers. */
	if (bytes->size < 2 || memcmp(bytes->data, "\r\n", 2) != 0)
		return husk_fail(err, HUSK_INVALID, "the multipart body has a boundary that is not a line of its own");
	if (read_head(multipart, &disposition, err) < 0)
		return -1;
	if (disposition) {
		*name = parameter(disposition, "name");
		*filename = parameter(disposition, "filename");
		unescape(*filename);
	}
	return 1;
}
