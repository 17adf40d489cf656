/*
 * Maintenance while huskd runs: at the start and about every half minute, a thread cleans up after killed supervisors and
 * ends hibernated sandboxes whose TTL has passed. Started by serve.c. The thread has its own handle, so that no request
 * waits for it, and it may be ended at any moment.
 */
#include <time.h>

#include "server/core.h"

#define PERIOD_MS 30000u
#define JITTER_MS 5000u /* several instances on one host should not all run at once */

static void rest(void)
{
	uint16_t random = 0;

	random_bytes(&random, sizeof(random));
	unsigned ms = PERIOD_MS - JITTER_MS + random % (2 * JITTER_MS);
	const struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };
	nanosleep(&pause, NULL);
}

static void *tend(void *data)
{
	struct husk *husk = NULL;

	(void)data;
	for (;; rest()) {
		struct husk_error err = { 0 };
		size_t changed = 0;

		if ((!husk && husk_open(NULL, &husk, &err) < 0) || husk_tend(husk, &changed, &err) < 0)
			log_line(LOG_ERROR, "cannot look after the instance: %s", err.message);
		else if (changed)
			log_line(LOG_WARN, "cleared up after %zu sandboxes", changed);
	}
	return NULL;
}

int tend_start(struct husk_error *err)
{
	if (thread_start(NULL, true, tend, NULL) < 0)
		return husk_fail(err, HUSK_INTERNAL, "cannot start a thread");
	return 0;
}
