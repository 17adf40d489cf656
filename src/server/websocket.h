/*
 * A WebSocket after its handshake (RFC 6455, server side, over wslay): messages in and out of a byte stream, without
 * ever blocking. The owner polls the descriptor, calls websocket_receive when it is readable and websocket_flush when
 * there is something to send; pings are answered here. What a client sends is bounded by MESSAGE_MAX per message, what is
 * queued for it by what the owner queues.
 */
#ifndef HUSK_SERVER_WEBSOCKET_H
#define HUSK_SERVER_WEBSOCKET_H

#include "server/server.h"

#define WEBSOCKET_MESSAGE_MAX (1u << 20)

struct websocket;

/* A whole message from the client. A non-zero return has no further one delivered until the next websocket_receive. */
typedef int (*websocket_handler)(void *data, bool text, const char *bytes, size_t size);

/* `fd` stays the caller's; `first` are bytes that came already. NULL: out of memory. */
struct websocket *websocket_open(int fd, const void *first, size_t size, websocket_handler handler, void *data);
void websocket_free(struct websocket *websocket);

/* Takes in what has come. -1: the connection is broken. */
int websocket_receive(struct websocket *websocket);
/* Queues a message; -1 when memory ran out, or the close was sent. */
int websocket_send(struct websocket *websocket, bool text, const char *bytes, size_t size);
int websocket_send_json(struct websocket *websocket, json_t *document); /* takes it; NULL: memory ran out */
int websocket_ping(struct websocket *websocket);
/* Once all that was sent before has gone out. `reason` must stay. */
void websocket_close(struct websocket *websocket, uint16_t status, const char *reason);
/* Sends what goes without waiting. -1: the connection is broken. */
int websocket_flush(struct websocket *websocket);
bool websocket_sending(struct websocket *websocket); /* something is still queued */
bool websocket_over(struct websocket *websocket);    /* closed by both sides, or broken */
/* Whether the client has been heard since this was last asked. */
bool websocket_heard(struct websocket *websocket);

#endif
