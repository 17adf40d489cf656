/*
 * The part of DNS that a resolver for one guest needs. Queries come from a hostile guest, and answers from a network
 * that may be hostile: every length and every pointer is checked.
 */
#ifndef HUSK_DNS_H
#define HUSK_DNS_H

#include "base/base.h"
#include "net/policy.h"

#define DNS_MESSAGE_MAX 65535u
#define DNS_UDP_MAX 4096u
#define DNS_UDP_PLAIN 512u /* maximum size for a client that announces no other */
#define DNS_ADDRESSES_MAX 32

enum { DNS_A = 1, DNS_AAAA = 28, DNS_OPT = 41, DNS_SVCB = 64, DNS_HTTPS = 65, DNS_TRANSFERS = 250 };
enum { DNS_NOERROR = 0, DNS_FORMERR = 1, DNS_SERVFAIL = 2, DNS_NXDOMAIN = 3, DNS_NOTIMP = 4, DNS_REFUSED = 5 };

struct dns_query {
	uint16_t id, flags, type, class;
	char name[POLICY_NAME_MAX + 1];        /* normalised; "" for the root, or if it is not a host name */
	uint8_t question[POLICY_NAME_MAX + 8]; /* as received, so that the answer repeats it exactly */
	size_t question_size;
	bool edns;
	uint16_t udp_max; /* maximum size of an answer over UDP */
};
/* -1 if the query cannot be answered. *rcode is FORMERR for an invalid query that can be answered. */
int dns_query_parse(const void *data, size_t size, struct dns_query *out, int *rcode);

/* Builds a question to a resolver in out[DNS_UDP_PLAIN]; returns its size, or 0. */
size_t dns_build_query(uint8_t *out, uint16_t id, const char *name, uint16_t type);

struct dns_answer {
	int rcode;
	bool truncated;
	uint32_t addresses[DNS_ADDRESSES_MAX]; /* host byte order; of the name itself or of its aliases */
	size_t count;
	uint32_t ttl; /* the shortest of all records used */
};
/* Parses the answer to this question. -1: another question's answer, or malformed. */
int dns_answer_parse(const void *data, size_t size, uint16_t id, const char *name, uint16_t type,
		     struct dns_answer *out);

/* Builds the answer to the guest in out[DNS_MESSAGE_MAX]: these addresses, or a refusal with `why` (may be NULL) for
 * clients that show extended errors. Returns its size. */
size_t dns_build_answer(uint8_t *out, const struct dns_query *query, int rcode, const uint32_t *addresses, size_t count,
			uint32_t ttl, const char *why);
/* Turns a resolver's answer into the guest's: with the id and the exact question of the guest. */
void dns_readdress(uint8_t *answer, size_t size, const struct dns_query *query);
/* Cuts an answer that is longer than the client accepts, and marks it as truncated. Returns its new size. */
size_t dns_truncate(uint8_t *answer, size_t size, const struct dns_query *query);

#endif
