/*
 * The messages of a language server, "Content-Length: 17\r\n\r\n{"jsonrpc":"2.0"…", cut out of the bytes of its stdout;
 * see daytona_frames.c. daytona_lsp_server.c uses it.
 */
#ifndef HUSK_SERVER_DAYTONA_FRAMES_H
#define HUSK_SERVER_DAYTONA_FRAMES_H

#include "base/base.h"

#define FRAME_MAX (4u << 20) /* of one message; parsed, it may take twenty times as much memory */

/* Zero-initialise; frames_free at the end. */
struct frames {
	struct buf held;
	size_t at; /* what is before it was taken */
};
void frames_free(struct frames *frames);

/* -1: out of memory. */
int frames_push(struct frames *frames, const char *bytes, size_t size);
/* 1: the next message, valid until the next push; 0: more bytes are needed; -1: one larger than FRAME_MAX was announced,
 * and is not kept. */
int frames_next(struct frames *frames, const char **body, size_t *size);

#endif
