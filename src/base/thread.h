/*
 * Condition variables with deadlines of time_monotonic_ms, and threads that receive no signals.
 */
#ifndef HUSK_THREAD_H
#define HUSK_THREAD_H

#include <pthread.h>

#include "base/base.h"

/* For cond_wait_until; the caller calls pthread_cond_destroy. */
void cond_open(pthread_cond_t *cond);
/* As pthread_cond_wait, but returns ETIMEDOUT after the deadline (-1: none). */
int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms);
/* Starts a thread with every signal blocked: signals are for the program's own threads. `out` NULL: the thread is
 * detached. `stack` is in bytes; 0: the default. Returns 0, or an errno like pthread_create. */
int thread_quiet(pthread_t *out, size_t stack, void *(*run)(void *data), void *data);

#endif
