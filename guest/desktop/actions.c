/*
 * A request: a list of actions, then optionally a wait until the screen is still, and a picture. The table at the end
 * has every action with its fields. The first action that fails ends the list.
 */
#include <math.h>

#include "desktop.h"
#include "fields.h"

#define QUIET_MS 100
#define SETTLE_MS 3000
#define PAUSE_QUIET_MS 120 /* between two actions */
#define PAUSE_MS 500
#define DRAG_STEPS 20
#define DRAG_STEP_MS 8

struct run {
	struct display *d;
	struct point space; /* of the caller's coordinates */
	double seconds;     /* waited and held so far */
	int pictures;
	size_t spent;
	bool settle; /* the last action may change the screen */
};

struct action {
	const char *name, *fields;
	int (*run)(struct run *run, const json_t *action, json_t *result, struct husk_error *err);
	int detail;
};

static struct point screen_of(const struct run *run)
{
	return (struct point){ run->d->width, run->d->height };
}

static struct point space_of(const struct run *run)
{
	return run->space.x ? run->space : screen_of(run);
}

static int put(json_t *result, const char *key, json_t *value, struct husk_error *err)
{
	return json_object_set_new(result, key, value) < 0 ? husk_fail_memory(err) : 0;
}

/* ---- mouse ---- */

/* Moves to the middle of `element`. */
static int go_to_element(struct run *run, const json_t *element, struct husk_error *err)
{
	struct point to;

	if (tree_point(element, screen_of(run), &to, err) < 0)
		return -1;
	return input_move(run->d, to, err);
}

/* Moves to `coordinate` or `element`, if one is there. */
static int go(struct run *run, const json_t *action, const char *field, bool required, struct husk_error *err)
{
	const json_t *pair = json_object_get(action, field), *element = json_object_get(action, "element");
	struct point to;

	if (pair && !json_is_null(pair) && element && !json_is_null(element))
		return husk_fail_field(err, "element", "'element' and '%s' are both given", field);
	if (element && !json_is_null(element))
		return go_to_element(run, element, err);
	if (!pair || json_is_null(pair))
		return required ? husk_fail_field(err, field, "'%s' is missing", field) : 0;
	if (field_point(pair, field, space_of(run), screen_of(run), &to, err) < 0)
		return -1;
	return input_move(run->d, to, err);
}

/* Keys that are held during a mouse action. */
static int held(const json_t *action, struct chord *chord, struct husk_error *err)
{
	const char *text = "";

	*chord = (struct chord){ 0 };
	if (field_text(action, "text", false, &text, err) < 0)
		return -1;
	return *text ? chord_parse(text, chord, err) : 0;
}

/* `what` with the keys of `chord` down; they are up again in any case. */
static int with_keys(struct run *run, const struct chord *chord,
		     int (*what)(struct run *, const void *, struct husk_error *), const void *data,
		     struct husk_error *err)
{
	if (chord->count && input_chord(run->d, chord, true, err) < 0)
		return -1;
	int result = what(run, data, err);
	if (chord->count && input_chord(run->d, chord, false, result < 0 ? NULL : err) < 0)
		result = -1;
	return result;
}

struct clicks {
	int button, times;
};

static int do_clicks(struct run *run, const void *data, struct husk_error *err)
{
	const struct clicks *clicks = data;

	return input_click(run->d, clicks->button, clicks->times, err);
}

/* detail: the button, and ten times the further clicks */
static int click(struct run *run, const json_t *action, int detail, struct husk_error *err)
{
	struct clicks clicks = { detail % 10, 1 + detail / 10 };
	struct chord chord;

	if (held(action, &chord, err) < 0 || field_integer(action, "clicks", 1, 10, &clicks.times, NULL, err) < 0 ||
	    go(run, action, "coordinate", false, err) < 0)
		return -1;
	return with_keys(run, &chord, do_clicks, &clicks, err);
}

#define CLICK(name, detail)                                                                                            \
	static int name(struct run *run, const json_t *action, json_t *result, struct husk_error *err)                 \
	{                                                                                                              \
		(void)result;                                                                                          \
		return click(run, action, detail, err);                                                                \
	}
CLICK(run_left_click, 1)
CLICK(run_middle_click, 2)
CLICK(run_right_click, 3)
CLICK(run_double_click, 11)
CLICK(run_triple_click, 21)

static int run_mouse_move(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	(void)result;
	return go(run, action, "coordinate", true, err);
}

/* `button`: left, if it is not given, middle or right. */
static int press(struct run *run, const json_t *action, bool down, struct husk_error *err)
{
	static const char *const buttons[] = { "left", "middle", "right" };
	const char *name = "left";
	int button = 0;

	if (field_text(action, "button", false, &name, err) < 0)
		return -1;
	for (int i = 0; i < 3; i++)
		if (str_equal(name, buttons[i]))
			button = 1 + i;
	if (!button)
		return husk_fail_field(err, "button", "'button' is not left, middle or right");
	return go(run, action, "coordinate", false, err) < 0 ? -1 : input_button(run->d, button, down, err);
}

static int run_mouse_down(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	(void)result;
	return press(run, action, true, err);
}

static int run_mouse_up(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	(void)result;
	return press(run, action, false, err);
}

#define PATH_MAX_POINTS 200
struct path {
	struct point points[PATH_MAX_POINTS];
	size_t count;
};

static int glide(struct run *run, struct point from, struct point to, struct husk_error *err)
{
	for (int i = 1; i <= DRAG_STEPS; i++) {
		struct point at = { from.x + (to.x - from.x) * i / DRAG_STEPS,
				    from.y + (to.y - from.y) * i / DRAG_STEPS };
		if (input_move(run->d, at, err) < 0)
			return -1;
		display_sleep(run->d, DRAG_STEP_MS);
	}
	return 0;
}

static int do_drag(struct run *run, const void *data, struct husk_error *err)
{
	const struct path *path = data;
	int result = input_button(run->d, 1, true, err);

	display_sleep(run->d, 50);
	for (size_t i = 1; result == 0 && i < path->count; i++)
		result = glide(run, path->points[i - 1], path->points[i], err);
	display_sleep(run->d, 50);
	if (input_button(run->d, 1, false, result < 0 ? NULL : err) < 0)
		result = -1;
	return result;
}

static int read_path(struct run *run, const json_t *action, struct path *path, struct husk_error *err)
{
	const json_t *list = json_object_get(action, "path"), *pair;
	struct point space = space_of(run), screen = screen_of(run);
	size_t i;

	path->count = 0;
	if (list) {
		if (!json_is_array(list) || json_array_size(list) < 2 || json_array_size(list) > PATH_MAX_POINTS)
			return husk_fail_field(err, "path", "'path' is not a list of 2 to %d coordinates",
					       PATH_MAX_POINTS);
		json_array_foreach(list, i, pair) if (field_point(pair, "path", space, screen,
								  &path->points[path->count++], err) < 0) return -1;
		return 0;
	}
	path->points[0] = display_pointer(run->d);
	pair = json_object_get(action, "start_coordinate");
	if (pair && !json_is_null(pair) &&
	    field_point(pair, "start_coordinate", space, screen, &path->points[0], err) < 0)
		return -1;
	path->count = 2;
	return field_point(json_object_get(action, "coordinate"), "coordinate", space, screen, &path->points[1], err);
}

static int run_drag(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	struct path path;
	struct chord chord;

	(void)result;
	if (held(action, &chord, err) < 0 || read_path(run, action, &path, err) < 0 ||
	    input_move(run->d, path.points[0], err) < 0)
		return -1;
	return with_keys(run, &chord, do_drag, &path, err);
}

static int run_scroll(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	static const char *const directions[] = { "up", "down", "left", "right" };
	const char *direction = "";
	struct clicks clicks = { 0, 3 };
	struct chord chord;

	(void)result;
	if (field_text(action, "scroll_direction", true, &direction, err) < 0 ||
	    field_integer(action, "scroll_amount", 0, 200, &clicks.times, NULL, err) < 0 ||
	    held(action, &chord, err) < 0)
		return -1;
	for (int i = 0; i < 4; i++)
		if (str_equal(direction, directions[i]))
			clicks.button = 4 + i;
	if (!clicks.button)
		return husk_fail_field(err, "scroll_direction", "'scroll_direction' is not up, down, left or right");
	if (go(run, action, "coordinate", false, err) < 0)
		return -1;
	return with_keys(run, &chord, do_clicks, &clicks, err);
}

static int run_cursor_position(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	struct point at = display_pointer(run->d), space = space_of(run), screen = screen_of(run);

	(void)action;
	return put(result, "coordinate", json_pack("[i, i]", at.x * space.x / screen.x, at.y * space.y / screen.y),
		   err);
}

/* ---- keys ---- */

static int read_chord(const json_t *action, struct chord *chord, struct husk_error *err)
{
	const char *text = "";

	return field_text(action, "text", true, &text, err) < 0 ? -1 : chord_parse(text, chord, err);
}

static int run_key(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	struct chord chord;
	int repeat = 1;

	(void)result;
	if (read_chord(action, &chord, err) < 0 || field_integer(action, "repeat", 1, 100, &repeat, NULL, err) < 0)
		return -1;
	for (int i = 0; i < repeat; i++)
		if (input_chord(run->d, &chord, true, err) < 0 || input_chord(run->d, &chord, false, err) < 0)
			return -1;
	return 0;
}

static int run_key_down(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	struct chord chord;

	(void)result;
	return read_chord(action, &chord, err) < 0 ? -1 : input_chord(run->d, &chord, true, err);
}

static int run_key_up(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	struct chord chord;

	(void)result;
	return read_chord(action, &chord, err) < 0 ? -1 : input_chord(run->d, &chord, false, err);
}

static int spend(struct run *run, double seconds, struct husk_error *err)
{
	run->seconds += seconds;
	if (run->seconds > DURATION_MAX)
		return husk_fail_field(err, "duration",
				       "the actions of one call wait and hold for more than %d seconds", DURATION_MAX);
	return 0;
}

static int do_wait(struct run *run, const void *data, struct husk_error *err)
{
	display_sleep(run->d, (int)lround(*(const double *)data * 1000));
	return display_sync(run->d, err);
}

static int run_hold_key(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	struct chord chord;
	double seconds = 0;

	(void)result;
	if (read_chord(action, &chord, err) < 0 || field_seconds(action, "duration", true, &seconds, err) < 0 ||
	    spend(run, seconds, err) < 0)
		return -1;
	return with_keys(run, &chord, do_wait, &seconds, err);
}

static int run_wait(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	double seconds = 1;

	(void)result;
	if (field_seconds(action, "duration", false, &seconds, err) < 0 || spend(run, seconds, err) < 0)
		return -1;
	if (!run->d->wait)
		return do_wait(run, &seconds, err);
	/* No key of ours is held: others may act. If one of them found the display gone, it is the new one that is asked here. */
	run->d->wait(run->d, (int)lround(seconds * 1000));
	return display_alive(run->d) ? display_sync(run->d, err) : husk_fail(err, HUSK_GONE, "the display has ended");
}

static int run_type(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	const char *text = "";
	size_t count = 0;

	(void)result;
	if (field_text(action, "text", true, &text, err) < 0)
		return -1;
	for (const char *at = text; *at; count++) {
		uint32_t character = character_next(&at);
		if (!key_of_character(character))
			return husk_fail_field(err, "text",
					       "'text' contains the control character U+%04X; use the action 'key'",
					       character);
	}
	if (count > TEXT_MAX)
		return husk_fail_field(err, "text", "'text' has more than %d characters; use the clipboard", TEXT_MAX);
	return input_type(run->d, text, err);
}

/* ---- pictures ---- */

static int read_format(const json_t *object, struct picture *picture, struct husk_error *err)
{
	const char *format = "png";

	if (field_text(object, "format", false, &format, err) < 0)
		return -1;
	picture->quality = 75;
	if (str_equal(format, "png"))
		picture->format = PICTURE_PNG;
	else if (str_equal(format, "jpeg") || str_equal(format, "jpg"))
		picture->format = PICTURE_JPEG;
	else if (str_equal(format, "webp"))
		picture->format = PICTURE_WEBP;
	else
		return husk_fail_field(err, "format", "format '%.32s' is not known (png, jpeg, webp)", format);
	return field_integer(object, "quality", 1, 100, &picture->quality, NULL, err);
}

/* The region fills at most `box`, with its proportions. */
static void fit(struct picture *picture, struct point box)
{
	int width = picture->region.x1 - picture->region.x0, height = picture->region.y1 - picture->region.y0;
	double factor = fmin((double)box.x / width, (double)box.y / height);

	picture->width = MAX(1, MIN(box.x, (int)lround(width * factor)));
	picture->height = MAX(1, MIN(box.y, (int)lround(height * factor)));
}

static int read_picture(struct run *run, const json_t *object, bool zoom, struct picture *picture,
			struct husk_error *err)
{
	struct point screen = screen_of(run), box = { SIDE_MAX, SIDE_MAX };

	*picture = (struct picture){ .cursor = true, .region = { 0, 0, screen.x, screen.y } };
	if (read_format(object, picture, err) < 0 ||
	    field_region(object, space_of(run), screen, &picture->region, err) < 0 ||
	    field_integer(object, "max_width", 1, SIDE_MAX, &box.x, NULL, err) < 0 ||
	    field_integer(object, "max_height", 1, SIDE_MAX, &box.y, NULL, err) < 0 ||
	    field_boolean(object, "cursor", &picture->cursor, err) < 0)
		return -1;
	int width = picture->region.x1 - picture->region.x0, height = picture->region.y1 - picture->region.y0;
	box.x = MIN(box.x, zoom ? screen.x : width);
	box.y = MIN(box.y, zoom ? screen.y : height);
	fit(picture, box);
	return 0;
}

static json_t *take(struct run *run, const struct picture *picture, struct husk_error *err)
{
	if (++run->pictures > PICTURES_MAX) {
		husk_fail(err, HUSK_LIMIT, "more than %d pictures in one call", PICTURES_MAX);
		return NULL;
	}
	return picture_take(run->d, picture, &run->spent, err);
}

static int run_picture(struct run *run, const json_t *action, bool zoom, json_t *result, struct husk_error *err)
{
	struct picture picture;

	if (read_picture(run, action, zoom, &picture, err) < 0)
		return -1;
	if (run->settle)
		display_settle(run->d, QUIET_MS, SETTLE_MS);
	json_t *taken = take(run, &picture, err);
	return taken ? put(result, "screenshot", taken, err) : -1;
}

static int run_screenshot(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	return run_picture(run, action, false, result, err);
}

static int run_zoom(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	if (!json_object_get(action, "region"))
		return husk_fail_field(err, "region", "'region' is missing, as in [x0, y0, x1, y1]");
	return run_picture(run, action, true, result, err);
}

/* ---- clipboard, windows, size ---- */

static int run_get_clipboard(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	cleanup_free char *text = NULL;
	size_t size = 0;

	(void)action;
	if (clipboard_get(run->d, &text, &size, err) < 0)
		return -1;
	json_t *string = json_stringn(text, size);
	return string ? put(result, "text", string, err)
		      : husk_fail(err, HUSK_CONFLICT, "the clipboard holds something that is not UTF-8 text");
}

static int run_set_clipboard(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	const char *text = "";

	(void)result;
	if (field_text(action, "text", true, &text, err) < 0)
		return -1;
	if (strlen(text) > CLIPBOARD_MAX)
		return husk_fail_field(err, "text", "'text' has more than %u MiB", CLIPBOARD_MAX >> 20);
	return clipboard_set(run->d, text, strlen(text), err);
}

static int run_windows(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	json_t *list = windows_list(run->d, err);

	(void)action;
	return list ? put(result, "windows", list, err) : -1;
}

static int read_window(const json_t *action, xcb_window_t *out, struct husk_error *err)
{
	const json_t *value = json_object_get(action, "window");

	if (!json_is_integer(value) || json_integer_value(value) <= 0 || json_integer_value(value) > UINT32_MAX)
		return husk_fail_field(err, "window",
				       "'window' is not the id of a window; the action 'windows' lists them");
	*out = (xcb_window_t)json_integer_value(value);
	return 0;
}

static int run_focus_window(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	xcb_window_t window;

	(void)result;
	return read_window(action, &window, err) < 0 ? -1 : window_focus(run->d, window, err);
}

static int run_close_window(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	xcb_window_t window;

	(void)result;
	return read_window(action, &window, err) < 0 ? -1 : window_close(run->d, window, err);
}

static int run_move_window(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	static const char *const names[4] = { "x", "y", "width", "height" };
	xcb_window_t window;
	int values[4];
	bool given[4], any = false;

	(void)result;
	if (read_window(action, &window, err) < 0)
		return -1;
	for (int i = 0; i < 4; i++) {
		if (field_integer(action, names[i], i < 2 ? -SIDE_MAX : 1, SIDE_MAX, &values[i], &given[i], err) < 0)
			return -1;
		any |= given[i];
	}
	if (!any)
		return husk_fail_field(err, "x", "none of x, y, width and height is given");
	return window_move(run->d, window, given[0] ? &values[0] : NULL, given[1] ? &values[1] : NULL,
			   given[2] ? &values[2] : NULL, given[3] ? &values[3] : NULL, err);
}

static int run_resize(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	int width = 0, height = 0;

	(void)result;
	if (field_integer(action, "width", 320, 4096, &width, NULL, err) < 0 ||
	    field_integer(action, "height", 200, 4096, &height, NULL, err) < 0)
		return -1;
	if (!width || !height)
		return husk_fail_field(err, width ? "height" : "width", "'%s' is missing", width ? "height" : "width");
	return display_resize(run->d, width, height, err);
}

/* ---- the browser, elements ---- */

static int run_open(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	const char *url = "about:blank";

	(void)result;
	if (field_text(action, "url", false, &url, err) < 0)
		return -1;
	return browser_open(run->d, url, err);
}

static int run_tree(struct run *run, const json_t *action, json_t *result, struct husk_error *err)
{
	cleanup_json json_t *answer = tree_read(action, err);
	json_t *elements = json_object_get(answer, "elements");

	(void)run;
	if (!answer)
		return -1;
	return put(result, "elements", json_incref(elements), err) < 0 ||
			       put(result, "truncated",
				   json_boolean(json_is_true(json_object_get(answer, "truncated"))), err) < 0
		       ? -1
		       : 0;
}

/* ---- the list ---- */

#define POINTED "action coordinate element text"
#define SHOWN "action format quality region max_width max_height cursor"

static const struct action actions[] = {
	{ "left_click", POINTED " clicks", run_left_click, 1 },
	{ "right_click", POINTED " clicks", run_right_click, 1 },
	{ "middle_click", POINTED " clicks", run_middle_click, 1 },
	{ "double_click", POINTED, run_double_click, 1 },
	{ "triple_click", POINTED, run_triple_click, 1 },
	{ "left_click_drag", "action start_coordinate coordinate path text", run_drag, 1 },
	{ "mouse_move", "action coordinate element", run_mouse_move, 1 },
	{ "left_mouse_down", "action coordinate element", run_mouse_down, 1 },
	{ "left_mouse_up", "action coordinate element", run_mouse_up, 1 },
	{ "mouse_down", "action coordinate element button", run_mouse_down, 1 },
	{ "mouse_up", "action coordinate element button", run_mouse_up, 1 },
	{ "cursor_position", "action", run_cursor_position, 0 },
	{ "scroll", "action coordinate element scroll_direction scroll_amount text", run_scroll, 1 },
	{ "key", "action text repeat", run_key, 1 },
	{ "key_down", "action text", run_key_down, 1 },
	{ "key_up", "action text", run_key_up, 1 },
	{ "hold_key", "action text duration", run_hold_key, 1 },
	{ "type", "action text", run_type, 1 },
	{ "wait", "action duration", run_wait, 0 },
	{ "screenshot", SHOWN, run_screenshot, 0 },
	{ "zoom", SHOWN, run_zoom, 0 },
	{ "get_clipboard", "action", run_get_clipboard, 0 },
	{ "set_clipboard", "action text", run_set_clipboard, 0 },
	{ "tree", "action window max_elements all", run_tree, 0 },
	{ "windows", "action", run_windows, 0 },
	{ "focus_window", "action window", run_focus_window, 1 },
	{ "move_window", "action window x y width height", run_move_window, 1 },
	{ "close_window", "action window", run_close_window, 1 },
	{ "resize", "action width height", run_resize, 1 },
	{ "open", "action url", run_open, 1 },
};

static const struct action *find_action(const json_t *object, struct husk_error *err)
{
	const char *name = "", *names[ARRAY_SIZE(actions)];

	if (!json_is_object(object)) {
		husk_fail_field(err, "action",
				"it is not an object, as in {\"action\": \"left_click\", \"coordinate\": [1, 2]}");
		return NULL;
	}
	if (field_text(object, "action", true, &name, err) < 0)
		return NULL;
	for (size_t i = 0; i < ARRAY_SIZE(actions); i++) {
		if (str_equal(actions[i].name, name))
			return &actions[i];
		names[i] = actions[i].name;
	}
	const char *near = strlen(name) < 64 ? str_nearest(name, names, ARRAY_SIZE(names)) : NULL;
	husk_fail_field(err, "action", "it is not known%s%s%s", near ? "; did you mean '" : "", near ? near : "",
			near ? "'?" : "");
	return NULL;
}

static int run_action(struct run *run, const json_t *object, json_t *results, struct husk_error *err)
{
	const struct action *action = find_action(object, err);
	cleanup_json json_t *result = action ? json_pack("{s:s}", "action", action->name) : NULL;

	if (!action)
		return -1;
	if (!result)
		return husk_fail_memory(err);
	display_pump(run->d);
	if (fields_known(object, action->fields, err) < 0 || action->run(run, object, result, err) < 0 ||
	    display_sync(run->d, err) < 0)
		return -1;
	run->settle = action->detail;
	return json_array_append(results, result) < 0 ? husk_fail_memory(err) : 0;
}

/* The action's own name, fit for a message. */
static const char *name_of(const json_t *object, char out[33])
{
	const char *name = json_string_value(json_object_get(object, "action"));

	snprintf(out, 33, "%s", name ? name : "");
	for (char *at = out; *at; at++)
		if ((*at < 'a' || *at > 'z') && (*at < 'A' || *at > 'Z') && *at != '_' && (*at < '0' || *at > '9'))
			*at = '?';
	return out;
}

const char *desktop_code_name(enum husk_code code)
{
	static const char *const names[] = {
		[HUSK_INVALID] = "invalid",   [HUSK_CONFLICT] = "conflict",       [HUSK_LIMIT] = "limit",
		[HUSK_TIMEOUT] = "timeout",   [HUSK_UNAVAILABLE] = "unavailable", [HUSK_GONE] = "gone",
		[HUSK_INTERNAL] = "internal",
	};

	return (size_t)code < ARRAY_SIZE(names) && names[code] ? names[code] : "internal";
}

static json_t *error_json(const struct husk_error *err, int index, const json_t *object)
{
	char name[33];
	json_t *error = json_pack("{s:i, s:s, s:s, s:s}", "index", index, "action", name_of(object, name), "message",
				  err->message, "code", desktop_code_name(err->code));

	if (error && err->field[0])
		json_object_set_new(error, "field", json_string(err->field));
	return error;
}

static int read_space(struct run *run, const json_t *request, struct husk_error *err)
{
	const json_t *space = json_object_get(request, "space");

	if (!space || json_is_null(space))
		return 0;
	if (!json_is_object(space) || fields_known(space, "width height", err) < 0 ||
	    field_integer(space, "width", 1, 100000, &run->space.x, NULL, err) < 0 ||
	    field_integer(space, "height", 1, 100000, &run->space.y, NULL, err) < 0 || !run->space.x || !run->space.y)
		return husk_fail_field(err, "space",
				       "'space' is not {\"width\": …, \"height\": …}, each from 1 to 100000");
	return 0;
}

struct settling {
	bool wanted;
	int quiet_ms, limit_ms;
};

static int read_settle(const json_t *request, struct settling *out, struct husk_error *err)
{
	const json_t *settle = json_object_get(request, "settle");

	*out = (struct settling){ json_is_true(settle) || json_is_object(settle), QUIET_MS, SETTLE_MS };
	if (!settle || json_is_boolean(settle) || json_is_null(settle))
		return 0;
	if (!json_is_object(settle))
		return husk_fail_field(err, "settle",
				       "'settle' is not true, false or {\"quiet_ms\": …, \"timeout_ms\": …}");
	if (fields_known(settle, "quiet_ms timeout_ms", err) < 0 ||
	    field_integer(settle, "quiet_ms", 1, 10000, &out->quiet_ms, NULL, err) < 0 ||
	    field_integer(settle, "timeout_ms", 1, 60000, &out->limit_ms, NULL, err) < 0)
		return -1;
	return 0;
}

static int finish(struct run *run, const json_t *request, const struct settling *settling, json_t *answer,
		  struct husk_error *err)
{
	const json_t *wanted = json_object_get(request, "screenshot");
	bool picture = wanted && !json_is_null(wanted) && !json_is_false(wanted);

	if (settling->wanted &&
	    put(answer, "settled", json_boolean(display_settle(run->d, settling->quiet_ms, settling->limit_ms)), err) <
		    0)
		return -1;
	display_pump(run->d);
	if (picture) {
		struct picture how;
		if (json_is_object(wanted) && fields_known(wanted, SHOWN + strlen("action "), err) < 0)
			return -1;
		if (read_picture(run, wanted, false, &how, err) < 0)
			return -1;
		json_t *taken = take(run, &how, err);
		if (!taken || put(answer, "screenshot", taken, err) < 0)
			return -1;
	}
	if (put(answer, "width", json_integer(run->d->width), err) < 0 ||
	    put(answer, "height", json_integer(run->d->height), err) < 0)
		return -1;
	return display_sync(run->d, err);
}

json_t *actions_run(struct display *d, const json_t *request)
{
	struct run run = { .d = d };
	struct settling settling;
	struct husk_error err = { 0 };
	const json_t *list = json_object_get(request, "actions"), *object = NULL;
	json_t *answer = json_object(), *results = json_array();
	int index = -1, failed = 0;

	json_object_set_new(answer, "results", results);
	if (list && !json_is_array(list))
		failed = husk_fail_field(&err, "actions", "'actions' is not a list");
	else if (json_array_size(list) > ACTIONS_MAX)
		failed = husk_fail_field(&err, "actions", "more than %d actions in one call", ACTIONS_MAX);
	else if (read_space(&run, request, &err) < 0 || read_settle(request, &settling, &err) < 0)
		failed = -1;
	for (size_t i = 0; !failed && i < json_array_size(list); i++) {
		/* What was clicked is dealt with before what follows it. Chromium looks for the target of a click while keys go
		 * straight to what has the keyboard, so that a key could overtake it. */
		if (run.settle)
			display_settle(d, PAUSE_QUIET_MS, PAUSE_MS);
		index = (int)i;
		object = json_array_get(list, i);
		failed = run_action(&run, object, results, &err);
	}
	if (!failed) {
		index = -1;
		object = NULL;
		failed = finish(&run, request, &settling, answer, &err);
	}
	if (failed)
		json_object_set_new(answer, "error", error_json(&err, index, object));
	return answer;
}
