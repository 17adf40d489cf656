/*
 * Parses the first message of a TLS client, to find out which host it wants. The bytes come from a hostile guest.
 */
#ifndef HUSK_HELLO_H
#define HUSK_HELLO_H

#include "base/base.h"
#include "net/policy.h"

#define HELLO_MAX (64u << 10) /* a complete ClientHello is a few KiB */

enum hello_result { HELLO_OK, HELLO_MORE, HELLO_BAD };

struct hello {
	char name[POLICY_NAME_MAX + 1]; /* normalised; "" if it names no host */
	bool encrypted;                 /* it has an encrypted hello, which may name another host */
};

/* HELLO_MORE: the bytes may become a hello. HELLO_BAD: they cannot, or the name is not a host name. */
enum hello_result hello_parse(const void *data, size_t size, struct hello *out);

#endif
