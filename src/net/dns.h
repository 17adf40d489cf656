/*
 * DNS messages, as far as a resolver for one guest needs them. Queries come from a hostile guest, answers from a network
 * that may be hostile too: every length and every pointer is checked.
 */
#ifndef HUSK_DNS_H
#define HUSK_DNS_H

#include "base/base.h"
#include "net/policy.h"

#define DNS_MESSAGE_MAX 65535u
#define DNS_UDP_MAX 4096u
#define DNS_UDP_PLAIN 512u /* what a client takes that does not say more */
#define DNS_ADDRESSES_MAX 32

enum { DNS_A = 1, DNS_AAAA = 28, DNS_OPT = 41, DNS_SVCB = 64, DNS_HTTPS = 65, DNS_TRANSFERS = 250 };
enum { DNS_NOERROR = 0, DNS_FORMERR = 1, DNS_SERVFAIL = 2, DNS_NXDOMAIN = 3, DNS_NOTIMP = 4, DNS_REFUSED = 5 };

struct dns_query {
	uint16_t id, flags, type, class;
	char name[POLICY_NAME_MAX + 1];        /* normalised; "" when it is the root or no host name */
	uint8_t question[POLICY_NAME_MAX + 8]; /* as it came, so that the answer repeats it to the letter */
	size_t question_size;
	bool edns;
	uint16_t udp_max; /* how long an answer it takes over UDP */
};
/* -1 when it is nothing that can be answered. An answer to something odd but readable is FORMERR: *rcode says so. */
int dns_query_parse(const void *data, size_t size, struct dns_query *out, int *rcode);

/* Our own question to a resolver, into out[DNS_UDP_PLAIN]; its size, or 0. */
size_t dns_build_query(uint8_t *out, uint16_t id, const char *name, uint16_t type);

struct dns_answer {
	int rcode;
	bool truncated;
	uint32_t addresses[DNS_ADDRESSES_MAX]; /* host byte order; of the name itself or of what its aliases lead to */
	size_t count;
	uint32_t ttl; /* the shortest on the way */
};
/* Is this the answer to that question? -1: no, or it makes no sense. */
int dns_answer_parse(const void *data, size_t size, uint16_t id, const char *name, uint16_t type,
		     struct dns_answer *out);

/* The answer to the guest into out[DNS_MESSAGE_MAX]: these addresses, or a refusal with `why` (may be NULL) for clients
 * that show extended errors. Its size. */
size_t dns_build_answer(uint8_t *out, const struct dns_query *query, int rcode, const uint32_t *addresses, size_t count,
			uint32_t ttl, const char *why);
/* Makes a resolver's answer to our question the guest's: its id, and its question to the letter. */
void dns_readdress(uint8_t *answer, size_t size, const struct dns_query *query);
/* Cuts an answer that is longer than the client takes, and says so in it. Its new size. */
size_t dns_truncate(uint8_t *answer, size_t size, const struct dns_query *query);

#endif
