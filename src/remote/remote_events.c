/*
 * Server-sent events of an answer, for calls that report progress. Lines are bounded, and a line that is not an event is
 * skipped.
 */
#include "remote/remote_http.h"

#define LINE_MAX_BYTES (4u << 20)
#define DEPTH_MAX 16

static void take_line(struct events *events)
{
	const char *line = events->line.data;
	size_t size = events->line.size;

	if (size > 7 && memcmp(line, "event: ", 7) == 0)
		snprintf(events->name, sizeof(events->name), "%.*s", (int)MIN(size - 7, 15u), line + 7);
	if (size > 6 && memcmp(line, "data: ", 6) == 0) {
		json_t *document =
			str_json_deeper(line + 6, size - 6, DEPTH_MAX) ? NULL : json_loadb(line + 6, size - 6, 0, NULL);
		events->take(events->data, events->name, document);
		json_decref(document);
	}
	events->line.size = 0;
}

int events_sink(void *data, const void *bytes, size_t size)
{
	struct events *events = data;

	for (const char *c = bytes; size > 0; c++, size--) {
		if (*c == '\n')
			take_line(events);
		else if (*c != '\r' && (events->line.size > LINE_MAX_BYTES || buf_append(&events->line, c, 1) < 0))
			return -1;
	}
	return 0;
}

void events_free(struct events *events)
{
	buf_free(&events->line);
}
