/*
 * Conditions whose waits have deadlines of time_monotonic_ms.
 */
#ifndef HUSK_THREAD_H
#define HUSK_THREAD_H

#include <pthread.h>

#include "base/base.h"

/* For cond_wait_until; pthread_cond_destroy when done. */
void cond_open(pthread_cond_t *cond);
/* pthread_cond_wait, and ETIMEDOUT once the deadline (-1: none) has passed. */
int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms);

#endif
