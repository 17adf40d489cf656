/*
 * The virtio socket device: streams between the guest and sockets from the engine. The guest connects to host ports;
 * each port has at most one waiting socket. The host never connects to the guest.
 *
 * No connection survives a snapshot: a restored guest is informed that its transport was reset, its connections end,
 * and it connects again.
 */
#ifndef HUSK_VMM_VSOCK_H
#define HUSK_VMM_VSOCK_H

#include "vmm/virtio.h"

#define VSOCK_GUEST_CID 3
#define VSOCK_CONNECTIONS 8
#define VSOCK_BUFFER (1u << 20) /* bytes of the guest that are buffered for a slow host side */
#define VSOCK_REPLIES 64

/* The packet header of the standard. */
struct vsock_header {
	uint64_t source_cid, target_cid;
	uint32_t source_port, target_port;
	uint32_t size;
	uint16_t type, operation;
	uint32_t flags, buffer_size, consumed;
} __attribute__((packed));

struct vsock;

enum vsock_stage { VSOCK_FREE = 0, VSOCK_WAITING /* for the guest to connect */, VSOCK_CONNECTED };

struct vsock_connection {
	struct vsock *vsock;
	enum vsock_stage stage;
	uint32_t host_port, guest_port;
	struct watch watch; /* of the socket, which the device owns */
	struct buf waiting; /* from the guest, for the host */
	uint32_t consumed;  /* bytes of the guest that were passed to the host; wraps */
	uint32_t told;      /* … and how many of them the guest knows about */
	uint32_t sent;      /* to the guest; wraps */
	uint32_t guest_buffer, guest_consumed;
	bool guest_finished; /* it sends no more */
	bool host_finished;  /* the socket has ended */
};

struct vsock {
	struct virtio_device device; /* first */
	struct loop *loop;
	struct vsock_connection connections[VSOCK_CONNECTIONS];
	struct vsock_header replies[VSOCK_REPLIES]; /* packets without data that wait for room in the guest's queue */
	size_t reply_count;
	bool reset_pending; /* the guest must be told that its connections are gone */
};

int vsock_create(struct vsock *vsock, const struct memory *memory, struct loop *loop, struct husk_error *err);
/* The guest's next connection to `port` gets this socket; takes ownership of it. A socket that already waits there is
 * closed. */
int vsock_offer(struct vsock *vsock, uint32_t port, int fd, struct husk_error *err);
/* One packet of the guest's: exposed for tests and fuzzing. */
void vsock_packet(struct vsock *vsock, const struct chain *chain);

#endif
