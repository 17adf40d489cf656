/*
 * The virtio network device; see net.h. Runs in the main loop. A frame of the guest is written to the tap unchanged, in
 * one write. A frame from the tap is spread over as many of the guest's buffers as it needs. Without a buffer, a frame
 * waits in the tap, whose queue the host bounds.
 */
#include "vmm/net.h"

#include <linux/if_tun.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>

#define HEADER_BYTES 12u
#define BUFFERS_MAX 64 /* of the guest, per frame */
#define ROUND 64       /* frames before other devices get a turn */

#define FEATURE_CSUM (1ull << 0)
#define FEATURE_GUEST_CSUM (1ull << 1)
#define FEATURE_MAC (1ull << 5)
#define FEATURE_GUEST_TSO4 (1ull << 7)
#define FEATURE_GUEST_TSO6 (1ull << 8)
#define FEATURE_HOST_TSO4 (1ull << 11)
#define FEATURE_HOST_TSO6 (1ull << 12)
#define FEATURE_MERGE (1ull << 15)
#define FEATURE_STATUS (1ull << 16)
#define STATUS_LINK_UP 1u

enum { QUEUE_RECEIVE, QUEUE_SEND };

struct config {
	uint8_t mac[6];
	uint16_t status;
};

static void set_timer(const struct net *net, int64_t after_us)
{
	const struct itimerspec when = { .it_value = { .tv_sec = after_us / 1000000,
						       .tv_nsec = after_us % 1000000 * 1000 + 1 } };

	timerfd_settime(net->timer, 0, &when, NULL);
}

static int64_t charge(struct limit *packets, struct limit *bytes, size_t size)
{
	int64_t wait = limit_take(packets, 1);

	if (wait)
		return wait;
	wait = limit_take(bytes, size);
	if (wait)
		limit_return(packets, 1);
	return wait;
}

/* ---- from the guest ---- */

static void send_frames(struct net *net)
{
	struct virtio_device *device = &net->device;
	struct queue *queue = &device->state.queues[QUEUE_SEND];
	struct chain chain;

	while (queue_pop(queue, device->memory, &chain) > 0) {
		size_t size = chain.readable_bytes;
		int64_t wait = charge(&net->send_packets, &net->send_bytes, size);

		if (wait) {
			queue_unpop(queue);
			set_timer(net, wait);
			break;
		}
		/* Without a link, or if the host refuses it, a frame is lost, as on any network. */
		if (net->tap.fd >= 0 && size > HEADER_BYTES && size <= NET_FRAME_MAX &&
		    writev(net->tap.fd, chain.vector, (int)chain.readable) > 0)
			net->moved += size;
		queue_push(queue, device->memory, chain.head, 0);
	}
	virtio_signal(device, queue);
}

/* ---- to the guest ---- */

/* Spreads the frame over buffers. False if the guest has too few; then nothing is changed. */
static bool give_frame(struct net *net)
{
	struct virtio_device *device = &net->device;
	struct queue *queue = &device->state.queues[QUEUE_RECEIVE];
	bool merge = device->state.driver_features & FEATURE_MERGE;
	uint16_t heads[BUFFERS_MAX], count = 0;
	uint32_t sizes[BUFFERS_MAX];
	uint8_t *first = NULL;
	struct chain chain;

	for (size_t done = 0; done < net->frame_size; count++) {
		if (count == BUFFERS_MAX || (count == 1 && !merge) || queue_pop(queue, device->memory, &chain) <= 0) {
			for (; count > 0; count--)
				queue_unpop(queue);
			return false;
		}
		size_t part = MIN(chain.writable_bytes, net->frame_size - done);
		if (part == 0 || chain_write(&chain, 0, net->frame + done, part) < 0)
			part = 0;
		if (count == 0 && chain.writable > 0 && chain.vector[chain.readable].iov_len >= HEADER_BYTES)
			first = chain.vector[chain.readable].iov_base;
		heads[count] = chain.head;
		sizes[count] = (uint32_t)part;
		done += part;
	}
	if (first)
		memcpy(first + 10, &count, sizeof(count)); /* how many buffers the frame took */
	for (uint16_t i = 0; i < count; i++)
		queue_push(queue, device->memory, heads[i], sizes[i]);
	return true;
}

/* Reads one frame from the tap; false if there is none. */
static bool take_frame(struct net *net)
{
	ssize_t got = net->tap.fd < 0 ? -1 : read(net->tap.fd, net->frame, NET_FRAME_MAX);

	net->frame_size = got > (ssize_t)HEADER_BYTES ? (size_t)got : 0;
	return got >= 0;
}

static void receive_frames(struct net *net)
{
	struct virtio_device *device = &net->device;
	struct queue *queue = &device->state.queues[QUEUE_RECEIVE];
	bool full = false;

	if (!virtio_running(device) || net->tap.fd < 0)
		return;
	for (int i = 0; i < ROUND && !full; i++) {
		if (net->frame_size == 0 && !take_frame(net))
			break;
		if (net->frame_size == 0)
			continue;
		int64_t wait = charge(&net->receive_packets, &net->receive_bytes, net->frame_size);
		full = wait != 0 || !give_frame(net);
		if (wait) {
			set_timer(net, wait);
		} else if (full) {
			limit_return(&net->receive_packets, 1);
			limit_return(&net->receive_bytes, net->frame_size);
		} else {
			net->moved += net->frame_size;
			net->frame_size = 0;
		}
	}
	/* While the guest has no buffers, the tap is not read; the guest's next buffer, or the timer, continues. */
	loop_change(net->loop, &net->tap, full ? 0 : EPOLLIN);
	virtio_signal(device, queue);
}

static void tap_ready(struct watch *watch, uint32_t events)
{
	struct net *net = watch->data;

	(void)events;
	pthread_mutex_lock(&net->device.lock);
	if (virtio_running(&net->device)) {
		receive_frames(net);
	} else if (!take_frame(net)) { /* no driver: the frame is dropped */
		loop_change(net->loop, &net->tap, EPOLLET);
	} else {
		net->frame_size = 0;
	}
	pthread_mutex_unlock(&net->device.lock);
}

static void timer_ready(struct watch *watch, uint32_t events)
{
	struct net *net = watch->data;
	uint64_t count;

	(void)events;
	(void)!read(net->timer, &count, sizeof(count));
	pthread_mutex_lock(&net->device.lock);
	if (virtio_running(&net->device)) {
		send_frames(net);
		receive_frames(net);
	}
	pthread_mutex_unlock(&net->device.lock);
}

/* ---- the device ---- */

static void net_work(struct virtio_device *device, size_t index)
{
	struct net *net = (struct net *)device;

	if (index == QUEUE_SEND)
		send_frames(net);
	else
		receive_frames(net);
}

/* Sets the tap's offloads to those of the driver. Does nothing without a tap. */
static void net_start(struct virtio_device *device)
{
	struct net *net = (struct net *)device;
	uint64_t features = device->state.driver_features;
	unsigned offload = 0;

	if (net->tap.fd < 0)
		return;
	if (features & FEATURE_GUEST_CSUM)
		offload |= TUN_F_CSUM;
	if (features & FEATURE_GUEST_TSO4)
		offload |= TUN_F_TSO4;
	if (features & FEATURE_GUEST_TSO6)
		offload |= TUN_F_TSO6;
	(void)!ioctl(net->tap.fd, TUNSETOFFLOAD, offload); /* without the offload, the tap is only slower */
	loop_change(net->loop, &net->tap, EPOLLIN);
}

static void net_reset(struct virtio_device *device)
{
	((struct net *)device)->frame_size = 0;
}

static const struct virtio_ops net_ops = {
	.name = "net",
	.number = 1,
	.queue_count = 2,
	.queue_size = 256,
	.start = net_start,
	.work = net_work,
	.reset = net_reset,
	.restored = net_start,
};

int net_create(struct net *net, const struct memory *memory, struct loop *loop, struct husk_error *err)
{
	net->loop = loop;
	net->tap.fd = -1;
	net->frame = malloc(NET_FRAME_MAX);
	if (!net->frame)
		return husk_fail_memory(err);
	net->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (net->timer < 0)
		return husk_fail_errno(err, "cannot make a timer");
	if (loop_watch(loop, &net->timer_watch, net->timer, EPOLLIN, timer_ready, net, err) < 0)
		return -1;
	net->device.features = FEATURE_CSUM | FEATURE_GUEST_CSUM | FEATURE_MAC | FEATURE_GUEST_TSO4 |
			       FEATURE_GUEST_TSO6 | FEATURE_HOST_TSO4 | FEATURE_HOST_TSO6 | FEATURE_MERGE |
			       FEATURE_STATUS;
	net->device.config_size = sizeof(struct config);
	return virtio_create(&net->device, &net_ops, memory, loop, err);
}

int net_attach(struct net *net, int tap, uint64_t mac, struct husk_error *err)
{
	struct config config = { .status = tap >= 0 ? STATUS_LINK_UP : 0 };
	int old = net->tap.fd, result = 0;

	memcpy(config.mac, &mac, sizeof(config.mac));
	if (tap >= 0 && fd_set_nonblocking(tap, true) < 0)
		return husk_fail_errno(err, "cannot set up the tap");
	pthread_mutex_lock(&net->device.lock);
	loop_unwatch(net->loop, &net->tap);
	fd_close(&old);
	if (tap >= 0)
		result = loop_watch(net->loop, &net->tap, tap, EPOLLIN, tap_ready, net, err);
	if (result == 0) {
		memcpy(net->device.state.config, &config, sizeof(config));
		net_start(&net->device);
		virtio_config_changed(&net->device);
	}
	pthread_mutex_unlock(&net->device.lock);
	return result;
}
