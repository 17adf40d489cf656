/*
 * Clocks, time as text, and random bytes and ids. Ids are names, not secrets, yet they come from the kernel's generator
 * all the same: two forks of one machine must never draw the same one.
 */
#include "base/base.h"

#include <sys/random.h>
#include <time.h>

static int64_t clock_us(clockid_t clock)
{
	struct timespec now = { 0 };

	/* Cannot fail with a clock every Linux has and a valid pointer. */
	clock_gettime(clock, &now);
	return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t time_monotonic_ms(void)
{
	return clock_us(CLOCK_MONOTONIC) / 1000;
}

int64_t time_monotonic_us(void)
{
	return clock_us(CLOCK_MONOTONIC);
}

int64_t time_wall_ms(void)
{
	return clock_us(CLOCK_REALTIME) / 1000;
}

void time_format(int64_t wall_ms, char out[static 25])
{
	/* What four digits of year can say; anything outside is a broken clock, shown as the nearest end. */
	static const int64_t first = -62167219200000, last = 253402300799999;
	int64_t clamped = MIN(MAX(wall_ms, first), last);
	int64_t milli = ((clamped % 1000) + 1000) % 1000;
	time_t seconds = (time_t)((clamped - milli) / 1000);
	struct tm parts = { 0 };
	char text[96];

	gmtime_r(&seconds, &parts);
	snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", parts.tm_year + 1900, parts.tm_mon + 1,
		 parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, (int)milli);
	memcpy(out, text, 24);
	out[24] = '\0';
}

int random_bytes(void *data, size_t size)
{
	char *at = data;

	while (size > 0) {
		ssize_t got = getrandom(at, size, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -1;
		at += got;
		size -= (size_t)got;
	}
	return 0;
}

int random_id(const char *prefix, size_t length, char *out)
{
	static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz234567";
	size_t start = strlen(prefix);

	memcpy(out, prefix, start);
	out[start] = '\0';
	if (random_bytes(out + start, length) < 0) {
		out[start] = '\0';
		return -1;
	}
	for (size_t i = start; i < start + length; i++)
		out[i] = alphabet[(unsigned char)out[i] % 32];
	out[start + length] = '\0';
	return 0;
}
