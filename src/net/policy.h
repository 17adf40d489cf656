/*
 * An egress policy: what a sandbox may reach. It is stored in the catalog, and sent to the leash, as JSON text:
 *
 *   {"mode":"allow","allow":["example.com","*.example.com:8443","10.1.2.0/24:5432","1.2.3.4"],
 *    "secrets":[{"name":"TOKEN","hosts":["api.example.com"]},{"name":"KEY","hosts":["*.example.com"],"header":"X-Key"}],
 *    "hold":["api.example.com"],"limits":{"bytes":N,"rate":N,"connections":N},"trust":"PEM"}
 *
 * `off` allows nothing; `allow` allows what the rules name; `open` allows every public address, and more by address
 * rules. A name rule allows TLS and HTTP on ports 80 and 443, or on the given port (":*" for any). An address rule also
 * allows raw TCP and UDP. "*.x" matches every name below x, but not x itself. In mode open, "deny" lists address rules
 * for what is denied nevertheless, unless "allow" lists it.
 *
 * A secret with a header is put into every request to its hosts, and replaces the guest's header of that name. If
 * several hosts match a name, only the headers of the closest match are set.
 *
 * "hold" lists hosts whose changing requests are not sent, but kept in the sandbox's queue of effects (leash_hold.c). It
 * goes with the mode allow, where every request to a name is read.
 *
 * "trust" has certificates that the guest trusts in addition to its own (trust.h); "" is an explicit none.
 *
 * The values of secrets are never in a policy: see secrets.h.
 */
#ifndef HUSK_POLICY_H
#define HUSK_POLICY_H

#include <netinet/in.h>

#include "base/base.h"

#define POLICY_RULES_MAX 1024
#define POLICY_SECRETS_MAX 64
#define POLICY_HOLDS_MAX 64
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
	char *header; /* the header that carries the value; NULL: the value replaces its placeholder */
};

struct policy {
	enum policy_mode mode;
	struct policy_rule *rules;
	size_t rule_count;
	struct policy_rule *denied; /* address rules; mode open only */
	size_t denied_count;
	struct policy_secret *secrets;
	size_t secret_count;
	struct policy_rule *holds; /* name rules */
	size_t hold_count;
	uint64_t bytes;       /* both ways, over the sandbox's life; 0: no limit */
	uint64_t rate;        /* bytes per second, both directions together; 0: no limit */
	uint32_t connections; /* at one time; never 0 */
	char *trust;          /* PEM, canonical; "": none; NULL: not given, so the machine's default */
};

const char *policy_mode_name(enum policy_mode mode);

/* NULL and "" are mode off. Checks everything: INVALID with the field, the reason and the fix. "mode" defaults to
 * `allow` if there are rules, else to `off`. */
int policy_parse(const char *json, struct policy **out, struct husk_error *err);
/* In canonical form: names in lower case, no duplicate rules, only limits that are set. Caller frees; NULL: no
 * memory. */
char *policy_text(const struct policy *policy);
void policy_free(struct policy *policy); /* NULL is allowed */

/* Back to text; caller frees. */
char *policy_rule_text(const struct policy_rule *rule);

/* A host name in lower case without a final dot, into out[POLICY_NAME_MAX + 1]. -1 if it is not a host name. */
int policy_name_normalise(const char *name, size_t size, char *out);

/* True if TLS or HTTP to this name (normalised) on this port is allowed. Checks names only. `port` 0: true if any port
 * is allowed, which decides whether the name is resolved. */
bool policy_allows_name(const struct policy *policy, const char *name, uint16_t port);

/* Kinds of addresses; only PLACE_PUBLIC may be reached without an explicit rule. */
enum policy_place {
	PLACE_PUBLIC,
	PLACE_PRIVATE, /* private and shared ranges, link-local, metadata, multicast, reserved */
	PLACE_HOST,    /* an address of this host, including loopback; the caller finds it out */
};
enum policy_place policy_place(uint32_t address); /* host byte order; PLACE_HOST only for 127/8 */
/* True if the address rules alone allow this address (listed, or public in mode open). A special range is allowed only
 * by a rule within that range, an address of the host only by a rule for exactly that address. */
bool policy_allows_address(const struct policy *policy, uint32_t address, uint16_t port, enum policy_place place);

/* The same without mode open: true if the address is listed. */
bool policy_lists_address(const struct policy *policy, uint32_t address, uint16_t port, enum policy_place place);

/* True if changing requests to this name on this port are held. */
bool policy_holds(const struct policy *policy, const char *name, uint16_t port);
/* True if the leash opens TLS to some hosts, so that the guest must trust the sandbox's own authority. */
bool policy_opens_tls(const struct policy *policy);

/* The secrets that requests to this name on this port may carry: an index from `from` on, or -1. A host without a port
 * means port 443. */
int policy_secret_for(const struct policy *policy, const char *name, uint16_t port, size_t from);
/* Of the secrets with a header, those that requests to this name get: an index from `from` on, or -1. */
int policy_header_for(const struct policy *policy, const char *name, uint16_t port, size_t from);

#endif
