/*
 * The storage of a block device: a plain read-only file (the root image), or a stack of layers of which only the newest
 * is written. A layer contains whole clusters, each at its own place in a sparse file, and a byte per cluster that says
 * whether the layer has it. A disk is cloned by starting a new layer: older layers never change and are shared.
 *
 * A layer file: header (4096 bytes) states, one byte per cluster (to the next cluster) clusters
 */
#ifndef HUSK_VMM_DISK_H
#define HUSK_VMM_DISK_H

#include <sys/uio.h>

#include "vmm/control.h"

#define CLUSTER_BYTES 65536ull
#define DISK_BYTES_MAX (1ull << 44)
#define DISK_LAYER_MAGIC 0x4c6b7369444b5348ull /* "HSKDiskL" */
#define DISK_LAYER_VERSION 1u

enum cluster_state {
	CLUSTER_ABSENT = 0, /* an older layer has it, or it is zero */
	CLUSTER_HERE,
	CLUSTER_ZERO, /* discarded: reads as zeroes, even if older layers have content */
};

struct disk_header {
	uint64_t magic;
	uint32_t version, cluster_bytes;
	uint64_t disk_bytes;
};

struct disk {
	uint64_t bytes;
	int plain; /* read-only file, or -1 */
	int layers[VMM_LAYERS_MAX + 1];
	size_t layer_count;
	uint64_t cluster_count;
	uint8_t *owner;  /* per cluster: 0 none, else 1 + the layer that holds it */
	uint8_t *states; /* of the newest layer */
	bool changed;    /* states differ from the file */
	bool written;    /* the newest layer holds something */
};

#define DISK_INIT                                                                                                      \
	{                                                                                                              \
		.plain = -1                                                                                            \
	}
int disk_open_plain(struct disk *disk, int fd, struct husk_error *err);
/* Layers are added oldest first. Takes ownership of the descriptor; an empty file becomes a new layer. */
int disk_add_layer(struct disk *disk, int fd, uint64_t bytes, struct husk_error *err);
void disk_close(struct disk *disk);

/* Whole requests; 0, or -1 with errno. Offsets were checked against `bytes` by the caller. */
int disk_read(struct disk *disk, uint64_t offset, struct iovec *vector, int count, size_t size);
int disk_write(struct disk *disk, uint64_t offset, struct iovec *vector, int count, size_t size);
int disk_discard(struct disk *disk, uint64_t offset, uint64_t size);
/* Returns once everything written so far is on the host's disk. */
int disk_flush(struct disk *disk);

/* Completes the newest layer in its file, so that it can be shared. With a full stack, the newest layer first takes in
 * all layers except the oldest. *needed: how many of the layers before the newest are still needed. */
int disk_seal(struct disk *disk, size_t *needed, struct husk_error *err);
/* Makes an empty file the next layer of this disk. */
int disk_start_layer(const struct disk *disk, int fd, struct husk_error *err);
/* The sealed layer is shared from now on: writes go to the started layer `fd`. Takes ownership of the descriptor.
 * Cannot fail, because memory and disk of a machine must move to their new layers together. */
void disk_next_layer(struct disk *disk, size_t needed, int fd);

#endif
