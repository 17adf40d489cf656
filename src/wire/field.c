/*
 * The fields of structured payloads: tag, size, bytes. The reader checks every size against the bytes that are left. A
 * message is valid as a whole or not at all.
 */
#include "wire/wire.h"

#define FIELD_HEADER 8

int wire_put_bytes(struct buf *message, uint16_t tag, const void *data, size_t size)
{
	if (size > WIRE_PAYLOAD_MAX || message->size + FIELD_HEADER + size > WIRE_PAYLOAD_MAX) {
		errno = E2BIG;
		return -1;
	}
	uint8_t header[FIELD_HEADER] = {
		(uint8_t)tag,          (uint8_t)(tag >> 8),   0, 0, (uint8_t)size, (uint8_t)(size >> 8),
		(uint8_t)(size >> 16), (uint8_t)(size >> 24),
	};
	if (buf_reserve(message, sizeof(header) + size) < 0)
		return -1;
	if (buf_append(message, header, sizeof(header)) < 0)
		return -1;
	return size ? buf_append(message, data, size) : 0;
}

int wire_put_string(struct buf *message, uint16_t tag, const char *s)
{
	return s ? wire_put_bytes(message, tag, s, strlen(s)) : 0;
}

int wire_put_int(struct buf *message, uint16_t tag, int64_t value)
{
	uint8_t bytes[8];

	for (unsigned i = 0; i < 8; i++)
		bytes[i] = (uint8_t)((uint64_t)value >> (8 * i));
	return wire_put_bytes(message, tag, bytes, sizeof(bytes));
}

int wire_next(const char *message, size_t size, size_t *cursor, struct wire_field *out)
{
	if (*cursor == size)
		return 0;
	if (*cursor > size || size - *cursor < FIELD_HEADER)
		return -1;
	const uint8_t *bytes = (const uint8_t *)message + *cursor;
	size_t length = (size_t)bytes[4] | (size_t)bytes[5] << 8 | (size_t)bytes[6] << 16 | (size_t)bytes[7] << 24;
	if (length > size - *cursor - FIELD_HEADER)
		return -1;
	out->tag = (uint16_t)(bytes[0] | bytes[1] << 8);
	out->data = message + *cursor + FIELD_HEADER;
	out->size = length;
	*cursor += FIELD_HEADER + length;
	return 1;
}

bool wire_find(const char *message, size_t size, uint16_t tag, struct wire_field *out)
{
	size_t cursor = 0;

	while (wire_next(message, size, &cursor, out) > 0)
		if (out->tag == tag)
			return true;
	return false;
}

bool wire_valid(const char *message, size_t size)
{
	struct wire_field field;
	size_t cursor = 0;
	int more;

	while ((more = wire_next(message, size, &cursor, &field)) > 0)
		;
	return more == 0;
}

int wire_field_int(const struct wire_field *field, int64_t *out)
{
	uint64_t value = 0;

	if (field->size != 8)
		return -1;
	for (unsigned i = 0; i < 8; i++)
		value |= (uint64_t)(uint8_t)field->data[i] << (8 * i);
	*out = (int64_t)value;
	return 0;
}

int64_t wire_get_int(const char *message, size_t size, uint16_t tag, int64_t fallback)
{
	struct wire_field field;
	int64_t value;

	return wire_find(message, size, tag, &field) && wire_field_int(&field, &value) == 0 ? value : fallback;
}

/* A copy of the field as a string; NULL if it contains a NUL byte, or without memory. */
static char *copy_field(const struct wire_field *field)
{
	if (memchr(field->data, 0, field->size))
		return NULL;
	char *copy = malloc(field->size + 1);
	if (!copy)
		return NULL;
	memcpy(copy, field->data, field->size);
	copy[field->size] = 0;
	return copy;
}

char *wire_get_string(const char *message, size_t size, uint16_t tag)
{
	struct wire_field field;

	return wire_find(message, size, tag, &field) ? copy_field(&field) : NULL;
}

char **wire_get_strings(const char *message, size_t size, uint16_t tag)
{
	cleanup_strv char **list = calloc(1, sizeof(char *));
	struct wire_field field;
	size_t cursor = 0;

	while (list && wire_next(message, size, &cursor, &field) > 0) {
		if (field.tag != tag)
			continue;
		cleanup_free char *copy = copy_field(&field);
		if (!copy || strv_add(&list, copy) < 0)
			return NULL;
	}
	return steal_pointer(list);
}
