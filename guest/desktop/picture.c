/*
 * Pictures of the screen: cut out, with the mouse pointer, scaled, and encoded as PNG (fast: level 1), JPEG or WebP.
 */
#include "desktop.h"

#include <jpeglib.h>
#include <png.h>
#include <setjmp.h>
#include <webp/encode.h>
#include <xcb/xfixes.h>

/* ---- pixels ---- */

/* Draws the pointer into BGRX pixels of `region`. Its image has premultiplied alpha. */
static void draw_cursor(struct display *d, uint8_t *pixels, struct region region)
{
	cleanup_free xcb_xfixes_get_cursor_image_reply_t *cursor =
		xcb_xfixes_get_cursor_image_reply(d->x, xcb_xfixes_get_cursor_image(d->x), NULL);
	const uint32_t *image = cursor ? xcb_xfixes_get_cursor_image_cursor_image(cursor) : NULL;
	int width = region.x1 - region.x0, height = region.y1 - region.y0;

	if (!image || xcb_xfixes_get_cursor_image_cursor_image_length(cursor) < cursor->width * cursor->height)
		return;
	for (int row = 0; row < cursor->height; row++) {
		for (int column = 0; column < cursor->width; column++) {
			int x = cursor->x - cursor->xhot + column - region.x0,
			    y = cursor->y - cursor->yhot + row - region.y0;
			uint32_t value = image[row * cursor->width + column], alpha = value >> 24;
			if (x < 0 || y < 0 || x >= width || y >= height || !alpha)
				continue;
			uint8_t *at = pixels + ((size_t)y * (size_t)width + (size_t)x) * 4;
			for (int i = 0; i < 3; i++) {
				uint32_t mixed = (value >> (8 * i) & 0xff) + at[i] * (255 - alpha) / 255;
				at[i] = (uint8_t)MIN(mixed, 255u);
			}
		}
	}
}

/* The mean of the area of the source that one target pixel covers, in 1/256 of a pixel at its edges. */
static void mean(const uint8_t *from, int width, int x0, int x1, int y0, int y1, uint8_t *to)
{
	uint64_t sum[3] = { 0 }, total = 0;

	for (int y = y0 >> 8; y << 8 < y1; y++) {
		uint32_t high = (uint32_t)(MIN(y1, (y + 1) << 8) - MAX(y0, y << 8));
		for (int x = x0 >> 8; x << 8 < x1; x++) {
			uint32_t weight = high * (uint32_t)(MIN(x1, (x + 1) << 8) - MAX(x0, x << 8));
			const uint8_t *at = from + ((size_t)y * (size_t)width + (size_t)x) * 4;
			for (int i = 0; i < 3; i++)
				sum[i] += (uint64_t)at[2 - i] * weight;
			total += weight;
		}
	}
	for (int i = 0; i < 3; i++)
		to[i] = (uint8_t)((sum[i] + total / 2) / total);
}

/* Between four pixels, at x, y in 1/256. */
static void between(const uint8_t *from, int width, int height, int x, int y, uint8_t *to)
{
	int left = MAX(0, x) >> 8, top = MAX(0, y) >> 8, right = MIN(left + 1, width - 1),
	    bottom = MIN(top + 1, height - 1);
	int fx = x < 0 ? 0 : x & 255, fy = y < 0 ? 0 : y & 255;

	for (int i = 0; i < 3; i++) {
		int a = from[((size_t)top * (size_t)width + (size_t)left) * 4 + 2 - (size_t)i];
		int b = from[((size_t)top * (size_t)width + (size_t)right) * 4 + 2 - (size_t)i];
		int c = from[((size_t)bottom * (size_t)width + (size_t)left) * 4 + 2 - (size_t)i];
		int e = from[((size_t)bottom * (size_t)width + (size_t)right) * 4 + 2 - (size_t)i];
		int upper = a * (256 - fx) + b * fx, lower = c * (256 - fx) + e * fx;
		to[i] = (uint8_t)((upper * (256 - fy) + lower * fy + (1 << 15)) >> 16);
	}
}

void picture_scale(const uint8_t *from, int from_width, int from_height, uint8_t *to, int width, int height)
{
	bool smaller = width <= from_width && height <= from_height;

	for (int y = 0; y < height; y++) {
		int64_t y0 = ((int64_t)y * from_height << 8) / height,
			y1 = ((int64_t)(y + 1) * from_height << 8) / height;
		for (int x = 0; x < width; x++, to += 3) {
			int64_t x0 = ((int64_t)x * from_width << 8) / width,
				x1 = ((int64_t)(x + 1) * from_width << 8) / width;
			if (smaller)
				mean(from, from_width, (int)x0, (int)x1, (int)y0, (int)y1, to);
			else
				between(from, from_width, from_height, (int)((x0 + x1) / 2 - 128),
					(int)((y0 + y1) / 2 - 128), to);
		}
	}
}

static void to_rgb(const uint8_t *from, uint8_t *to, size_t count)
{
	for (size_t i = 0; i < count; i++, from += 4, to += 3) {
		to[0] = from[2];
		to[1] = from[1];
		to[2] = from[0];
	}
}

/* ---- formats ---- */

static void png_write(png_structp png, png_bytep data, size_t size)
{
	if (buf_append(png_get_io_ptr(png), data, size) < 0)
		png_error(png, "out of memory");
}

static void png_flush_nothing(png_structp png)
{
	(void)png;
}

static int encode_png(const uint8_t *rgb, int width, int height, struct buf *out)
{
	png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
	png_infop info = png ? png_create_info_struct(png) : NULL;
	volatile int result = -1;

	if (info && !setjmp(png_jmpbuf(png))) {
		png_set_write_fn(png, out, png_write, png_flush_nothing);
		/* A screen has areas of one colour, which a difference to the left makes easy for the quickest compression. */
		png_set_compression_level(png, 1);
		png_set_filter(png, 0, PNG_FILTER_SUB);
		png_set_IHDR(png, info, (uint32_t)width, (uint32_t)height, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
			     PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
		png_write_info(png, info);
		for (int y = 0; y < height; y++)
			png_write_row(png, rgb + (size_t)y * (size_t)width * 3);
		png_write_end(png, NULL);
		result = 0;
	}
	png_destroy_write_struct(&png, &info);
	return result;
}

struct jpeg_failure {
	struct jpeg_error_mgr manager;
	jmp_buf back;
};

static void jpeg_failed(j_common_ptr jpeg)
{
	longjmp(((struct jpeg_failure *)jpeg->err)->back, 1);
}

static int encode_jpeg(const uint8_t *rgb, int width, int height, int quality, struct buf *out)
{
	struct jpeg_failure failure;
	struct jpeg_compress_struct jpeg = { .err = jpeg_std_error(&failure.manager) };
	unsigned char *data = NULL;
	unsigned long size = 0;
	volatile int result = -1;

	failure.manager.error_exit = jpeg_failed;
	if (!setjmp(failure.back)) {
		jpeg_create_compress(&jpeg);
		jpeg_mem_dest(&jpeg, &data, &size);
		jpeg.image_width = (JDIMENSION)width;
		jpeg.image_height = (JDIMENSION)height;
		jpeg.input_components = 3;
		jpeg.in_color_space = JCS_RGB;
		jpeg_set_defaults(&jpeg);
		jpeg_set_quality(&jpeg, quality, TRUE);
		jpeg_start_compress(&jpeg, TRUE);
		while (jpeg.next_scanline < jpeg.image_height) {
			JSAMPROW row = (JSAMPROW)(uintptr_t)(rgb + (size_t)jpeg.next_scanline * (size_t)width * 3);
			jpeg_write_scanlines(&jpeg, &row, 1);
		}
		jpeg_finish_compress(&jpeg);
		result = buf_append(out, data, size);
	}
	jpeg_destroy_compress(&jpeg);
	free(data);
	return result;
}

static int encode_webp(const uint8_t *rgb, int width, int height, int quality, struct buf *out)
{
	WebPConfig config;
	WebPPicture image;
	WebPMemoryWriter writer;
	int result = -1;

	if (!WebPConfigPreset(&config, WEBP_PRESET_TEXT, (float)quality) || !WebPPictureInit(&image))
		return -1;
	config.method = 1; /* of 6: quick */
	image.width = width;
	image.height = height;
	image.writer = WebPMemoryWrite;
	image.custom_ptr = &writer;
	WebPMemoryWriterInit(&writer);
	if (WebPPictureImportRGB(&image, rgb, width * 3) && WebPEncode(&config, &image))
		result = buf_append(out, writer.mem, writer.size);
	WebPPictureFree(&image);
	WebPMemoryWriterClear(&writer);
	return result;
}

static int encode(const struct picture *picture, const uint8_t *rgb, struct buf *out)
{
	if (picture->format == PICTURE_JPEG)
		return encode_jpeg(rgb, picture->width, picture->height, picture->quality, out);
	if (picture->format == PICTURE_WEBP)
		return encode_webp(rgb, picture->width, picture->height, picture->quality, out);
	return encode_png(rgb, picture->width, picture->height, out);
}

char *picture_base64(const uint8_t *data, size_t size)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	char *text = malloc((size + 2) / 3 * 4 + 1), *at = text;

	for (size_t i = 0; text && i < size; i += 3) {
		size_t left = size - i;
		uint32_t bits = (uint32_t)data[i] << 16 | (uint32_t)(left > 1 ? data[i + 1] : 0) << 8 |
				(left > 2 ? data[i + 2] : 0);
		*at++ = digits[bits >> 18];
		*at++ = digits[bits >> 12 & 63];
		*at++ = left > 1 ? digits[bits >> 6 & 63] : '=';
		*at++ = left > 2 ? digits[bits & 63] : '=';
	}
	if (text)
		*at = '\0';
	return text;
}

/* ---- taking one ---- */

static uint8_t *colours(struct display *d, const struct picture *picture, struct husk_error *err)
{
	int width = picture->region.x1 - picture->region.x0, height = picture->region.y1 - picture->region.y0;
	const uint8_t *pixels;

	if (display_read(d, picture->region, &pixels, err) < 0)
		return NULL;
	if (picture->cursor)
		draw_cursor(d, d->pixels, picture->region);
	uint8_t *rgb = malloc((size_t)picture->width * (size_t)picture->height * 3);
	if (!rgb)
		husk_fail_memory(err);
	else if (width == picture->width && height == picture->height)
		to_rgb(pixels, rgb, (size_t)width * (size_t)height);
	else
		picture_scale(pixels, width, height, rgb, picture->width, picture->height);
	return rgb;
}

json_t *picture_take(struct display *d, const struct picture *picture, size_t *spent, struct husk_error *err)
{
	static const char *const types[] = { "image/png", "image/jpeg", "image/webp" };
	cleanup_buf struct buf bytes = { 0 };
	cleanup_free uint8_t *rgb = colours(d, picture, err);

	if (!rgb)
		return NULL;
	if (encode(picture, rgb, &bytes) < 0) {
		husk_fail_memory(err);
		return NULL;
	}
	*spent += bytes.size;
	if (*spent > PICTURE_BYTES) {
		husk_fail(err, HUSK_LIMIT,
			  "pictures of more than %u MiB; use format \"jpeg\", max_width or fewer of them",
			  PICTURE_BYTES >> 20);
		return NULL;
	}
	cleanup_free char *text = picture_base64((const uint8_t *)bytes.data, bytes.size);
	json_t *document = text ? json_pack("{s:s, s:i, s:i, s:s}", "type", types[picture->format], "width",
					    picture->width, "height", picture->height, "data", text)
				: NULL;
	if (!document)
		husk_fail_memory(err);
	return document;
}
