/*
 * Parses the header WWW-Authenticate: what a registry requires before it answers. Pure functions, and fuzzed: the
 * header is untrusted, and its values become part of a URL.
 */
#ifndef HUSK_REGISTRY_CHALLENGE_H
#define HUSK_REGISTRY_CHALLENGE_H

#include "base/base.h"

enum challenge_scheme { CHALLENGE_NONE, CHALLENGE_BASIC, CHALLENGE_BEARER };

struct challenge {
	enum challenge_scheme scheme;
	/* For Bearer; printable ASCII, no blanks in the realm; empty if not given. */
	char realm[1024], service[256], scope[1024];
};

/* The first challenge of the header. CHALLENGE_NONE: an unknown scheme, or a malformed header. */
void challenge_parse(const char *header, struct challenge *out);
/* The token in the answer of a token server, {"token": "…"} or {"access_token": "…"}: printable ASCII without blanks,
 * because it becomes part of a header. Caller frees; NULL: none. */
char *challenge_token(const char *text);

#endif
