/*
 * The files of huskd's own web pages, inside the program: src/server/pages, and noVNC as Debian has it (scripts/novnc).
 * build/assets.c, which scripts/assets writes, has the table.
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
