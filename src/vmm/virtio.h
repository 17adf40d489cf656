/*
 * A virtio device on the memory-mapped transport (virtio-mmio, version 2), and the operations that each kind of device
 * adds.
 *
 * Threads: a vCPU's thread calls virtio_read and virtio_write. The thread whose loop watches the device's notifications
 * does its work. Both hold the device's lock. The interrupt status is atomic instead, because a vCPU acknowledges
 * interrupts while the device may be in the middle of long work. A machine is paused by holding the locks of all
 * devices.
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
	/* The driver has reset the device: forget all work in progress. */
	void (*reset)(struct virtio_device *device);
	/* The driver wrote into the configuration (already stored). */
	void (*configured)(struct virtio_device *device);
	/* After a restore, once everything is mapped: applies what is new. */
	void (*restored)(struct virtio_device *device);
};

/* The state of a device; the layout is part of the snapshot format. */
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
	struct virtio_state state; /* under the lock, except interrupt_status */
	pthread_mutex_t lock;
	int interrupt_fd;                  /* a write interrupts the guest */
	int notify_fds[VIRTIO_QUEUES_MAX]; /* readable: the driver has notified a queue */
	struct watch watches[VIRTIO_QUEUES_MAX];
};

/* Sets the device up without a virtual machine; `features` and `config` may be set before the driver reads them. */
int virtio_create(struct virtio_device *device, const struct virtio_ops *ops, const struct memory *memory,
		  struct loop *loop, struct husk_error *err);
/* Handles a vCPU's access to the registers: `size` 1, 2, 4 or 8 bytes at `offset`. */
void virtio_read(struct virtio_device *device, uint64_t offset, void *data, size_t size);
void virtio_write(struct virtio_device *device, uint64_t offset, const void *data, size_t size);
/* After a push into a queue: interrupts the driver if it wants that. */
void virtio_signal(struct virtio_device *device, struct queue *queue);
void virtio_config_changed(struct virtio_device *device);
/* The device or its driver failed: informs the driver, and does nothing until it resets the device. */
void virtio_fail(struct virtio_device *device);
bool virtio_running(const struct virtio_device *device);
/* After a restore: checks every queue and interrupts every driver once. */
void virtio_kick(struct virtio_device *device);
int virtio_load(struct virtio_device *device, const struct virtio_state *state, struct husk_error *err);

#endif
