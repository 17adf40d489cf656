/*
 * The recording as a stream of bytes: blocks with a size and a time, see client/desktop_record.c. An incomplete block
 * ends the recording: its recorder was killed, or is still running.
 */
#include "film/film.h"

#define BLOCK_MAX (64u << 10)

int film_wrong(struct film *film, const char *what)
{
	if (!film->wrong)
		film->wrong = what;
	return -1;
}

static uint32_t big32(const uint8_t *bytes)
{
	return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static int next_block(struct film *film)
{
	uint8_t head[4], tail[4];

	if (!film->dry && film->read >= film->last)
		return -1;
	if (read_full(0, head, sizeof(head)) != sizeof(head))
		return -1;
	size_t size = big32(head), padded = (size + 3) & ~(size_t)3;
	if (size > BLOCK_MAX)
		return film_wrong(film, "a block is too large");
	if (read_full(0, film->block, padded) != (ssize_t)padded || read_full(0, tail, sizeof(tail)) != sizeof(tail))
		return -1;
	film->at = 0;
	film->size = size;
	film->read += sizeof(head) + padded + sizeof(tail);
	film->ms = MAX(film->ms, big32(tail));
	return film->tick ? film->tick(film) : 0;
}

int film_take(struct film *film, void *to, size_t size)
{
	uint8_t *out = to;

	while (size > 0) {
		size_t part = MIN(size, film->size - film->at);
		if (part == 0) {
			if (next_block(film) < 0)
				return -1;
			continue;
		}
		if (out) {
			memcpy(out, film->block + film->at, part);
			out += part;
		}
		film->at += part;
		size -= part;
	}
	return 0;
}

int film_take8(struct film *film, uint32_t *out)
{
	uint8_t byte = 0;

	if (film_take(film, &byte, 1) < 0)
		return -1;
	*out = byte;
	return 0;
}

int film_take16(struct film *film, uint32_t *out)
{
	uint8_t bytes[2] = { 0 };

	if (film_take(film, bytes, sizeof(bytes)) < 0)
		return -1;
	*out = (uint32_t)bytes[0] << 8 | bytes[1];
	return 0;
}

int film_take32(struct film *film, uint32_t *out)
{
	uint8_t bytes[4] = { 0 };

	if (film_take(film, bytes, sizeof(bytes)) < 0)
		return -1;
	*out = big32(bytes);
	return 0;
}
