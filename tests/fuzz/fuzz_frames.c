/*
 * The stdout of a language server that the guest wrote, in pieces of a size the input chooses: messages lie within what came,
 * and the same bytes in other pieces give the same messages.
 */
#include "server/dialects/daytona/daytona_frames.h"

/* The server's objects are not among those that fuzzers are linked with; this one needs nothing but the kit. */
#include "server/dialects/daytona/daytona_frames.c"

static void collect(const char *bytes, size_t size, size_t piece, struct buf *out)
{
	struct frames frames = { 0 };

	while (size > 0) {
		size_t now = MIN(size, piece), length;
		const char *body;
		int found;
		if (frames_push(&frames, bytes, now) < 0)
			abort();
		while ((found = frames_next(&frames, &body, &length)) != 0) {
			buf_append_string(out, found < 0 ? "!" : "[");
			if (found > 0)
				buf_append(out, body, length);
		}
		bytes += now;
		size -= now;
	}
	frames_free(&frames);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_buf struct buf whole = { 0 }, cut = { 0 };

	if (size < 1)
		return 0;
	collect((const char *)data + 1, size - 1, SIZE_MAX, &whole);
	collect((const char *)data + 1, size - 1, (size_t)data[0] % 31 + 1, &cut);
	if (whole.size != cut.size || (whole.size && memcmp(whole.data, cut.data, whole.size)))
		abort();
	return 0;
}
