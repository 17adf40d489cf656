/*
 * Clocks, time as text, random bytes and random ids. Ids are names, not secrets. They still come from the kernel's
 * generator, because two forks of one machine must never draw the same id.
 */
#include "base/base.h"

#include <sys/random.h>
#include <time.h>

static int64_t clock_us(clockid_t clock)
{
	struct timespec now = { 0 };

	/* Cannot fail: every Linux has these clocks, and the pointer is valid. */
	clock_gettime(clock, &now);
	return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t time_boot_ms(void)
{
	struct timespec now = { 0 };

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
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

/* Converts days since 1970 to a date of the proleptic Gregorian calendar. gmtime_r would open the host's time zone
 * file, which a jailed process may not do. Years begin in March here, so that leap days come last. */
static void civil_day(int64_t days, int *year, int *month, int *day)
{
	int64_t shifted = days + 719468;                                    /* since 0000-03-01 */
	int64_t era = (shifted >= 0 ? shifted : shifted - 146096) / 146097; /* of 400 years */
	int64_t in_era = shifted - era * 146097;
	int64_t year_of_era = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
	int64_t in_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
	int64_t from_march = (5 * in_year + 2) / 153;

	*day = (int)(in_year - (153 * from_march + 2) / 5 + 1);
	*month = (int)(from_march < 10 ? from_march + 3 : from_march - 9);
	*year = (int)(year_of_era + era * 400 + (*month <= 2));
}

void time_format(int64_t wall_ms, char out[static 25])
{
	/* The range of a four-digit year; a broken clock outside it is shown as the nearest end. */
	static const int64_t first = -62167219200000, last = 253402300799999, day_ms = 86400000;
	int64_t clamped = MIN(MAX(wall_ms, first), last);
	int64_t in_day = ((clamped % day_ms) + day_ms) % day_ms;
	int year, month, day;
	char text[96];

	civil_day((clamped - in_day) / day_ms, &year, &month, &day);
	snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", year, month, day, (int)(in_day / 3600000),
		 (int)(in_day / 60000 % 60), (int)(in_day / 1000 % 60), (int)(in_day % 1000));
	memcpy(out, text, 24);
	out[24] = '\0';
}

int64_t time_parse(const char *text)
{
	struct tm parts = { 0 };
	int64_t fraction = 0;
	const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &parts);

	if (rest && *rest == '.' && strspn(rest + 1, "0123456789") == 3 && str_equal(rest + 4, "Z"))
		fraction = (rest[1] - '0') * 100 + (rest[2] - '0') * 10 + (rest[3] - '0');
	else if (!str_equal(rest, "Z"))
		return -1;
	return (int64_t)timegm(&parts) * 1000 + fraction;
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

static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz234567"; /* of ids */

bool is_random_id(const char *text, const char *prefix, size_t length)
{
	return str_starts(text, prefix) && strlen(text) == strlen(prefix) + length &&
	       strspn(text + strlen(prefix), alphabet) == length;
}

int random_id(const char *prefix, size_t length, char *out)
{
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
