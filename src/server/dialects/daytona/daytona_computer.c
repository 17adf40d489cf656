/*
 * Daytona's computer use: mouse, keyboard, pictures, the display and its windows. Each route becomes a request of Husk's own
 * desktop (docs/desktop.md), so that a person who has taken control keeps it, and recordings of Husk have these actions too.
 *
 * Example: POST mouse/click {"x":5,"y":9,"button":"right","modifiers":["ctrl"]} becomes
 * {"actions":[{"action":"right_click","coordinate":[5,9],"text":"ctrl"},{"action":"cursor_position"}]}, and the second result
 * the answer {"x":5,"y":9}.
 */
#include "server/dialects/daytona/daytona_computer.h"

#define SIDE_MAX 65535
#define TYPED_AT_ONCE 90 /* characters of one request when there is a delay; each is two actions */
#define DELAY_MAX_MS 1000

/* ---- requests ---- */

int daytona_computer_enter(struct request *request, struct daytona_box *box, struct husk_error *err)
{
	if (daytona_enter(request, box, err) < 0)
		return -1;
	if (str_equal(daytona_text(box, "computerUse"), "stopped"))
		return daytona_fail(request, 400, "BAD_REQUEST",
				    "the computer use processes are stopped; call computer_use.start() first");
	return 0;
}

/* Takes the list of actions. */
static int act(struct request *request, json_t *actions, json_t **answer, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };

	if (!actions)
		return husk_fail_memory(err);
	if (daytona_computer_enter(request, &box, err) < 0) {
		json_decref(actions);
		return -1;
	}
	return desktop_act(request, json_pack("{s:o}", "actions", actions), answer, err);
}

static const json_t *last_result(const json_t *answer)
{
	const json_t *results = json_object_get(answer, "results");

	return json_array_get(results, json_array_size(results) - 1);
}

/* {"x", "y"} of the last result, which is a cursor_position. */
static json_t *position_of(const json_t *answer)
{
	const json_t *at = json_object_get(last_result(answer), "coordinate");

	return json_pack("{s:I, s:I}", "x", json_integer_value(json_array_get(at, 0)), "y",
			 json_integer_value(json_array_get(at, 1)));
}

/* Takes the list of actions; answers where the pointer is afterwards. */
static int respond_position(struct request *request, json_t *actions, struct husk_error *err)
{
	cleanup_json json_t *answer = NULL;

	if (actions && json_array_append_new(actions, json_pack("{s:s}", "action", "cursor_position")) < 0) {
		json_decref(actions);
		actions = NULL;
	}
	if (act(request, actions, &answer, err) < 0)
		return -1;
	return respond_json(request, 200, position_of(answer), err);
}

/* Takes the list of actions; answers with an empty object. */
static int respond_done(struct request *request, json_t *actions, struct husk_error *err)
{
	cleanup_json json_t *answer = NULL;

	return act(request, actions, &answer, err) < 0 ? -1 : respond_json(request, 200, json_object(), err);
}

/* ---- fields ---- */

/* The pair of these two numbers as [x, y], a new reference; NULL: neither is given, or there is an error. */
static json_t *take_point(struct fields *fields, const char *x_name, const char *y_name)
{
	bool has_x = json_is_integer(json_object_get(fields->object, x_name));
	bool has_y = json_is_integer(json_object_get(fields->object, y_name));
	int64_t x = fields_int(fields, x_name, 0, 0, SIDE_MAX), y = fields_int(fields, y_name, 0, 0, SIDE_MAX);

	if (has_x != has_y && !fields->error.message[0])
		husk_fail_field(&fields->error, has_x ? y_name : x_name, "%s is given without %s",
				has_x ? x_name : y_name, has_x ? y_name : x_name);
	return has_x && has_y ? json_pack("[I, I]", (json_int_t)x, (json_int_t)y) : NULL;
}

/* "left", "middle" or "right"; NULL with the error. */
static const char *take_button(struct fields *fields)
{
	static const char *const buttons[] = { "left", "middle", "right" };
	const char *given = fields_string(fields, "button");

	if (!given || !*given)
		return buttons[0];
	for (size_t i = 0; i < ARRAY_SIZE(buttons); i++)
		if (strcasecmp(given, buttons[i]) == 0)
			return buttons[i];
	if (!fields->error.message[0])
		husk_fail_field(&fields->error, "button",
				"unsupported mouse button \"%.40s\": expected one of left, right, middle", given);
	return buttons[0];
}

/* An action with what is given of coordinate and held keys; takes the coordinate. */
static json_t *pointed(const char *name, json_t *coordinate, const char *keys)
{
	return json_pack("{s:s, s:o*, s:s*}", "action", name, "coordinate", coordinate, "text",
			 keys && *keys ? keys : NULL);
}

/* ---- mouse ---- */

static int handle_position(struct request *request, struct husk_error *err)
{
	return respond_position(request, json_array(), err);
}

static int handle_move(struct request *request, struct husk_error *err)
{
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	cleanup_json json_t *to = take_point(&fields, "x", "y");
	if (fields_done_open(&fields, err) < 0)
		return -1;
	if (!to)
		return husk_fail_field(err, "x", "x and y are required");
	return respond_position(request, json_pack("[o]", pointed("mouse_move", json_incref(to), NULL)), err);
}

/* down: press, else release */
static int press(struct request *request, const char *action, struct husk_error *err)
{
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *button = take_button(&fields);
	json_t *at = take_point(&fields, "x", "y");
	if (fields_done_open(&fields, err) < 0) {
		json_decref(at);
		return -1;
	}
	return respond_position(
		request, json_pack("[{s:s, s:s, s:o*}]", "action", action, "button", button, "coordinate", at), err);
}

static int handle_down(struct request *request, struct husk_error *err)
{
	return press(request, "mouse_down", err);
}

static int handle_up(struct request *request, struct husk_error *err)
{
	return press(request, "mouse_up", err);
}

static int handle_click(struct request *request, struct husk_error *err)
{
	cleanup_free char *keys = NULL, *name = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *button = take_button(&fields);
	bool twice = fields_bool(&fields, "double", false);
	int64_t clicks = fields_int(&fields, "clicks", twice ? 2 : 1, 1, 10);
	cleanup_free const char **modifiers = fields_strings(&fields, "modifiers");
	json_t *at = take_point(&fields, "x", "y");
	if (fields_done_open(&fields, err) < 0 || daytona_modifiers(modifiers, &keys, err) < 0) {
		json_decref(at);
		return -1;
	}
	name = str_format("%s_click", button);
	json_t *action = name ? pointed(name, at, keys) : NULL;
	if (!action || json_object_set_new(action, "clicks", json_integer(clicks)) < 0)
		return husk_fail_memory(err);
	return respond_position(request, json_pack("[o]", action), err);
}

/* With another button than the left one: what the left one's action does, step by step. The pointer goes to the end first, so
 * that a place off the screen is refused while no button is down. */
static json_t *drag_steps(json_t *from, json_t *to, const char *button, const char *keys)
{
	json_t *middle = json_array(), *steps = json_array();
	int failed = 0;

	for (size_t i = 0; i < 2; i++)
		failed |= json_array_append_new(middle, json_integer((json_integer_value(json_array_get(from, i)) +
								      json_integer_value(json_array_get(to, i))) /
								     2));
	failed |= json_array_append_new(steps, pointed("mouse_move", json_incref(to), NULL));
	failed |= json_array_append_new(steps, pointed("mouse_move", json_incref(from), NULL));
	if (*keys)
		failed |= json_array_append_new(steps, pointed("key_down", NULL, keys));
	failed |= json_array_append_new(steps, json_pack("{s:s, s:s}", "action", "mouse_down", "button", button));
	failed |= json_array_append_new(steps, pointed("mouse_move", middle, NULL));
	failed |= json_array_append_new(steps, pointed("mouse_move", json_incref(to), NULL));
	failed |= json_array_append_new(steps, json_pack("{s:s, s:s}", "action", "mouse_up", "button", button));
	if (*keys)
		failed |= json_array_append_new(steps, pointed("key_up", NULL, keys));
	if (failed) {
		json_decref(steps);
		return NULL;
	}
	return steps;
}

static int handle_drag(struct request *request, struct husk_error *err)
{
	cleanup_free char *keys = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *button = take_button(&fields);
	cleanup_free const char **modifiers = fields_strings(&fields, "modifiers");
	cleanup_json json_t *from = take_point(&fields, "startX", "startY"), *to = take_point(&fields, "endX", "endY");
	if (fields_done_open(&fields, err) < 0 || daytona_modifiers(modifiers, &keys, err) < 0)
		return -1;
	if (!from || !to)
		return husk_fail_field(err, from ? "endX" : "startX", "startX, startY, endX and endY are required");
	if (!str_equal(button, "left"))
		return respond_position(request, drag_steps(from, to, button, keys), err);
	json_t *action = pointed("left_click_drag", json_incref(to), keys);
	if (!action || json_object_set(action, "start_coordinate", from) < 0)
		return husk_fail_memory(err);
	return respond_position(request, json_pack("[o]", action), err);
}

static const char *take_direction(struct fields *fields)
{
	static const char *const directions[] = { "up", "down", "left", "right" };
	const char *given = fields_string(fields, "direction");

	for (size_t i = 0; given && i < ARRAY_SIZE(directions); i++)
		if (strcasecmp(given, directions[i]) == 0)
			return directions[i];
	if (!fields->error.message[0])
		husk_fail_field(&fields->error, "direction",
				"unsupported scroll direction \"%.40s\": expected one of up, down, left, right",
				given ? given : "");
	return directions[0];
}

static int handle_scroll(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *answer = NULL;
	cleanup_free char *keys = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *direction = take_direction(&fields);
	int64_t amount = fields_int(&fields, "amount", 1, 0, 200);
	cleanup_free const char **modifiers = fields_strings(&fields, "modifiers");
	json_t *at = take_point(&fields, "x", "y");
	if (fields_done_open(&fields, err) < 0 || daytona_modifiers(modifiers, &keys, err) < 0) {
		json_decref(at);
		return -1;
	}
	json_t *action = pointed("scroll", at, keys);
	if (!action || json_object_set_new(action, "scroll_direction", json_string(direction)) < 0 ||
	    json_object_set_new(action, "scroll_amount", json_integer(MAX(amount, 1))) < 0)
		return husk_fail_memory(err);
	if (act(request, json_pack("[o]", action), &answer, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:b}", "success", true), err);
}

/* ---- keyboard ---- */

/* The bytes of the character at `text`, which is UTF-8. */
static size_t character_size(const char *text)
{
	size_t size = 1;

	while ((text[size] & 0xc0) == 0x80)
		size++;
	return size;
}

/* A part of a text, with a wait after each character; *text moves behind it. */
static json_t *slow_part(const char **text, int64_t delay_ms)
{
	json_t *actions = json_array();
	int failed = 0;

	for (size_t i = 0; i < TYPED_AT_ONCE && **text && !failed; i++) {
		size_t size = character_size(*text);
		failed |= json_array_append_new(
			actions, json_pack("{s:s, s:o}", "action", "type", "text", json_stringn(*text, size)));
		failed |= json_array_append_new(
			actions, json_pack("{s:s, s:f}", "action", "wait", "duration", (double)delay_ms / 1000.0));
		*text += size;
	}
	if (failed) {
		json_decref(actions);
		return NULL;
	}
	return actions;
}

static int handle_type(struct request *request, struct husk_error *err)
{
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *text = fields_string(&fields, "text");
	int64_t delay_ms = fields_int(&fields, "delay", 0, 0, DELAY_MAX_MS);
	if (fields_done_open(&fields, err) < 0)
		return -1;
	if (!text)
		return husk_fail_field(err, "text", "text is required");
	if (!delay_ms || !*text)
		return respond_done(request, *text ? json_pack("[o]", pointed("type", NULL, text)) : json_array(), err);
	while (*text) {
		cleanup_json json_t *answer = NULL;
		if (act(request, slow_part(&text, delay_ms), &answer, err) < 0)
			return -1;
	}
	return respond_json(request, 200, json_object(), err);
}

/* One action with the key of the field. */
static int key_action(struct request *request, const char *action, struct husk_error *err)
{
	cleanup_free char *keys = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *key = fields_string(&fields, "key");
	cleanup_free const char **modifiers = fields_strings(&fields, "modifiers");
	if (fields_done_open(&fields, err) < 0 || daytona_chord(key, modifiers, &keys, err) < 0)
		return -1;
	return respond_done(request, json_pack("[o]", pointed(action, NULL, keys)), err);
}

static int handle_key(struct request *request, struct husk_error *err)
{
	return key_action(request, "key", err);
}

static int handle_key_down(struct request *request, struct husk_error *err)
{
	return key_action(request, "key_down", err);
}

static int handle_key_up(struct request *request, struct husk_error *err)
{
	return key_action(request, "key_up", err);
}

static int handle_hotkey(struct request *request, struct husk_error *err)
{
	cleanup_free char *keys = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *given = fields_string(&fields, "keys");
	if (fields_done_open(&fields, err) < 0 || daytona_hotkey(given, &keys, err) < 0)
		return -1;
	return respond_done(request, json_pack("[o]", pointed("key", NULL, keys)), err);
}

/* ---- pictures ---- */

struct shot {
	bool whole; /* not a region */
	int64_t x, y, width, height;
	double scale;
	json_t *action; /* screenshot */
};

static int read_region(struct request *request, struct shot *shot, struct husk_error *err)
{
	if (request_query_int(request, "x", 0, 0, SIDE_MAX, &shot->x, err) < 0 ||
	    request_query_int(request, "y", 0, 0, SIDE_MAX, &shot->y, err) < 0 ||
	    request_query_int(request, "width", 0, 1, SIDE_MAX, &shot->width, err) < 0 ||
	    request_query_int(request, "height", 0, 1, SIDE_MAX, &shot->height, err) < 0)
		return -1;
	if (!shot->width || !shot->height)
		return husk_fail_field(err, "width",
				       "invalid screenshot region: width and height must be greater than zero");
	json_t *region = json_pack("[I, I, I, I]", (json_int_t)shot->x, (json_int_t)shot->y,
				   (json_int_t)shot->x + shot->width, (json_int_t)shot->y + shot->height);
	return json_object_set_new(shot->action, "region", region) < 0 ? husk_fail_memory(err) : 0;
}

/* As in Daytona, a quality or scale that is out of range counts as not given. */
static int read_compression(struct request *request, struct shot *shot, struct husk_error *err)
{
	const char *format = request_query(request, "format"), *scale = request_query(request, "scale");
	int64_t quality = 85;

	if (request_query(request, "quality"))
		str_to_int64(request_query(request, "quality"), 1, 100, &quality);
	if (scale) {
		char *end = NULL;
		double value = strtod(scale, &end);
		shot->scale = end != scale && !*end && value >= 0.1 && value <= 1.0 ? value : 1.0;
	}
	if (json_object_set_new(shot->action, "quality", json_integer(quality)) < 0 ||
	    json_object_set_new(shot->action, "format", json_string(format && *format ? format : "png")) < 0)
		return husk_fail_memory(err);
	return 0;
}

/* The size of the screen, for a scale of the whole of it. */
static int read_screen(struct request *request, struct shot *shot, struct husk_error *err)
{
	cleanup_json json_t *answer = NULL;

	if (act(request, json_array(), &answer, err) < 0)
		return -1;
	shot->width = json_integer_value(json_object_get(answer, "width"));
	shot->height = json_integer_value(json_object_get(answer, "height"));
	return 0;
}

static int scale_shot(struct request *request, struct shot *shot, struct husk_error *err)
{
	if (shot->scale >= 1.0)
		return 0;
	if (shot->whole && read_screen(request, shot, err) < 0)
		return -1;
	json_int_t width = MAX(1, (json_int_t)((double)shot->width * shot->scale + 0.5));
	json_int_t height = MAX(1, (json_int_t)((double)shot->height * shot->scale + 0.5));
	if (json_object_set_new(shot->action, "max_width", json_integer(width)) < 0 ||
	    json_object_set_new(shot->action, "max_height", json_integer(height)) < 0)
		return husk_fail_memory(err);
	return 0;
}

static int take_shot(struct request *request, struct shot *shot, struct husk_error *err)
{
	cleanup_json json_t *answer = NULL;

	if (act(request, json_pack("[O, {s:s}]", shot->action, "action", "cursor_position"), &answer, err) < 0)
		return -1;
	json_t *picture = json_object_get(json_array_get(json_object_get(answer, "results"), 0), "screenshot");
	json_t *data = json_object_get(picture, "data");
	size_t size = json_string_length(data), padding = 0;
	const char *text = json_string_value(data);
	while (padding < 2 && padding < size && text[size - 1 - padding] == '=')
		padding++;
	return respond_json(request, 200,
			    json_pack("{s:O?, s:o, s:I}", "screenshot", data, "cursorPosition", position_of(answer),
				      "sizeBytes", (json_int_t)(size / 4 * 3 - padding)),
			    err);
}

static int screenshot(struct request *request, bool region, bool compressed, struct husk_error *err)
{
	const char *cursor = request_query(request, "showCursor");
	cleanup_json json_t *action =
		json_pack("{s:s, s:b}", "action", "screenshot", "cursor", cursor && strcasecmp(cursor, "true") == 0);
	struct shot shot = { .whole = !region, .scale = 1.0, .action = action };

	if (!action)
		return husk_fail_memory(err);
	if ((region && read_region(request, &shot, err) < 0) ||
	    (compressed && read_compression(request, &shot, err) < 0) || scale_shot(request, &shot, err) < 0)
		return -1;
	return take_shot(request, &shot, err);
}

static int handle_screenshot(struct request *request, struct husk_error *err)
{
	return screenshot(request, false, false, err);
}

static int handle_region(struct request *request, struct husk_error *err)
{
	return screenshot(request, true, false, err);
}

static int handle_compressed(struct request *request, struct husk_error *err)
{
	return screenshot(request, false, true, err);
}

static int handle_compressed_region(struct request *request, struct husk_error *err)
{
	return screenshot(request, true, true, err);
}

/* ---- the display ---- */

static int handle_display(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *answer = NULL;

	if (act(request, json_array(), &answer, err) < 0)
		return -1;
	return respond_json(request, 200,
			    json_pack("{s:[{s:i, s:i, s:i, s:O?, s:O?, s:b}]}", "displays", "id", 0, "x", 0, "y", 0,
				      "width", json_object_get(answer, "width"), "height",
				      json_object_get(answer, "height"), "isActive", true),
			    err);
}

static int handle_windows(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *answer = NULL, *list = json_array();
	json_t *window;
	size_t i;

	if (act(request, json_pack("[{s:s}]", "action", "windows"), &answer, err) < 0)
		return -1;
	json_array_foreach(json_object_get(last_result(answer), "windows"), i, window)
	{
		json_t *shown =
			json_pack("{s:O?, s:O?, s:O?, s:O?, s:O?, s:O?, s:O?}", "id", json_object_get(window, "id"),
				  "title", json_object_get(window, "title"), "x", json_object_get(window, "x"), "y",
				  json_object_get(window, "y"), "width", json_object_get(window, "width"), "height",
				  json_object_get(window, "height"), "isActive", json_object_get(window, "active"));
		if (json_array_append_new(list, shown) < 0)
			return husk_fail_memory(err);
	}
	return respond_json(request, 200, json_pack("{s:O}", "windows", list), err);
}

#define COMPUTER DAYTONA_TOOLBOX "/computeruse"

const struct route daytona_computer_routes[] = {
	{ "GET", COMPUTER "/mouse/position", handle_position, 0 },
	{ "POST", COMPUTER "/mouse/move", handle_move, 0 },
	{ "POST", COMPUTER "/mouse/click", handle_click, 0 },
	{ "POST", COMPUTER "/mouse/down", handle_down, 0 },
	{ "POST", COMPUTER "/mouse/up", handle_up, 0 },
	{ "POST", COMPUTER "/mouse/drag", handle_drag, 0 },
	{ "POST", COMPUTER "/mouse/scroll", handle_scroll, 0 },
	{ "POST", COMPUTER "/keyboard/type", handle_type, 0 },
	{ "POST", COMPUTER "/keyboard/key", handle_key, 0 },
	{ "POST", COMPUTER "/keyboard/down", handle_key_down, 0 },
	{ "POST", COMPUTER "/keyboard/up", handle_key_up, 0 },
	{ "POST", COMPUTER "/keyboard/hotkey", handle_hotkey, 0 },
	{ "GET", COMPUTER "/screenshot", handle_screenshot, 0 },
	{ "GET", COMPUTER "/screenshot/region", handle_region, 0 },
	{ "GET", COMPUTER "/screenshot/compressed", handle_compressed, 0 },
	{ "GET", COMPUTER "/screenshot/region/compressed", handle_compressed_region, 0 },
	{ "GET", COMPUTER "/display/info", handle_display, 0 },
	{ "GET", COMPUTER "/display/windows", handle_windows, 0 },
	{ 0 },
};
