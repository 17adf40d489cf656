/*
 * The clipboard as UTF-8 text, both ways. X does not store it: the program that pastes asks the program that copied. So
 * this program owns the clipboard that it set, and answers while it runs. Large texts of other programs arrive in pieces
 * (INCR).
 */
#include "desktop.h"

#define WAIT_MS 3000
#define PIECES 2 /* of take: the text will come in pieces; 1: a piece was added */

/* ---- ours ---- */

int clipboard_set(struct display *d, const char *text, size_t size, struct husk_error *err)
{
	char *copy = malloc(size + 1);

	if (!copy)
		return husk_fail_memory(err);
	memcpy(copy, text, size);
	copy[size] = '\0';
	free(d->clipboard);
	d->clipboard = copy;
	d->clipboard_size = size;
	xcb_set_selection_owner(d->x, d->window, d->atoms[ATOM_CLIPBOARD], XCB_CURRENT_TIME);
	cleanup_free xcb_get_selection_owner_reply_t *owner =
		xcb_get_selection_owner_reply(d->x, xcb_get_selection_owner(d->x, d->atoms[ATOM_CLIPBOARD]), NULL);
	d->clipboard_owned = owner && owner->owner == d->window;
	return d->clipboard_owned ? 0 : husk_fail(err, HUSK_CONFLICT, "display :0 does not give the clipboard");
}

static bool answer(struct display *d, const xcb_selection_request_event_t *request, xcb_atom_t property)
{
	const xcb_atom_t *atoms = d->atoms;

	if (!d->clipboard_owned || request->selection != atoms[ATOM_CLIPBOARD])
		return false;
	if (request->target == atoms[ATOM_TARGETS]) {
		xcb_atom_t targets[] = { atoms[ATOM_TARGETS], atoms[ATOM_UTF8_STRING], atoms[ATOM_TEXT],
					 XCB_ATOM_STRING };
		xcb_change_property(d->x, XCB_PROP_MODE_REPLACE, request->requestor, property, XCB_ATOM_ATOM, 32,
				    ARRAY_SIZE(targets), targets);
		return true;
	}
	if (request->target != atoms[ATOM_UTF8_STRING] && request->target != atoms[ATOM_TEXT] &&
	    request->target != XCB_ATOM_STRING)
		return false;
	/* BIG-REQUESTS carries what CLIPBOARD_MAX allows in one piece. */
	xcb_change_property(d->x, XCB_PROP_MODE_REPLACE, request->requestor, property, atoms[ATOM_UTF8_STRING], 8,
			    (uint32_t)d->clipboard_size, d->clipboard);
	return true;
}

void clipboard_event(struct display *d, const xcb_generic_event_t *event)
{
	uint8_t type = event->response_type & 0x7f;

	if (type == XCB_SELECTION_CLEAR) {
		d->clipboard_owned = false;
	} else if (type == XCB_SELECTION_REQUEST) {
		const xcb_selection_request_event_t *request = (const void *)event;
		xcb_atom_t property = request->property ? request->property : request->target;
		xcb_selection_notify_event_t notify = {
			.response_type = XCB_SELECTION_NOTIFY,
			.time = request->time,
			.requestor = request->requestor,
			.selection = request->selection,
			.target = request->target,
			.property = answer(d, request, property) ? property : XCB_ATOM_NONE,
		};
		xcb_send_event(d->x, 0, request->requestor, 0, (const char *)&notify);
		xcb_flush(d->x);
	}
}

/* ---- others' ---- */

/* Waits for one event of this kind about the transfer; events of other kinds are handled as always. */
static bool wait_for(struct display *d, uint8_t wanted, xcb_atom_t *property, int64_t deadline_ms)
{
	while (display_alive(d) && time_monotonic_ms() < deadline_ms) {
		cleanup_free xcb_generic_event_t *event = xcb_poll_for_event(d->x);
		if (!event) {
			xcb_flush(d->x);
			usleep(2000);
			continue;
		}
		uint8_t type = event->response_type & 0x7f;
		const xcb_selection_notify_event_t *notify = (const void *)event;
		const xcb_property_notify_event_t *changed = (const void *)event;
		if (type == wanted && type == XCB_SELECTION_NOTIFY) {
			*property = notify->property;
			return true;
		}
		if (type == wanted && changed->window == d->window && changed->atom == d->atoms[ATOM_TRANSFER] &&
		    changed->state == XCB_PROPERTY_NEW_VALUE)
			return true;
		if (type != XCB_PROPERTY_NOTIFY && type != XCB_SELECTION_NOTIFY)
			clipboard_event(d, event);
	}
	return false;
}

/* Takes what stands in the transfer property. 0: nothing more. */
static int take(struct display *d, struct buf *text, struct husk_error *err)
{
	cleanup_free xcb_get_property_reply_t *reply =
		xcb_get_property_reply(d->x,
				       xcb_get_property(d->x, 1, d->window, d->atoms[ATOM_TRANSFER],
							XCB_GET_PROPERTY_TYPE_ANY, 0, CLIPBOARD_MAX / 4 + 1),
				       NULL);

	if (!reply)
		return 0;
	if (reply->type == d->atoms[ATOM_INCR])
		return PIECES;
	size_t size = (size_t)xcb_get_property_value_length(reply);
	if (text->size + size > CLIPBOARD_MAX || reply->bytes_after)
		return husk_fail(err, HUSK_LIMIT, "the clipboard has more than %u MiB", CLIPBOARD_MAX >> 20);
	if (size && buf_append(text, xcb_get_property_value(reply), size) < 0)
		return husk_fail_memory(err);
	return size > 0;
}

/* Asks the owner, and takes the text in one piece or in several. */
static int fetch(struct display *d, struct buf *text, struct husk_error *err)
{
	xcb_atom_t property = XCB_ATOM_NONE;

	xcb_convert_selection(d->x, d->window, d->atoms[ATOM_CLIPBOARD], d->atoms[ATOM_UTF8_STRING],
			      d->atoms[ATOM_TRANSFER], XCB_CURRENT_TIME);
	if (!wait_for(d, XCB_SELECTION_NOTIFY, &property, time_monotonic_ms() + WAIT_MS))
		return husk_fail(err, HUSK_TIMEOUT, "the program that owns the clipboard does not answer");
	int got = property ? take(d, text, err) : 0;
	if (got < PIECES)
		return got < 0 ? -1 : 0;
	do {
		if (!wait_for(d, XCB_PROPERTY_NOTIFY, NULL, time_monotonic_ms() + WAIT_MS))
			return husk_fail(err, HUSK_TIMEOUT,
					 "the program that owns the clipboard stopped in the middle of it");
		got = take(d, text, err);
	} while (got > 0);
	return got;
}

int clipboard_get(struct display *d, char **out, size_t *size, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };

	display_pump(d);
	if (d->clipboard_owned) {
		if (buf_append(&text, d->clipboard, d->clipboard_size) < 0)
			return husk_fail_memory(err);
	} else if (fetch(d, &text, err) < 0) {
		return -1;
	}
	*size = text.size;
	*out = buf_steal(&text);
	return *out ? 0 : husk_fail_memory(err);
}
