/*
 * The log of huskd: one line per request on stderr when it is over, as text or as JSON, and a few of the server's
 * own. Of a request it shows the pattern of its route, never its target: queries hold signatures, and headers and
 * bodies hold tokens and environment values.
 */
#include "server/core.h"

static const char *route_of(const struct request *request)
{
	return request->match.route ? request->match.route->path : "-";
}

/* A client may call its method anything. */
static const char *method_of(const struct request *request)
{
	size_t size = strlen(request->method);

	return size && strspn(request->method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_") == size ? request->method : "-";
}

static void write_line(struct buf *line)
{
	/* Nowhere to report that the log itself cannot be written. */
	if (buf_append_string(line, "\n") == 0)
		(void)!write_full(STDERR_FILENO, line->data, line->size);
}

static int text_line(const struct request *request, const char *at, double ms, struct buf *line)
{
	return buf_printf(line, "%s %s %s %s %s %u %.1fms %lluB%s%s", at, request->id, request->remote,
			  method_of(request), route_of(request), request->answer.status, ms,
			  (unsigned long long)request->sent, request->tenant ? " tenant=" : "",
			  request->tenant ? request->tenant : "");
}

static int json_line(const struct request *request, const char *at, double ms, struct buf *line)
{
	/* clang-format off */
	cleanup_json json_t *document = json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:f, s:I, s:o}",
		"time", at,
		"request", request->id,
		"remote", request->remote,
		"method", method_of(request),
		"route", route_of(request),
		"status", (int)request->answer.status,
		"ms", ms,
		"bytes", (json_int_t)request->sent,
		"tenant", json_text0(request->tenant));
	/* clang-format on */
	cleanup_free char *text = document ? json_dumps(document, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;

	return text ? buf_append_string(line, text) : -1;
}

void log_request(const struct request *request)
{
	double ms = (double)(time_monotonic_us() - request->started_us) / 1000;
	cleanup_buf struct buf line = { 0 };
	char at[25];

	time_format(time_wall_ms(), at);
	int made = request->server->options->json_log ? json_line(request, at, ms, &line)
						      : text_line(request, at, ms, &line);
	if (made == 0)
		write_line(&line);
}

void log_server(const struct server *server, const char *format, ...)
{
	cleanup_buf struct buf line = { 0 };
	char at[25], text[1200];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = ' ';
	time_format(time_wall_ms(), at);
	if (!server->options->json_log) {
		if (buf_printf(&line, "%s huskd: %s", at, text) == 0)
			write_line(&line);
		return;
	}
	cleanup_json json_t *document = json_pack("{s:s, s:o}", "time", at, "message", json_text(text, strlen(text)));
	cleanup_free char *dump = document ? json_dumps(document, JSON_COMPACT) : NULL;
	if (dump && buf_append_string(&line, dump) == 0)
		write_line(&line);
}
