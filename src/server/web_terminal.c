/*
 * Terminals over WebSockets; see web_terminal.h. If the client does not read, the terminal is not read, and vice versa.
 * So nothing accumulates here.
 */
#include "server/web_terminal.h"

#include <sys/epoll.h>

#define INPUT_MAX (256u << 10) /* typed, and not yet accepted by the terminal */
#define CLOSE_NORMAL 1000      /* of RFC 6455 */
#define CLOSE_FAILED 1011
#define SILENT_MAX 4 /* times SSE_PING_MS without any message, not even a pong: the client is gone */

struct terminal *terminal_new(const struct terminal_words *words)
{
	struct terminal *terminal = calloc(1, sizeof(*terminal));

	if (terminal) {
		terminal->words = words;
		terminal->epoll = -1;
	}
	return terminal;
}

void terminal_free(struct terminal *terminal)
{
	if (!terminal)
		return;
	websocket_free(terminal->websocket);
	husk_process_free(terminal->process);
	buf_free(&terminal->input);
	fd_close(&terminal->epoll);
	free(terminal);
}

/* ---- messages of the client ---- */

static int on_message(void *data, bool text, const char *bytes, size_t size)
{
	struct terminal *terminal = data;
	struct husk_error err = { 0 };

	if (terminal->ended)
		return 0;
	if (text && terminal->words->text)
		terminal->words->text(terminal, bytes, size, &err);
	else if (buf_append(&terminal->input, bytes, size) < 0)
		husk_fail_memory(&err);
	if (err.code != HUSK_OK && websocket_send_json(terminal->websocket, terminal->words->failure(&err)) < 0)
		return 1;
	return terminal->input.size >= INPUT_MAX;
}

/* ---- output of the terminal ---- */

static void terminal_exit(struct terminal *terminal, const struct husk_process_event *event)
{
	terminal->ended = true;
	terminal->farewell = CLOSE_NORMAL;
	websocket_send_json(terminal->websocket, terminal->words->exit(terminal, event));
}

/* The sandbox ended, or something failed. */
static void terminal_fail(struct terminal *terminal, const struct husk_error *why)
{
	terminal->ended = true;
	terminal->farewell = CLOSE_FAILED;
	snprintf(terminal->reason, sizeof(terminal->reason), "%s", terminal->words->gone);
	websocket_send_json(terminal->websocket, terminal->words->failure(why));
}

/* Passes on the output of the terminal, as fast as the client reads. */
static void terminal_output(struct terminal *terminal)
{
	struct husk_error why = { 0 };
	struct husk_process_event event;

	while (!terminal->ended && !websocket_sending(terminal->websocket) && husk_process_pending(terminal->process)) {
		if (husk_process_next(terminal->process, &event, &why) < 0)
			terminal_fail(terminal, &why);
		else if (event.kind == HUSK_EXIT)
			terminal_exit(terminal, &event);
		else if (websocket_send(terminal->websocket, false, event.data, event.size) < 0)
			return; /* the client has closed */
		if (websocket_flush(terminal->websocket) < 0)
			return;
	}
}

static void terminal_input(struct terminal *terminal)
{
	if (terminal->input.size == 0 || terminal->ended)
		return;
	ssize_t count = husk_process_write_some(terminal->process, terminal->input.data, terminal->input.size, NULL);
	buf_consume(&terminal->input, count < 0 ? terminal->input.size : (size_t)count);
}

/* wslay sends a close before other queued messages: it has to wait until the last message is sent. */
static void terminal_farewell(struct terminal *terminal)
{
	if (!terminal->farewell || websocket_sending(terminal->websocket))
		return;
	websocket_close(terminal->websocket, terminal->farewell, terminal->reason);
	terminal->farewell = 0;
}

/* ---- both ---- */

static int watch(struct terminal *terminal, int index, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events };

	if (terminal->watched[index] == events)
		return 0;
	terminal->watched[index] = events;
	return epoll_ctl(terminal->epoll, EPOLL_CTL_MOD, fd, &event);
}

/* Waits until either side is ready. 1: it may be; 0: a long silence; -1: the end. */
static int terminal_wait(struct terminal *terminal, struct request *request, int fd)
{
	bool sending = websocket_sending(terminal->websocket);
	uint32_t client = (terminal->input.size < INPUT_MAX ? EPOLLIN : 0u) | (sending ? EPOLLOUT : 0u);
	uint32_t process = terminal->ended || sending ? 0u : EPOLLIN;

	if (watch(terminal, 0, fd, client) < 0 || watch(terminal, 1, husk_process_fd(terminal->process), process) < 0)
		return -1;
	return request_wait(request, terminal->epoll, SSE_PING_MS);
}

static void terminal_relay(struct terminal *terminal, struct request *request, int fd)
{
	int silent = 0;

	for (;;) {
		terminal_input(terminal);
		if (terminal->input.size < INPUT_MAX)
			websocket_receive(terminal->websocket);
		terminal_output(terminal);
		terminal_farewell(terminal);
		if (websocket_flush(terminal->websocket) < 0 || websocket_over(terminal->websocket))
			break;
		terminal_input(terminal);
		int ready = terminal_wait(terminal, request, fd);
		if (ready < 0)
			break;
		if (ready > 0)
			continue;
		silent = websocket_heard(terminal->websocket) ? 0 : silent + 1;
		if (silent > SILENT_MAX || terminal->ended)
			break;
		websocket_ping(terminal->websocket);
	}
	/* Input that was typed just before the disconnect still reaches the terminal. */
	websocket_receive(terminal->websocket);
	terminal_input(terminal);
}

void terminal_serve(struct terminal *terminal, struct request *request, int fd, const void *first, size_t size,
		    json_t *hello)
{
	cleanup_json json_t *taken = hello;
	struct epoll_event none = { 0 };

	terminal->epoll = epoll_create1(EPOLL_CLOEXEC);
	terminal->websocket = websocket_open(fd, first, size, on_message, terminal);
	if (terminal->epoll < 0 || !terminal->websocket || epoll_ctl(terminal->epoll, EPOLL_CTL_ADD, fd, &none) < 0 ||
	    epoll_ctl(terminal->epoll, EPOLL_CTL_ADD, husk_process_fd(terminal->process), &none) < 0) {
		log_line(LOG_ERROR, "no resources for a terminal: %s", strerror(errno));
		return;
	}
	if (terminal->rows)
		husk_process_resize(terminal->process, terminal->rows, terminal->columns, NULL);
	if (websocket_send_json(terminal->websocket, steal_pointer(taken)) == 0)
		terminal_relay(terminal, request, fd);
}
