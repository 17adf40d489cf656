/*
 * Daytona's events: socket.io over one WebSocket (Engine.IO 4), which its SDKs open with every client. Clients learn states
 * here; a Node program exits promptly only when the socket has answered. The token comes in the first message. Until it is
 * verified, the connection has the deadline of an unknown one (peers.c), and nothing is sent.
 */
#include <poll.h>

#include "server/dialects/daytona/daytona.h"
#include "server/websocket.h"

#define PING_MS 25000
#define LOOK_MS 1500
#define EVENTS_MAX 100
#define CLOSE_NORMAL 1000

struct stream {
	struct request *request;
	struct websocket *websocket;
	struct husk *husk; /* the caller's view; NULL: not verified yet */
	bool over;
	int64_t after; /* the last event that was sent */
	int64_t pinged_ms;
};

static int send_text(struct stream *stream, const char *kind, json_t *document)
{
	cleanup_json json_t *taken = document;
	cleanup_free char *text = document ? json_dumps(document, JSON_COMPACT | JSON_ENCODE_ANY) : strdup("");
	cleanup_free char *message = text ? str_format("%s%s", kind, text) : NULL;

	return message ? websocket_send(stream->websocket, true, message, strlen(message)) : -1;
}

/* ---- messages of the client ---- */

/* The newest event: earlier events are not sent. */
static int64_t newest(struct husk *husk)
{
	struct husk_event *list = NULL;
	int64_t last = 0;
	size_t count = 1000;

	while (count == 1000) {
		if (husk_events(husk, NULL, last, 1000, 0, &list, &count, NULL) < 0)
			break;
		last = count ? list[count - 1].sequence : last;
		husk_event_list_free(list, count);
	}
	return last;
}

/* 40{"token": KEY} */
static void connect_with(struct stream *stream, const char *text, size_t size)
{
	cleanup_json json_t *document = str_json_deeper(text, size, 4) ? NULL : json_loadb(text, size, 0, NULL);
	const char *secret = json_string_value(json_object_get(document, "token"));
	struct husk *owner = request_owner(stream->request);
	struct husk_token *token = NULL;

	if (stream->husk)
		return;
	if (!secret || husk_token_check(owner, secret, &token, NULL) < 0 ||
	    husk_as(owner, token, &stream->husk, NULL) < 0) {
		send_text(stream, "44", json_pack("{s:s}", "message", "Unauthorized"));
		stream->over = true;
	} else {
		stream->after = newest(stream->husk);
		peers_known(stream->request->connection, true);
		send_text(stream, "40", json_pack("{s:s}", "sid", request_id(stream->request)));
	}
	if (token)
		husk_token_free(token);
}

static int on_message(void *data, bool text, const char *bytes, size_t size)
{
	struct stream *stream = data;

	if (!text || size == 0)
		return 0;
	if (size >= 2 && memcmp(bytes, "40", 2) == 0)
		connect_with(stream, bytes + 2, size - 2);
	else if (bytes[0] == '2')
		send_text(stream, "3", NULL);
	else if (bytes[0] == '1' || (size >= 2 && memcmp(bytes, "41", 2) == 0))
		stream->over = true;
	return 0;
}

/* ---- messages to the client ---- */

static const char *state_after(const char *kind)
{
	static const char *const states[][2] = {
		{ "created", "started" },    { "forked", "started" }, { "woken", "started" },
		{ "hibernated", "stopped" }, { "paused", "paused" },  { "resumed", "started" },
		{ "ended", "destroyed" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(states); i++)
		if (str_equal(kind, states[i][0]))
			return states[i][1];
	return NULL;
}

static void tell(struct stream *stream, const struct husk_event *event)
{
	cleanup_box struct daytona_box box = { 0 };
	const char *state = state_after(event->kind);
	struct husk_sandbox *sandbox = NULL;

	if (!state || !event->sandbox || husk_inspect(stream->husk, event->sandbox, &sandbox, NULL) < 0 ||
	    daytona_box_of(sandbox, &box, NULL) < 0)
		return;
	json_t *document = daytona_document(stream->request, &box, false);
	if (str_equal(event->kind, "created"))
		send_text(stream, "42", json_pack("[s, o]", "sandbox.created", document));
	else
		send_text(stream, "42",
			  json_pack("[s, {s:o, s:s, s:s}]", "sandbox.state.updated", "sandbox", document, "oldState",
				    str_equal(state, "started") ? "stopped" : "started", "newState",
				    daytona_state(&box)));
}

static void look(struct stream *stream)
{
	struct husk_event *list = NULL;
	size_t count = 0;

	if (!stream->husk || husk_events(stream->husk, NULL, stream->after, EVENTS_MAX, 0, &list, &count, NULL) < 0)
		return;
	for (size_t i = 0; i < count; i++)
		tell(stream, &list[i]);
	if (count)
		stream->after = list[count - 1].sequence;
	husk_event_list_free(list, count);
}

static void serve(struct stream *stream, int fd)
{
	while (!stream->over) {
		if (websocket_receive(stream->websocket) < 0)
			break;
		if (time_monotonic_ms() - stream->pinged_ms >= PING_MS) {
			stream->pinged_ms = time_monotonic_ms();
			send_text(stream, "2", NULL);
		}
		if (!websocket_sending(stream->websocket))
			look(stream);
		if (websocket_flush(stream->websocket) < 0 || websocket_over(stream->websocket) ||
		    request_stopping(stream->request))
			break;
		struct pollfd wait = { .fd = fd,
				       .events =
					       (short)(POLLIN | (websocket_sending(stream->websocket) ? POLLOUT : 0)) };
		poll(&wait, 1, LOOK_MS);
	}
	websocket_flush(stream->websocket);
	websocket_close(stream->websocket, CLOSE_NORMAL, "");
	websocket_flush(stream->websocket);
}

static void run(struct request *request, int fd, const void *first, size_t size, void *data)
{
	struct stream stream = { .request = request, .pinged_ms = time_monotonic_ms() };

	(void)data;
	stream.websocket = websocket_open(fd, first, size, on_message, &stream);
	if (!stream.websocket)
		return;
	if (send_text(&stream, "0",
		      json_pack("{s:s, s:[], s:i, s:i, s:i}", "sid", request_id(request), "upgrades", "pingInterval",
				PING_MS, "pingTimeout", 20000, "maxPayload", 1000000)) == 0)
		serve(&stream, fd);
	websocket_free(stream.websocket);
	if (stream.husk)
		husk_close(stream.husk);
}

static int handle_socket(struct request *request, struct husk_error *err)
{
	if (websocket_accept(request, err) < 0)
		return -1;
	return respond_upgrade(request, run, NULL, err);
}

const struct route daytona_event_routes[] = {
	{ "GET", "/daytona/socket.io/", handle_socket, ROUTE_PUBLIC | ROUTE_SOCKET },
	{ 0 },
};
