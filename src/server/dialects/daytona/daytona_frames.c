/*
 * Cuts messages out of what a language server writes (daytona_frames.h). The bytes are the guest's: a length is believed only
 * up to FRAME_MAX, and bytes that belong to no message are dropped. The first bytes may be the middle of a message, since a
 * request attaches to a server that runs already. The next head is found nevertheless: a message is JSON on one line, which
 * cannot contain the end of a line that a head has.
 */
#include "server/dialects/daytona/daytona_frames.h"

#include <ctype.h>

#define HEAD "Content-Length: "
#define HEAD_MAX 256u /* with Content-Type and the empty line */

void frames_free(struct frames *frames)
{
	buf_free(&frames->held);
}

int frames_push(struct frames *frames, const char *bytes, size_t size)
{
	buf_consume(&frames->held, frames->at);
	frames->at = 0;
	return buf_append(&frames->held, bytes, size);
}

/* 1: a whole head; 0: its rest has not come; -1: it is none. */
static int read_head(const char *head, size_t left, size_t *head_size, size_t *length)
{
	size_t at = strlen(HEAD);

	for (*length = 0; at < left && isdigit((unsigned char)head[at]); at++)
		*length = MIN(*length * 10 + (size_t)(head[at] - '0'), (size_t)FRAME_MAX + 1);
	if (at < left && (at == strlen(HEAD) || head[at] != '\r'))
		return -1;
	const char *end = memmem(head, MIN(left, HEAD_MAX), "\r\n\r\n", 4);
	if (!end)
		return left < HEAD_MAX ? 0 : -1;
	*head_size = (size_t)(end - head) + 4;
	return 1;
}

int frames_next(struct frames *frames, const char **body, size_t *size)
{
	while (frames->at < frames->held.size) {
		const char *bytes = frames->held.data + frames->at;
		size_t left = frames->held.size - frames->at, head_size = 0, length = 0;
		const char *head = memmem(bytes, left, HEAD, strlen(HEAD));
		if (!head) { /* the end may be the beginning of one */
			frames->at += left - MIN(left, strlen(HEAD) - 1);
			return 0;
		}
		frames->at += (size_t)(head - bytes);
		left -= (size_t)(head - bytes);
		int found = read_head(head, left, &head_size, &length);
		if (found == 0)
			return 0;
		if (found < 0 || length > FRAME_MAX) {
			frames->at += found < 0 ? strlen(HEAD) : head_size;
			if (found > 0)
				return -1;
			continue;
		}
		if (left - head_size < length)
			return 0;
		*body = head + head_size;
		*size = length;
		frames->at += head_size + length;
		return 1;
	}
	return 0;
}
