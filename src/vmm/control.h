/*
 * The contract between the microvm engine (in the supervisor) and husk-vmm (one jailed process per machine).
 *
 * They communicate over one SOCK_SEQPACKET socket, which is descriptor CONTROL_FD of husk-vmm. The engine sends a request with
 * the descriptors it needs; husk-vmm answers each with exactly one reply, in order. husk-vmm opens nothing by name: every
 * file comes with a request. When the socket ends, husk-vmm ends, and with it the machine.
 *
 * Order:   SHAPE, then any of CONSOLE, BASE, DISK*, TAP, PORT, then BOOT; or MEMORY*, PREFETCH and RESTORE.
 *          After that AHEAD, PAUSE, RESUME, SNAPSHOT, BALLOON, LIMIT, PORT, TAP, STATS, TOUCHED in any order. STOP at any
 *          time.
 */
#ifndef HUSK_VMM_CONTROL_H
#define HUSK_VMM_CONTROL_H

#include "base/base.h"

#define CONTROL_FD 3
#define CONTROL_VERSION 1
#define CONTROL_FDS_MAX 4
#define CONTROL_VALUES 4
#define CONTROL_TEXT 1024

#define VMM_VCPUS_MAX 16
#define VMM_MEMORY_MIN (128ull << 20)
#define VMM_MEMORY_MAX (64ull << 30)
#define VMM_LAYERS_MAX 12 /* of memory, and of the disk: beyond that a snapshot writes one layer with all content */
#define VMM_AGENT_PORT 1024

enum control_type {
	CONTROL_SHAPE =
		1, /* value: vcpus, memory bytes; fds: /dev/kvm. Makes the virtual machine, still without memory */
	CONTROL_CONSOLE, /* value: most bytes to write; fds: file that takes what the guest prints */
	CONTROL_BASE,    /* fds: the read-only root image */
	CONTROL_DISK,    /* value: disk bytes; fds: one layer, oldest first; the last one is written to */
	CONTROL_TAP,     /* value: MAC (48 bit); fds: tap with a 12-byte virtio header, or none: link down */
	CONTROL_PORT,    /* value: vsock port; fds: stream socket that becomes the host's end of the guest's next
			      connection to that port */
	CONTROL_MEMORY,  /* fds: one memory layer, oldest first */
	CONTROL_BOOT,    /* text: command line; fds: kernel (bzImage), initramfs */
	CONTROL_RESTORE, /* fds: state file. The machine stays paused until RESUME */
	CONTROL_PAUSE,
	CONTROL_RESUME,
	CONTROL_SNAPSHOT, /* fds: state file, memory layer, the next disk layer (all new and empty, but for a memory layer that
			     AHEAD has opened, which is that one). The machine must be paused, and stays so; on success it
			     continues with the new layers. Reply: enum snapshot_done */
	CONTROL_BALLOON, /* value: pages of 4 KiB the guest is asked to give up */
	CONTROL_LIMIT,   /* value: enum vmm_limit, units per second (0: none), burst */
	CONTROL_STATS,   /* reply: anonymous bytes of guest memory, pages given back, block bytes, net bytes */
	CONTROL_STOP,
	CONTROL_TOUCHED,  /* fds: a new file, which takes the list of all memory touched since the restore */
	CONTROL_PREFETCH, /* fds: such a list, for the RESTORE that follows. A list that cannot be used is ignored */
	CONTROL_AHEAD, /* value: pages to move at most; fds: the next memory layer (new and empty), or none to continue with
			  the open one. While the guest runs, changed pages are moved into that layer, a piece at a time. The
			  machine uses it from then on, and it stays open until a SNAPSHOT has closed it, even if a request
			  fails in between. Reply: enum ahead_done */
};

enum vmm_limit {
	LIMIT_BLOCK_BYTES,
	LIMIT_BLOCK_OPERATIONS,
	LIMIT_NET_SEND_BYTES, /* from the guest */
	LIMIT_NET_SEND_PACKETS,
	LIMIT_NET_RECEIVE_BYTES,
	LIMIT_NET_RECEIVE_PACKETS,
	LIMIT_COUNT
};

struct control_request {
	uint32_t version; /* CONTROL_VERSION */
	uint32_t type;
	uint64_t value[CONTROL_VALUES];
	char text[CONTROL_TEXT]; /* NUL-terminated */
};

struct control_reply {
	uint32_t code; /* enum husk_code; 0: done */
	uint32_t zero;
	uint64_t value[CONTROL_VALUES];
	char message[CONTROL_TEXT]; /* why not; NUL-terminated */
};

/* The values of a reply to SNAPSHOT. */
enum snapshot_done {
	SNAPSHOT_MEMORY_LAYERS, /* how many of the existing layers, oldest first, the image still needs … */
	SNAPSHOT_MEMORY_PAGES,  /* … and how many pages are in the new one; 0: it is not part of the image */
	SNAPSHOT_DISK_LAYERS,   /* the same for the disk; the layer written to until now counts as the last one */
	SNAPSHOT_DISK_USED,     /* whether the next disk layer is in use now */
};

/* The values of a reply to AHEAD. */
enum ahead_done {
	AHEAD_PAGES, /* how many were moved */
	AHEAD_SWEPT, /* the end of memory was reached: the next sweep starts again, with pages that changed meanwhile */
	AHEAD_BUSY,  /* a disk request is in progress, which may take long: try again later */
	AHEAD_HELD,  /* the longest time the guest was stopped, in nanoseconds */
};

/* ---- message.c ---- */

/* One message with up to CONTROL_FDS_MAX descriptors. Both sides use these; 0 at the end of the stream, 1 for a message.
 * A message of another size, or with more descriptors than there is room for, is an error. */
int control_send(int fd, const void *message, size_t size, const int *fds, size_t count, struct husk_error *err);
int control_receive(int fd, void *message, size_t size, int fds[static CONTROL_FDS_MAX], size_t *count,
		    struct husk_error *err);

#endif
