/*
 * husk-film: the pictures of a recording, at a steady rate; see film.h. Started by store/builder.c, in a cell. An error is one line
 * on the standard error.
 */
#include "film/film.h"

#define RATE 10u            /* the recorder asks for changes so often */
#define PICTURES_MAX 72000u /* a long recording gets fewer pictures in a second, and one at least */
#define BLOCK_ROOM (64u << 10)

static uint32_t even(uint32_t value)
{
	return (value + 1) & ~1u;
}

/* BT.709, in the range of television. */
static uint8_t luma(struct pixel p)
{
	return (uint8_t)(16 + ((47 * p.red + 157 * p.green + 16 * p.blue + 128) >> 8));
}

static uint8_t blue_difference(int red, int green, int blue)
{
	return (uint8_t)(128 + ((-26 * red - 86 * green + 112 * blue + 512) >> 10));
}

static uint8_t red_difference(int red, int green, int blue)
{
	return (uint8_t)(128 + ((112 * red - 102 * green - 10 * blue + 512) >> 10));
}

/* The pixel there, or the last one of an odd row or column. */
static struct pixel at(const struct film *film, uint32_t x, uint32_t y)
{
	return film->pixels[(size_t)MIN(y, film->largest_height - 1) * film->largest_width +
			    MIN(x, film->largest_width - 1)];
}

static void convert(struct film *film)
{
	uint32_t width = even(film->largest_width), height = even(film->largest_height);
	uint8_t *y_plane = film->planes, *u = y_plane + (size_t)width * height, *v = u + (size_t)width * height / 4;

	for (uint32_t y = 0; y < height; y += 2)
		for (uint32_t x = 0; x < width; x += 2) {
			const struct pixel four[] = { at(film, x, y), at(film, x + 1, y), at(film, x, y + 1),
						      at(film, x + 1, y + 1) };
			int red = 0, green = 0, blue = 0;
			for (uint32_t i = 0; i < 4; i++) {
				y_plane[(size_t)(y + i / 2) * width + x + i % 2] = luma(four[i]);
				red += four[i].red;
				green += four[i].green;
				blue += four[i].blue;
			}
			*u++ = blue_difference(red, green, blue);
			*v++ = red_difference(red, green, blue);
		}
}

static int write_picture(struct film *film)
{
	static const char head[] = "FRAME\n";
	size_t size = (size_t)even(film->largest_width) * even(film->largest_height) * 3 / 2;

	if (film->changed)
		convert(film);
	film->changed = false;
	film->pictures++;
	return write_full(1, head, sizeof(head) - 1) < 0 || write_full(1, film->planes, size) < 0
		       ? film_wrong(film, "the pictures cannot be written")
		       : 0;
}

/* Pictures up to the time of the new block. The ones before the first update show that update. */
static int tick(struct film *film)
{
	while (film->painted && film->pictures * 1000 < (uint64_t)film->ms * film->rate)
		if (write_picture(film) < 0)
			return -1;
	return 0;
}

static int begin(struct film *film)
{
	uint32_t width = even(film->largest_width), height = even(film->largest_height);
	char head[96];

	film->rate = RATE;
	while (film->rate > 1 && (uint64_t)film->ms * film->rate / 1000 > PICTURES_MAX)
		film->rate--;
	film->pixels = calloc((size_t)film->largest_width * film->largest_height, sizeof(*film->pixels));
	film->planes = malloc((size_t)width * height * 3 / 2);
	if (!film->pixels || !film->planes)
		return film_wrong(film, "no memory left");
	int size =
		snprintf(head, sizeof(head), "YUV4MPEG2 W%u H%u F%u:1 Ip A1:1 C420jpeg\n", width, height, film->rate);
	return write_full(1, head, (size_t)size) < 0 ? film_wrong(film, "the pictures cannot be written") : 0;
}

static int run(struct film *film)
{
	film->block = malloc(BLOCK_ROOM);
	if (!film->block)
		return film_wrong(film, "no memory left");
	film->dry = true;
	if (film_read(film) < 0)
		return -1;
	if (!film->painted)
		return film_wrong(film, "it has no picture");
	if (begin(film) < 0)
		return -1;
	film->dry = false;
	film->tick = tick;
	if (film_read(film) < 0)
		return -1;
	/* The last picture, also of a recording shorter than one. */
	return write_picture(film);
}

int main(void)
{
	struct film film = { 0 };
	int result = run(&film);

	if (result < 0)
		dprintf(2, "the recording cannot be shown: %s\n", film.wrong ? film.wrong : "it is damaged");
	for (unsigned i = 0; i < FILM_STREAMS; i++)
		film_tight_reset(&film, i);
	free(film.block);
	free(film.pixels);
	free(film.planes);
	return result < 0 ? 1 : 0;
}
