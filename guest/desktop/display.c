/*
 * The connection to the X server: events, damage ("has the screen settled?"), its size, and reading its pixels.
 */
#include "desktop.h"

#include <netdb.h>
#include <poll.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <xcb/randr.h>
#include <xcb/shm.h>
#include <xcb/xfixes.h>
#include <xcb/xtest.h>

#define ANSWER_MS 250 /* for a program to begin to draw what an input changes */

static const char *const atom_names[ATOM_COUNT] = {
	[ATOM_CLIPBOARD] = "CLIPBOARD",
	[ATOM_UTF8_STRING] = "UTF8_STRING",
	[ATOM_TARGETS] = "TARGETS",
	[ATOM_TEXT] = "TEXT",
	[ATOM_INCR] = "INCR",
	[ATOM_TRANSFER] = "HUSK_TRANSFER",
	[ATOM_CLIENT_LIST] = "_NET_CLIENT_LIST_STACKING",
	[ATOM_ACTIVE_WINDOW] = "_NET_ACTIVE_WINDOW",
	[ATOM_CLOSE_WINDOW] = "_NET_CLOSE_WINDOW",
	[ATOM_MOVERESIZE_WINDOW] = "_NET_MOVERESIZE_WINDOW",
	[ATOM_FRAME_EXTENTS] = "_NET_FRAME_EXTENTS",
	[ATOM_WM_NAME] = "_NET_WM_NAME",
	[ATOM_WM_PID] = "_NET_WM_PID",
	[ATOM_WM_STATE] = "_NET_WM_STATE",
	[ATOM_STATE_HIDDEN] = "_NET_WM_STATE_HIDDEN",
};

/* ---- opening ---- */

/* xcb would look up a host for a display that is reached by TCP. There is none here, and a resolver is large and not meant to be
 * linked statically. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **list)
{
	(void)node, (void)service, (void)hints, (void)list;
	return EAI_FAIL;
}

void freeaddrinfo(struct addrinfo *list)
{
	(void)list;
}

static void read_atoms(struct display *d)
{
	xcb_intern_atom_cookie_t cookies[ATOM_COUNT];

	for (int i = 0; i < ATOM_COUNT; i++)
		cookies[i] = xcb_intern_atom(d->x, 0, (uint16_t)strlen(atom_names[i]), atom_names[i]);
	for (int i = 0; i < ATOM_COUNT; i++) {
		cleanup_free xcb_intern_atom_reply_t *reply = xcb_intern_atom_reply(d->x, cookies[i], NULL);
		d->atoms[i] = reply ? reply->atom : XCB_ATOM_NONE;
	}
}

static bool has_extension(struct display *d, xcb_extension_t *extension, uint8_t *first_event)
{
	const xcb_query_extension_reply_t *reply = xcb_get_extension_data(d->x, extension);

	if (first_event)
		*first_event = reply ? reply->first_event : 0;
	return reply && reply->present;
}

/* Extensions want to be asked for their version before anything else. */
static int read_extensions(struct display *d, struct husk_error *err)
{
	if (!has_extension(d, &xcb_test_id, NULL))
		return husk_fail(err, HUSK_UNAVAILABLE, "display :0 has no XTEST extension; use -t desktop");
	d->has_damage = has_extension(d, &xcb_damage_id, &d->damage_event);
	d->has_randr = has_extension(d, &xcb_randr_id, &d->randr_event);
	d->has_shm = has_extension(d, &xcb_shm_id, NULL);
	if (d->has_damage) {
		free(xcb_damage_query_version_reply(d->x, xcb_damage_query_version(d->x, 1, 1), NULL));
		d->damage = xcb_generate_id(d->x);
		xcb_damage_create(d->x, d->damage, d->root, XCB_DAMAGE_REPORT_LEVEL_NON_EMPTY);
	}
	if (has_extension(d, &xcb_xfixes_id, NULL))
		free(xcb_xfixes_query_version_reply(d->x, xcb_xfixes_query_version(d->x, 5, 0), NULL));
	if (d->has_randr) {
		free(xcb_randr_query_version_reply(d->x, xcb_randr_query_version(d->x, 1, 5), NULL));
		xcb_randr_select_input(d->x, d->root, XCB_RANDR_NOTIFY_MASK_SCREEN_CHANGE);
	}
	return 0;
}

static void make_window(struct display *d)
{
	uint32_t events = XCB_EVENT_MASK_PROPERTY_CHANGE;

	d->window = xcb_generate_id(d->x);
	xcb_create_window(d->x, XCB_COPY_FROM_PARENT, d->window, d->root, -10, -10, 1, 1, 0,
			  XCB_WINDOW_CLASS_INPUT_ONLY, XCB_COPY_FROM_PARENT, XCB_CW_EVENT_MASK, &events);
}

static int display_try(struct display *d, struct husk_error *err)
{
	const char *name = getenv("DISPLAY");
	int number = 0;

	d->x = xcb_connect(name && *name ? name : ":0", &number);
	if (xcb_connection_has_error(d->x)) {
		xcb_disconnect(d->x);
		d->x = NULL;
		return husk_fail(err, HUSK_UNAVAILABLE, "no X server answers on display %s",
				 name && *name ? name : ":0");
	}
	d->screen = xcb_setup_roots_iterator(xcb_get_setup(d->x)).data;
	d->root = d->screen->root;
	d->width = d->screen->width_in_pixels;
	d->height = d->screen->height_in_pixels;
	if (d->screen->root_depth < 24) {
		return husk_fail(err, HUSK_UNAVAILABLE, "display :0 has a depth of %d; 24 is needed",
				 d->screen->root_depth);
	}
	if (read_extensions(d, err) < 0)
		return -1;
	read_atoms(d);
	make_window(d);
	return display_sync(d, err);
}

int display_open(struct display *d, int limit_ms, struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + limit_ms;

	for (;;) {
		*d = (struct display){ .wait = d->wait, .owner = d->owner };
		if (display_try(d, err) == 0)
			return 0;
		bool answered = d->x != NULL;
		display_close(d);
		if (answered || time_monotonic_ms() >= deadline)
			return -1;
		poll(NULL, 0, 100);
	}
}

void display_close(struct display *d)
{
	if (d->pixels)
		shmdt(d->pixels);
	free(d->mapping);
	free(d->clipboard);
	if (d->x)
		xcb_disconnect(d->x);
	*d = (struct display){ .wait = d->wait, .owner = d->owner };
}

bool display_alive(struct display *d)
{
	return d->x && !xcb_connection_has_error(d->x);
}

int display_sync(struct display *d, struct husk_error *err)
{
	free(xcb_get_input_focus_reply(d->x, xcb_get_input_focus(d->x), NULL));
	if (display_alive(d))
		return 0;
	return husk_fail(err, HUSK_GONE, "display :0 ended");
}

/* ---- events ---- */

static void handle_event(struct display *d, const xcb_generic_event_t *event)
{
	uint8_t type = event->response_type & 0x7f;

	if (d->has_damage && type == d->damage_event + XCB_DAMAGE_NOTIFY) {
		d->damaged_ms = time_monotonic_ms();
		d->damaged = true;
	} else if (d->has_randr && type == d->randr_event + XCB_RANDR_SCREEN_CHANGE_NOTIFY) {
		const xcb_randr_screen_change_notify_event_t *change = (const void *)event;
		d->width = change->width;
		d->height = change->height;
	} else if (type == XCB_MAPPING_NOTIFY) {
		input_forget(d);
	} else {
		clipboard_event(d, event);
	}
}

void display_pump(struct display *d)
{
	for (;;) {
		cleanup_free xcb_generic_event_t *event = xcb_poll_for_event(d->x);
		if (!event)
			return;
		handle_event(d, event);
	}
}

static void wait_event(struct display *d, int64_t until_ms)
{
	struct pollfd p = { .fd = xcb_get_file_descriptor(d->x), .events = POLLIN };
	int64_t left = until_ms - time_monotonic_ms();

	xcb_flush(d->x);
	if (left > 0)
		poll(&p, 1, (int)MIN(left, 1000));
	display_pump(d);
}

void display_sleep(struct display *d, int ms)
{
	int64_t until = time_monotonic_ms() + ms;

	while (display_alive(d) && time_monotonic_ms() < until)
		wait_event(d, until);
}

/* When the screen counts as still. A program that has not answered our last input yet gets some time to begin. */
static int64_t still_at(const struct display *d, int64_t start, int quiet_ms)
{
	bool waiting = d->input_ms && d->damaged_ms < d->input_ms;

	return MAX(MAX(start, d->damaged_ms) + quiet_ms, waiting ? d->input_ms + ANSWER_MS : 0);
}

bool display_settle(struct display *d, int quiet_ms, int limit_ms)
{
	int64_t start = time_monotonic_ms(), limit = start + limit_ms;

	if (!d->has_damage) {
		display_sleep(d, MIN(limit_ms, 500));
		return false;
	}
	while (display_alive(d)) {
		display_pump(d);
		if (d->damaged)
			xcb_damage_subtract(d->x, d->damage, XCB_NONE, XCB_NONE);
		d->damaged = false;
		int64_t now = time_monotonic_ms(), quiet = still_at(d, start, quiet_ms);
		if (now >= quiet)
			return true;
		if (now >= limit)
			return false;
		wait_event(d, MIN(quiet, limit));
	}
	return false;
}

struct point display_pointer(struct display *d)
{
	cleanup_free xcb_query_pointer_reply_t *reply =
		xcb_query_pointer_reply(d->x, xcb_query_pointer(d->x, d->root), NULL);

	return reply ? (struct point){ reply->root_x, reply->root_y } : (struct point){ 0, 0 };
}

/* ---- size ---- */

static bool find_mode(const xcb_randr_get_screen_resources_reply_t *resources, int width, int height,
		      xcb_randr_mode_t *out)
{
	xcb_randr_mode_info_t *modes = xcb_randr_get_screen_resources_modes(resources);

	for (int i = 0; i < xcb_randr_get_screen_resources_modes_length(resources); i++) {
		if (modes[i].width != width || modes[i].height != height)
			continue;
		*out = modes[i].id;
		return true;
	}
	return false;
}

/* A mode of this size: one that is there, or a new one, added to the output. */
static int make_mode(struct display *d, const xcb_randr_get_screen_resources_reply_t *resources,
		     xcb_randr_output_t output, int width, int height, xcb_randr_mode_t *out, struct husk_error *err)
{
	char name[32];

	if (find_mode(resources, width, height, out))
		return 0;
	snprintf(name, sizeof(name), "husk-%dx%d", width, height);
	xcb_randr_mode_info_t info = {
		.width = (uint16_t)width,
		.height = (uint16_t)height,
		.dot_clock = (uint32_t)width * (uint32_t)height * 60u,
		.htotal = (uint16_t)width,
		.vtotal = (uint16_t)height,
		.name_len = (uint16_t)strlen(name),
	};
	cleanup_free xcb_randr_create_mode_reply_t *made = xcb_randr_create_mode_reply(
		d->x, xcb_randr_create_mode(d->x, d->root, info, (uint32_t)strlen(name), name), NULL);
	if (!made)
		return husk_fail(err, HUSK_CONFLICT, "display :0 refuses the size %dx%d", width, height);
	*out = made->mode;
	xcb_randr_add_output_mode(d->x, output, *out);
	return 0;
}

static int set_mode(struct display *d, xcb_randr_crtc_t crtc, xcb_randr_output_t output, xcb_randr_mode_t mode,
		    xcb_timestamp_t when, struct husk_error *err)
{
	cleanup_free xcb_randr_set_crtc_config_reply_t *reply = xcb_randr_set_crtc_config_reply(
		d->x,
		xcb_randr_set_crtc_config(d->x, crtc, XCB_CURRENT_TIME, when, 0, 0, mode, XCB_RANDR_ROTATION_ROTATE_0,
					  mode ? 1 : 0, &output),
		NULL);

	if (!reply || reply->status != XCB_RANDR_SET_CONFIG_SUCCESS)
		return husk_fail(err, HUSK_CONFLICT, "display :0 does not change its size");
	return 0;
}

/* The screen must hold every picture of an output at all times: it is made large enough first, and cut afterwards. */
int display_resize(struct display *d, int width, int height, struct husk_error *err)
{
	if (!d->has_randr)
		return husk_fail(err, HUSK_CONFLICT, "display :0 cannot change its size");
	cleanup_free xcb_randr_get_screen_resources_reply_t *resources =
		xcb_randr_get_screen_resources_reply(d->x, xcb_randr_get_screen_resources(d->x, d->root), NULL);
	if (!resources || !resources->num_outputs || !resources->num_crtcs)
		return husk_fail(err, HUSK_CONFLICT, "display :0 cannot change its size");
	xcb_randr_output_t output = xcb_randr_get_screen_resources_outputs(resources)[0];
	xcb_randr_crtc_t crtc = xcb_randr_get_screen_resources_crtcs(resources)[0];
	xcb_randr_mode_t mode = XCB_NONE;
	if (make_mode(d, resources, output, width, height, &mode, err) < 0)
		return -1;
	int wide = MAX(width, d->width), high = MAX(height, d->height);
	xcb_randr_set_screen_size(d->x, d->root, (uint16_t)wide, (uint16_t)high, (uint32_t)(wide * 254 / 960),
				  (uint32_t)(high * 254 / 960));
	if (set_mode(d, crtc, output, mode, resources->config_timestamp, err) < 0)
		return -1;
	xcb_randr_set_screen_size(d->x, d->root, (uint16_t)width, (uint16_t)height, (uint32_t)(width * 254 / 960),
				  (uint32_t)(height * 254 / 960));
	if (display_sync(d, err) < 0)
		return -1;
	cleanup_free xcb_get_geometry_reply_t *now =
		xcb_get_geometry_reply(d->x, xcb_get_geometry(d->x, d->root), NULL);
	if (!now || now->width != width || now->height != height)
		return husk_fail(err, HUSK_UNAVAILABLE, "display :0 refuses the size %dx%d", width, height);
	d->width = width;
	d->height = height;
	return 0;
}

/* ---- pixels ---- */

/* A segment that holds `size` bytes. It is removed from the system at once and lives as long as it is attached. */
static bool share(struct display *d, size_t size)
{
	if (d->pixels && d->pixels_size >= size)
		return true;
	if (d->pixels) {
		xcb_shm_detach(d->x, d->segment);
		shmdt(d->pixels);
		d->pixels = NULL;
	}
	int id = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
	if (id < 0)
		return false;
	void *memory = shmat(id, NULL, 0);
	uint32_t segment = xcb_generate_id(d->x);
	cleanup_free xcb_generic_error_t *refused =
		xcb_request_check(d->x, xcb_shm_attach_checked(d->x, segment, (uint32_t)id, 0));
	shmctl(id, IPC_RMID, NULL);
	if (refused || memory == (void *)-1) {
		if (memory != (void *)-1)
			shmdt(memory);
		return false;
	}
	d->segment = segment;
	d->pixels = memory;
	d->pixels_size = size;
	return true;
}

static int read_shared(struct display *d, struct region r)
{
	cleanup_free xcb_shm_get_image_reply_t *reply = xcb_shm_get_image_reply(
		d->x,
		xcb_shm_get_image(d->x, d->root, (int16_t)r.x0, (int16_t)r.y0, (uint16_t)(r.x1 - r.x0),
				  (uint16_t)(r.y1 - r.y0), ~0u, XCB_IMAGE_FORMAT_Z_PIXMAP, d->segment, 0),
		NULL);

	return reply ? 0 : -1;
}

int display_read(struct display *d, struct region r, const uint8_t **pixels, struct husk_error *err)
{
	size_t size = (size_t)(r.x1 - r.x0) * (size_t)(r.y1 - r.y0) * 4;

	d->has_shm = d->has_shm && share(d, size);
	if (!d->has_shm)
		return husk_fail(err, HUSK_UNAVAILABLE, "display :0 does not share memory; use -t desktop");
	/* The screen may have become smaller just now. */
	if (read_shared(d, r) < 0) {
		if (display_sync(d, err) < 0)
			return -1;
		return husk_fail(err, HUSK_CONFLICT, "the screen changed its size; try again");
	}
	*pixels = d->pixels;
	return 0;
}
