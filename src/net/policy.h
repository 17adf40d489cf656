/*
 * An egress policy: what a sandbox may reach. Read from and written as JSON text, which is what the catalog keeps and
 * what the leash gets:
 *
 *   {"mode":"allow","allow":["example.com","*.example.com:8443","10.1.2.0/24:5432","1.2.3.4"],
 *    "secrets":[{"name":"TOKEN","hosts":["api.example.com"]},{"name":"KEY","hosts":["*.example.com"],"header":"X-Key"}],
 *    "limits":{"bytes":N,"rate":N,"connections":N}}
 *
 * `off` reaches nothing; `allow` what the rules name; `open` every public address, and by address rules more. A name rule
 * stands for TLS and HTTP on ports 80 and 443, or on the port it gives (":*" for any); an address rule for raw TCP and UDP
 * too. "*.x" stands for every name below x, not x itself. In mode open, "deny" lists address rules for what is not reached
 * all the same, unless "allow" lists it.
 *
 * A secret with a header is put into every request to its hosts, in place of what the guest sent under that name. Of several
 * hosts that stand for a name the closest one's headers are set, and no others.
 *
 * The values of secrets are never in here: see secrets.h.
 */
#ifndef HUSK_POLICY_H
#define HUSK_POLICY_H

#include <netinet/in.h>

#include "base/base.h"

#define POLICY_RULES_MAX 1024
#define POLICY_SECRETS_MAX 64
#define POLICY_TEXT_MAX (128u << 10)
#define POLICY_NAME_MAX 253
#define POLICY_CONNECTIONS_DEFAULT 512
#define POLICY_CONNECTIONS_MAX 4096

enum policy_mode { POLICY_OFF, POLICY_ALLOW, POLICY_OPEN };

struct policy_rule {
	char *name;             /* lower case, no "*." and no final dot; NULL: an address rule */
	bool below;             /* "*.name" */
	uint32_t network, mask; /* host byte order */
	uint16_t port;          /* 0: any; for names see web_ports */
	bool web_ports;         /* a name without a port: 80 and 443 */
};

struct policy_secret {
	char *name;                /* of the environment variable: [A-Za-z_][A-Za-z0-9_]* */
	struct policy_rule *hosts; /* name rules */
	size_t host_count;
	char *header; /* that it is the value of; NULL: it is swapped for its placeholder */
};

struct policy {
	enum policy_mode mode;
	struct policy_rule *rules;
	size_t rule_count;
	struct policy_rule *denied; /* address rules; mode open only */
	size_t denied_count;
	struct policy_secret *secrets;
	size_t secret_count;
	uint64_t bytes;       /* both ways, over the sandbox's life; 0: no limit */
	uint64_t rate;        /* bytes a second, both ways together; 0: no limit */
	uint32_t connections; /* at one time; never 0 */
};

const char *policy_mode_name(enum policy_mode mode);

/* NULL and "" read as mode off. Checks everything: INVALID with the field, the reason and the fix. Without "mode" it is
 * `allow` when there are rules, else `off`. */
int policy_parse(const char *json, struct policy **out, struct husk_error *err);
/* In its plain form: names lower-cased, no rule twice, limits only where they are set. Caller frees; NULL: no memory. */
char *policy_text(const struct policy *policy);
void policy_free(struct policy *policy); /* NULL is fine */

/* Back to text; caller frees. */
char *policy_rule_text(const struct policy_rule *rule);

/* What a host is called, lower-cased and without a final dot, into out[POLICY_NAME_MAX + 1]. -1 when it is no host name. */
int policy_name_normalise(const char *name, size_t size, char *out);

/* May TLS or HTTP to this name (normalised) on this port go out? Names only; `port` 0 asks whether any port would do, which
 * is what decides whether the name is resolved. */
bool policy_allows_name(const struct policy *policy, const char *name, uint16_t port);

/* Where addresses stand that nobody may reach by accident. */
enum policy_place {
	PLACE_PUBLIC,
	PLACE_PRIVATE, /* private and shared ranges, link-local, metadata, multicast, reserved */
	PLACE_HOST,    /* an address of this host, loopback included: the caller finds that out */
};
enum policy_place policy_place(uint32_t address); /* host byte order; never PLACE_HOST but for 127/8 */
/* May anything go to this address by the rules for addresses alone (listed, or public in mode open)? A special range is
 * opened only by a rule that lies within that range, an address of the host only by a rule for exactly that one. */
bool policy_allows_address(const struct policy *policy, uint32_t address, uint16_t port, enum policy_place place);

/* The same without what the mode open gives: is it on the list? */
bool policy_lists_address(const struct policy *policy, uint32_t address, uint16_t port, enum policy_place place);

/* The secrets that requests to this name on this port may carry: an index from `from` on, or -1. A host without a port
 * means port 443. */
int policy_secret_for(const struct policy *policy, const char *name, uint16_t port, size_t from);
/* Of those with a header, the ones that requests to this name get: an index from `from` on, or -1. */
int policy_header_for(const struct policy *policy, const char *name, uint16_t port, size_t from);

#endif
