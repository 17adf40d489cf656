/*
 * The loop of husk-desktop: requests from stdin, one after the other, answers to stdout. While one of them waits, those
 * of other clients are served. Between them it answers other programs that ask for the clipboard. If the X server ends,
 * the session of the template starts it again. The first request after that fails, because everything on the screen is
 * lost.
 */
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "desktop.h"

#define LINE_MAX_BYTES (8u << 20)
#define DEPTH_MAX 16
#define OPEN_MS 20000
#define SESSION "/run/husk/desktop" /* of guest/desktop-session */

struct server {
	struct display display;
	struct buf input;
	bool before; /* there was a display once */
	bool over;
	bool waiting; /* a request waits */
};

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

static json_t *parse(const char *line, size_t size)
{
	return str_json_deeper(line, size, DEPTH_MAX) ? NULL : json_loadb(line, size, JSON_ALLOW_NUL, NULL);
}

static int serve(struct server *server, const json_t *request)
{
	const char *id = json_string_value(json_object_get(request, "id"));
	json_t *answer = NULL;

	if (!id)
		return 0;
	if (ensure(&server->display, &server->before, &answer) == 1)
		answer = actions_run(&server->display, request);
	if (!answer || json_object_set_new(answer, "id", json_string(id)) < 0 ||
	    json_object_set_new(answer, "type", json_string("end")) < 0)
		return -1;
	return say(answer);
}

/* Has it actions that take as long as it pleases its client? Then it is not served while another waits, whose answer would be late. */
static bool is_long(const json_t *request)
{
	static const char *const slow[] = { "wait", "hold_key", "open" };
	json_t *each;
	size_t i;

	json_array_foreach(json_object_get(request, "actions"), i, each)
	{
		const char *name = json_string_value(json_object_get(each, "action"));
		for (size_t n = 0; n < ARRAY_SIZE(slow); n++)
			if (str_equal(name, slow[n]))
				return true;
	}
	return false;
}

/* All whole lines of the buffer; those of long requests stay there while another waits. A line is taken out before it is served: that
 * may read more of them. */
static int serve_lines(struct server *server)
{
	struct buf *input = &server->input;
	size_t start = 0;
	char *newline;

	while (input->size > start && (newline = memchr(input->data + start, '\n', input->size - start))) {
		size_t size = (size_t)(newline - input->data) - start;
		cleanup_json json_t *request = parse(input->data + start, size);
		if (server->waiting && is_long(request)) {
			start += size + 1;
			continue;
		}
		memmove(input->data + start, newline + 1, input->size - start - size - 1);
		input->size -= size + 1;
		if (serve(server, request) < 0)
			return -1;
	}
	/* A line without an end cannot be answered; its sender has broken the protocol. */
	if (input->size - start > LINE_MAX_BYTES)
		input->size = start;
	return 0;
}

/* Waits for requests and for the X server, at most that long (-1: for ever), and deals with them. */
static void turn(struct server *server, int ms)
{
	struct display *d = &server->display;
	struct pollfd p[2] = { { .fd = 0, .events = POLLIN },
			       { .fd = display_alive(d) ? xcb_get_file_descriptor(d->x) : -1, .events = POLLIN } };
	char piece[16384];

	if (display_alive(d))
		xcb_flush(d->x);
	if (poll(p, 2, ms) < 0 && errno != EINTR)
		server->over = true;
	if (p[1].revents && display_alive(d))
		display_pump(d);
	while (waitpid(-1, NULL, WNOHANG) > 0) /* browsers that ended */
		;
	if (server->over || !p[0].revents)
		return;
	ssize_t got = read(0, piece, sizeof(piece));
	if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN))
		server->over = true;
	if (got > 0 && (buf_append(&server->input, piece, (size_t)got) < 0 || serve_lines(server) < 0))
		server->over = true;
}

/* A client waits; requests of others are served. */
static void wait_and_serve(struct display *d, int ms)
{
	struct server *server = d->owner;
	int64_t until = time_monotonic_ms() + ms, left;

	server->waiting = true;
	while (!server->over && (left = until - time_monotonic_ms()) > 0)
		turn(server, (int)left);
	server->waiting = false;
}

int main(void)
{
	struct server server = { .display = { .wait = wait_and_serve, .owner = &server } };

	signal(SIGPIPE, SIG_IGN);
	server.before = display_open(&server.display, 0, NULL) == 0;
	if (say(json_pack("{s:s}", "type", "ready")) < 0)
		return 1;
	while (!server.over)
		turn(&server, -1);
	buf_free(&server.input);
	return 0;
}
