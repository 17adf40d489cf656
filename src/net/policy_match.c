/*
 * Decides whether a policy allows a name or an address. The leash asks for each lookup, connection and datagram. The
 * functions are pure: they use their arguments only, and deny everything that they do not recognise.
 */
#include "net/policy.h"

struct range {
	uint32_t network;
	int bits;
};

/* Denied to a guest unless an address is listed explicitly. Documentation ranges have no hosts, and count as public. */
static const struct range special[] = {
	{ 0x00000000, 8 },  /* 0.0.0.0/8: "this host" */
	{ 0x0a000000, 8 },  /* 10.0.0.0/8 */
	{ 0x64400000, 10 }, /* 100.64.0.0/10: carriers, overlay networks, one cloud's metadata */
	{ 0x7f000000, 8 },  /* 127.0.0.0/8 */
	{ 0xa83f8110, 32 }, /* 168.63.129.16: a cloud's metadata at a public address */
	{ 0xa9fe0000, 16 }, /* 169.254.0.0/16: link-local, cloud metadata */
	{ 0xac100000, 12 }, /* 172.16.0.0/12 */
	{ 0xc0000000, 24 }, /* 192.0.0.0/24: protocol assignments, one cloud's metadata */
	{ 0xc0a80000, 16 }, /* 192.168.0.0/16 */
	{ 0xc6120000, 15 }, /* 198.18.0.0/15: benchmarks, and addresses of local proxies */
	{ 0xe0000000, 3 },  /* 224.0.0.0/3: multicast, reserved, broadcast */
};

static uint32_t mask_of(int bits)
{
	return bits ? UINT32_MAX << (32 - bits) : 0;
}

static const struct range *special_range(uint32_t address)
{
	for (size_t i = 0; i < ARRAY_SIZE(special); i++)
		if ((address & mask_of(special[i].bits)) == special[i].network)
			return &special[i];
	return NULL;
}

enum policy_place policy_place(uint32_t address)
{
	if (address >> 24 == 127)
		return PLACE_HOST;
	return special_range(address) ? PLACE_PRIVATE : PLACE_PUBLIC;
}

static bool rule_has_port(const struct policy_rule *rule, uint16_t port)
{
	if (port == 0)
		return true;
	if (rule->web_ports)
		return port == 80 || port == 443;
	return rule->port == 0 || rule->port == port;
}

static bool rule_has_name(const struct policy_rule *rule, const char *name)
{
	size_t length = strlen(name), tail;

	if (!rule->name)
		return false;
	if (!rule->below)
		return strcmp(rule->name, name) == 0;
	tail = strlen(rule->name);
	return length > tail + 1 && name[length - tail - 1] == '.' && strcmp(name + length - tail, rule->name) == 0;
}

bool policy_allows_name(const struct policy *policy, const char *name, uint16_t port)
{
	if (policy->mode == POLICY_OPEN)
		return true;
	if (policy->mode != POLICY_ALLOW)
		return false;
	for (size_t i = 0; i < policy->rule_count; i++)
		if (rule_has_name(&policy->rules[i], name) && rule_has_port(&policy->rules[i], port))
			return true;
	return false;
}

/* True if the rule is narrow enough to mean an address of this kind. */
static bool rule_means(const struct policy_rule *rule, uint32_t address, enum policy_place place)
{
	const struct range *range = special_range(address);

	if (place == PLACE_HOST)
		return rule->mask == UINT32_MAX;
	return !range || __builtin_popcount(rule->mask) >= range->bits;
}

static bool denies(const struct policy *policy, uint32_t address, uint16_t port)
{
	for (size_t i = 0; i < policy->denied_count; i++)
		if ((address & policy->denied[i].mask) == policy->denied[i].network &&
		    rule_has_port(&policy->denied[i], port))
			return true;
	return false;
}

bool policy_allows_address(const struct policy *policy, uint32_t address, uint16_t port, enum policy_place place)
{
	if (policy->mode == POLICY_OPEN && place == PLACE_PUBLIC && !denies(policy, address, port))
		return true;
	return policy_lists_address(policy, address, port, place);
}

bool policy_lists_address(const struct policy *policy, uint32_t address, uint16_t port, enum policy_place place)
{
	if (policy->mode == POLICY_OFF)
		return false;
	for (size_t i = 0; i < policy->rule_count; i++) {
		const struct policy_rule *rule = &policy->rules[i];

		if (!rule->name && (address & rule->mask) == rule->network && rule_has_port(rule, port) &&
		    rule_means(rule, address, place))
			return true;
	}
	return false;
}

bool policy_holds(const struct policy *policy, const char *name, uint16_t port)
{
	for (size_t i = 0; i < policy->hold_count; i++)
		if (rule_has_name(&policy->holds[i], name) && rule_has_port(&policy->holds[i], port))
			return true;
	return false;
}

bool policy_opens_tls(const struct policy *policy)
{
	return policy->secret_count || policy->hold_count;
}

int policy_secret_for(const struct policy *policy, const char *name, uint16_t port, size_t from)
{
	for (size_t i = from; i < policy->secret_count; i++)
		for (size_t h = 0; h < policy->secrets[i].host_count; h++) {
			const struct policy_rule *host = &policy->secrets[i].hosts[h];

			if (rule_has_name(host, name) && rule_has_port(host, port))
				return (int)i;
		}
	return -1;
}

/* How closely the secret's hosts match the name; 0: no match. */
static size_t closeness(const struct policy_secret *secret, const char *name, uint16_t port)
{
	size_t best = 0;

	for (size_t i = 0; i < secret->host_count; i++) {
		const struct policy_rule *host = &secret->hosts[i];

		if (rule_has_name(host, name) && rule_has_port(host, port))
			best = MAX(best, host->below ? strlen(host->name) : SIZE_MAX);
	}
	return best;
}

int policy_header_for(const struct policy *policy, const char *name, uint16_t port, size_t from)
{
	size_t best = 1;

	for (size_t i = 0; i < policy->secret_count; i++)
		if (policy->secrets[i].header)
			best = MAX(best, closeness(&policy->secrets[i], name, port));
	for (size_t i = from; i < policy->secret_count; i++)
		if (policy->secrets[i].header && closeness(&policy->secrets[i], name, port) == best)
			return (int)i;
	return -1;
}
