/*
 * What a viewer of a desktop may send to its VNC server (RFB 3.8, RFC 6143 and its extensions). The filter parses the
 * client's messages in pieces of any size, and drops those that are input while the viewer has no control. For
 * vnc_relay.c. The server's side of the protocol is not read.
 *
 *     message                                   without control
 *     SetPixelFormat 0, SetEncodings 2          passed
 *     FramebufferUpdateRequest 3                passed
 *     EnableContinuousUpdates 150, Fence 248    passed
 *     KeyEvent 4, PointerEvent 5                dropped
 *     ClientCutText 6, XVP 250                  dropped
 *     SetDesktopSize 251, QEMU 255              dropped
 *     any other                                 the connection ends: its length is unknown
 */
#ifndef HUSK_SERVER_RFB_FILTER_H
#define HUSK_SERVER_RFB_FILTER_H

#include "base/base.h"

#define RFB_HEAD_MAX 20              /* of a message, as far as it is read before it is passed on */
#define RFB_CLIPBOARD_MAX (1u << 20) /* of a ClientCutText */
#define RFB_ENCODINGS_MAX 256u       /* of a SetEncodings */
#define RFB_KEYS_MAX 32u             /* held down at a time, as far as the filter knows of them */

struct rfb_key {
	uint32_t symbol;
	uint32_t code; /* of a QEMU key event; 0: a plain KeyEvent */
};

struct rfb_filter {
	enum { RFB_VERSION, RFB_SECURITY, RFB_INIT, RFB_MESSAGES } phase;
	uint8_t head[RFB_HEAD_MAX]; /* the beginning of the current message */
	size_t have;
	size_t left;  /* bytes of its rest */
	bool dropped; /* the rest is */
	struct rfb_key keys[RFB_KEYS_MAX];
	size_t key_count;
	uint8_t buttons;
	uint16_t x, y; /* of the pointer */
};

/* Takes bytes of the client, and appends to `out` what goes to the server. `control`: input passes. -1: the bytes are
 * not RFB, or of a kind that is not supported; the connection must end. */
int rfb_filter_feed(struct rfb_filter *filter, const char *bytes, size_t size, bool control, struct buf *out,
		    struct husk_error *err);
/* The viewer has lost control: appends messages that release its keys and buttons. To be called between feeds. If a
 * message of input is half passed, its rest is still passed. */
int rfb_filter_release(struct rfb_filter *filter, struct buf *out, struct husk_error *err);
/* True while a message has been passed in part: nothing may be put between. */
bool rfb_filter_inside(const struct rfb_filter *filter);

#endif
