/*
 * Conditions whose waits have deadlines of time_monotonic_ms, and threads that take no signals.
 */
#ifndef HUSK_THREAD_H
#define HUSK_THREAD_H

#include <pthread.h>

#include "base/base.h"

/* For cond_wait_until; pthread_cond_destroy when done. */
void cond_open(pthread_cond_t *cond);
/* pthread_cond_wait, and ETIMEDOUT once the deadline (-1: none) has passed. */
int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms);
/* Starts a thread with every signal blocked: signals are for the program's own threads. `out` NULL: it is detached.
 * `stack` in bytes; 0: the default. Returns 0 or, like pthread_create, the reason. */
int thread_quiet(pthread_t *out, size_t stack, void *(*run)(void *data), void *data);

#endif
