/*
 * Strings: formatting, parsers of numbers, sizes and durations that people type, "did you mean", UTF-8 and string
 * lists. A parser takes the whole string or fails, and must never accept a value that would wrap.
 */
#include "base/base.h"

#include <ctype.h>

char *str_format(const char *format, ...)
{
	char *text = NULL;
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vasprintf(&text, format, arguments);
	va_end(arguments);
	return length < 0 ? NULL : text;
}

void str_wipe(char *secret)
{
	if (secret)
		explicit_bzero(secret, strlen(secret));
	free(secret);
}

bool str_starts(const char *s, const char *prefix)
{
	return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix)
{
	size_t length = strlen(s), wanted = strlen(suffix);

	return length >= wanted && memcmp(s + length - wanted, suffix, wanted) == 0;
}

/* ---- numbers ---- */

/* Parses digits from *s on, and moves *s behind the last one. -1 if there is no digit or the value does not fit. */
static int take_digits(const char **s, uint64_t *out)
{
	const char *p = *s;
	uint64_t value = 0;

	if (*p < '0' || *p > '9')
		return -1;
	for (; *p >= '0' && *p <= '9'; p++) {
		if (__builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
			return -1;
	}
	*s = p;
	*out = value;
	return 0;
}

int str_to_int64(const char *s, int64_t min, int64_t max, int64_t *out)
{
	bool negative = s && *s == '-';
	uint64_t magnitude;
	int64_t value;

	if (!s)
		return -1;
	s += negative;
	if (take_digits(&s, &magnitude) < 0 || *s)
		return -1;
	/* Computes 0 - magnitude, so that INT64_MIN parses although its magnitude does not fit an int64_t. */
	if (negative ? __builtin_sub_overflow(0, magnitude, &value) : __builtin_add_overflow(0, magnitude, &value))
		return -1;
	if (value < min || value > max)
		return -1;
	*out = value;
	return 0;
}

struct unit {
	char letter;
	uint64_t factor;
};

/* A number and at most one letter of `units`; without a letter, the unit is `bare`. */
static int number_with_unit(const char *s, const struct unit *units, size_t count, uint64_t bare, uint64_t *out)
{
	uint64_t value, factor = bare;

	if (!s || take_digits(&s, &value) < 0)
		return -1;
	if (*s) {
		size_t i = 0;

		while (i < count && units[i].letter != tolower((unsigned char)*s))
			i++;
		if (i == count || s[1])
			return -1;
		factor = units[i].factor;
	}
	return __builtin_mul_overflow(value, factor, out) ? -1 : 0;
}

int str_to_size(const char *s, uint64_t unit, uint64_t *out)
{
	static const struct unit units[] = {
		{ 'k', 1ull << 10 }, { 'm', 1ull << 20 }, { 'g', 1ull << 30 }, { 't', 1ull << 40 }, { 'b', 1 }
	};
	uint64_t value;

	if (number_with_unit(s, units, ARRAY_SIZE(units), unit, &value) < 0)
		return -1;
	*out = value;
	return 0;
}

int str_to_seconds(const char *s, int64_t *out)
{
	static const struct unit units[] = { { 's', 1 }, { 'm', 60 }, { 'h', 3600 }, { 'd', 86400 } };
	uint64_t value;

	if (number_with_unit(s, units, ARRAY_SIZE(units), 1, &value) < 0 || value > INT64_MAX)
		return -1;
	*out = (int64_t)value;
	return 0;
}

/* ---- did you mean ---- */

#define NEAREST_LONGEST 64

/* Edit distance in which a swap of neighbours ("agnet") counts as one, because it is a common typing error. */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
	size_t rows[3][NEAREST_LONGEST + 1];
	size_t *before = rows[0], *last = rows[1], *row = rows[2];

	for (size_t j = 0; j <= b_length; j++)
		row[j] = j;
	for (size_t i = 1; i <= a_length; i++) {
		size_t *oldest = before;

		before = last;
		last = row;
		row = oldest;
		row[0] = i;
		for (size_t j = 1; j <= b_length; j++) {
			bool same = a[i - 1] == b[j - 1];

			row[j] = MIN(MIN(last[j] + 1, row[j - 1] + 1), last[j - 1] + !same);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[j] = MIN(row[j], before[j - 2] + 1);
		}
	}
	return row[b_length];
}

const char *str_nearest(const char *word, const char *const *candidates, size_t count)
{
	size_t length = word ? strlen(word) : 0;
	/* A third of the word may be wrong, and at least one letter. A candidate farther away is not suggested. */
	size_t best_distance = MAX(length / 3, (size_t)1) + 1;
	const char *best = NULL;

	if (length == 0 || length > NEAREST_LONGEST)
		return NULL;
	for (size_t i = 0; i < count; i++) {
		size_t other, distance;

		if (!candidates[i] || (other = strlen(candidates[i])) > NEAREST_LONGEST)
			continue;
		distance = edit_distance(word, length, candidates[i], other);
		if (distance < best_distance && distance < MAX(length, other)) {
			best = candidates[i];
			best_distance = distance;
		}
	}
	return best;
}

/* ---- UTF-8 ---- */

/* The length of the well-formed sequence at p (at most `left` bytes), or 0. */
static size_t utf8_sequence(const unsigned char *p, size_t left)
{
	uint32_t value, smallest;
	size_t length;

	if (p[0] < 0x80)
		return 1;
	if ((p[0] & 0xe0) == 0xc0) {
		length = 2, smallest = 0x80, value = p[0] & 0x1f;
	} else if ((p[0] & 0xf0) == 0xe0) {
		length = 3, smallest = 0x800, value = p[0] & 0x0f;
	} else if ((p[0] & 0xf8) == 0xf0) {
		length = 4, smallest = 0x10000, value = p[0] & 0x07;
	} else {
		return 0;
	}
	if (length > left)
		return 0;
	for (size_t i = 1; i < length; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		value = value << 6 | (p[i] & 0x3f);
	}
	/* Overlong forms and surrogates could evade checks on the decoded text. */
	if (value < smallest || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
		return 0;
	return length;
}

bool str_is_utf8(const char *s, size_t size)
{
	size_t at = 0;

	while (at < size) {
		size_t length = utf8_sequence((const unsigned char *)s + at, size - at);

		if (length == 0)
			return false;
		at += length;
	}
	return true;
}

size_t str_printable(const char *s, size_t left)
{
	const unsigned char *p = (const unsigned char *)s;
	size_t length = left > 0 ? utf8_sequence(p, left) : 0;
	bool control = length && (p[0] < 0x20 || p[0] == 0x7f || (p[0] == 0xc2 && p[1] < 0xa0));

	return control ? 0 : length;
}

bool str_json_deeper(const char *s, size_t size, size_t limit)
{
	size_t depth = 0;
	bool string = false;

	for (size_t i = 0; i < size; i++) {
		if (string && s[i] == '\\')
			i++;
		else if (s[i] == '"')
			string = !string;
		else if (!string && (s[i] == '{' || s[i] == '[') && ++depth > limit)
			return true;
		else if (!string && (s[i] == '}' || s[i] == ']') && depth > 0)
			depth--;
	}
	return false;
}

/* ---- lists ---- */

size_t strv_length(char *const *list)
{
	size_t length = 0;

	while (list && list[length])
		length++;
	return length;
}

int strv_add(char ***list, const char *s)
{
	size_t length = strv_length(*list);
	char *copy = strdup(s);
	char **grown;

	if (!copy)
		return -1;
	grown = reallocarray(*list, length + 2, sizeof(*grown));
	if (!grown) {
		free(copy);
		return -1;
	}
	grown[length] = copy;
	grown[length + 1] = NULL;
	*list = grown;
	return 0;
}

static int by_bytes(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

void strv_sort(char **list)
{
	if (list)
		qsort(list, strv_length(list), sizeof(*list), by_bytes);
}

void strv_free(char **list)
{
	for (size_t i = 0; list && list[i]; i++)
		free(list[i]);
	free(list);
}
