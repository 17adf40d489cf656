/*
 * The wire between a guest and the world: a veth pair or a tap, one end for the engine, the other in the gateway namespace.
 * That namespace has no other interface and no route out of it, so what the leash does not carry goes nowhere, and a dead
 * leash lets nothing through. Its rules stand at this end because the frames of a guest pass by the rules of its own.
 *
 * Both namespaces are nameless: descriptors alone keep them, and interfaces, rules and routes go with them, whoever is
 * killed.
 */
#ifndef HUSK_GATEWAY_H
#define HUSK_GATEWAY_H

#include "net/address.h"

#define GATEWAY_MTU 1500
extern const uint8_t gateway_mac[6], gateway_guest_mac[6]; /* the same on every wire */

/* What an engine takes frames from, each behind a virtio header. */
enum gateway_kind {
	GATEWAY_SOCKET, /* an AF_PACKET socket on a veth pair; struct virtio_net_hdr (10 bytes) */
	GATEWAY_TAP,    /* a tap; struct virtio_net_hdr_v1 (12 bytes) */
};

struct gateway {
	int space; /* the gateway namespace, for the leash */
	int port;  /* the guest's end */
	struct address_link link;
	uint8_t guest_mac[6];
};

/* Makes the wire and its rules. On failure nothing is left. */
int gateway_make(const struct address_link *link, enum gateway_kind kind, struct gateway *out, struct husk_error *err);
/* The engine has the port: ours is closed, so that the guest's end goes with the engine. */
void gateway_release_port(struct gateway *gateway);
void gateway_close(struct gateway *gateway);
#define GATEWAY_NONE                                                                                                   \
	{                                                                                                              \
		.space = -1, .port = -1                                                                                \
	}

#endif
