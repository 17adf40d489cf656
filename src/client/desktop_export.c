/*
 * Recordings for other programs; see husk.h. A video is made in cells (instance/film.h). The document is made here, from files that
 * the host wrote.
 *
 *     {"id": "rec-…", "state": "complete", "reason": "stopped", "started_at": "2026-…Z", "duration_seconds": 4.2,
 *      "width": 1280, "height": 800, "actions": [{"ms": 1200, "action": {"action": "left_click", "coordinate": [640, 400]}}]}
 */
#include "base/jansson.h"
#include "client/desktop_files.h"
#include "instance/film.h"

#define ACTIONS_MAX (32u << 20)

/* The lines of actions; one that was cut off by a crash is left out. */
static json_t *read_actions(int fd, uint64_t size)
{
	cleanup_free char *text = size <= ACTIONS_MAX ? malloc(size + 1) : NULL;
	json_t *list = json_array();
	ssize_t count = text ? read_full(fd, text, size) : -1;
	char *rest = text;

	if (count >= 0)
		text[count] = '\0';
	while (list && count >= 0 && rest) {
		const char *line = strsep(&rest, "\n");
		json_t *action = *line ? json_loads(line, 0, NULL) : NULL;
		if (action && json_array_append_new(list, action) < 0) {
			json_decref(list);
			list = NULL;
		}
	}
	return list;
}

static json_t *make_document(const struct husk_recording *recording, json_t *actions)
{
	static const char *const states[] = { [HUSK_RECORDING_RUNNING] = "recording",
					      [HUSK_RECORDING_COMPLETE] = "complete",
					      [HUSK_RECORDING_CUT] = "cut" };
	char started[25];

	time_format(recording->started_ms, started);
	return json_pack("{s:s, s:s, s:s?, s:s, s:f, s:i, s:i, s:o}", "id", recording->id, "state",
			 states[recording->state], "reason", recording->reason, "started_at", started,
			 "duration_seconds", (double)recording->duration_ms / 1000.0, "width", (int)recording->width,
			 "height", (int)recording->height, "actions", actions);
}

static int export_json(struct husk *husk, const char *sandbox, const char *id, husk_sink sink, void *data,
		       struct husk_error *err)
{
	struct husk_recording *recording = NULL;
	uint64_t size = 0;
	cleanup_close int fd = husk_recording_read(husk, sandbox, id, HUSK_RECORDING_ACTIONS, &size, err);

	if (fd < 0 || recording_get(husk, sandbox, id, &recording, err) < 0)
		return -1;
	cleanup_json json_t *document = make_document(recording, read_actions(fd, size));
	cleanup_free char *text = document ? json_dumps(document, JSON_INDENT(1)) : NULL;
	husk_recording_free(recording);
	if (!text)
		return husk_fail_memory(err);
	return sink(data, text, strlen(text)) != 0 || sink(data, "\n", 1) != 0
		       ? husk_fail(err, HUSK_INTERNAL, "the receiver stopped the transfer")
		       : 0;
}

int husk_recording_export(struct husk *husk, const char *sandbox, const char *id, const char *format, husk_sink sink,
			  void *data, struct husk_error *err)
{
	uint64_t size = 0;

	if (!str_equal(format, "mp4") && !str_equal(format, "webm") && !str_equal(format, "json"))
		return husk_fail_field(err, "format", "format is not mp4, webm or json");
	if (husk->remote)
		return remote_recording_export(husk->remote, sandbox, id, format, sink, data, err);
	if (str_equal(format, "json"))
		return export_json(husk, sandbox, id, sink, data, err);
	cleanup_close int screen = husk_recording_read(husk, sandbox, id, HUSK_RECORDING_SCREEN, &size, err);
	return screen < 0 ? -1 : film_make(husk, screen, format, sink, data, err);
}
