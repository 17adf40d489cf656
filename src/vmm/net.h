/*
 * The virtio network device, on a tap from the engine; without a tap the link is down. Checksum and segmentation are
 * offloaded: the headers for them are passed through unchanged, and the host's tap checks them.
 */
#ifndef HUSK_VMM_NET_H
#define HUSK_VMM_NET_H

#include "vmm/limit.h"
#include "vmm/virtio.h"

#define NET_FRAME_MAX 65562u /* a segmented frame of 64 KiB with its headers */

struct net {
	struct virtio_device device; /* first */
	struct loop *loop;
	struct watch tap; /* fd -1: no link */
	int timer;
	struct watch timer_watch;
	struct limit send_bytes, send_packets, receive_bytes, receive_packets;
	uint64_t moved;
	uint8_t *frame;    /* received, not yet passed to the guest */
	size_t frame_size; /* 0: none */
};

int net_create(struct net *net, const struct memory *memory, struct loop *loop, struct husk_error *err);
/* Takes ownership of the tap (-1: link down), and informs the guest that the link went up or down. `mac` is in the low
 * 48 bits, first byte lowest. */
int net_attach(struct net *net, int tap, uint64_t mac, struct husk_error *err);

#endif
