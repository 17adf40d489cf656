/*
 * The agent's event loop: descriptors, the wait, and the order of work in a turn. Called by main; every other file
 * registers its descriptors here. It must never block anywhere but in loop_wait.
 */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/epoll.h>

#include "agent/agent.h"
#include "agent/follow.h"
#include "agent/process.h"

#define ROUNDS_PER_TURN 4

int source_open(struct agent *agent, struct source *source, int fd, uint32_t events, struct husk_error *err)
{
	struct epoll_event event = { .events = events, .data.ptr = source };

	/* Every descriptor here is a pipe, socket or terminal, with no other status flags to keep. */
	if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || epoll_ctl(agent->epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
		source->fd = -1;
		return husk_fail_errno(err, "cannot watch descriptor %d", fd);
	}
	*source = (struct source){ .fd = fd };
	return 0;
}

void source_close(struct agent *agent, struct source *source)
{
	if (source->fd < 0)
		return;
	/* Closing alone is not enough: a worker that was forked a moment ago may still hold the same open file. */
	if (epoll_ctl(agent->epoll, EPOLL_CTL_DEL, source->fd, NULL) < 0)
		log_line(LOG_ERROR, "cannot forget descriptor %d: %s", source->fd, strerror(errno));
	fd_close(&source->fd);
	*source = (struct source){ .fd = -1 };
}

ssize_t source_read(struct source *source, void *data, size_t size)
{
	ssize_t count;

	do
		count = read(source->fd, data, size);
	while (count < 0 && errno == EINTR);
	if (count < 0 && errno == EAGAIN)
		source->readable = false;
	return count;
}

ssize_t source_write(struct source *source, const void *data, size_t size)
{
	ssize_t count;

	do
		count = write(source->fd, data, size);
	while (count < 0 && errno == EINTR);
	if (count < 0 && errno == EAGAIN)
		source->writable = false;
	return count;
}

void loop_wait(struct agent *agent, int timeout_ms)
{
	struct epoll_event events[64];
	sigset_t open_mask;

	/* SIGCHLD is blocked except during this wait, so a child's end either interrupts the wait or is seen before
	 * it. */
	sigemptyset(&open_mask);
	int count = epoll_pwait(agent->epoll, events, (int)ARRAY_SIZE(events), timeout_ms, &open_mask);
	if (count < 0 && errno != EINTR)
		agent_die("epoll: %s", strerror(errno));
	for (int i = 0; i < count; i++) {
		struct source *source = events[i].data.ptr;
		uint32_t ready = events[i].events;
		source->readable |= (ready & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
		source->writable |= (ready & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
		source->drained |= (ready & EPOLLHUP) && !(ready & EPOLLIN);
	}
}

static int loop_timeout(const struct agent *agent, bool busy)
{
	if (busy)
		return 0;
	int64_t deadline = agent->frozen ? 0 : process_next_deadline(agent);
	int64_t refresh = agent->frozen || !process_any_running(agent) ? 0 : limits_next_ms(&agent->limits);
	int64_t follow = agent->frozen ? 0 : follow_next_ms(agent);
	if (refresh && (!deadline || refresh < deadline))
		deadline = refresh;
	if (follow && (!deadline || follow < deadline))
		deadline = follow;
	if (!deadline)
		return -1;
	int64_t left = deadline - time_monotonic_ms();
	return left <= 0 ? 0 : (int)MIN(left, INT_MAX);
}

/* Several rounds, so that the link gets large writes; bounded, so that the host's frames are read in between. */
static bool loop_work(struct agent *agent)
{
	bool busy = true;

	process_run_timers(agent);
	follow_work(agent);
	for (int i = 0; busy && i < ROUNDS_PER_TURN; i++) {
		busy = process_pump_all(agent);
		busy |= channel_pump_all(agent);
	}
	process_trim(agent);
	return busy;
}

void loop_run(struct agent *agent)
{
	bool busy = false;

	while (!agent->link.ended || uplink_renew(agent)) {
		loop_wait(agent, loop_timeout(agent, busy));
		bool refreshed = limits_refresh(&agent->limits, agent->memory_limit);
		if (agent->link.in.readable)
			uplink_receive(agent);
		bool ended = agent_take_child_ended(), unread = false;
		if (ended || agent->kernel_log.readable)
			unread = memory_read(agent);
		if (ended)
			process_reap(agent);
		if (ended || refreshed)
			notice_disk(agent);
		busy = !agent->frozen && loop_work(agent);
		busy |= unread;
		bool full = !uplink_has_room(agent);
		uplink_flush(agent);
		process_close_ended(agent);
		/* A full queue stopped the work, and the queue has been flushed: no event will announce the room. */
		busy |= full && uplink_has_room(agent);
	}
}
