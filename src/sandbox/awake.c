/*
 * Keeps a CPU from falling asleep while a program starts in the guest. Called by the sessions of a supervisor.
 *
 * Starting a program takes gVisor some sixty hand-overs between the threads that run the guest and those that serve it. On
 * a host with nothing else to do each of them finds its CPU halted, and waking it costs more than the hand-over: in a
 * virtual machine a start takes twice as long on a quiet host as on a busy one. So for the first moments of a start a
 * thread turns in a circle at the lowest of all priorities. A CPU that only runs such a thread is free for everybody
 * else at once, and where there is other work the thread does not run at all. It must never go on for longer than
 * AWAKE_US, whatever the guest does.
 */
#include "sandbox/awake.h"

#include <sched.h>

#define AWAKE_US 20000

static int64_t turn_until(struct awake *awake)
{
	return atomic_load_explicit(&awake->until_us, memory_order_relaxed);
}

static void *turn(void *argument)
{
	struct awake *awake = argument;

	sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 });
	for (;;) {
		pthread_mutex_lock(&awake->lock);
		while (turn_until(awake) <= time_monotonic_us())
			pthread_cond_wait(&awake->wanted, &awake->lock);
		pthread_mutex_unlock(&awake->lock);
		while (turn_until(awake) > time_monotonic_us())
			__builtin_ia32_pause();
	}
	return NULL;
}

void awake_begin(struct awake *awake)
{
	pthread_attr_t detached;
	pthread_t thread;

	pthread_mutex_lock(&awake->lock);
	atomic_store(&awake->until_us, time_monotonic_us() + AWAKE_US);
	if (!awake->running) {
		pthread_attr_init(&detached);
		pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
		pthread_attr_setstacksize(&detached, 64 * 1024);
		awake->running = pthread_create(&thread, &detached, turn, awake) == 0;
		pthread_attr_destroy(&detached);
	}
	pthread_cond_signal(&awake->wanted);
	pthread_mutex_unlock(&awake->lock);
}

void awake_end(struct awake *awake)
{
	atomic_store(&awake->until_us, 0);
}
