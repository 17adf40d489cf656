/*
 * Waiting for a condition variable with a deadline on the monotonic clock.
 */
#include "base/thread.h"

void cond_open(pthread_cond_t *cond)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms)
{
	struct timespec at = { .tv_sec = deadline_ms / 1000, .tv_nsec = deadline_ms % 1000 * 1000000 };

	return deadline_ms < 0 ? pthread_cond_wait(cond, lock) : pthread_cond_timedwait(cond, lock, &at);
}
