/*
 * A program's output as a tool returns it. Long output is shortened in the middle, where the loss matters least, and
 * progress is reported while the program runs. The output comes from the guest: it is bounded and never interpreted.
 */
#include "mcp/tools.h"

/* ---- clip ---- */

int clip_add(struct clip *clip, const char *bytes, size_t size, struct husk_error *err)
{
	size_t first = MIN(size, CLIP_HEAD - clip->head.size);

	clip->total += size;
	if (first && buf_append(&clip->head, bytes, first) < 0)
		return husk_fail_memory(err);
	bytes += first;
	size -= first;
	if (size > CLIP_TAIL) {
		bytes += size - CLIP_TAIL;
		size = CLIP_TAIL;
		clip->tail.size = 0;
	}
	if (clip->tail.size + size > 2 * CLIP_TAIL)
		buf_consume(&clip->tail, clip->tail.size - CLIP_TAIL);
	return size && buf_append(&clip->tail, bytes, size) < 0 ? husk_fail_memory(err) : 0;
}

/* The start of the first character at or after `at`. */
static size_t character_start(const struct buf *b, size_t at)
{
	for (size_t i = 0; i < 3 && at < b->size && (b->data[at] & 0xc0) == 0x80; i++)
		at++;
	return at;
}

/* Bytes at the end that are the start of an incomplete character. */
static size_t unfinished(const struct buf *b)
{
	for (size_t back = 1; back <= 3 && back <= b->size; back++) {
		unsigned char byte = (unsigned char)b->data[b->size - back];
		size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
		if ((byte & 0xc0) != 0x80)
			return length > back ? back : 0;
	}
	return 0;
}

int clip_text(struct clip *clip, struct buf *out, uint64_t *left_out, struct husk_error *err)
{
	bool whole = clip->head.size + clip->tail.size == clip->total && clip->tail.size <= CLIP_TAIL;
	size_t head = clip->head.size - (whole ? 0 : unfinished(&clip->head));
	size_t from = clip->tail.size > CLIP_TAIL ? clip->tail.size - CLIP_TAIL : 0;

	if (!whole)
		from = character_start(&clip->tail, from);
	*left_out = clip->total - head - (clip->tail.size - from);
	int bad = head ? buf_append(out, clip->head.data, head) : 0;
	if (*left_out)
		bad |= buf_printf(out, "\n[… %llu bytes left out …]\n", (unsigned long long)*left_out);
	if (clip->tail.size > from)
		bad |= buf_append(out, clip->tail.data + from, clip->tail.size - from);
	return bad ? husk_fail_memory(err) : 0;
}

void clip_free(struct clip *clip)
{
	buf_free(&clip->head);
	buf_free(&clip->tail);
}

/* ---- progress ---- */

void tool_progress_begin(struct tool_progress *progress)
{
	*progress = (struct tool_progress){ .started_ms = time_monotonic_ms(), .told_ms = time_monotonic_ms() };
}

void tool_progress_output(struct tool_progress *progress, const char *bytes, size_t size)
{
	progress->bytes += size;
	for (size_t i = size > 4096 ? size - 4096 : 0; i < size; i++) {
		if (bytes[i] == '\n' || bytes[i] == '\r') {
			progress->line_ended = true;
			continue;
		}
		if (progress->line_ended)
			progress->last_size = 0;
		progress->line_ended = false;
		if ((unsigned char)bytes[i] >= 0x20 && progress->last_size < sizeof(progress->last))
			progress->last[progress->last_size++] = bytes[i];
	}
}

void tool_progress_tick(struct tool_call *call, struct tool_progress *progress)
{
	int64_t now = time_monotonic_ms();
	char text[320];

	if (!call->token || now - progress->told_ms < PROGRESS_MS)
		return;
	/* Progress is reported even without new output: clients treat silence as a failure. */
	if (progress->bytes == progress->told_bytes && now - progress->told_ms < 5 * PROGRESS_MS)
		return;
	progress->told_ms = now;
	progress->told_bytes = progress->bytes;
	double seconds = (double)(now - progress->started_ms) / 1000;
	snprintf(text, sizeof(text), "%.0f s, %llu bytes of output%s%.*s", seconds, (unsigned long long)progress->bytes,
		 progress->last_size ? ": " : "", (int)progress->last_size, progress->last);
	json_t *params = json_pack("{s:O, s:f, s:o}", "progressToken", call->token, "progress", seconds, "message",
				   json_text0(text));
	call->call->notify(call->call->data, mcp_notification("notifications/progress", params), NULL);
}
