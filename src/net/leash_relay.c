/*
 * Carries the bytes of an allowed connection in both directions without reading them: from socket to pipe to socket inside
 * the kernel (splice). One thread serves both directions.
 */
#include <fcntl.h>
#include <poll.h>

#include "net/leash_proxy.h"

#define PIPE_SIZE (512 << 10) /* requested; a smaller pipe works too */
#define MOVES_MAX 64          /* moves before the terms are checked again */

struct direction {
	int from, to;
	int pipe[2];
	size_t held;  /* bytes in the pipe */
	bool over;    /* `from` has ended */
	bool told;    /* … and `to` was informed */
	bool sending; /* from the guest */
};

static int direction_open(struct direction *d)
{
	if (pipe2(d->pipe, O_CLOEXEC | O_NONBLOCK) < 0)
		return -1;
	fcntl(d->pipe[1], F_SETPIPE_SZ, PIPE_SIZE);
	return 0;
}

static void direction_close(struct direction *d)
{
	fd_close(&d->pipe[0]);
	fd_close(&d->pipe[1]);
}

/* Moves as much as possible now. 1: bytes were moved; 0: none can be; -1: the connection is broken, or the byte limit
 * is reached. */
static int move(struct flow *flow, const struct policy *policy, struct direction *d)
{
	const unsigned flags = SPLICE_F_MOVE | SPLICE_F_NONBLOCK;
	int moved = 0;

	if (d->held == 0 && !d->over) {
		ssize_t got = splice(d->from, NULL, d->pipe[1], NULL, tally_chunk(policy, PIPE_SIZE), flags);

		if (got < 0 && errno != EAGAIN && errno != EINTR)
			return -1;
		if (got == 0)
			d->over = true;
		if (got > 0) {
			d->held = (size_t)got;
			moved = 1;
			if (!tally_count(flow->proxy, flow->tally, policy, d->sending ? (uint64_t)got : 0,
					 d->sending ? 0 : (uint64_t)got))
				return -1;
		}
	}
	if (d->held) {
		ssize_t put = splice(d->pipe[0], NULL, d->to, NULL, d->held, flags);

		if (put < 0 && errno != EAGAIN && errno != EINTR)
			return -1;
		if (put > 0) {
			d->held -= (size_t)put;
			moved = 1;
		}
	}
	if (d->over && d->held == 0 && !d->told) {
		shutdown(d->to, SHUT_WR);
		d->told = true;
	}
	return moved;
}

/* Waits until one direction can continue. A hang-up of a side that is not being read is noticed by the next write;
 * until then it would only wake this thread for nothing. */
static int wait_for_more(const struct direction *up, const struct direction *down)
{
	struct pollfd ends[2] = { { .fd = up->from }, { .fd = up->to } };

	if (up->held == 0 && !up->over)
		ends[0].events |= POLLIN;
	if (down->held)
		ends[0].events |= POLLOUT;
	if (down->held == 0 && !down->over)
		ends[1].events |= POLLIN;
	if (up->held)
		ends[1].events |= POLLOUT;
	for (size_t i = 0; i < 2; i++)
		if (!ends[i].events)
			ends[i].fd = -1;
	if (poll(ends, 2, -1) < 0)
		return errno == EINTR ? 0 : -1;
	/* Broken with nothing to move: the error is final. */
	for (size_t i = 0; i < 2; i++)
		if (ends[i].revents & POLLNVAL)
			return -1;
	return 0;
}

static int pump(struct flow *flow, struct direction *up, struct direction *down)
{
	int result = 0;

	while (result == 0 && !(up->told && down->told)) {
		/* Uses the current terms, so that a new rate or byte limit applies to open connections too. */
		struct terms *terms = proxy_terms(flow->proxy);
		int sent = 1, received = 1;

		for (int i = 0; i < MOVES_MAX && (sent > 0 || received > 0); i++) {
			sent = move(flow, terms->policy, up);
			received = sent < 0 ? -1 : move(flow, terms->policy, down);
		}
		terms_drop(terms);
		if (sent < 0 || received < 0)
			result = -1;
		else if (sent == 0 && received == 0 && !(up->told && down->told))
			result = wait_for_more(up, down);
	}
	return result;
}

void relay_run(struct flow *flow)
{
	struct direction up = { .from = flow->guest, .to = flow->remote, .pipe = { -1, -1 }, .sending = true };
	struct direction down = { .from = flow->remote, .to = flow->guest, .pipe = { -1, -1 } };

	if (fd_set_nonblocking(flow->guest, true) < 0 || direction_open(&up) < 0 || direction_open(&down) < 0 ||
	    pump(flow, &up, &down) < 0)
		flow->reset = true;
	direction_close(&up);
	direction_close(&down);
}
