/*
 * A WebSocket after its handshake (RFC 6455, server side, over wslay): messages in and out of a byte stream, without
 * ever blocking. The owner polls the descriptor, calls websocket_receive if it is readable and websocket_flush if there
 * is something to send; pings are answered here. MESSAGE_MAX limits each message of a client; the owner limits what is
 * queued for it.
 */
#ifndef HUSK_SERVER_WEBSOCKET_H
#define HUSK_SERVER_WEBSOCKET_H

#include "server/server.h"

#define WEBSOCKET_MESSAGE_MAX (1u << 20)

struct websocket;

/* A whole message from the client. After a non-zero return, no further message is delivered until the next
 * websocket_receive. */
typedef int (*websocket_handler)(void *data, bool text, const char *bytes, size_t size);

/* `fd` stays with the caller; `first` are bytes that have already arrived. NULL: out of memory. */
struct websocket *websocket_open(int fd, const void *first, size_t size, websocket_handler handler, void *data);
void websocket_free(struct websocket *websocket);

/* Receives what has arrived. -1: the connection failed. */
int websocket_receive(struct websocket *websocket);
/* Queues a message; -1 if memory ran out, or the close was sent. */
int websocket_send(struct websocket *websocket, bool text, const char *bytes, size_t size);
int websocket_send_json(struct websocket *websocket, json_t *document); /* takes ownership; NULL: memory ran out */
int websocket_ping(struct websocket *websocket);
/* Closes when everything that was queued before is sent. `reason` must stay valid. */
void websocket_close(struct websocket *websocket, uint16_t status, const char *reason);
/* Sends as much as possible without waiting. -1: the connection failed. */
int websocket_flush(struct websocket *websocket);
bool websocket_sending(struct websocket *websocket); /* something is still queued */
bool websocket_over(struct websocket *websocket);    /* closed by both sides, or failed */
/* Has the client sent anything since the last call? */
bool websocket_heard(struct websocket *websocket);

#endif
