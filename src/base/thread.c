/*
 * Waits on a condition variable with a deadline on the monotonic clock, and threads that receive no signals.
 */
#include "base/thread.h"

#include <signal.h>

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

int thread_quiet(pthread_t *out, size_t stack, void *(*run)(void *data), void *data)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, before;
	int failed = pthread_attr_init(&attributes);

	if (failed)
		return failed;
	if (!out)
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (stack)
		pthread_attr_setstacksize(&attributes, stack);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	failed = pthread_create(out ? out : &thread, &attributes, run, data);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return failed;
}
