/*
 * What a guest answers on a port, as a fuzzer would: the head, and then the body in chunks, in pieces of a size the input
 * chooses. Whatever comes out must keep the parser's promises, and the same bytes in other pieces must give the same.
 */
#include "base/http1.h"
#include "base/http_grammar.h"

/* The server's objects are not among those that fuzzers are linked with; this one needs nothing but the kit. */
#include "base/http1.c"

static void check(bool holds)
{
	if (!holds)
		abort();
}

static void check_head(const struct http1_head *head)
{
	check(head->status >= 100 && head->status <= 599);
	check(head->count <= HTTP1_HEADERS_MAX);
	check(head->length >= -1 && !(head->chunked && head->length >= 0));
	for (size_t i = 0; i < head->count; i++) {
		check(is_token(head->headers[i].name));
		for (const char *c = head->headers[i].value; *c; c++)
			check((unsigned char)*c >= 0x20 && *c != 0x7f);
	}
}

/* All of it in pieces; what was decoded goes to `out`. The last result. */
static int decode(const uint8_t *data, size_t size, size_t piece, struct buf *out)
{
	struct http1_chunks chunks = { 0 };
	int result = 0;

	for (size_t at = 0; at < size && result == 0; at += piece) {
		size_t count = MIN(piece, size - at), given = count;
		cleanup_free char *bytes = malloc(count);
		if (!bytes)
			return -1;
		memcpy(bytes, data + at, count);
		result = http1_chunks_decode(&chunks, bytes, &count, NULL);
		check(count <= given);
		if (result >= 0)
			check(buf_append(out, bytes, count) == 0);
	}
	return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_buf struct buf whole = { 0 }, pieces = { 0 };
	struct http1_head head;

	if (size < 1)
		return 0;
	size_t piece = 1 + data[0] % 64u;
	data++;
	size--;
	ssize_t used = http1_head_parse((const char *)data, size, &head, NULL);
	check(used <= (ssize_t)size);
	if (used > 0) {
		check_head(&head);
		const char *list = http1_head_find(&head, "Connection");
		if (list)
			http_list_has(list, strlen(list), "upgrade");
		http1_head_free(&head);
		data += used;
		size -= (size_t)used;
	}
	int first = decode(data, size, size ? size : 1, &whole);
	int second = decode(data, size, piece, &pieces);
	check(first == second);
	if (first >= 0)
		check(whole.size == pieces.size && (!whole.size || memcmp(whole.data, pieces.data, whole.size) == 0));
	return 0;
}
