/*
 * The rules of HTTP/1 that its readers share; see http_grammar.h. The text is untrusted, and need not end in a NUL.
 */
#include "base/http_grammar.h"

#include <ctype.h>

bool http_is_token(unsigned char c)
{
	return (c < 0x80 && isalnum(c)) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

int http_length(const char *text, size_t size, uint64_t *out)
{
	int64_t length = 0;

	for (size_t i = 0; i < size; i++)
		if (text[i] < '0' || text[i] > '9' || __builtin_mul_overflow(length, 10, &length) ||
		    __builtin_add_overflow(length, text[i] - '0', &length))
			return -1;
	*out = (uint64_t)length;
	return size ? 0 : -1;
}

static bool separates(char c)
{
	return c == ' ' || c == '\t' || c == ',';
}

bool http_list_has(const char *list, size_t size, const char *word)
{
	for (size_t at = 0, end; at < size; at = end + 1) {
		end = at;
		while (end < size && !separates(list[end]))
			end++;
		if (end - at == strlen(word) && strncasecmp(list + at, word, end - at) == 0)
			return true;
	}
	return false;
}

int http_hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}
