/*
 * A minimal VNC client: it logs in, chooses encodings that noVNC can decode, and requests updates. It does not decode
 * them. For desktop_record.c.
 */
#ifndef HUSK_CLIENT_RFB_CLIENT_H
#define HUSK_CLIENT_RFB_CLIENT_H

#include "base/base.h"

#define RFB_HELLO_MAX 64

/* What a player needs to read before the updates: a version, "no login", and the size of the screen. */
struct rfb_hello {
	uint8_t bytes[RFB_HELLO_MAX];
	size_t size;
	uint16_t width, height;
};

/* Does the whole handshake within `timeout_ms`; afterwards only updates come. The server is hostile: PROTOCOL. */
int rfb_client_open(int fd, int timeout_ms, struct rfb_hello *out, struct husk_error *err);
/* Asks for the screen: all of it, or what has changed since. -1: the connection is over. */
int rfb_client_ask(int fd, bool all);

#endif
