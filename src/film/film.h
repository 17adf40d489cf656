/*
 * husk-film: a recording of a desktop (client/desktop_record.c) as pictures for a video encoder. It reads the recording, a regular
 * file, as its standard input, and writes YUV4MPEG2 to its standard output:
 *
 *     FBS 001.001, blocks of an RFB stream ──> husk-film ──> "YUV4MPEG2 W1280 H800 F10:1 …", "FRAME", planes, "FRAME", …
 *
 * Its input comes from the guest: every length is checked, and the program runs in a cell (store/builder.c), with an
 * empty root and no rights. It reads the recording twice: the first pass only finds the largest size of the screen and
 * the length.
 */
#ifndef HUSK_FILM_H
#define HUSK_FILM_H

#include <zlib.h>

#include "base/base.h"

#define FILM_SIDE_MAX 8192u
#define FILM_STREAMS 4 /* of Tight */

/* A pixel: red, green, blue, and a byte without a meaning, as the recorder asked for. */
struct pixel {
	uint8_t red, green, blue, none;
};

struct rectangle {
	uint32_t x, y, width, height;
};

struct film {
	/* ---- the recording: film_input.c ---- */
	uint8_t *block;
	size_t at, size;   /* of the block */
	uint64_t read;     /* bytes of whole blocks so far */
	uint64_t last;     /* of the first reading: where it ended */
	uint32_t ms;       /* of the block */
	const char *wrong; /* what is damaged */
	/* Called when the time of the recording advances. -1 ends the reading. */
	int (*tick)(struct film *film);
	/* ---- the screen: film_screen.c ---- */
	bool dry;                               /* the first reading: nothing is painted */
	uint32_t width, height;                 /* now */
	uint32_t largest_width, largest_height; /* a row of `pixels` has the largest width */
	struct pixel *pixels;
	bool painted, changed; /* since the beginning; since the last picture */
	z_stream streams[FILM_STREAMS];
	bool open[FILM_STREAMS];
	/* ---- the pictures: main.c ---- */
	unsigned rate;
	uint64_t pictures;
	uint8_t *planes;
};

/* ---- film_input.c ---- */

/* The next bytes of the RFB stream. -1: the recording is over, or damaged. `to` NULL: they are left out. */
int film_take(struct film *film, void *to, size_t size);
int film_take8(struct film *film, uint32_t *out);
int film_take16(struct film *film, uint32_t *out);
int film_take32(struct film *film, uint32_t *out);
/* The recording is damaged: always -1. */
int film_wrong(struct film *film, const char *what);

/* ---- film_screen.c, film_tight.c ---- */

/* Reads the whole recording, from the beginning. -1 with film->wrong: it is damaged. */
int film_read(struct film *film);
static inline struct pixel *film_row(struct film *film, const struct rectangle *area, uint32_t row)
{
	return film->pixels + (size_t)(area->y + row) * film->largest_width + area->x;
}
void film_fill(struct film *film, const struct rectangle *area, struct pixel color);
int film_tight(struct film *film, const struct rectangle *area);
void film_tight_reset(struct film *film, unsigned stream);

#endif
