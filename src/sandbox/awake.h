/* A CPU kept awake while a program starts; see awake.c for why. */
#ifndef HUSK_AWAKE_H
#define HUSK_AWAKE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"

struct awake {
	pthread_mutex_t lock;
	pthread_cond_t wanted;
	bool running;             /* the thread is there */
	_Atomic int64_t until_us; /* monotonic */
};
#define AWAKE_INIT                                                                                                     \
	{                                                                                                              \
		.lock = PTHREAD_MUTEX_INITIALIZER, .wanted = PTHREAD_COND_INITIALIZER                                  \
	}

/* A program is about to start. Without a thread to be had it only starts more slowly. */
void awake_begin(struct awake *awake);
/* It is over already. */
void awake_end(struct awake *awake);

#endif
