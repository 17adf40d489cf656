/*
 * The messages of the VNC server, and the screen that they paint. It supports the encodings that the recorder requests
 * (client/rfb_client.c). Every rectangle is checked against the screen before its content is read.
 */
#include "film/film.h"

#define HEAD "FBS 001.001\n"
#define UNTIL_LAST 0xffffu /* the number of rectangles is not known: a LastRect ends them */
#define CUT_TEXT_MAX (64u << 20)
#define TILE 16u

enum { RAW = 0, COPY_RECT = 1, HEXTILE = 5, TIGHT = 7, DESKTOP_SIZE = -223, LAST_RECT = -224, CURSOR = -239 };
enum { TILE_RAW = 1, TILE_BACKGROUND = 2, TILE_FOREGROUND = 4, TILE_SUBRECTS = 8, TILE_COLORED = 16 };

void film_fill(struct film *film, const struct rectangle *area, struct pixel color)
{
	for (uint32_t row = 0; row < area->height && !film->dry; row++) {
		struct pixel *to = film_row(film, area, row);
		for (uint32_t i = 0; i < area->width; i++)
			to[i] = color;
	}
}

static int resize(struct film *film, uint32_t width, uint32_t height)
{
	if (width < 1 || height < 1 || width > FILM_SIDE_MAX || height > FILM_SIDE_MAX)
		return film_wrong(film, "the screen has an impossible size");
	film->width = width;
	film->height = height;
	if (film->dry) {
		film->largest_width = MAX(film->largest_width, width);
		film->largest_height = MAX(film->largest_height, height);
		return 0;
	}
	if (width > film->largest_width || height > film->largest_height)
		return film_wrong(film, "the recording changed while it was read");
	/* What is outside of a smaller screen is black. */
	memset(film->pixels, 0, sizeof(*film->pixels) * film->largest_width * film->largest_height);
	return 0;
}

static int raw(struct film *film, const struct rectangle *area)
{
	for (uint32_t row = 0; row < area->height; row++)
		if (film_take(film, film->dry ? NULL : film_row(film, area, row), area->width * sizeof(struct pixel)) <
		    0)
			return -1;
	return 0;
}

static int copy(struct film *film, const struct rectangle *area)
{
	struct rectangle from = { 0, 0, area->width, area->height };

	if (film_take16(film, &from.x) < 0 || film_take16(film, &from.y) < 0)
		return -1;
	if (from.x + from.width > film->width || from.y + from.height > film->height)
		return film_wrong(film, "a part that is copied is not on the screen");
	bool down = area->y > from.y; /* the last row first, so that nothing is overwritten before it is read */
	for (uint32_t i = 0; i < area->height && !film->dry; i++) {
		uint32_t row = down ? area->height - 1 - i : i;
		memmove(film_row(film, area, row), film_row(film, &from, row), area->width * sizeof(struct pixel));
	}
	return 0;
}

/* ---- Hextile ---- */

struct hextile {
	struct pixel background, foreground;
};

static int subrects(struct film *film, const struct rectangle *tile, bool colored, struct pixel color)
{
	uint32_t count, place, size;

	if (film_take8(film, &count) < 0)
		return -1;
	for (; count > 0; count--) {
		if ((colored && film_take(film, &color, sizeof(color)) < 0) || film_take8(film, &place) < 0 ||
		    film_take8(film, &size) < 0)
			return -1;
		struct rectangle part = { place >> 4, place & 15, (size >> 4) + 1, (size & 15) + 1 };
		if (part.x + part.width > tile->width || part.y + part.height > tile->height)
			return film_wrong(film, "a part of a tile is outside of it");
		part.x += tile->x;
		part.y += tile->y;
		film_fill(film, &part, color);
	}
	return 0;
}

static int tile(struct film *film, const struct rectangle *area, struct hextile *colors)
{
	uint32_t kind;

	if (film_take8(film, &kind) < 0)
		return -1;
	if (kind & TILE_RAW)
		return raw(film, area);
	if ((kind & TILE_BACKGROUND && film_take(film, &colors->background, sizeof(struct pixel)) < 0) ||
	    (kind & TILE_FOREGROUND && film_take(film, &colors->foreground, sizeof(struct pixel)) < 0))
		return -1;
	film_fill(film, area, colors->background);
	return kind & TILE_SUBRECTS ? subrects(film, area, kind & TILE_COLORED, colors->foreground) : 0;
}

static int hextile(struct film *film, const struct rectangle *area)
{
	struct hextile colors = { 0 };

	for (uint32_t y = 0; y < area->height; y += TILE)
		for (uint32_t x = 0; x < area->width; x += TILE) {
			const struct rectangle part = { area->x + x, area->y + y, MIN(TILE, area->width - x),
							MIN(TILE, area->height - y) };
			if (tile(film, &part, &colors) < 0)
				return -1;
		}
	return 0;
}

/* ---- messages ---- */

/* 1: it was the last of its update. */
static int rectangle(struct film *film)
{
	struct rectangle area;
	uint32_t kind;

	if (film_take16(film, &area.x) < 0 || film_take16(film, &area.y) < 0 || film_take16(film, &area.width) < 0 ||
	    film_take16(film, &area.height) < 0 || film_take32(film, &kind) < 0)
		return -1;
	int32_t encoding = (int32_t)kind;
	if (encoding == LAST_RECT)
		return 1;
	if (encoding == DESKTOP_SIZE)
		return resize(film, area.width, area.height);
	if (encoding == CURSOR)
		return film_take(film, NULL,
				 (size_t)area.height * (area.width * sizeof(struct pixel) + (area.width + 7) / 8));
	if (area.x + area.width > film->width || area.y + area.height > film->height)
		return film_wrong(film, "a rectangle is not on the screen");
	film->changed = true;
	switch (encoding) {
	case RAW:
		return raw(film, &area);
	case COPY_RECT:
		return copy(film, &area);
	case HEXTILE:
		return hextile(film, &area);
	case TIGHT:
		return film_tight(film, &area);
	default:
		return film_wrong(film, "an unknown encoding");
	}
}

static int update(struct film *film)
{
	uint32_t count;
	int result = 0;

	if (film_take(film, NULL, 1) < 0 || film_take16(film, &count) < 0)
		return -1;
	for (uint32_t i = 0; result == 0 && (count == UNTIL_LAST || i < count); i++)
		result = rectangle(film);
	film->painted |= film->changed;
	return result < 0 ? -1 : 0;
}

static int message(struct film *film)
{
	enum { UPDATE, COLORS, BELL, CUT_TEXT };
	uint32_t kind, size;

	if (film_take8(film, &kind) < 0)
		return -1;
	if (kind == UPDATE)
		return update(film);
	if (kind == COLORS)
		return film_take(film, NULL, 3) < 0 || film_take16(film, &size) < 0 ? -1
										    : film_take(film, NULL, size * 6u);
	if (kind == BELL)
		return 0;
	if (kind != CUT_TEXT)
		return film_wrong(film, "an unknown message");
	if (film_take(film, NULL, 3) < 0 || film_take32(film, &size) < 0)
		return -1;
	return size > CUT_TEXT_MAX ? film_wrong(film, "a clipboard is too large") : film_take(film, NULL, size);
}

/* The version, "no login", the size, the form of a pixel, the name; as rfb_client.c writes them. */
static int handshake(struct film *film)
{
	uint32_t width, height, name;

	if (film_take(film, NULL, 16) < 0 || film_take16(film, &width) < 0 || film_take16(film, &height) < 0 ||
	    film_take(film, NULL, 16) < 0 || film_take32(film, &name) < 0 || film_take(film, NULL, name) < 0)
		return film_wrong(film, "the recording is empty");
	return resize(film, width, height);
}

int film_read(struct film *film)
{
	char head[sizeof(HEAD) - 1];

	film->at = film->size = 0;
	film->read = 0;
	film->ms = 0;
	film->painted = film->changed = false;
	if (lseek(0, 0, SEEK_SET) < 0 || read_full(0, head, sizeof(head)) != sizeof(head) ||
	    memcmp(head, HEAD, sizeof(head)) != 0)
		return film_wrong(film, "it does not begin as a recording does");
	if (handshake(film) < 0)
		return -1;
	while (message(film) == 0)
		;
	if (film->dry)
		film->last = film->read;
	return film->wrong ? -1 : 0;
}
