/*
 * Mouse and keyboard by XTEST. A character that no key of the keyboard has is put on a spare key first. Programs learn
 * about such a change through an event, so a short wait follows it. A key keeps its character until another character
 * needs the key.
 */
#include "desktop.h"

#include <xcb/xtest.h>

#define SHIFT 0xffe1u
#define STEP_MS 8      /* between the steps of a gesture, so that programs see each */
#define MAPPING_MS 120 /* for programs to read a changed keyboard */
#define KEYS_AT_ONCE 24

static void fake(struct display *d, uint8_t type, uint8_t detail, struct point at)
{
	if (type != XCB_KEY_RELEASE) /* programs answer the press */
		d->input_ms = time_monotonic_ms();
	xcb_test_fake_input(d->x, type, detail, XCB_CURRENT_TIME, d->root, (int16_t)at.x, (int16_t)at.y, 0);
}

/* ---- mouse ---- */

int input_move(struct display *d, struct point to, struct husk_error *err)
{
	fake(d, XCB_MOTION_NOTIFY, 0, to);
	return display_sync(d, err);
}

int input_button(struct display *d, int button, bool down, struct husk_error *err)
{
	fake(d, down ? XCB_BUTTON_PRESS : XCB_BUTTON_RELEASE, (uint8_t)button, (struct point){ 0, 0 });
	return display_sync(d, err);
}

int input_click(struct display *d, int button, int times, struct husk_error *err)
{
	for (int i = 0; i < times; i++) {
		display_sleep(d, STEP_MS);
		if (input_button(d, button, true, err) < 0)
			return -1;
		display_sleep(d, STEP_MS);
		if (input_button(d, button, false, err) < 0)
			return -1;
	}
	return 0;
}

/* ---- the keyboard as it is ---- */

void input_forget(struct display *d)
{
	free(steal_pointer(d->mapping));
}

static xcb_keysym_t symbol_at(const struct display *d, xcb_keycode_t key, int level)
{
	int per = d->mapping->keysyms_per_keycode;

	return level < per ? xcb_get_keyboard_mapping_keysyms(d->mapping)[(key - d->first_key) * per + level]
			   : XCB_NO_SYMBOL;
}

static int load(struct display *d, struct husk_error *err)
{
	if (d->mapping)
		return 0;
	d->first_key = xcb_get_setup(d->x)->min_keycode;
	d->last_key = xcb_get_setup(d->x)->max_keycode;
	d->mapping = xcb_get_keyboard_mapping_reply(
		d->x, xcb_get_keyboard_mapping(d->x, d->first_key, (uint8_t)(d->last_key - d->first_key + 1)), NULL);
	if (!d->mapping)
		return husk_fail(err, HUSK_GONE, "display :0 ended");
	for (int key = d->last_key; !d->spare_next && key >= d->first_key && d->spare_count < SPARES_MAX; key--) {
		bool empty = true;
		for (int level = 0; level < d->mapping->keysyms_per_keycode; level++)
			empty = empty && !symbol_at(d, (xcb_keycode_t)key, level);
		if (empty)
			d->spares[d->spare_count++] = (xcb_keycode_t)key;
	}
	d->spare_next = 1; /* found once: later they are not empty */
	return 0;
}

/* The key with this symbol, and whether it needs Shift; 0: none. */
static xcb_keycode_t key_find(const struct display *d, xcb_keysym_t symbol, bool *shift)
{
	for (int level = 0; level < 2; level++)
		for (int key = d->first_key; key <= d->last_key; key++)
			if (symbol_at(d, (xcb_keycode_t)key, level) == symbol) {
				*shift = level == 1 && symbol_at(d, (xcb_keycode_t)key, 0) != symbol;
				return (xcb_keycode_t)key;
			}
	return 0;
}

/* ---- spare keys ---- */

/* The symbols that one stretch of text needs beyond the keyboard. */
struct needed {
	xcb_keysym_t symbols[SPARES_MAX];
	size_t count;
};

static bool is_needed(const struct needed *needed, xcb_keysym_t symbol)
{
	for (size_t i = 0; i < needed->count; i++)
		if (needed->symbols[i] == symbol)
			return true;
	return false;
}

static bool is_spare(const struct display *d, xcb_keycode_t key)
{
	for (size_t i = 0; i < d->spare_count; i++)
		if (d->spares[i] == key)
			return true;
	return false;
}

/* Returns false if there is no place for one more. */
static bool need(const struct display *d, struct needed *needed, xcb_keysym_t symbol)
{
	bool shift;
	xcb_keycode_t key = key_find(d, symbol, &shift);

	if ((key && !is_spare(d, key)) || is_needed(needed, symbol))
		return true;
	if (needed->count == d->spare_count)
		return false;
	needed->symbols[needed->count++] = symbol;
	return true;
}

static void assign(struct display *d, const struct needed *needed, xcb_keysym_t symbol)
{
	for (size_t i = 0; i < d->spare_count; i++) {
		if (d->spare_symbols[i] && is_needed(needed, d->spare_symbols[i]))
			continue;
		xcb_keysym_t both[2] = { symbol, symbol };
		d->spare_symbols[i] = symbol;
		xcb_change_keyboard_mapping(d->x, 1, d->spares[i], 2, both);
		return;
	}
}

/* Puts all needed symbols on keys. */
static int prepare(struct display *d, const struct needed *needed, struct husk_error *err)
{
	bool changed = false, shift;

	for (size_t i = 0; i < needed->count; i++) {
		if (key_find(d, needed->symbols[i], &shift))
			continue;
		assign(d, needed, needed->symbols[i]);
		changed = true;
	}
	if (!changed)
		return 0;
	if (display_sync(d, err) < 0)
		return -1;
	display_sleep(d, MAPPING_MS);
	input_forget(d);
	return load(d, err);
}

/* ---- keys ---- */

static void key(struct display *d, xcb_keycode_t code, bool down)
{
	fake(d, down ? XCB_KEY_PRESS : XCB_KEY_RELEASE, code, (struct point){ 0, 0 });
}

int input_chord(struct display *d, const struct chord *chord, bool down, struct husk_error *err)
{
	struct needed needed = { 0 };
	xcb_keycode_t codes[CHORD_MAX + 1], shift_key;
	size_t count = 0;
	bool shift, any_shift = false, has_shift = false;

	if (load(d, err) < 0)
		return -1;
	for (size_t i = 0; i < chord->count; i++)
		if (!need(d, &needed, chord->symbols[i]))
			return husk_fail_field(err, "text", "the keyboard has no place for that many characters");
	if (prepare(d, &needed, err) < 0)
		return -1;
	shift_key = key_find(d, SHIFT, &shift);
	codes[count++] = shift_key;
	for (size_t i = 0; i < chord->count; i++) {
		xcb_keycode_t code = key_find(d, chord->symbols[i], &shift);
		any_shift |= shift;
		has_shift |= code == shift_key;
		codes[count++] = code;
	}
	size_t from = any_shift && !has_shift ? 0 : 1;
	for (size_t i = from; i < count; i++) {
		key(d, codes[down ? i : count - 1 - (i - from)], down);
		display_sleep(d, 2);
	}
	return display_sync(d, err);
}

static int type_one(struct display *d, xcb_keysym_t symbol, struct husk_error *err)
{
	bool shift;
	xcb_keycode_t code = key_find(d, symbol, &shift), shift_key;

	if (!code)
		return husk_fail(err, HUSK_UNAVAILABLE, "somebody else changes the keyboard; try again");
	if (shift) {
		bool never;
		shift_key = key_find(d, SHIFT, &never);
		key(d, shift_key, true);
	}
	key(d, code, true);
	key(d, code, false);
	if (shift)
		key(d, shift_key, false);
	return 0;
}

/* The longest beginning of the text that the spare keys suffice for; its end. */
static const char *stretch(struct display *d, const char *text, struct needed *needed)
{
	for (const char *at = text;;) {
		const char *next = at;
		uint32_t character = character_next(&next);
		if (!character || !need(d, needed, key_of_character(character)))
			return at;
		at = next;
	}
}

int input_type(struct display *d, const char *text, struct husk_error *err)
{
	if (load(d, err) < 0)
		return -1;
	while (*text) {
		struct needed needed = { 0 };
		const char *end = stretch(d, text, &needed);
		if (end == text)
			return husk_fail(err, HUSK_UNAVAILABLE,
					 "the keyboard of display :0 has no spare key for other characters");
		if (prepare(d, &needed, err) < 0)
			return -1;
		for (int i = 1; text < end; i++) {
			if (type_one(d, key_of_character(character_next(&text)), err) < 0)
				return -1;
			if (i % KEYS_AT_ONCE == 0 && display_sync(d, err) < 0)
				return -1;
		}
		if (display_sync(d, err) < 0)
			return -1;
		/* What was typed must be read before keys change again. */
		if (*text)
			display_sleep(d, MAPPING_MS);
	}
	return 0;
}
