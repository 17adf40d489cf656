/*
 * The link between a guest and its gateway: a veth pair or a tap, one end for the engine, the other in the gateway
 * namespace. That namespace has no other interface and no route out. So traffic that the leash does not carry is
 * dropped, and without a leash all traffic is. The rules are at the gateway's end, because a guest's frames bypass the
 * rules of the guest's own namespace.
 *
 * Both namespaces are nameless: only descriptors keep them. So interfaces, rules and routes are removed with the
 * processes that hold them, even if these are killed.
 */
#ifndef HUSK_GATEWAY_H
#define HUSK_GATEWAY_H

#include "net/address.h"

#define GATEWAY_MTU 1500
extern const uint8_t gateway_mac[6], gateway_guest_mac[6]; /* the same on every link */

/* Where an engine gets frames from, each with a virtio header. */
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

/* Makes the link and its rules. After a failure, nothing remains. */
int gateway_make(const struct address_link *link, enum gateway_kind kind, struct gateway *out, struct husk_error *err);
/* Closes this copy of the port once the engine has its own, so that the guest's end is removed with the engine. */
void gateway_release_port(struct gateway *gateway);
void gateway_close(struct gateway *gateway);
#define GATEWAY_NONE                                                                                                   \
	{                                                                                                              \
		.space = -1, .port = -1                                                                                \
	}

#endif
