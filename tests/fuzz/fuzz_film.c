/*
 * A recording of a hostile VNC server: it is read twice, as by husk-film, and every pixel stays on the screen.
 */
#include <sys/mman.h>

#include "film/film.h"

#define PIXELS_MAX (1u << 22)

static void read_it(struct film *film)
{
	film->dry = true;
	if (film_read(film) < 0 || (size_t)film->largest_width * film->largest_height > PIXELS_MAX)
		return;
	film->pixels = calloc((size_t)film->largest_width * film->largest_height, sizeof(*film->pixels));
	if (!film->pixels)
		return;
	film->dry = false;
	(void)film_read(film);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char head[] =
		"FBS 001.001\n\0\0\0\54RFB 003.003\n\0\0\0\1\0\40\0\20\40\30\0\1\0\377\0\377\0\377\0\10\20\0\0\0"
		"\0\0\0\4husk\0\0\0\0";
	struct film film = { .block = malloc(64u << 10) };
	uint8_t length[4] = { 0, 0, (uint8_t)(size >> 8), (uint8_t)size }, rest[8] = { 0 };
	cleanup_close int fd = memfd_create("recording", MFD_CLOEXEC);

	/* The blocks are the host's own; the guest decides on what is in them. */
	if (fd >= 0 && film.block && size < 65536 && dup2(fd, 0) == 0 && write_full(fd, head, sizeof(head) - 1) == 0 &&
	    write_full(fd, length, sizeof(length)) == 0 && write_full(fd, data, size) == 0 &&
	    write_full(fd, rest, (-size & 3) + 4) == 0)
		read_it(&film);
	for (unsigned i = 0; i < FILM_STREAMS; i++)
		film_tight_reset(&film, i);
	free(film.block);
	free(film.pixels);
	return 0;
}
