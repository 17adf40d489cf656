/*
 * Parses a TLS ClientHello, also one that is split into many records to get past filters that read only the first. The
 * leash calls it on the first bytes of a connection, before any byte is sent on.
 *
 * A hello that does not follow RFC 8446 and RFC 6066 exactly is refused, because the parser at the other end may read it
 * differently. For the same reason, two server names, or a name of another type, are refused.
 */
#include "net/hello.h"

#define RECORD_HANDSHAKE 22
#define RECORD_MAX 16384u
#define CLIENT_HELLO 1
#define EXTENSION_NAME 0
#define EXTENSION_ENCRYPTED 0xfe0d

/* The bytes left to read. Every take checks the size; after the first failure all fail. */
struct view {
	const uint8_t *data;
	size_t size;
	bool bad;
};

static struct view take(struct view *from, size_t size)
{
	struct view part = { from->data, size, false };

	if (from->bad || size > from->size) {
		from->bad = true;
		return (struct view){ .bad = true };
	}
	from->data += size;
	from->size -= size;
	return part;
}

static uint32_t take_number(struct view *from, size_t bytes)
{
	struct view part = take(from, bytes);
	uint32_t value = 0;

	for (size_t i = 0; i < part.size; i++)
		value = value << 8 | part.data[i];
	return value;
}

/* A vector, preceded by its length in `bytes` bytes. */
static struct view take_vector(struct view *from, size_t bytes)
{
	uint32_t size = take_number(from, bytes);

	return take(from, size);
}

/* Joins the handshake bytes of the records. */
static enum hello_result join_records(struct view records, struct buf *out)
{
	while (records.size > 0) {
		if (records.data[0] != RECORD_HANDSHAKE || (records.size > 1 && records.data[1] != 3))
			return HELLO_BAD;
		if (records.size < 5)
			return HELLO_MORE;
		size_t size = (size_t)records.data[3] << 8 | records.data[4];
		if (size == 0 || size > RECORD_MAX)
			return HELLO_BAD;
		take(&records, 5);
		size_t here = MIN(size, records.size);
		struct view part = take(&records, here);
		if (buf_append(out, part.data, part.size) < 0)
			return HELLO_BAD;
		if (here < size)
			return HELLO_MORE;
		/* Complete already? Then the following bytes do not belong to the hello. */
		if (out->size >= 4) {
			const uint8_t *head = (const uint8_t *)out->data;

			if (out->size >= 4 + ((size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3]))
				return HELLO_OK;
		}
	}
	return HELLO_MORE;
}

static int read_name(struct view extension, struct hello *out)
{
	struct view list = take_vector(&extension, 2);
	uint32_t type = take_number(&list, 1);
	struct view name = take_vector(&list, 2);

	if (extension.bad || list.bad || name.bad || extension.size || list.size || type != 0)
		return -1;
	/* A final dot is not allowed here, and servers treat it differently. */
	if (name.size == 0 || name.data[name.size - 1] == '.')
		return -1;
	return policy_name_normalise((const char *)name.data, name.size, out->name);
}

static int read_extensions(struct view extensions, struct hello *out)
{
	bool named = false;

	while (extensions.size > 0 && !extensions.bad) {
		uint32_t type = take_number(&extensions, 2);
		struct view extension = take_vector(&extensions, 2);

		if (extension.bad)
			return -1;
		if (type == EXTENSION_ENCRYPTED)
			out->encrypted = true;
		if (type != EXTENSION_NAME)
			continue;
		if (named || read_name(extension, out) < 0)
			return -1;
		named = true;
	}
	return extensions.bad ? -1 : 0;
}

static int read_hello(struct view message, struct hello *out)
{
	take(&message, 4);        /* type and length, checked by the caller */
	take(&message, 2 + 32);   /* version, random */
	take_vector(&message, 1); /* session */
	take_vector(&message, 2); /* ciphers */
	take_vector(&message, 1); /* compression */
	if (message.bad)
		return -1;
	if (message.size == 0)
		return 0; /* no extensions at all: it names no host */
	struct view extensions = take_vector(&message, 2);
	if (message.bad || message.size)
		return -1;
	return read_extensions(extensions, out);
}

enum hello_result hello_parse(const void *data, size_t size, struct hello *out)
{
	cleanup_buf struct buf joined = { 0 };
	enum hello_result result = join_records((struct view){ data, size, false }, &joined);

	*out = (struct hello){ 0 };
	if (joined.size > 0 && joined.data[0] != CLIENT_HELLO)
		return HELLO_BAD;
	if (result == HELLO_MORE)
		return size < HELLO_MAX ? HELLO_MORE : HELLO_BAD;
	if (result != HELLO_OK)
		return HELLO_BAD;
	const uint8_t *head = (const uint8_t *)joined.data;
	size_t length = 4 + ((size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3]);
	if (length > HELLO_MAX)
		return HELLO_BAD;
	return read_hello((struct view){ head, length, false }, out) < 0 ? HELLO_BAD : HELLO_OK;
}
