/*
 * Parses a Range header; see range.h. Whatever the client sends, the result stays inside the file.
 */
#include "server/range.h"

#include "base/base.h"

/* Digits at *text, which moves past them; false: no digits. A number that is too large counts as the maximum. */
static bool take_number(const char **text, uint64_t *out)
{
	const char *start = *text;

	*out = 0;
	for (; **text >= '0' && **text <= '9'; (*text)++)
		if (__builtin_mul_overflow(*out, UINT64_C(10), out) ||
		    __builtin_add_overflow(*out, (uint64_t)(**text - '0'), out))
			*out = UINT64_MAX;
	return *text != start;
}

enum range_kind range_parse(const char *header, uint64_t size, uint64_t *offset, uint64_t *length)
{
	uint64_t first, last;

	if (!header || strncasecmp(header, "bytes=", 6) != 0)
		return RANGE_WHOLE;
	const char *text = header + 6;
	bool has_first = take_number(&text, &first);
	if (*text++ != '-')
		return RANGE_WHOLE;
	bool has_last = take_number(&text, &last);
	if (*text != '\0' || (!has_first && !has_last) || (has_first && has_last && last < first))
		return RANGE_WHOLE;
	if (!has_first) { /* the last so many bytes */
		first = last < size ? size - last : 0;
		if (last == 0)
			return RANGE_OUTSIDE;
		has_last = false;
	}
	if (first >= size)
		return RANGE_OUTSIDE;
	*offset = first;
	*length = has_last && last < size ? last - first + 1 : size - first;
	return RANGE_PART;
}
