/*
 * One viewer of a desktop: RFB over a WebSocket on one side, the VNC server in the guest on the other. Used by
 * api_desktop_view.c. Input passes only while the viewer's holder is in control (husk_control_take); rfb_filter.c drops it
 * otherwise.
 */
#ifndef HUSK_SERVER_VNC_RELAY_H
#define HUSK_SERVER_VNC_RELAY_H

#include "server/rfb_filter.h"
#include "server/websocket.h"

#define HOLDER_MAX 64

struct viewer {
	int guest;                   /* the connection to the VNC server */
	char sandbox[64];            /* its id */
	char holder[HOLDER_MAX + 1]; /* "": never in control */
	bool control;                /* at the last look */
	int64_t looked_ms;
	struct rfb_filter filter;
	struct buf input; /* of the viewer, not accepted by the guest yet */
	struct websocket *websocket;
	bool broken; /* the viewer sent what is not RFB */
	char reason[96];
	int epoll;
	uint32_t watched[2]; /* events that are waited for: of the client, of the guest */
	struct request *request;
};

/* Closes what it has; NULL is allowed. */
void viewer_free(struct viewer *viewer);
/* For respond_upgrade; `data` is a struct viewer, which it frees. */
void viewer_run(struct request *request, int fd, const void *first, size_t size, void *data);

#endif
