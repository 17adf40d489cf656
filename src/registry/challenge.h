/*
 * What a registry demands before it answers, from the header WWW-Authenticate. Pure, and fuzzed: the header is a
 * stranger's, and its values become a URL.
 */
#ifndef HUSK_REGISTRY_CHALLENGE_H
#define HUSK_REGISTRY_CHALLENGE_H

#include "base/base.h"

enum challenge_scheme { CHALLENGE_NONE, CHALLENGE_BASIC, CHALLENGE_BEARER };

struct challenge {
	enum challenge_scheme scheme;
	/* Of Bearer; printable ASCII, in the realm without blanks; empty when not given. */
	char realm[1024], service[256], scope[1024];
};

/* The first challenge of the header. CHALLENGE_NONE: a scheme that is not known, or no header that follows the rules. */
void challenge_parse(const char *header, struct challenge *out);
/* The token in what a token server answers, {"token": "…"} or {"access_token": "…"}: printable ASCII without blanks, since it
 * becomes part of a header. Caller frees; NULL: there is none. */
char *challenge_token(const char *text);

#endif
