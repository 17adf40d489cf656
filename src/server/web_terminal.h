/*
 * A terminal over a WebSocket, for any API: binary messages are the terminal's bytes both ways. The API (struct
 * terminal_words) defines text messages and the messages at the beginning and at the end. Used by api_pty.c and by
 * dialects. One thread per terminal waits for both sides at once.
 */
#ifndef HUSK_SERVER_TERMINAL_H
#define HUSK_SERVER_TERMINAL_H

#include "server/api_process.h"
#include "server/follow.h"
#include "server/websocket.h"

struct terminal {
	struct husk_process *process;
	const struct terminal_words *words;
	uint16_t rows, columns; /* 0: leave it as it is */
	struct websocket *websocket;
	struct buf input;
	bool ended;        /* its exit was told */
	uint16_t farewell; /* the status to close with after the last message; 0: not yet, or done */
	char reason[96];   /* and why */
	int epoll;
	uint32_t watched[2]; /* events that are waited for: of the client, of the process */
};

/* Documents are new; NULL: out of memory. */
struct terminal_words {
	/* The message to the client about the end; sets terminal->reason to the reason of the close. NULL: none is sent. */
	json_t *(*exit)(struct terminal *terminal, const struct husk_process_event *event);
	json_t *(*failure)(const struct husk_error *why); /* the sandbox ended, or a text message was wrong */
	const char *gone;                                 /* reason of the close when the sandbox ended */
	/* A text message from the client; NULL: it is typed unchanged. */
	int (*text)(struct terminal *terminal, const char *text, size_t size, struct husk_error *err);
};

/* Zeroed, with `words`; free with terminal_free. NULL: out of memory. */
struct terminal *terminal_new(const struct terminal_words *words);
void terminal_free(struct terminal *terminal);
static inline void terminal_cleanup(struct terminal **terminal)
{
	terminal_free(*terminal);
}
#define cleanup_terminal cleanup(terminal_cleanup)

/* Serves the client until it disconnects or the process ends. `hello` is the first message (takes ownership). The
 * process's output is read only as fast as the client reads. */
void terminal_serve(struct terminal *terminal, struct request *request, int fd, const void *first, size_t size,
		    json_t *hello);

#endif
