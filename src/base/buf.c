/*
 * Growable byte buffers for messages, command output and other data of unknown size. A failed call leaves the buffer
 * unchanged. Sizes may come from a guest, so every addition is checked for overflow.
 */
#include "base/base.h"

#define BUF_SMALLEST 64

int buf_reserve(struct buf *b, size_t extra)
{
	size_t needed, capacity;
	char *data;

	/* One byte more, for the NUL that always follows the content. */
	if (__builtin_add_overflow(b->size, extra, &needed) || __builtin_add_overflow(needed, 1, &needed)) {
		errno = ENOMEM;
		return -1;
	}
	if (needed <= b->capacity)
		return 0;
	capacity = MAX(b->capacity, (size_t)BUF_SMALLEST);
	while (capacity < needed) {
		if (__builtin_mul_overflow(capacity, 2, &capacity))
			capacity = needed;
	}
	data = realloc(b->data, capacity);
	if (!data)
		return -1;
	if (!b->data)
		data[0] = '\0';
	b->data = data;
	b->capacity = capacity;
	return 0;
}

int buf_append(struct buf *b, const void *data, size_t size)
{
	if (buf_reserve(b, size) < 0)
		return -1;
	if (size > 0)
		memcpy(b->data + b->size, data, size);
	b->size += size;
	b->data[b->size] = '\0';
	return 0;
}

int buf_append_string(struct buf *b, const char *s)
{
	return buf_append(b, s, strlen(s));
}

int buf_printf(struct buf *b, const char *format, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	if (length < 0 || buf_reserve(b, (size_t)length) < 0)
		return -1;
	va_start(arguments, format);
	vsnprintf(b->data + b->size, (size_t)length + 1, format, arguments);
	va_end(arguments);
	b->size += (size_t)length;
	return 0;
}

void buf_consume(struct buf *b, size_t size)
{
	if (!b->data)
		return;
	size = MIN(size, b->size);
	b->size -= size;
	memmove(b->data, b->data + size, b->size);
	b->data[b->size] = '\0';
}

void buf_free(struct buf *b)
{
	free(b->data);
	*b = (struct buf){ 0 };
}

char *buf_steal(struct buf *b)
{
	char *data;

	if (buf_reserve(b, 0) < 0)
		return NULL;
	data = b->data;
	*b = (struct buf){ 0 };
	return data;
}

ssize_t bytes_give(void *data, void *out, size_t size)
{
	struct bytes *bytes = data;
	size_t count = MIN(size, bytes->left);

	if (count)
		memcpy(out, bytes->at, count);
	bytes->at = (const char *)bytes->at + count;
	bytes->left -= count;
	return (ssize_t)count;
}
