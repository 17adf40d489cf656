/*
 * Secrets in transit: replaces the guest's placeholder by the value in a header of a request to the secret's host, and
 * replaces the value by stars if that host sends it back. leash_web.c is the only caller, only on connections whose other
 * end has proven to be that host. A value must never leave these buffers.
 */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <strings.h>

#include "net/leash_web.h"

#define MASK_MIN 8 /* a shorter value would match too often */
#define BASIC "Basic "
#define BASIC_MAX 8192u

/* Appends the text, with the placeholders of this host's secrets replaced. 1: there were some. */
static int swap_text(const struct terms *terms, const char *name, uint16_t port, struct http_text text, struct buf *out)
{
	int swapped = 0;

	while (text.size) {
		const char *first = NULL;
		size_t which = 0;

		for (int i = policy_secret_for(terms->policy, name, port, 0); i >= 0;
		     i = policy_secret_for(terms->policy, name, port, (size_t)i + 1)) {
			const char *mark = terms->placeholders[i];
			const char *found = terms->policy->secrets[i].header
						    ? NULL
						    : memmem(text.data, text.size, mark, strlen(mark));

			if (found && (!first || found < first)) {
				first = found;
				which = (size_t)i;
			}
		}
		size_t before = first ? (size_t)(first - text.data) : text.size;
		if (buf_append(out, text.data, before) < 0 ||
		    (first && buf_append_string(out, terms->values[which]) < 0))
			return -1;
		size_t used = before + (first ? strlen(terms->placeholders[which]) : 0);
		text.data += used;
		text.size -= used;
		swapped = swapped || first;
	}
	return swapped;
}

/* "Basic dXNlcjpwbGFjZWhvbGRlcg==": the placeholder is inside the encoding. 1: done, 0: nothing to do. */
static int swap_basic(const struct terms *terms, const char *name, uint16_t port, struct http_text value,
		      struct buf *out)
{
	size_t head = strlen(BASIC), size = value.size - head;
	unsigned char plain[BASIC_MAX], encoded[BASIC_MAX * 4];
	cleanup_buf struct buf swapped = { 0 };

	if (size == 0 || size % 4 || size > BASIC_MAX)
		return 0;
	int length = EVP_DecodeBlock(plain, (const unsigned char *)value.data + head, (int)size);
	for (size_t i = value.size; length > 0 && i > value.size - 2 && value.data[i - 1] == '='; i--)
		length--;
	if (length <= 0)
		return 0;
	int result = swap_text(terms, name, port, (struct http_text){ (char *)plain, (size_t)length }, &swapped);
	if (result == 1) {
		result = -1;
		if (swapped.size <= sizeof(encoded) / 4 * 3 - 3) {
			int written = EVP_EncodeBlock(encoded, (unsigned char *)swapped.data, (int)swapped.size);

			if (buf_append_string(out, BASIC) == 0 && buf_append(out, encoded, (size_t)written) == 0)
				result = 1;
		}
		OPENSSL_cleanse(swapped.data, swapped.size);
		OPENSSL_cleanse(encoded, sizeof(encoded));
	}
	return result;
}

int secret_swap(const struct terms *terms, const char *name, uint16_t port, const struct http_field *field,
		struct buf *out)
{
	const struct http_text value = field->value;

	if (http_is(field->name, "authorization") && value.size > strlen(BASIC) &&
	    strncasecmp(value.data, BASIC, strlen(BASIC)) == 0) {
		int result = swap_basic(terms, name, port, value, out);

		if (result != 0)
			return result < 0 ? -1 : 0;
	}
	return swap_text(terms, name, port, value, out) < 0 ? -1 : 0;
}

bool secret_replaces(const struct terms *terms, const char *name, uint16_t port, const struct http_field *field)
{
	for (int i = policy_header_for(terms->policy, name, port, 0); i >= 0;
	     i = policy_header_for(terms->policy, name, port, (size_t)i + 1))
		if (http_is(field->name, terms->policy->secrets[i].header))
			return true;
	return false;
}

int secret_headers(const struct terms *terms, const char *name, uint16_t port, struct buf *out)
{
	int bad = 0;

	for (int i = policy_header_for(terms->policy, name, port, 0); i >= 0;
	     i = policy_header_for(terms->policy, name, port, (size_t)i + 1))
		bad |= buf_append_string(out, terms->policy->secrets[i].header) | buf_append_string(out, ": ") |
		       buf_append_string(out, terms->values[i]) | buf_append_string(out, "\r\n");
	return bad;
}

/* ---- the way back ---- */

int mask_open(struct mask *mask, const struct terms *terms, const char *name, uint16_t port)
{
	*mask = (struct mask){ .values = calloc(2 * terms->policy->secret_count + 1, sizeof(char *)) };
	if (!mask->values)
		return -1;
	for (int i = policy_secret_for(terms->policy, name, port, 0); i >= 0;
	     i = policy_secret_for(terms->policy, name, port, (size_t)i + 1)) {
		/* Of a header's "Bearer TOKEN", a host would repeat the second word. */
		const char *word = terms->policy->secrets[i].header ? strrchr(terms->values[i], ' ') : NULL;

		if (strlen(terms->values[i]) >= MASK_MIN)
			mask->values[mask->count++] = terms->values[i];
		if (word && strlen(word + 1) >= MASK_MIN)
			mask->values[mask->count++] = word + 1;
	}
	return 0;
}

static void hide(char *data, size_t size, const char *value)
{
	size_t length = strlen(value);

	for (char *found; (found = memmem(data, size, value, length));) {
		memset(found, '*', length);
		size -= (size_t)(found - data) + length;
		data = found + length;
	}
}

/* How many bytes at the end may be the start of a value. */
static size_t begun(const struct buf *tail, const char *value)
{
	size_t most = MIN(strlen(value) - 1, tail->size);

	for (size_t length = most; length > 0; length--)
		if (memcmp(tail->data + tail->size - length, value, length) == 0)
			return length;
	return 0;
}

int mask_feed(struct mask *mask, const void *data, size_t size, bool last, struct buf *out)
{
	size_t keep = 0;

	if (buf_append(&mask->tail, data, size) < 0)
		return -1;
	for (size_t i = 0; i < mask->count; i++)
		hide(mask->tail.data, mask->tail.size, mask->values[i]);
	for (size_t i = 0; i < mask->count && !last; i++)
		keep = MAX(keep, begun(&mask->tail, mask->values[i]));
	if (buf_append(out, mask->tail.data, mask->tail.size - keep) < 0)
		return -1;
	buf_consume(&mask->tail, mask->tail.size - keep);
	return 0;
}

void mask_free(struct mask *mask)
{
	if (mask->tail.data)
		OPENSSL_cleanse(mask->tail.data, mask->tail.capacity);
	buf_free(&mask->tail);
	free(mask->values);
	mask->values = NULL;
}
