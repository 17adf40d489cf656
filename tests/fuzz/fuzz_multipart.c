/*
 * A form as a careless or hostile client sends it, in pieces of a size the input chooses: it must come to an end, and the
 * same bytes in other pieces must give the same parts.
 */
#include "server/multipart.h"

/* The server's objects are not among those that fuzzers are linked with; this one needs nothing but the kit. */
#include "server/multipart.c"

struct text {
	const uint8_t *bytes;
	size_t size, piece;
};

static ssize_t next_piece(void *data, void *bytes, size_t size)
{
	struct text *text = data;
	size_t count = MIN(MIN(text->size, text->piece), size);

	memcpy(bytes, text->bytes, count);
	text->bytes += count;
	text->size -= count;
	return (ssize_t)count;
}

/* All names and bodies, one after the other. */
static int collect(const uint8_t *data, size_t size, size_t piece, struct buf *out)
{
	struct text text = { data, size, piece };
	cleanup(multipart_close) struct multipart multipart = { 0 };
	char bytes[64];

	if (multipart_open(&multipart, "multipart/form-data; boundary=b", next_piece, &text, NULL) < 0)
		abort();
	for (;;) {
		cleanup_free char *name = NULL, *file = NULL;
		int next = multipart_next(&multipart, &name, &file, NULL);
		if (next <= 0)
			return next;
		buf_printf(out, "[%s|%s]", name ? name : "", file ? file : "");
		for (ssize_t count; (count = multipart_read(&multipart, bytes, sizeof(bytes))) > 0;)
			buf_append(out, bytes, (size_t)count);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_buf struct buf whole = { 0 }, cut = { 0 };

	if (size < 1)
		return 0;
	int first = collect(data + 1, size - 1, SIZE_MAX, &whole);
	int second = collect(data + 1, size - 1, (size_t)data[0] % 31 + 1, &cut);
	/* What comes before a body breaks off may differ by what was held back. */
	if (first != second ||
	    (first == 0 && (whole.size != cut.size || (whole.size && memcmp(whole.data, cut.data, whole.size)))))
		abort();
	return 0;
}
