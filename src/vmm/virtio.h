/*
 * A virtio device on the memory-mapped transport (virtio-mmio, version 2), and the parts each kind of device adds.
 *
 * Threads: a vCPU's thread calls virtio_read and virtio_write; the thread whose loop the device's notifications are
 * registered in does its work. Both hold the device's lock, except for the interrupt status, which is atomic, because a
 * vCPU acknowledges interrupts while the device may be in the middle of long work. Whoever holds the locks of all
 * devices has them standing still: that is what pausing is.
 */
#ifndef HUSK_VMM_VIRTIO_H
#define HUSK_VMM_VIRTIO_H

#include <pthread.h>

#include "vmm/loop.h"
#include "vmm/queue.h"

#define VIRTIO_WINDOW 0x1000ull /* registers of one device */
#define VIRTIO_QUEUES_MAX 3
#define VIRTIO_CONFIG_MAX 64

#define VIRTIO_F_INDIRECT (1ull << 28)
#define VIRTIO_F_EVENT_INDEX (1ull << 29)
#define VIRTIO_F_VERSION_1 (1ull << 32)

struct virtio_device;
struct vm;

struct virtio_ops {
	const char *name;
	uint32_t number; /* the kind of device, by the standard's list */
	size_t queue_count;
	uint16_t queue_size;
	/* The driver is ready; its features are in `driver_features`. */
	void (*start)(struct virtio_device *device);
	/* Work may be waiting in this queue. */
	void (*work)(struct virtio_device *device, size_t queue);
	/* Forget what was under way: the driver has reset the device. */
	void (*reset)(struct virtio_device *device);
	/* The driver wrote into the configuration (already stored). */
	void (*configured)(struct virtio_device *device);
	/* After a restore, once everything is mapped: what the new life changes. */
	void (*restored)(struct virtio_device *device);
};

/* What of a device is state; the layout is part of the snapshot format. */
struct virtio_state {
	uint64_t driver_features;
	uint32_t status;
	uint32_t features_select, driver_features_select, queue_select;
	uint32_t interrupt_status, generation;
	struct queue queues[VIRTIO_QUEUES_MAX];
	uint8_t config[VIRTIO_CONFIG_MAX];
};

struct virtio_device {
	const struct virtio_ops *ops;
	const struct memory *memory;
	uint64_t address;   /* guest-physical, of the registers */
	uint32_t interrupt; /* global interrupt number */
	uint64_t features;  /* offered */
	size_t config_size;
	struct virtio_state state; /* but for interrupt_status, under the lock */
	pthread_mutex_t lock;
	int interrupt_fd;                  /* written to: the guest is interrupted */
	int notify_fds[VIRTIO_QUEUES_MAX]; /* readable: the driver has told about a queue */
	struct watch watches[VIRTIO_QUEUES_MAX];
};

/* Sets it up without a virtual machine behind it; `features` and `config` may be filled in before the driver looks. */
int virtio_create(struct virtio_device *device, const struct virtio_ops *ops, const struct memory *memory,
		  struct loop *loop, struct husk_error *err);
/* A vCPU touched the registers: `size` 1, 2, 4 or 8 bytes at `offset`. */
void virtio_read(struct virtio_device *device, uint64_t offset, void *data, size_t size);
void virtio_write(struct virtio_device *device, uint64_t offset, const void *data, size_t size);
/* After pushing into a queue: interrupts the driver when it wants that. */
void virtio_signal(struct virtio_device *device, struct queue *queue);
void virtio_config_changed(struct virtio_device *device);
/* The device or its driver went wrong: the driver is told, and nothing happens until it resets the device. */
void virtio_fail(struct virtio_device *device);
bool virtio_running(const struct virtio_device *device);
/* After a restore: every queue is looked at and every driver interrupted once, whatever was under way. */
void virtio_kick(struct virtio_device *device);
int virtio_load(struct virtio_device *device, const struct virtio_state *state, struct husk_error *err);

#endif
