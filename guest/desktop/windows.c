/*
 * The windows of the screen, as the window manager keeps them (EWMH): listed, focused, moved, closed. Titles and classes come from
 * programs of the guest: their lengths are bounded, and what is not UTF-8 is left out.
 */
#include "desktop.h"

#define TITLE_MAX 1024
#define WINDOWS_MAX 1024

static xcb_get_property_reply_t *property(struct display *d, xcb_window_t window, xcb_atom_t name, uint32_t words)
{
	return xcb_get_property_reply(
		d->x, xcb_get_property(d->x, 0, window, name, XCB_GET_PROPERTY_TYPE_ANY, 0, words), NULL);
}

static size_t bytes_of(const xcb_get_property_reply_t *reply, int format)
{
	return reply && reply->format == format ? (size_t)xcb_get_property_value_length(reply) : 0;
}

static xcb_get_property_reply_t *client_list(struct display *d, size_t *count)
{
	xcb_get_property_reply_t *reply = property(d, d->root, d->atoms[ATOM_CLIENT_LIST], WINDOWS_MAX);

	*count = bytes_of(reply, 32) / sizeof(xcb_window_t);
	return reply;
}

static uint32_t number(struct display *d, xcb_window_t window, xcb_atom_t name)
{
	cleanup_free xcb_get_property_reply_t *reply = property(d, window, name, 1);

	return bytes_of(reply, 32) >= 4 ? *(uint32_t *)xcb_get_property_value(reply) : 0;
}

static json_t *text_json(const char *text, size_t size)
{
	json_t *string = json_stringn(text, size);

	return string ? string : json_string("");
}

static json_t *title_of(struct display *d, xcb_window_t window)
{
	cleanup_free xcb_get_property_reply_t *name = property(d, window, d->atoms[ATOM_WM_NAME], TITLE_MAX / 4);
	cleanup_free xcb_get_property_reply_t *old =
		bytes_of(name, 8) ? NULL : property(d, window, XCB_ATOM_WM_NAME, TITLE_MAX / 4);
	xcb_get_property_reply_t *either = bytes_of(name, 8) ? name : old;

	return either ? text_json(xcb_get_property_value(either), bytes_of(either, 8)) : json_string("");
}

/* WM_CLASS is "instance\0class\0"; people know the second. */
static json_t *class_of(struct display *d, xcb_window_t window)
{
	cleanup_free xcb_get_property_reply_t *reply = property(d, window, XCB_ATOM_WM_CLASS, 64);
	size_t size = bytes_of(reply, 8);
	const char *text = size ? xcb_get_property_value(reply) : "";
	size_t first = strnlen(text, size);

	if (first + 1 < size)
		return text_json(text + first + 1, strnlen(text + first + 1, size - first - 1));
	return text_json(text, first);
}

static bool is_hidden(struct display *d, xcb_window_t window)
{
	cleanup_free xcb_get_property_reply_t *reply = property(d, window, d->atoms[ATOM_WM_STATE], 32);
	const xcb_atom_t *states = reply ? xcb_get_property_value(reply) : NULL;

	for (size_t i = 0; i < bytes_of(reply, 32) / 4; i++)
		if (states[i] == d->atoms[ATOM_STATE_HIDDEN])
			return true;
	return false;
}

/* The place of a window with its frame. */
static bool place_of(struct display *d, xcb_window_t window, int place[4])
{
	cleanup_free xcb_get_geometry_reply_t *size =
		xcb_get_geometry_reply(d->x, xcb_get_geometry(d->x, window), NULL);
	cleanup_free xcb_translate_coordinates_reply_t *at =
		xcb_translate_coordinates_reply(d->x, xcb_translate_coordinates(d->x, window, d->root, 0, 0), NULL);
	cleanup_free xcb_get_property_reply_t *frame = property(d, window, d->atoms[ATOM_FRAME_EXTENTS], 4);
	static const uint32_t none[4];
	const uint32_t *edges = bytes_of(frame, 32) >= 16 ? xcb_get_property_value(frame) : none;

	if (!size || !at)
		return false;
	place[0] = at->dst_x - (int)MIN(edges[0], 500);
	place[1] = at->dst_y - (int)MIN(edges[2], 500);
	place[2] = size->width + (int)MIN(edges[0], 500) + (int)MIN(edges[1], 500);
	place[3] = size->height + (int)MIN(edges[2], 500) + (int)MIN(edges[3], 500);
	return true;
}

json_t *windows_list(struct display *d, struct husk_error *err)
{
	size_t count;
	cleanup_free xcb_get_property_reply_t *list = client_list(d, &count);
	xcb_window_t active = number(d, d->root, d->atoms[ATOM_ACTIVE_WINDOW]);
	cleanup_json json_t *windows = json_array();

	for (size_t i = 0; i < count; i++) {
		xcb_window_t window = ((xcb_window_t *)xcb_get_property_value(list))[i];
		int place[4];
		if (!place_of(d, window, place)) /* it has just gone */
			continue;
		json_t *entry = json_pack(
			"{s:I, s:o, s:o, s:I, s:i, s:i, s:i, s:i, s:b, s:b}", "id", (json_int_t)window, "title",
			title_of(d, window), "program", class_of(d, window), "pid",
			(json_int_t)number(d, window, d->atoms[ATOM_WM_PID]), "x", place[0], "y", place[1], "width",
			place[2], "height", place[3], "active", window == active, "minimized", is_hidden(d, window));
		if (json_array_append_new(windows, entry) < 0) {
			husk_fail_memory(err);
			return NULL;
		}
	}
	return steal_pointer(windows);
}

size_t windows_count(struct display *d, const char *class, const char *title)
{
	size_t count, found = 0;
	cleanup_free xcb_get_property_reply_t *list = client_list(d, &count);

	for (size_t i = 0; i < count; i++) {
		xcb_window_t window = ((xcb_window_t *)xcb_get_property_value(list))[i];
		cleanup_json json_t *name = class_of(d, window), *shown = title ? title_of(d, window) : NULL;
		found += str_equal(json_string_value(name), class) &&
			 (!title || str_equal(json_string_value(shown), title));
	}
	return found;
}

/* ---- asking the window manager ---- */

static int check(struct display *d, xcb_window_t window, struct husk_error *err)
{
	size_t count;
	cleanup_free xcb_get_property_reply_t *list = client_list(d, &count);

	for (size_t i = 0; i < count; i++)
		if (((xcb_window_t *)xcb_get_property_value(list))[i] == window)
			return 0;
	return husk_fail_field(err, "window",
			       "window %u is not on the screen; the action 'windows' lists those that are", window);
}

static int ask(struct display *d, xcb_window_t window, enum atom what, const uint32_t data[5], struct husk_error *err)
{
	xcb_client_message_event_t message = {
		.response_type = XCB_CLIENT_MESSAGE,
		.format = 32,
		.window = window,
		.type = d->atoms[what],
	};

	if (check(d, window, err) < 0)
		return -1;
	memcpy(message.data.data32, data, sizeof(message.data.data32));
	xcb_send_event(d->x, 0, d->root, XCB_EVENT_MASK_SUBSTRUCTURE_NOTIFY | XCB_EVENT_MASK_SUBSTRUCTURE_REDIRECT,
		       (const char *)&message);
	return display_sync(d, err);
}

#define PAGER 2u /* the source of the request, as EWMH numbers it: not the program itself */

int window_focus(struct display *d, xcb_window_t window, struct husk_error *err)
{
	return ask(d, window, ATOM_ACTIVE_WINDOW, (uint32_t[5]){ PAGER }, err);
}

int window_close(struct display *d, xcb_window_t window, struct husk_error *err)
{
	return ask(d, window, ATOM_CLOSE_WINDOW, (uint32_t[5]){ 0, PAGER }, err);
}

int window_move(struct display *d, xcb_window_t window, const int *x, const int *y, const int *width, const int *height,
		struct husk_error *err)
{
	static const uint32_t none[4];
	cleanup_free xcb_get_property_reply_t *frame = property(d, window, d->atoms[ATOM_FRAME_EXTENTS], 4);
	const uint32_t *edges = bytes_of(frame, 32) >= 16 ? xcb_get_property_value(frame) : none;
	uint32_t set = (x ? 1u << 8 : 0) | (y ? 1u << 9 : 0) | (width ? 1u << 10 : 0) | (height ? 1u << 11 : 0);
	/* Gravity 1 (north west): the place is the frame's, the size that of what is within. */
	return ask(d, window, ATOM_MOVERESIZE_WINDOW,
		   (uint32_t[5]){ 1u | set | PAGER << 12, (uint32_t)(x ? *x : 0), (uint32_t)(y ? *y : 0),
				  (uint32_t)(width ? MAX(1, *width - (int)(edges[0] + edges[1])) : 0),
				  (uint32_t)(height ? MAX(1, *height - (int)(edges[2] + edges[3])) : 0) },
		   err);
}
