/*
 * A video of a recording of a desktop; see film.c.
 */
#ifndef HUSK_INSTANCE_FILM_H
#define HUSK_INSTANCE_FILM_H

#include "instance/instance.h"

#define FILMS_MAX 2 /* that an instance makes at a time: each takes a processor */

/* Gives the video of the recording `screen`, a regular file, to the sink as it is made. `format` is "mp4" or "webm". LIMIT: too many
 * are being made. UNAVAILABLE: the host has no ffmpeg. */
int film_make(struct husk *husk, int screen, const char *format, husk_sink sink, void *data, struct husk_error *err);

#endif
