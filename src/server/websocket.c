/*
 * WebSockets; see websocket.h. wslay does the framing. This file has the handshake, the byte stream below, and limits
 * on what the server holds for a client: a message that is too long closes the connection, and nothing more is read
 * while answers to pings are queued.
 */
#include "server/websocket.h"

#include <openssl/evp.h>
#include <sys/socket.h>
#include <wslay/wslay.h>

/* Limits of what is queued for the client; above them nothing is read from it. Messages count too: an empty one (the
 * answer to an empty ping) has no bytes, but costs memory. */
#define QUEUE_MAX (256u << 10)
#define QUEUED_MAX 256u
#define KEY_LENGTH 24 /* of Sec-WebSocket-Key: 16 bytes in base64 */

struct websocket {
	int fd;
	struct wslay_event_context *wslay;
	struct buf first; /* received with the handshake; read before the descriptor */
	websocket_handler handler;
	void *data;
	bool full; /* the handler accepts no more for now */
	bool broken, heard;
	uint16_t close_status; /* the status to close with when everything is sent; 0: do not close */
	const char *close_reason;
};

/* ---- the handshake ---- */

/* Has a comma-separated header this word? */
static bool header_has(const char *header, const char *word)
{
	size_t length = strlen(word);

	while (header && *header) {
		header += strspn(header, " \t,");
		size_t size = strcspn(header, " \t,");
		if (size == length && strncasecmp(header, word, length) == 0)
			return true;
		header += size;
	}
	return false;
}

static int accept_key(const char *key, char out[32], struct husk_error *err)
{
	static const char magic[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
	char text[KEY_LENGTH + sizeof(magic)];
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned size = 0;

	snprintf(text, sizeof(text), "%s%s", key, magic);
	if (EVP_Digest(text, strlen(text), digest, &size, EVP_sha1(), NULL) != 1 || size != 20)
		return husk_fail(err, HUSK_INTERNAL, "cannot compute the answer to the WebSocket handshake");
	EVP_EncodeBlock((unsigned char *)out, digest, (int)size);
	return 0;
}

int websocket_accept(struct request *request, struct husk_error *err)
{
	const char *key = request_header(request, "Sec-WebSocket-Key");
	const char *version = request_header(request, "Sec-WebSocket-Version");
	char answer[32];

	if (!header_has(request_header(request, "Upgrade"), "websocket") ||
	    !header_has(request_header(request, "Connection"), "upgrade"))
		return husk_fail_field(
			err, "Upgrade",
			"this is a WebSocket; connect with ws:// (Upgrade: websocket, Connection: Upgrade)");
	if (!str_equal(version, "13"))
		return husk_fail_field(err, "Sec-WebSocket-Version",
				       "Sec-WebSocket-Version is '%.20s'; version 13 is spoken here",
				       version ? version : "");
	if (!key || strlen(key) != KEY_LENGTH)
		return husk_fail_field(
			err, "Sec-WebSocket-Key",
			"Sec-WebSocket-Key is missing or not 16 bytes in base64; use a WebSocket client");
	if (accept_key(key, answer, err) < 0)
		return -1;
	if (respond_header(request, "Upgrade", "websocket", err) < 0)
		return -1;
	return respond_header(request, "Sec-WebSocket-Accept", answer, err);
}

/* ---- the byte stream ---- */

static ssize_t on_receive(wslay_event_context_ptr wslay, uint8_t *bytes, size_t size, int flags, void *data)
{
	struct websocket *websocket = data;
	ssize_t count;

	(void)flags;
	if (websocket->full || wslay_event_get_queued_msg_length(wslay) > QUEUE_MAX ||
	    wslay_event_get_queued_msg_count(wslay) > QUEUED_MAX) {
		wslay_event_set_error(wslay, WSLAY_ERR_WOULDBLOCK);
		return -1;
	}
	if (websocket->first.size > 0) {
		count = (ssize_t)MIN(size, websocket->first.size);
		memcpy(bytes, websocket->first.data, (size_t)count);
		buf_consume(&websocket->first, (size_t)count);
		return count;
	}
	do
		count = recv(websocket->fd, bytes, size, MSG_DONTWAIT);
	while (count < 0 && errno == EINTR);
	if (count > 0) {
		websocket->heard = true;
		return count;
	}
	wslay_event_set_error(wslay, count < 0 && errno == EAGAIN ? WSLAY_ERR_WOULDBLOCK : WSLAY_ERR_CALLBACK_FAILURE);
	return -1;
}

static ssize_t on_send(wslay_event_context_ptr wslay, const uint8_t *bytes, size_t size, int flags, void *data)
{
	struct websocket *websocket = data;
	int more = flags & WSLAY_MSG_MORE ? MSG_MORE : 0;
	ssize_t count;

	do
		count = send(websocket->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL | more);
	while (count < 0 && errno == EINTR);
	if (count < 0)
		wslay_event_set_error(wslay, errno == EAGAIN ? WSLAY_ERR_WOULDBLOCK : WSLAY_ERR_CALLBACK_FAILURE);
	return count;
}

static void on_message(wslay_event_context_ptr wslay, const struct wslay_event_on_msg_recv_arg *message, void *data)
{
	struct websocket *websocket = data;

	(void)wslay;
	if (wslay_is_ctrl_frame(message->opcode))
		return;
	if (websocket->handler(websocket->data, message->opcode == WSLAY_TEXT_FRAME, (const char *)message->msg,
			       message->msg_length) != 0)
		websocket->full = true;
}

/* ---- the owner's side ---- */

struct websocket *websocket_open(int fd, const void *first, size_t size, websocket_handler handler, void *data)
{
	static const struct wslay_event_callbacks callbacks = {
		.recv_callback = on_receive,
		.send_callback = on_send,
		.on_msg_recv_callback = on_message,
	};
	struct websocket *websocket = calloc(1, sizeof(*websocket));

	if (!websocket)
		return NULL;
	*websocket = (struct websocket){ .fd = fd, .handler = handler, .data = data, .heard = true };
	if ((size > 0 && buf_append(&websocket->first, first, size) < 0) ||
	    wslay_event_context_server_init(&websocket->wslay, &callbacks, websocket) != 0) {
		buf_free(&websocket->first);
		free(websocket);
		return NULL;
	}
	wslay_event_config_set_max_recv_msg_length(websocket->wslay, WEBSOCKET_MESSAGE_MAX);
	return websocket;
}

void websocket_free(struct websocket *websocket)
{
	if (!websocket)
		return;
	wslay_event_context_free(websocket->wslay);
	buf_free(&websocket->first);
	free(websocket);
}

int websocket_receive(struct websocket *websocket)
{
	websocket->full = false;
	if (wslay_event_want_read(websocket->wslay) && wslay_event_recv(websocket->wslay) != 0)
		websocket->broken = true;
	return websocket->broken ? -1 : 0;
}

static int queue(struct websocket *websocket, uint8_t opcode, const void *bytes, size_t size)
{
	struct wslay_event_msg message = { opcode, bytes, size };

	return wslay_event_queue_msg(websocket->wslay, &message) == 0 ? 0 : -1;
}

int websocket_send(struct websocket *websocket, bool text, const char *bytes, size_t size)
{
	return queue(websocket, text ? WSLAY_TEXT_FRAME : WSLAY_BINARY_FRAME, bytes, size);
}

int websocket_send_json(struct websocket *websocket, json_t *document)
{
	cleanup_json json_t *owned = document;
	cleanup_free char *text = owned ? json_dumps(owned, JSON_COMPACT) : NULL;

	return text ? websocket_send(websocket, true, text, strlen(text)) : -1;
}

int websocket_ping(struct websocket *websocket)
{
	return queue(websocket, WSLAY_PING, NULL, 0);
}

void websocket_close(struct websocket *websocket, uint16_t status, const char *reason)
{
	websocket->close_status = status;
	websocket->close_reason = reason;
}

static int send_queued(struct websocket *websocket)
{
	if (wslay_event_want_write(websocket->wslay) && wslay_event_send(websocket->wslay) != 0)
		websocket->broken = true;
	return websocket->broken ? -1 : 0;
}

int websocket_flush(struct websocket *websocket)
{
	if (send_queued(websocket) < 0)
		return -1;
	if (!websocket->close_status || wslay_event_want_write(websocket->wslay))
		return 0;
	/* Only now: wslay sends a close before the messages that were queued earlier, and then drops those. */
	const char *reason = websocket->close_reason;
	uint16_t status = websocket->close_status;
	websocket->close_status = 0;
	if (wslay_event_queue_close(websocket->wslay, status, (const uint8_t *)reason, strlen(reason)) != 0)
		websocket->broken = true;
	return send_queued(websocket);
}

bool websocket_sending(struct websocket *websocket)
{
	return wslay_event_want_write(websocket->wslay);
}

bool websocket_over(struct websocket *websocket)
{
	return websocket->broken ||
	       (!wslay_event_want_read(websocket->wslay) && !wslay_event_want_write(websocket->wslay));
}

bool websocket_heard(struct websocket *websocket)
{
	bool heard = websocket->heard;

	websocket->heard = false;
	return heard;
}
