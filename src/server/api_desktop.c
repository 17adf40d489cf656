/*
 * …/desktop: the screen of a sandbox. Every route becomes a request of husk_desktop_act, which one function sends: a list of actions,
 * a picture, the clipboard, the windows, the size. Pictures come from the guest: they are passed on as bytes of the type that was
 * asked for, never sniffed.
 */
#include "server/api_desktop.h"

static const char *const no_query[] = { NULL };

static int wait_for_desktop(void *data, int fd, int timeout_ms)
{
	return request_wait(data, fd, timeout_ms);
}

int desktop_act(struct request *request, json_t *document, json_t **answer, struct husk_error *err)
{
	cleanup_free char *text = document ? json_dumps(document, JSON_COMPACT) : NULL, *given = NULL;
	struct husk_desktop_options options = { .request = text, .wait = wait_for_desktop, .wait_data = request };

	json_decref(document);
	if (!text)
		return husk_fail_memory(err);
	if (husk_desktop_act(request_husk(request), request_path(request, "id"), &options, &given, err) < 0)
		return -1;
	*answer = json_loads(given, 0, NULL);
	return *answer ? 0 : husk_fail_memory(err);
}

/* The first result of an answer that has one (borrowed). */
static const json_t *first_result(const json_t *answer)
{
	return json_array_get(json_object_get(answer, "results"), 0);
}

/* One action (takes ownership of it), answered with nothing. */
static int act_empty(struct request *request, json_t *action, struct husk_error *err)
{
	cleanup_json json_t *answer = NULL;

	if (desktop_act(request, json_pack("{s:[o]}", "actions", action), &answer, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

/* ---- acting ---- */

static int handle_actions(struct request *request, struct husk_error *err)
{
	static const char *const names[] = { "actions", "space", "settle", "screenshot" };
	cleanup_json json_t *answer = NULL;
	struct fields fields;
	json_t *document = json_object();
	bool bad = !document;

	if (request_query_known(request, no_query, err) < 0 || fields_begin(&fields, request_json(request, err)) < 0) {
		json_decref(document);
		return -1;
	}
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		json_t *value = fields_any(&fields, names[i]);
		bad |= value && json_object_set(document, names[i], value) < 0;
	}
	if (bad || fields_done(&fields, err) < 0) {
		json_decref(document);
		return bad ? husk_fail_memory(err) : -1;
	}
	if (desktop_act(request, document, &answer, err) < 0)
		return -1;
	return respond_json(request, 200, steal_pointer(answer), err);
}

static int handle_state(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *answer = NULL;

	if (request_query_known(request, no_query, err) < 0 ||
	    desktop_act(request,
			json_pack("{s:[{s:s}, {s:s}]}", "actions", "action", "windows", "action", "cursor_position"),
			&answer, err) < 0)
		return -1;
	const json_t *results = json_object_get(answer, "results");
	json_t *windows = json_object_get(json_array_get(results, 0), "windows");
	json_t *cursor = json_object_get(json_array_get(results, 1), "coordinate");
	return respond_json(request, 200,
			    json_pack("{s:O?, s:O?, s:O?, s:O?}", "width", json_object_get(answer, "width"), "height",
				      json_object_get(answer, "height"), "cursor", cursor, "windows", windows),
			    err);
}

/* ---- pictures ---- */

/* region=0,0,640,400 as a list; NULL with INVALID. */
static json_t *region_of(const char *text, struct husk_error *err)
{
	json_t *list = json_array();
	int at[4], end = 0;

	if (sscanf(text, "%d,%d,%d,%d%n", &at[0], &at[1], &at[2], &at[3], &end) != 4 || text[end]) {
		json_decref(list);
		husk_fail_field(err, "region", "region '%.64s' is not four numbers, as in 0,0,640,400", text);
		return NULL;
	}
	for (int i = 0; i < 4; i++)
		json_array_append_new(list, json_integer(at[i]));
	return list;
}

static int add_number(struct request *request, json_t *picture, const char *name, int64_t max, struct husk_error *err)
{
	int64_t value = 0;

	if (!request_query(request, name))
		return 0;
	if (request_query_int(request, name, 0, 1, max, &value, err) < 0)
		return -1;
	return json_object_set_new(picture, name, json_integer(value)) < 0 ? husk_fail_memory(err) : 0;
}

static int read_picture(struct request *request, json_t *picture, bool *settle, struct husk_error *err)
{
	static const char *const known[] = { "format",     "quality", "region", "max_width",
					     "max_height", "cursor",  "settle", NULL };
	const char *format = request_query(request, "format"), *region = request_query(request, "region");
	bool cursor = true;

	if (request_query_known(request, known, err) < 0 || add_number(request, picture, "quality", 100, err) < 0 ||
	    add_number(request, picture, "max_width", 8192, err) < 0 ||
	    add_number(request, picture, "max_height", 8192, err) < 0 ||
	    request_query_bool(request, "cursor", true, &cursor, err) < 0 ||
	    request_query_bool(request, "settle", false, settle, err) < 0)
		return -1;
	json_t *list = region ? region_of(region, err) : NULL;
	if (region && !list)
		return -1;
	int bad = json_object_set_new(picture, "cursor", json_boolean(cursor));
	bad |= list ? json_object_set_new(picture, "region", list) : 0;
	bad |= format ? json_object_set_new(picture, "format", json_string(format)) : 0;
	return bad ? husk_fail_memory(err) : 0;
}

static int handle_screenshot(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *picture = json_object(), *answer = NULL;
	cleanup_buf struct buf bytes = { 0 };
	bool settle = false;

	if (!picture)
		return husk_fail_memory(err);
	if (read_picture(request, picture, &settle, err) < 0 ||
	    desktop_act(request, json_pack("{s:b, s:O}", "settle", settle, "screenshot", picture), &answer, err) < 0)
		return -1;
	const json_t *taken = json_object_get(answer, "screenshot"), *data = json_object_get(taken, "data");
	const char *type = json_string_value(json_object_get(taken, "type"));
	if (!json_is_string(data) ||
	    (!str_equal(type, "image/png") && !str_equal(type, "image/jpeg") && !str_equal(type, "image/webp")))
		return husk_fail(err, HUSK_PROTOCOL, "the desktop helper gave no picture");
	if (base64_decode("screenshot", json_string_value(data), json_string_length(data), &bytes, err) < 0)
		return husk_fail(err, HUSK_PROTOCOL, "the desktop helper gave a picture that is not base64");
	if (respond_header(request, "Cache-Control", "no-store", err) < 0 ||
	    respond_header(request, "X-Content-Type-Options", "nosniff", err) < 0)
		return -1;
	return respond_text(request, 200, type, bytes.data ? bytes.data : "", bytes.size, err);
}

/* ---- size, clipboard, windows ---- */

static int handle_size(struct request *request, struct husk_error *err)
{
	struct fields fields;

	if (request_query_known(request, no_query, err) < 0 || fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	int64_t width = fields_int(&fields, "width", 0, 320, 4096),
		height = fields_int(&fields, "height", 0, 200, 4096);
	if (fields_done(&fields, err) < 0)
		return -1;
	if (!width || !height)
		return husk_fail_field(err, width ? "height" : "width", "%s is missing; give both, in pixels",
				       width ? "height" : "width");
	return act_empty(request,
			 json_pack("{s:s, s:I, s:I}", "action", "resize", "width", (json_int_t)width, "height",
				   (json_int_t)height),
			 err);
}

static int handle_clipboard_get(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *answer = NULL;

	if (request_query_known(request, no_query, err) < 0 ||
	    desktop_act(request, json_pack("{s:[{s:s}]}", "actions", "action", "get_clipboard"), &answer, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:O?}", "text", json_object_get(first_result(answer), "text")),
			    err);
}

static int handle_clipboard_put(struct request *request, struct husk_error *err)
{
	struct fields fields;

	if (request_query_known(request, no_query, err) < 0 || fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *text = fields_string(&fields, "text");
	if (fields_done(&fields, err) < 0)
		return -1;
	if (!text)
		return husk_fail_field(err, "text", "text is missing");
	return act_empty(request, json_pack("{s:s, s:s}", "action", "set_clipboard", "text", text), err);
}

static int handle_windows(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *answer = NULL;

	if (request_query_known(request, no_query, err) < 0 ||
	    desktop_act(request, json_pack("{s:[{s:s}]}", "actions", "action", "windows"), &answer, err) < 0)
		return -1;
	return respond_json(request, 200,
			    json_pack("{s:O?}", "windows", json_object_get(first_result(answer), "windows")), err);
}

static int handle_tree(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "window", "max_elements", "all", NULL };
	cleanup_json json_t *answer = NULL;
	const char *window = request_query(request, "window");
	int64_t most = 0;
	bool all = false;

	if (request_query_known(request, known, err) < 0 ||
	    request_query_int(request, "max_elements", 500, 1, 5000, &most, err) < 0 ||
	    request_query_bool(request, "all", false, &all, err) < 0)
		return -1;
	json_t *action = json_pack("{s:s, s:s*, s:I, s:b}", "action", "tree", "window", window, "max_elements",
				   (json_int_t)most, "all", all);
	if (!action)
		return husk_fail_field(err, "window", "window is not valid UTF-8");
	if (desktop_act(request, json_pack("{s:[o]}", "actions", action), &answer, err) < 0)
		return -1;
	const json_t *result = first_result(answer);
	return respond_json(request, 200,
			    json_pack("{s:O?, s:O?}", "elements", json_object_get(result, "elements"), "truncated",
				      json_object_get(result, "truncated")),
			    err);
}

static int window_of(struct request *request, int64_t *out, struct husk_error *err)
{
	if (str_to_int64(request_path(request, "window"), 1, UINT32_MAX, out) < 0)
		return husk_fail_field(err, "window", "'%.32s' is not the id of a window",
				       request_path(request, "window"));
	return 0;
}

/* Moves it, if a place or size is given, and brings it to the front with "focus". */
static int handle_window_put(struct request *request, struct husk_error *err)
{
	static const char *const names[] = { "x", "y", "width", "height" };
	cleanup_json json_t *answer = NULL;
	struct fields fields;
	int64_t window;

	if (request_query_known(request, no_query, err) < 0 || window_of(request, &window, err) < 0 ||
	    fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	bool focus = fields_bool(&fields, "focus", false), moves = false;
	json_t *move = json_pack("{s:s, s:I}", "action", "move_window", "window", (json_int_t)window);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		json_t *value = fields_any(&fields, names[i]);
		moves |= value != NULL;
		if (value)
			json_object_set(move, names[i], value);
	}
	json_t *actions = json_array();
	if (moves)
		json_array_append(actions, move);
	json_decref(move);
	if (focus)
		json_array_append_new(actions,
				      json_pack("{s:s, s:I}", "action", "focus_window", "window", (json_int_t)window));
	if (fields_done(&fields, err) < 0 || json_array_size(actions) == 0) {
		json_decref(actions);
		return moves || focus ? -1
				      : husk_fail_field(err, "focus",
							"nothing is asked for; give focus, x, y, width or height");
	}
	if (desktop_act(request, json_pack("{s:o}", "actions", actions), &answer, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

static int handle_window_delete(struct request *request, struct husk_error *err)
{
	int64_t window;

	if (request_query_known(request, no_query, err) < 0 || window_of(request, &window, err) < 0)
		return -1;
	return act_empty(request, json_pack("{s:s, s:I}", "action", "close_window", "window", (json_int_t)window), err);
}

const struct route desktop_routes[] = {
	{ "GET", "/v1/sandboxes/{id}/desktop", handle_state, 0 },
	{ "POST", "/v1/sandboxes/{id}/desktop/actions", handle_actions, 0 },
	{ "GET", "/v1/sandboxes/{id}/desktop/screenshot", handle_screenshot, 0 },
	{ "PUT", "/v1/sandboxes/{id}/desktop/size", handle_size, 0 },
	{ "GET", "/v1/sandboxes/{id}/desktop/clipboard", handle_clipboard_get, 0 },
	{ "PUT", "/v1/sandboxes/{id}/desktop/clipboard", handle_clipboard_put, 0 },
	{ "GET", "/v1/sandboxes/{id}/desktop/tree", handle_tree, 0 },
	{ "GET", "/v1/sandboxes/{id}/desktop/windows", handle_windows, 0 },
	{ "PUT", "/v1/sandboxes/{id}/desktop/windows/{window}", handle_window_put, 0 },
	{ "DELETE", "/v1/sandboxes/{id}/desktop/windows/{window}", handle_window_delete, 0 },
	{ 0 },
};
