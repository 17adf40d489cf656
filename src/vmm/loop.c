/*
 * The event loop of a thread; see loop.h. Events are handled one at a time, so that a handler may close and free
 * anything.
 */
#include "vmm/loop.h"

#include <sys/epoll.h>

int loop_open(struct loop *loop, struct husk_error *err)
{
	loop->epoll = epoll_create1(EPOLL_CLOEXEC);
	return loop->epoll < 0 ? husk_fail_errno(err, "cannot make an event loop") : 0;
}

void loop_close(struct loop *loop)
{
	fd_close(&loop->epoll);
}

int loop_watch(struct loop *loop, struct watch *watch, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t),
	       void *data, struct husk_error *err)
{
	struct epoll_event event = { .events = events, .data.ptr = watch };

	*watch = (struct watch){ .fd = fd, .events = events, .ready = ready, .data = data };
	if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
		watch->fd = -1;
		return husk_fail_errno(err, "cannot watch descriptor %d", fd);
	}
	return 0;
}

void loop_change(struct loop *loop, struct watch *watch, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = watch };

	if (watch->fd < 0 || watch->events == events)
		return;
	if (epoll_ctl(loop->epoll, EPOLL_CTL_MOD, watch->fd, &event) == 0)
		watch->events = events;
}

void loop_unwatch(struct loop *loop, struct watch *watch)
{
	if (watch->fd >= 0)
		epoll_ctl(loop->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
	watch->fd = -1;
}

int loop_turn(struct loop *loop, struct husk_error *err)
{
	struct epoll_event event;
	int count = epoll_wait(loop->epoll, &event, 1, -1);

	if (count < 0 && errno != EINTR)
		return husk_fail_errno(err, "cannot wait for events");
	if (count > 0) {
		struct watch *watch = event.data.ptr;

		watch->ready(watch, event.events);
	}
	return 0;
}
