/*
 * A viewer's bytes, in pieces of a size the input chooses: the filter comes to an end in constant memory, the same bytes in
 * other pieces give the same result, and what passes without control is no input.
 */
/* The server's objects are not among those that fuzzers are linked with; this one needs nothing but the kit. */
#include "server/rfb_filter.c"

static int run(const uint8_t *data, size_t size, size_t piece, bool control, struct buf *out)
{
	struct rfb_filter filter = { 0 };

	for (size_t at = 0; at < size; at += piece)
		if (rfb_filter_feed(&filter, (const char *)data + at, MIN(piece, size - at), control, out, NULL) < 0)
			return -1;
	return rfb_filter_inside(&filter) ? 0 : rfb_filter_release(&filter, out, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_buf struct buf whole = { 0 }, cut = { 0 }, seen = { 0 }, again = { 0 };

	if (size < 1)
		return 0;
	size_t piece = (size_t)data[0] % 31 + 1;
	int first = run(data + 1, size - 1, SIZE_MAX / 2, true, &whole);
	int second = run(data + 1, size - 1, piece, true, &cut);
	if (first != second || whole.size != cut.size || (whole.size && memcmp(whole.data, cut.data, whole.size)))
		abort();
	/* What passed a filter without control passes a second one unchanged: there is no input left in it. */
	if (run(data + 1, size - 1, piece, false, &seen) == 0 &&
	    (run((const uint8_t *)seen.data, seen.size, piece, false, &again) < 0 || again.size != seen.size ||
	     (seen.size && memcmp(again.data, seen.data, seen.size))))
		abort();
	return 0;
}
