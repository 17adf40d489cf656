/*
 * Parses WWW-Authenticate (challenge.h):  Bearer realm="https://auth.example/token",service="registry.example"
 * Anything unusual (an unknown scheme, a value that is too long, a control character) gives CHALLENGE_NONE, never a half.
 */
#include "registry/challenge.h"

#include "base/http_grammar.h"
#include "base/jansson.h"

#define DEPTH_MAX 16

static void skip_blanks(const char **at)
{
	*at += strspn(*at, " \t");
}

static size_t token_length(const char *at)
{
	size_t length = 0;

	while (http_is_token((unsigned char)at[length]))
		length++;
	return length;
}

static bool printable(char c)
{
	return c >= ' ' && c <= '~';
}

/* "quoted", with backslashes, or a token; false when it is neither or does not fit. */
static bool take_value(const char **at, char *out, size_t size)
{
	size_t used = 0;
	bool quoted = **at == '"';

	*at += quoted;
	for (; quoted ? **at && **at != '"' : http_is_token((unsigned char)**at); ++*at) {
		if (quoted && **at == '\\')
			++*at;
		if (!printable(**at) || used + 1 >= size)
			return false;
		out[used++] = **at;
	}
	out[used] = '\0';
	if (quoted && **at != '"')
		return false;
	*at += quoted;
	return quoted || used > 0;
}

/* One key=value; a key that is not known is read and dropped. */
static bool take_parameter(const char **at, struct challenge *out)
{
	char ignored[1024];
	size_t length = token_length(*at);
	const char *key = *at;

	*at += length;
	skip_blanks(at);
	if (length == 0 || **at != '=')
		return false;
	++*at;
	skip_blanks(at);
	if (length == strlen("realm") && strncasecmp(key, "realm", length) == 0)
		return take_value(at, out->realm, sizeof(out->realm));
	if (length == strlen("service") && strncasecmp(key, "service", length) == 0)
		return take_value(at, out->service, sizeof(out->service));
	if (length == strlen("scope") && strncasecmp(key, "scope", length) == 0)
		return take_value(at, out->scope, sizeof(out->scope));
	return take_value(at, ignored, sizeof(ignored));
}

static bool take_parameters(const char *at, struct challenge *out)
{
	for (skip_blanks(&at); *at; skip_blanks(&at)) {
		if (!take_parameter(&at, out))
			return false;
		skip_blanks(&at);
		if (*at && *at != ',')
			return false;
		at += strspn(at, ", \t");
	}
	return true;
}

void challenge_parse(const char *header, struct challenge *out)
{
	size_t length;

	*out = (struct challenge){ 0 };
	skip_blanks(&header);
	length = token_length(header);
	if (length == strlen("Bearer") && strncasecmp(header, "Bearer", length) == 0)
		out->scheme = CHALLENGE_BEARER;
	else if (length == strlen("Basic") && strncasecmp(header, "Basic", length) == 0)
		out->scheme = CHALLENGE_BASIC;
	bool fine =
		out->scheme != CHALLENGE_NONE && take_parameters(header + length, out) && !strpbrk(out->realm, " \"\\");
	if (!fine || (out->scheme == CHALLENGE_BEARER && !out->realm[0]))
		*out = (struct challenge){ 0 };
}

static bool is_token(const char *text)
{
	if (!text || !*text)
		return false;
	for (; *text; text++)
		if (*text == ' ' || !printable(*text))
			return false;
	return true;
}

char *challenge_token(const char *text)
{
	size_t size = strlen(text);
	cleanup_json json_t *root = str_json_deeper(text, size, DEPTH_MAX) ? NULL : json_loadb(text, size, 0, NULL);
	const char *token = json_string_value(json_object_get(root, "token"));

	if (!is_token(token))
		token = json_string_value(json_object_get(root, "access_token"));
	return is_token(token) ? strdup(token) : NULL;
}
