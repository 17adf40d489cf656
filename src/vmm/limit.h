/*
 * Token buckets: how many bytes or operations a device may move. An empty bucket returns how long to wait; the device
 * leaves the request in its queue and sets its timer.
 */
#ifndef HUSK_VMM_LIMIT_H
#define HUSK_VMM_LIMIT_H

#include "base/base.h"

struct limit {
	uint64_t rate;  /* units a second; 0: no limit */
	uint64_t burst; /* maximum that can be saved up */
	int64_t tokens; /* below zero: a request larger than the burst is let through and paid for afterwards */
	int64_t refilled_us;
};

void limit_set(struct limit *limit, uint64_t rate, uint64_t burst);
/* 0: `count` units are taken; else how many microseconds to wait, and nothing is taken. */
int64_t limit_take(struct limit *limit, uint64_t count);
/* Returns the units of an operation that did not happen. */
void limit_return(struct limit *limit, uint64_t count);

#endif
