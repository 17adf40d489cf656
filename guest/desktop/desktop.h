/*
 * husk-desktop: reads and controls the screen of a sandbox: the X server of display :0, by XTEST, MIT-SHM, DAMAGE and
 * RANDR. It is a process of the agent, labelled "desktop:0", which libhusk (src/client/desktop.c) finds or starts, and
 * uses like a code kernel: JSON lines on stdin and stdout, {"type":"ready"} first. It listens on no port, because pages
 * in the browser of the sandbox could reach it.
 *
 *     {"id":"r1","actions":[{"action":"left_click","coordinate":[10,20]},{"action":"type","text":"é"}],
 *      "settle":true,"screenshot":{"format":"jpeg"}}
 *     {"id":"r1","type":"end","results":[{"action":"left_click"},{"action":"type"}],"settled":true,
 *      "width":1280,"height":800,"screenshot":{"type":"image/jpeg","width":1280,"height":800,"data":"<base64>"}}
 *
 * The actions have the names and parameters of Anthropic's computer tool; those of other vendors are expressed by them. An action
 * that is not possible ends the list: {"error":{"index","action","field","message"}}, with the results of those before.
 *
 * Static, with the C library of the host (glibc) and Debian's static libraries: there are no builds of xcb and the
 * picture libraries for musl.
 */
#ifndef HUSK_DESKTOP_H
#define HUSK_DESKTOP_H

#include <xcb/damage.h>
#include <xcb/xcb.h>

#include "base/jansson.h"

#define ACTIONS_MAX 200
#define TEXT_MAX 10000            /* characters of one `type` */
#define CLIPBOARD_MAX (4u << 20)  /* bytes */
#define DURATION_MAX 100          /* seconds of waiting and holding in one request */
#define PICTURES_MAX 10           /* in one answer */
#define PICTURE_BYTES (20u << 20) /* of all of them, encoded */
#define SIDE_MAX 8192             /* pixels: of the screen, and of a picture */

struct point {
	int x, y;
};

/* From x0, y0 to x1, y1, which are just outside. */
struct region {
	int x0, y0, x1, y1;
};

enum atom {
	ATOM_CLIPBOARD,
	ATOM_UTF8_STRING,
	ATOM_TARGETS,
	ATOM_TEXT,
	ATOM_INCR,
	ATOM_TRANSFER, /* the property of ours that selections are sent to */
	ATOM_CLIENT_LIST,
	ATOM_ACTIVE_WINDOW,
	ATOM_CLOSE_WINDOW,
	ATOM_MOVERESIZE_WINDOW,
	ATOM_FRAME_EXTENTS,
	ATOM_WM_NAME,
	ATOM_WM_PID,
	ATOM_WM_STATE,
	ATOM_STATE_HIDDEN,
	ATOM_COUNT
};

/* Keys that were given a character that the keyboard does not have. */
#define SPARES_MAX 32

/* The connection to the display; remade when the X server was started again. */
struct display {
	/* Waits that long, and serves other clients meanwhile; NULL: nobody does (main.c). These two outlive the connection. */
	void (*wait)(struct display *d, int ms);
	void *owner;
	xcb_connection_t *x;
	xcb_screen_t *screen;
	xcb_window_t root, window; /* `window` is ours, never shown: it owns the clipboard */
	int width, height;         /* of the screen now */
	xcb_atom_t atoms[ATOM_COUNT];
	uint8_t damage_event, randr_event;
	bool has_damage, has_shm, has_randr;
	/* Shared memory for pictures of the screen. */
	uint32_t segment;
	uint8_t *pixels;
	size_t pixels_size;
	/* The keyboard. */
	xcb_get_keyboard_mapping_reply_t *mapping;
	xcb_keycode_t first_key, last_key;
	xcb_keycode_t spares[SPARES_MAX];
	xcb_keysym_t spare_symbols[SPARES_MAX];
	size_t spare_count, spare_next;
	/* The clipboard, if it is ours. */
	char *clipboard;
	size_t clipboard_size;
	bool clipboard_owned;
	/* The server tells of one change and then not again until asked (display_settle), so that a busy screen costs nothing. */
	xcb_damage_damage_t damage;
	bool damaged;
	int64_t damaged_ms; /* when the screen last changed, as far as told */
	int64_t input_ms;   /* when we last pressed a key, moved the pointer or used a button */
};

/* ---- display.c ---- */

/* Connects, waiting up to limit_ms for the server. */
int display_open(struct display *d, int limit_ms, struct husk_error *err);
void display_close(struct display *d);
bool display_alive(struct display *d);
/* Handles all events that have arrived. */
void display_pump(struct display *d);
/* Handles events for `ms` milliseconds. */
void display_sleep(struct display *d, int ms);
/* Waits until the screen has not changed for quiet_ms, at most limit_ms; returns whether it is still. */
bool display_settle(struct display *d, int quiet_ms, int limit_ms);
/* Waits until the server has done everything sent. -1: the display ended. */
int display_sync(struct display *d, struct husk_error *err);
int display_resize(struct display *d, int width, int height, struct husk_error *err);
struct point display_pointer(struct display *d);
/* The pixels of the region as 32-bit BGRX, in memory of the display until the next call. */
int display_read(struct display *d, struct region region, const uint8_t **pixels, struct husk_error *err);

/* ---- keys.c ---- */

#define CHORD_MAX 8
struct chord {
	xcb_keysym_t symbols[CHORD_MAX];
	size_t count;
};

/* "ctrl+shift+T", "Return", "a", "é", "+": names of X in any case, and what models call them. */
int chord_parse(const char *text, struct chord *out, struct husk_error *err);
/* The keysym of a character. */
xcb_keysym_t key_of_character(uint32_t character);
/* Reads one UTF-8 character and moves on; 0 at the end. The text is valid UTF-8 (jansson checks). */
uint32_t character_next(const char **text);

/* ---- input.c ---- */

int input_move(struct display *d, struct point to, struct husk_error *err);
int input_button(struct display *d, int button, bool down, struct husk_error *err);
int input_click(struct display *d, int button, int times, struct husk_error *err);
/* Presses or releases all keys of a chord, in order or in reverse. */
int input_chord(struct display *d, const struct chord *chord, bool down, struct husk_error *err);
int input_type(struct display *d, const char *text, struct husk_error *err);
/* The keyboard was changed by somebody. */
void input_forget(struct display *d);

/* ---- clipboard.c ---- */

int clipboard_set(struct display *d, const char *text, size_t size, struct husk_error *err);
/* The text, which the caller frees; "" if there is none. */
int clipboard_get(struct display *d, char **text, size_t *size, struct husk_error *err);
/* Handles an event of the clipboard that we own. */
void clipboard_event(struct display *d, const xcb_generic_event_t *event);

/* ---- windows.c ---- */

/* [{id, title, program, pid, x, y, width, height, active, minimized}] from the bottom to the top. */
json_t *windows_list(struct display *d, struct husk_error *err);
/* How many have this class, and, unless it is NULL, this title. */
size_t windows_count(struct display *d, const char *class, const char *title);
int window_focus(struct display *d, xcb_window_t window, struct husk_error *err);
int window_close(struct display *d, xcb_window_t window, struct husk_error *err);
/* Of the window with its frame; NULL: as it is. */
int window_move(struct display *d, xcb_window_t window, const int *x, const int *y, const int *width, const int *height,
		struct husk_error *err);

/* ---- picture.c ---- */

enum picture_format { PICTURE_PNG, PICTURE_JPEG, PICTURE_WEBP };

struct picture {
	enum picture_format format;
	int quality;       /* 1 to 100, of JPEG and WebP */
	int width, height; /* of the picture; the region is scaled to it */
	bool cursor;
	struct region region; /* of the screen */
};

/* {"type", "width", "height", "data"}; `spent` counts encoded bytes and is bounded by PICTURE_BYTES. */
json_t *picture_take(struct display *d, const struct picture *picture, size_t *spent, struct husk_error *err);
/* Scales BGRX pixels to RGB; by areas when smaller, between pixels when larger. */
void picture_scale(const uint8_t *from, int from_width, int from_height, uint8_t *to, int width, int height);
char *picture_base64(const uint8_t *data, size_t size);

/* ---- browser.c ---- */

int browser_open(struct display *d, const char *url, struct husk_error *err);

/* ---- tree.c ---- */

/* {"elements": […], "truncated"} for the action `tree`; NULL with `err`. */
json_t *tree_read(const json_t *action, struct husk_error *err);
/* The middle of an element: an id, or {"role", "name"}, which only one element may have. */
int tree_point(const json_t *element, struct point screen, struct point *out, struct husk_error *err);

/* ---- actions.c ---- */

/* The kind of an error, as it stands in an answer. */
const char *desktop_code_name(enum husk_code code);
/* Runs a request and gives its answer, without id and type. */
json_t *actions_run(struct display *d, const json_t *request);

#endif
