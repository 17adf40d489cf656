/*
 * The first message of a TLS client, read far enough to know which host it wants. The bytes come from a hostile guest.
 */
#ifndef HUSK_HELLO_H
#define HUSK_HELLO_H

#include "base/base.h"
#include "net/policy.h"

#define HELLO_MAX (64u << 10) /* a ClientHello with everything in it is a few KiB */

enum hello_result { HELLO_OK, HELLO_MORE, HELLO_BAD };

struct hello {
	char name[POLICY_NAME_MAX + 1]; /* normalised; "" when it names none */
	bool encrypted;                 /* it carries an encrypted hello, which may name another host */
};

/* HELLO_MORE: what there is may become one. HELLO_BAD: it never will, or the name in it is no host name. */
enum hello_result hello_parse(const void *data, size_t size, struct hello *out);

#endif
