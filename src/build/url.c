/*
 * Takes URLs apart (url.h).
 */
#include "build/url.h"

#include <ctype.h>

void url_free(struct url *url)
{
	free(url->host);
	free(url->target);
	*url = (struct url){ 0 };
}

static int fail(const char *text, const char *why, struct husk_error *err)
{
	return husk_fail(err, HUSK_INVALID, "'%.120s' %s", text, why);
}

/* "host", "host:8080" */
static int parse_authority(const char *text, const char *at, size_t size, struct url *out, struct husk_error *err)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
	cleanup_free char *copy = strndup(at, size);
	char *colon = copy ? strchr(copy, ':') : NULL;
	int64_t port = out->tls ? 443 : 80;

	if (!copy)
		return husk_fail_memory(err);
	if (strchr(copy, '@'))
		return fail("the URL", "has a user in it, which is not supported", err);
	if (colon && colon[1] && str_to_int64(colon + 1, 1, UINT16_MAX, &port) < 0)
		return fail(text, "has no port from 1 to 65535", err);
	if (colon)
		*colon = '\0';
	if (!*copy || *copy == '-' || strlen(copy) > 253 || copy[strspn(copy, letters)])
		return fail(text, "has no name or IPv4 address of a host", err);
	for (char *c = copy; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	out->port = (uint16_t)port;
	out->host = steal_pointer(copy);
	return 0;
}

int url_parse(const char *text, struct url *out, struct husk_error *err)
{
	size_t whole = strcspn(text, "#");

	*out = (struct url){ .tls = strncasecmp(text, "https://", 8) == 0 };
	if (!out->tls && strncasecmp(text, "http://", 7) != 0)
		return fail(text, "is not a URL of http or https", err);
	if (whole > URL_MAX)
		return husk_fail(err, HUSK_INVALID, "a URL has more than %d characters", URL_MAX);
	for (size_t i = 0; i < whole; i++)
		if (text[i] <= ' ' || text[i] == 0x7f)
			return fail(text, "has blanks, or letters that a URL writes as %XX", err);
	const char *at = text + (out->tls ? 8 : 7);
	size_t size = strcspn(at, "/?#");
	if (parse_authority(text, at, size, out, err) < 0)
		return -1;
	at += size;
	out->target = str_format("%s%.*s", *at == '/' ? "" : "/", (int)(whole - (size_t)(at - text)), at);
	if (out->target)
		return 0;
	url_free(out);
	return husk_fail_memory(err);
}

char *url_resolve(const struct url *url, const char *location)
{
	const char *scheme = url->tls ? "https" : "http";
	size_t folder = strcspn(url->target, "?");

	if (strstr(location, "://") && strcspn(location, ":") < strcspn(location, "/?#"))
		return strdup(location);
	if (str_starts(location, "//"))
		return str_format("%s:%s", scheme, location);
	if (*location == '/')
		return str_format("%s://%s:%u%s", scheme, url->host, url->port, location);
	while (folder > 0 && url->target[folder - 1] != '/')
		folder--;
	return str_format("%s://%s:%u%.*s%s", scheme, url->host, url->port, (int)folder, url->target, location);
}

char *url_file_name(const struct url *url)
{
	size_t size = strcspn(url->target, "?");
	const char *slash = memrchr(url->target, '/', size);
	cleanup_free char *name = slash ? strndup(slash + 1, size - (size_t)(slash + 1 - url->target)) : NULL;
	char *to = name;

	for (const char *at = name; at && *at; at++) {
		bool escape = at[0] == '%' && isxdigit((unsigned char)at[1]) && isxdigit((unsigned char)at[2]);
		char digits[3] = { at[escape], escape ? at[2] : '\0', '\0' };
		*to++ = escape ? (char)strtol(digits, NULL, 16) : *at;
		at += escape ? 2 : 0;
	}
	if (!name)
		return NULL;
	size = (size_t)(to - name);
	*to = '\0';
	bool plain = strlen(name) == size && size && size < 256 && !strchr(name, '/');
	return plain && !str_equal(name, ".") && !str_equal(name, "..") ? steal_pointer(name) : NULL;
}
