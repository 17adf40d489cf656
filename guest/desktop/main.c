/*
 * The loop of husk-desktop: requests from stdin, one after the other, answers to stdout. Between them it answers other programs that
 * ask for the clipboard. If the X server ends, it is started again by the session of the template; the request that finds out is
 * refused once, since everything that was on the screen is gone.
 */
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "desktop.h"

#define LINE_MAX_BYTES (8u << 20)
#define DEPTH_MAX 16
#define OPEN_MS 20000
#define SESSION "/run/husk/desktop" /* of guest/desktop-session */

static int say(json_t *answer)
{
	cleanup_free char *line = json_dumps(answer, JSON_COMPACT);
	struct buf text = { 0 };

	json_decref(answer);
	int bad = !line || buf_append_string(&text, line) < 0 || buf_append_string(&text, "\n") < 0 ||
		  write_full(1, text.data, text.size) < 0;
	buf_free(&text);
	return bad ? -1 : 0;
}

static json_t *refusal(const char *code, const char *message)
{
	return json_pack("{s:{s:i, s:s, s:s, s:s}}", "error", "index", -1, "action", "", "message", message, "code",
			 code);
}

/* The display is there: 1; it was lost and is there again: 0 with an answer; not there: -1 with an answer. */
static int ensure(struct display *d, bool *before, json_t **answer)
{
	struct husk_error err = { 0 };

	if (display_alive(d) && display_sync(d, NULL) == 0)
		return 1;
	display_close(d);
	/* Where nobody will start a server, there is nothing to wait for. */
	if (display_open(d, access(SESSION, F_OK) == 0 ? OPEN_MS : 0, &err) < 0) {
		*answer = refusal(desktop_code_name(err.code), err.message);
		return -1;
	}
	if (!*before) {
		*before = true;
		return 1;
	}
	*answer = refusal(desktop_code_name(HUSK_GONE),
			  "the display had ended and was started again: the windows that were open are gone, "
			  "and nothing of this call was done; take a screenshot and go on");
	return 0;
}

static int serve(struct display *d, bool *before, const char *line, size_t size)
{
	cleanup_json json_t *request =
		str_json_deeper(line, size, DEPTH_MAX) ? NULL : json_loadb(line, size, JSON_ALLOW_NUL, NULL);
	const char *id = json_string_value(json_object_get(request, "id"));
	json_t *answer = NULL;

	if (!id)
		return 0;
	if (ensure(d, before, &answer) == 1)
		answer = actions_run(d, request);
	if (!answer || json_object_set_new(answer, "id", json_string(id)) < 0 ||
	    json_object_set_new(answer, "type", json_string("end")) < 0)
		return -1;
	return say(answer);
}

/* All whole lines of the buffer. */
static int serve_lines(struct display *d, bool *before, struct buf *input)
{
	size_t start = 0;
	char *newline;

	while (input->size > start && (newline = memchr(input->data + start, '\n', input->size - start))) {
		size_t size = (size_t)(newline - input->data) - start;
		if (serve(d, before, input->data + start, size) < 0)
			return -1;
		start += size + 1;
	}
	buf_consume(input, start);
	/* A line without an end cannot be answered; its sender has broken the protocol. */
	if (input->size > LINE_MAX_BYTES)
		buf_consume(input, input->size);
	return 0;
}

int main(void)
{
	struct display display = { 0 };
	cleanup_buf struct buf input = { 0 };
	bool before = false;
	char piece[65536];

	signal(SIGPIPE, SIG_IGN);
	before = display_open(&display, 0, NULL) == 0;
	if (say(json_pack("{s:s}", "type", "ready")) < 0)
		return 1;
	for (;;) {
		struct pollfd p[2] = { { .fd = 0, .events = POLLIN },
				       { .fd = display_alive(&display) ? xcb_get_file_descriptor(display.x) : -1,
					 .events = POLLIN } };
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return 1;
		if (p[1].revents && display_alive(&display))
			display_pump(&display);
		while (waitpid(-1, NULL, WNOHANG) > 0) /* browsers that ended */
			;
		if (!p[0].revents)
			continue;
		ssize_t got = read(0, piece, sizeof(piece));
		if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN))
			return 0;
		if (got > 0 &&
		    (buf_append(&input, piece, (size_t)got) < 0 || serve_lines(&display, &before, &input) < 0))
			return 1;
	}
}
