/*
 * Token buckets; see limit.h. Called by the block and the network device under their locks.
 */
#include "vmm/limit.h"

#define SECOND_US 1000000

void limit_set(struct limit *limit, uint64_t rate, uint64_t burst)
{
	rate = MIN(rate, (uint64_t)INT32_MAX * 1024);
	burst = MIN(burst ? burst : rate, (uint64_t)INT32_MAX * 1024);
	*limit = (struct limit){
		.rate = rate, .burst = burst, .tokens = (int64_t)burst, .refilled_us = time_monotonic_us()
	};
}

static void refill(struct limit *limit)
{
	int64_t now = time_monotonic_us();
	/* More than a minute fills any bucket; bounded, so that the product fits. */
	int64_t passed = MIN(now - limit->refilled_us, 60 * SECOND_US);
	int64_t added = (int64_t)((unsigned __int128)limit->rate * (uint64_t)MAX(passed, 0) / SECOND_US);

	if (added == 0)
		return;
	limit->tokens = MIN(limit->tokens + added, (int64_t)limit->burst);
	limit->refilled_us = now;
}

int64_t limit_take(struct limit *limit, uint64_t count)
{
	if (limit->rate == 0)
		return 0;
	refill(limit);
	if (limit->tokens <= 0)
		return 1 + (int64_t)((unsigned __int128)(1 - limit->tokens) * SECOND_US / limit->rate);
	limit->tokens -= (int64_t)MIN(count, (uint64_t)INT32_MAX);
	return 0;
}

void limit_return(struct limit *limit, uint64_t count)
{
	if (limit->rate != 0)
		limit->tokens += (int64_t)MIN(count, (uint64_t)INT32_MAX);
}
