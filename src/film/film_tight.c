/*
 * The encoding Tight: a color, a JPEG, or rows of pixels in one of four zlib streams. Rows are decompressed one at a
 * time, so that compressed input never uses more memory than one row.
 */
#include "film/film.h"

#include <setjmp.h>
#include <stdio.h> /* for the next one */

#include <jpeglib.h>

#define PACKED_MAX (4u << 20) /* three bytes of a length have 22 bits */
#define SMALL 12u             /* so many bytes are not compressed */
#define COLORS_MAX 256u
#define BYTES 3u /* of a pixel */

enum { FILL = 8, JPEG = 9, EXPLICIT_FILTER = 4 };
enum filter { FILTER_COPY, FILTER_PALETTE, FILTER_GRADIENT };

struct rows {
	enum filter filter;
	uint32_t colors;
	struct pixel palette[COLORS_MAX];
	size_t size; /* bytes of a row */
};

static int take_length(struct film *film, uint32_t *out)
{
	uint32_t byte;

	*out = 0;
	for (unsigned shift = 0; shift < 21; shift += 7) {
		if (film_take8(film, &byte) < 0)
			return -1;
		*out |= (shift == 14 ? byte : byte & 0x7f) << shift;
		if (!(byte & 0x80))
			break;
	}
	return *out > PACKED_MAX ? film_wrong(film, "a packed part is too large") : 0;
}

static int take_color(struct film *film, struct pixel *out)
{
	uint8_t bytes[BYTES] = { 0 };

	if (film_take(film, bytes, sizeof(bytes)) < 0)
		return -1;
	*out = (struct pixel){ .red = bytes[0], .green = bytes[1], .blue = bytes[2] };
	return 0;
}

/* ---- JPEG ---- */

struct trouble {
	struct jpeg_error_mgr manager;
	jmp_buf back;
};

static void jpeg_failed(j_common_ptr common)
{
	longjmp(((struct trouble *)common->err)->back, 1);
}

static void jpeg_quiet(j_common_ptr common, int level)
{
	(void)common, (void)level;
}

/* `row` has room for the width of the area. */
static int paint_jpeg(struct film *film, const struct rectangle *area, const uint8_t *bytes, uint32_t size,
		      uint8_t *row)
{
	struct jpeg_decompress_struct jpeg = { 0 };
	struct trouble trouble;

	jpeg.err = jpeg_std_error(&trouble.manager);
	trouble.manager.error_exit = jpeg_failed;
	trouble.manager.emit_message = jpeg_quiet;
	if (setjmp(trouble.back)) {
		jpeg_destroy_decompress(&jpeg);
		return film_wrong(film, "a JPEG is damaged");
	}
	jpeg_create_decompress(&jpeg);
	jpeg_mem_src(&jpeg, bytes, size);
	jpeg_read_header(&jpeg, TRUE);
	if (jpeg.image_width != area->width || jpeg.image_height != area->height) {
		jpeg_destroy_decompress(&jpeg);
		return film_wrong(film, "a JPEG has another size than its place");
	}
	jpeg.out_color_space = JCS_RGB;
	jpeg_start_decompress(&jpeg);
	while (jpeg.output_scanline < jpeg.output_height) {
		struct pixel *to = film_row(film, area, jpeg.output_scanline);
		jpeg_read_scanlines(&jpeg, &row, 1);
		for (uint32_t i = 0; i < area->width; i++)
			to[i] = (struct pixel){ row[BYTES * i], row[BYTES * i + 1], row[BYTES * i + 2], 0 };
	}
	jpeg_destroy_decompress(&jpeg);
	return 0;
}

static int jpeg(struct film *film, const struct rectangle *area)
{
	uint32_t size;

	if (take_length(film, &size) < 0)
		return -1;
	if (film->dry)
		return film_take(film, NULL, size);
	cleanup_free uint8_t *bytes = malloc(size + 1), *row = malloc((size_t)area->width * BYTES + 1);
	if (!bytes || !row)
		return film_wrong(film, "no memory left");
	return film_take(film, bytes, size) < 0 ? -1 : paint_jpeg(film, area, bytes, size, row);
}

/* ---- rows ---- */

void film_tight_reset(struct film *film, unsigned stream)
{
	if (film->open[stream])
		inflateEnd(&film->streams[stream]);
	film->open[stream] = false;
}

static void row_palette(const struct rows *rows, const uint8_t *row, struct pixel *to, uint32_t width)
{
	for (uint32_t i = 0; i < width; i++) {
		uint32_t color = rows->colors == 2 ? row[i / 8] >> (7 - i % 8) & 1u : row[i];
		to[i] = rows->palette[color]; /* an unused color is black */
	}
}

/* Each byte is the difference to what its neighbours promise. `above` is the row above, and becomes this one. */
static void row_gradient(const uint8_t *row, uint8_t *above, struct pixel *to, uint32_t width)
{
	uint8_t left[BYTES] = { 0 }, corner[BYTES] = { 0 };

	for (uint32_t i = 0; i < width; i++) {
		for (uint32_t c = 0; c < BYTES; c++) {
			int promise = left[c] + above[BYTES * i + c] - corner[c];
			promise = promise < 0 ? 0 : MIN(promise, 255);
			corner[c] = above[BYTES * i + c];
			left[c] = above[BYTES * i + c] = (uint8_t)(row[BYTES * i + c] + promise);
		}
		to[i] = (struct pixel){ left[0], left[1], left[2], 0 };
	}
}

static void paint_row(const struct rows *rows, const uint8_t *row, uint8_t *above, struct pixel *to, uint32_t width)
{
	if (rows->filter == FILTER_PALETTE)
		row_palette(rows, row, to, width);
	else if (rows->filter == FILTER_GRADIENT)
		row_gradient(row, above, to, width);
	else
		for (uint32_t i = 0; i < width; i++)
			to[i] = (struct pixel){ row[BYTES * i], row[BYTES * i + 1], row[BYTES * i + 2], 0 };
}

static int inflate_row(struct film *film, unsigned stream, uint8_t *row, size_t size)
{
	z_stream *z = &film->streams[stream];

	z->next_out = row;
	z->avail_out = (uInt)size;
	while (z->avail_out > 0) {
		uInt before = z->avail_out;
		int result = inflate(z, Z_SYNC_FLUSH);
		if (result != Z_OK && !(result == Z_STREAM_END && z->avail_out == 0))
			return film_wrong(film, "a packed part is damaged");
		if (z->avail_out == before)
			return film_wrong(film, "a packed part is too short");
	}
	return 0;
}

/* `packed` NULL: the rows are in the stream as they are. */
static int paint_rows(struct film *film, const struct rectangle *area, const struct rows *rows, unsigned stream,
		      uint8_t *packed, uint32_t size)
{
	cleanup_free uint8_t *row = calloc(1, rows->size + 1), *above = calloc(1, (size_t)area->width * BYTES + 1);

	if (!row || !above)
		return film_wrong(film, "no memory left");
	if (packed && !film->open[stream]) {
		film->streams[stream] = (z_stream){ 0 };
		if (inflateInit(&film->streams[stream]) != Z_OK)
			return film_wrong(film, "no memory left");
		film->open[stream] = true;
	}
	film->streams[stream].next_in = packed;
	film->streams[stream].avail_in = size;
	for (uint32_t i = 0; i < area->height; i++) {
		if ((packed ? inflate_row(film, stream, row, rows->size) : film_take(film, row, rows->size)) < 0)
			return -1;
		paint_row(rows, row, above, film_row(film, area, i), area->width);
	}
	return 0;
}

static int take_filter(struct film *film, const struct rectangle *area, bool named, struct rows *rows)
{
	uint32_t filter = FILTER_COPY;

	*rows = (struct rows){ .size = (size_t)area->width * BYTES };
	if (named && film_take8(film, &filter) < 0)
		return -1;
	if (filter > FILTER_GRADIENT)
		return film_wrong(film, "an unknown filter");
	rows->filter = (enum filter)filter;
	if (filter != FILTER_PALETTE)
		return 0;
	if (film_take8(film, &rows->colors) < 0)
		return -1;
	rows->colors++;
	for (uint32_t i = 0; i < rows->colors; i++)
		if (take_color(film, &rows->palette[i]) < 0)
			return -1;
	rows->size = rows->colors == 2 ? (area->width + 7) / 8 : area->width;
	return 0;
}

static int packed_rows(struct film *film, const struct rectangle *area, unsigned stream, bool named)
{
	struct rows rows;
	uint32_t size = 0;

	if (take_filter(film, area, named, &rows) < 0)
		return -1;
	size_t whole = rows.size * area->height;
	if (whole < SMALL)
		return film->dry ? film_take(film, NULL, whole) : paint_rows(film, area, &rows, stream, NULL, 0);
	if (take_length(film, &size) < 0)
		return -1;
	if (film->dry)
		return film_take(film, NULL, size);
	cleanup_free uint8_t *packed = malloc(size + 1);
	if (!packed)
		return film_wrong(film, "no memory left");
	return film_take(film, packed, size) < 0 ? -1 : paint_rows(film, area, &rows, stream, packed, size);
}

int film_tight(struct film *film, const struct rectangle *area)
{
	struct pixel color;
	uint32_t control;

	if (film_take8(film, &control) < 0)
		return -1;
	for (unsigned stream = 0; stream < FILM_STREAMS; stream++)
		if (control & 1u << stream)
			film_tight_reset(film, stream);
	uint32_t kind = control >> 4;
	if (kind == JPEG)
		return jpeg(film, area);
	if (kind > FILL)
		return film_wrong(film, "an unknown form of Tight");
	if (kind < FILL)
		return packed_rows(film, area, kind & 3, kind & EXPLICIT_FILTER);
	if (take_color(film, &color) < 0)
		return -1;
	film_fill(film, area, color);
	return 0;
}
