/*
 * URLs of ADD, and of the redirects that servers answer: http and https only. The texts are untrusted. The accepted form
 * is narrow on purpose: its parts become the name that a sandbox looks up, and a line of a request.
 */
#ifndef HUSK_BUILD_URL_H
#define HUSK_BUILD_URL_H

#include "base/base.h"

#define URL_MAX 8192

struct url {
	bool tls;
	char *host; /* a name or an IPv4 address, in lower case */
	uint16_t port;
	char *target; /* path and query, as a request has them; begins with '/' */
};
/* INVALID: another scheme, a user or password in it, an IPv6 address, blanks or control characters. A fragment is left out. */
int url_parse(const char *text, struct url *out, struct husk_error *err);
void url_free(struct url *url);
/* The URL that `location` means in an answer of `url`; url_parse checks it. Caller frees; NULL: no memory. */
char *url_resolve(const struct url *url, const char *location);
/* The last element of the path with its escapes replaced, for a file; caller frees. NULL: none that can be the name of a file. */
char *url_file_name(const struct url *url);

#endif
