/*
 * The files of huskd's own web pages, inside the program: src/server/pages, and noVNC as Debian has it (scripts/novnc).
 * scripts/assets writes the table into the build directory.
 */
#ifndef HUSK_SERVER_ASSETS_H
#define HUSK_SERVER_ASSETS_H

#include <stddef.h>

struct asset {
	const char *name; /* "desktop.js", "novnc/core/rfb.js" */
	const char *type;
	const char *start, *end;
};

extern const struct asset assets[]; /* ends with a NULL name */

#endif
