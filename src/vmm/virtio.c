/*
 * The virtio-mmio transport: registers, feature negotiation, notifications and interrupts, the same for every device.
 * Called from vCPU threads (registers) and from the event loops (notifications). The driver may write any register at any
 * time in any order. A queue is used only after it was checked as a whole. The driver must never be able to hang or crash
 * this process.
 */
#include "vmm/virtio.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define MAGIC 0x74726976u /* "virt" */
#define VENDOR 0x6b737568u

enum { /* offsets */
       REG_MAGIC = 0x00,
       REG_VERSION = 0x04,
       REG_DEVICE = 0x08,
       REG_VENDOR = 0x0c,
       REG_FEATURES = 0x10,
       REG_FEATURES_SELECT = 0x14,
       REG_DRIVER_FEATURES = 0x20,
       REG_DRIVER_FEATURES_SELECT = 0x24,
       REG_QUEUE_SELECT = 0x30,
       REG_QUEUE_SIZE_MAX = 0x34,
       REG_QUEUE_SIZE = 0x38,
       REG_QUEUE_READY = 0x44,
       REG_NOTIFY = 0x50,
       REG_INTERRUPT_STATUS = 0x60,
       REG_INTERRUPT_ACK = 0x64,
       REG_STATUS = 0x70,
       REG_QUEUE_DESCRIPTORS = 0x80,
       REG_QUEUE_AVAILABLE = 0x90,
       REG_QUEUE_USED = 0xa0,
       REG_GENERATION = 0xfc,
       REG_CONFIG = 0x100,
};

enum { STATUS_DRIVER_OK = 4, STATUS_FEATURES_OK = 8, STATUS_NEEDS_RESET = 64 };
enum { INTERRUPT_QUEUE = 1, INTERRUPT_CONFIG = 2 };

/* ---- interrupts ---- */

static void interrupt(struct virtio_device *device, uint32_t why)
{
	uint64_t one = 1;

	__atomic_fetch_or(&device->state.interrupt_status, why, __ATOMIC_SEQ_CST);
	(void)!write(device->interrupt_fd, &one,
		     sizeof(one)); /* a full counter means that an interrupt is already pending */
}

void virtio_signal(struct virtio_device *device, struct queue *queue)
{
	if (queue->broken)
		virtio_fail(device);
	else if (queue_wants_interrupt(queue, device->memory))
		interrupt(device, INTERRUPT_QUEUE);
}

void virtio_config_changed(struct virtio_device *device)
{
	device->state.generation++;
	if (virtio_running(device))
		interrupt(device, INTERRUPT_CONFIG);
}

void virtio_fail(struct virtio_device *device)
{
	if (device->state.status & STATUS_NEEDS_RESET)
		return;
	device->state.status |= STATUS_NEEDS_RESET;
	interrupt(device, INTERRUPT_CONFIG);
}

bool virtio_running(const struct virtio_device *device)
{
	return (device->state.status & (STATUS_DRIVER_OK | STATUS_NEEDS_RESET)) == STATUS_DRIVER_OK;
}

/* ---- notifications ---- */

static void work(struct virtio_device *device, size_t index)
{
	struct queue *queue = &device->state.queues[index];

	if (!virtio_running(device) || !queue->ready)
		return;
	device->ops->work(device, index);
	if (queue->broken)
		virtio_fail(device);
}

static void notified(struct watch *watch, uint32_t events)
{
	struct virtio_device *device = watch->data;
	uint64_t count;

	(void)events;
	(void)!read(watch->fd, &count, sizeof(count));
	pthread_mutex_lock(&device->lock);
	work(device, (size_t)(watch - device->watches));
	pthread_mutex_unlock(&device->lock);
}

void virtio_kick(struct virtio_device *device)
{
	uint64_t one = 1;

	if (!virtio_running(device))
		return;
	for (size_t i = 0; i < device->ops->queue_count; i++)
		(void)!write(device->notify_fds[i], &one, sizeof(one));
	interrupt(device, INTERRUPT_QUEUE);
}

/* ---- making ---- */

int virtio_create(struct virtio_device *device, const struct virtio_ops *ops, const struct memory *memory,
		  struct loop *loop, struct husk_error *err)
{
	device->ops = ops;
	device->memory = memory;
	device->features |= VIRTIO_F_VERSION_1 | VIRTIO_F_INDIRECT | VIRTIO_F_EVENT_INDEX;
	device->interrupt_fd = -1;
	/* Recursive: the holder of a paused device may still change it. */
	pthread_mutexattr_t again;
	pthread_mutexattr_init(&again);
	pthread_mutexattr_settype(&again, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&device->lock, &again);
	pthread_mutexattr_destroy(&again);
	for (size_t i = 0; i < VIRTIO_QUEUES_MAX; i++) {
		device->notify_fds[i] = -1;
		device->watches[i].fd = -1;
	}
	device->interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (device->interrupt_fd < 0)
		return husk_fail_errno(err, "cannot make the interrupt of %s", ops->name);
	for (size_t i = 0; i < ops->queue_count; i++) {
		device->notify_fds[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (device->notify_fds[i] < 0)
			return husk_fail_errno(err, "cannot make the queues of %s", ops->name);
		if (loop_watch(loop, &device->watches[i], device->notify_fds[i], EPOLLIN, notified, device, err) < 0)
			return -1;
	}
	return 0;
}

int virtio_load(struct virtio_device *device, const struct virtio_state *state, struct husk_error *err)
{
	for (size_t i = 0; i < device->ops->queue_count; i++) {
		const struct queue *queue = &state->queues[i];

		if (queue->ready && !queue->broken && !queue_valid(queue, device->memory))
			return husk_fail(err, HUSK_INVALID, "queue %zu of %s makes no sense", i, device->ops->name);
	}
	device->state = *state;
	return 0;
}

/* ---- registers ---- */

static struct queue *selected(struct virtio_device *device)
{
	uint32_t index = device->state.queue_select;

	return index < device->ops->queue_count ? &device->state.queues[index] : NULL;
}

static uint32_t register_read(struct virtio_device *device, uint64_t offset)
{
	const struct virtio_state *state = &device->state;
	const struct queue *queue = selected(device);

	switch (offset) {
	case REG_MAGIC:
		return MAGIC;
	case REG_VERSION:
		return 2;
	case REG_DEVICE:
		return device->ops->number;
	case REG_VENDOR:
		return VENDOR;
	case REG_FEATURES:
		return state->features_select < 2 ? (uint32_t)(device->features >> (32 * state->features_select)) : 0;
	case REG_QUEUE_SIZE_MAX:
		return queue ? device->ops->queue_size : 0;
	case REG_QUEUE_READY:
		return queue ? queue->ready : 0;
	case REG_STATUS:
		return state->status;
	case REG_GENERATION:
		return state->generation;
	default:
		return 0;
	}
}

void virtio_read(struct virtio_device *device, uint64_t offset, void *data, size_t size)
{
	uint32_t value;

	memset(data, 0, size);
	if (offset == REG_INTERRUPT_STATUS && size == 4) {
		value = __atomic_load_n(&device->state.interrupt_status, __ATOMIC_SEQ_CST);
		memcpy(data, &value, size);
		return;
	}
	pthread_mutex_lock(&device->lock);
	if (offset >= REG_CONFIG) {
		uint64_t at = offset - REG_CONFIG;

		if (at < device->config_size && size <= device->config_size - at)
			memcpy(data, device->state.config + at, size);
	} else if (size == 4) {
		value = register_read(device, offset);
		memcpy(data, &value, size);
	}
	pthread_mutex_unlock(&device->lock);
}

static void reset(struct virtio_device *device)
{
	struct virtio_state *state = &device->state;

	device->ops->reset(device);
	memset(state->queues, 0, sizeof(state->queues));
	state->driver_features = 0;
	state->features_select = state->driver_features_select = state->queue_select = state->status = 0;
	__atomic_store_n(&state->interrupt_status, 0, __ATOMIC_SEQ_CST);
}

static void status_write(struct virtio_device *device, uint32_t value)
{
	struct virtio_state *state = &device->state;
	uint32_t added = value & ~state->status;

	if (value == 0) {
		reset(device);
		return;
	}
	/* The bit stays clear if the driver wants a feature that was not offered, or not the modern interface. */
	if (added & STATUS_FEATURES_OK &&
	    (state->driver_features & ~device->features || !(state->driver_features & VIRTIO_F_VERSION_1)))
		value &= ~(uint32_t)STATUS_FEATURES_OK;
	state->status = (value & 0xff) | (state->status & STATUS_NEEDS_RESET);
	if (added & STATUS_DRIVER_OK && virtio_running(device))
		device->ops->start(device);
}

static void queue_ready_write(struct virtio_device *device, struct queue *queue, uint32_t value)
{
	if (!queue)
		return;
	if (value == 0) {
		*queue = (struct queue){ .size = queue->size };
		return;
	}
	queue->event_index = (device->state.driver_features & VIRTIO_F_EVENT_INDEX) != 0;
	if (queue_valid(queue, device->memory))
		queue->ready = 1;
	else
		virtio_fail(device);
}

static void half_write(uint64_t *address, bool high, uint32_t value)
{
	*address = high ? (*address & UINT32_MAX) | (uint64_t)value << 32 : (*address & ~(uint64_t)UINT32_MAX) | value;
}

static void queue_register_write(struct queue *queue, uint64_t offset, uint32_t value)
{
	bool high = offset & 4;

	/* While the queue is in use, these must not change. */
	if (!queue || queue->ready)
		return;
	switch (offset & ~4ull) {
	case REG_QUEUE_SIZE & ~4ull:
		if (offset == REG_QUEUE_SIZE && value <= QUEUE_SIZE_MAX)
			queue->size = (uint16_t)value;
		break;
	case REG_QUEUE_DESCRIPTORS:
		half_write(&queue->descriptors, high, value);
		break;
	case REG_QUEUE_AVAILABLE:
		half_write(&queue->available, high, value);
		break;
	case REG_QUEUE_USED:
		half_write(&queue->used, high, value);
		break;
	default:
		break;
	}
}

static void register_write(struct virtio_device *device, uint64_t offset, uint32_t value)
{
	struct virtio_state *state = &device->state;

	switch (offset) {
	case REG_FEATURES_SELECT:
		state->features_select = value;
		break;
	case REG_DRIVER_FEATURES_SELECT:
		state->driver_features_select = value;
		break;
	case REG_DRIVER_FEATURES:
		if (state->driver_features_select < 2 && !(state->status & STATUS_FEATURES_OK))
			half_write(&state->driver_features, state->driver_features_select == 1, value);
		break;
	case REG_QUEUE_SELECT:
		state->queue_select = value;
		break;
	case REG_QUEUE_READY:
		queue_ready_write(device, selected(device), value);
		break;
	case REG_STATUS:
		status_write(device, value);
		break;
	default:
		queue_register_write(selected(device), offset, value);
	}
}

void virtio_write(struct virtio_device *device, uint64_t offset, const void *data, size_t size)
{
	uint64_t one = 1;
	uint32_t value = 0;

	if (offset < REG_CONFIG) {
		if (size != 4)
			return;
		memcpy(&value, data, size);
	}
	if (offset == REG_INTERRUPT_ACK) {
		__atomic_fetch_and(&device->state.interrupt_status, ~value, __ATOMIC_SEQ_CST);
		return;
	}
	/* The kernel usually handles these; otherwise the loop is notified here. */
	if (offset == REG_NOTIFY) {
		if (value < device->ops->queue_count)
			(void)!write(device->notify_fds[value], &one, sizeof(one));
		return;
	}
	pthread_mutex_lock(&device->lock);
	if (offset < REG_CONFIG) {
		register_write(device, offset, value);
	} else if (device->ops->configured && offset - REG_CONFIG < device->config_size &&
		   size <= device->config_size - (offset - REG_CONFIG)) {
		memcpy(device->state.config + (offset - REG_CONFIG), data, size);
		device->ops->configured(device);
	}
	pthread_mutex_unlock(&device->lock);
}
