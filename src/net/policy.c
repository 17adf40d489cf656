/*
 * Parses, checks and writes egress policies. libhusk calls it on a caller's policy, before anything is created;
 * supervisor and leash call it on the stored policy. Matching is in policy_match.c. A policy with an unknown field must
 * never be accepted, because that field would not be enforced.
 */
#include "net/policy.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <strings.h>

#include "base/jansson.h"
#include "net/trust.h"

#define RATE_MIN 1024
#define LABEL_MAX 63

static const char *const mode_names[] = { [POLICY_OFF] = "off", [POLICY_ALLOW] = "allow", [POLICY_OPEN] = "open" };

const char *policy_mode_name(enum policy_mode mode)
{
	return mode_names[mode];
}

/* ---- names ---- */

static bool is_label(const char *label, size_t size)
{
	if (size == 0 || size > LABEL_MAX || label[0] == '-' || label[size - 1] == '-')
		return false;
	for (size_t i = 0; i < size; i++)
		if (!((label[i] >= 'a' && label[i] <= 'z') || (label[i] >= '0' && label[i] <= '9') || label[i] == '-' ||
		      label[i] == '_'))
			return false;
	return true;
}

int policy_name_normalise(const char *name, size_t size, char *out)
{
	if (size > 0 && name[size - 1] == '.')
		size--;
	if (size == 0 || size > POLICY_NAME_MAX)
		return -1;
	for (size_t i = 0; i < size; i++)
		out[i] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] - 'A' + 'a') : name[i];
	out[size] = '\0';
	for (size_t start = 0; start <= size;) {
		size_t length = strcspn(out + start, ".");

		if (!is_label(out + start, length))
			return -1;
		start += length + 1;
	}
	/* A NUL byte in the name would have ended the string early. */
	return strlen(out) == size ? 0 : -1;
}

/* ---- one rule ---- */

/* Removes ":443" or ":*" from the end of `text`. */
static int take_port(char *text, const char *whole, const char *field, struct policy_rule *rule, struct husk_error *err)
{
	char *colon = strchr(text, ':');
	int64_t port;

	rule->web_ports = !colon;
	if (!colon)
		return 0;
	if (text[0] == '[' || strchr(colon + 1, ':'))
		return husk_fail(err, HUSK_INVALID,
				 "%s: '%.80s' is an ipv6 address, which sandboxes cannot reach; give the ipv4 one",
				 field, whole);
	*colon = '\0';
	if (str_equal(colon + 1, "*"))
		return 0;
	if (str_to_int64(colon + 1, 1, 65535, &port) < 0)
		return husk_fail(err, HUSK_INVALID, "%s: '%.80s' has a bad port; write 1 to 65535, or * for any", field,
				 whole);
	rule->port = (uint16_t)port;
	return 0;
}

static int parse_network(char *text, const char *whole, const char *field, struct policy_rule *rule,
			 struct husk_error *err)
{
	char *slash = strchr(text, '/');
	struct in_addr address;
	int64_t bits = 32;

	if (slash)
		*slash = '\0';
	if (inet_pton(AF_INET, text, &address) != 1)
		return husk_fail(err, HUSK_INVALID, "%s: '%.80s' is not an ipv4 address or range like 10.1.2.0/24",
				 field, whole);
	if (slash && str_to_int64(slash + 1, 0, 32, &bits) < 0)
		return husk_fail(err, HUSK_INVALID, "%s: '%.80s' has a bad prefix length; write 0 to 32", field, whole);
	rule->network = ntohl(address.s_addr);
	rule->mask = bits ? UINT32_MAX << (32 - bits) : 0;
	rule->web_ports = false;
	if (rule->network & ~rule->mask) {
		char plain[INET_ADDRSTRLEN];

		address.s_addr = htonl(rule->network & rule->mask);
		inet_ntop(AF_INET, &address, plain, sizeof(plain));
		return husk_fail(err, HUSK_INVALID, "%s: '%.80s' has bits beyond its prefix; write %s/%d or %s/32",
				 field, whole, plain, (int)bits, text);
	}
	return 0;
}

/* Explains the most common mistakes in a name. */
static int refuse_name(const char *whole, const char *field, struct husk_error *err)
{
	for (const char *c = whole; *c; c++)
		if ((unsigned char)*c >= 0x80)
			return husk_fail(err, HUSK_INVALID, "%s: '%.80s' is not ascii; write the name's xn-- form",
					 field, whole);
	if (strchr(whole, '/'))
		return husk_fail(err, HUSK_INVALID, "%s: '%.80s' is not a host; write the name alone, like example.com",
				 field, whole);
	if (strchr(whole, '*'))
		return husk_fail(err, HUSK_INVALID,
				 "%s: '%.80s' has a wildcard that is not at the front; write *.example.com", field,
				 whole);
	return husk_fail(err, HUSK_INVALID,
			 "%s: '%.80s' is not a host name: labels of 1 to 63 letters, digits, - and _, joined by dots",
			 field, whole);
}

static int parse_name(const char *text, const char *whole, const char *field, struct policy_rule *rule,
		      struct husk_error *err)
{
	char name[POLICY_NAME_MAX + 1];

	rule->below = str_starts(text, "*.");
	if (rule->below)
		text += 2;
	if (str_equal(text, "*"))
		return husk_fail(err, HUSK_INVALID, "%s: '*' is every name; use the mode open for that", field);
	if (policy_name_normalise(text, strlen(text), name) < 0)
		return refuse_name(whole, field, err);
	const char *last = strrchr(name, '.');
	if (!last && rule->below)
		return husk_fail(err, HUSK_INVALID,
				 "%s: '%.80s' is too wide; name a domain below it, like *.example.%s", field, whole,
				 name);
	if (!last)
		return husk_fail(err, HUSK_INVALID, "%s: '%.80s' has no dot; write the full name", field, whole);
	if (!(last[1] >= 'a' && last[1] <= 'z'))
		return husk_fail(err, HUSK_INVALID, "%s: '%.80s' is neither a name nor an ipv4 address", field, whole);
	rule->name = strdup(name);
	return rule->name ? 0 : husk_fail_memory(err);
}

/* Parses a rule: "*.example.com:8443", "10.1.2.0/24". `field` names it in the error. */
static int policy_rule_parse(const char *text, const char *field, struct policy_rule *out, struct husk_error *err)
{
	struct policy_rule rule = { 0 };

	if (!text || !*text)
		return husk_fail(err, HUSK_INVALID, "%s: an empty rule; write a name, an address or a range", field);
	if (strstr(text, "://"))
		return refuse_name(text, field, err);
	cleanup_free char *copy = strdup(text);
	if (!copy)
		return husk_fail_memory(err);
	if (take_port(copy, text, field, &rule, err) < 0)
		return -1;
	bool numeric = isdigit((unsigned char)copy[0]) && copy[strspn(copy, "0123456789./")] == '\0';
	if ((numeric ? parse_network(copy, text, field, &rule, err) : parse_name(copy, text, field, &rule, err)) < 0)
		return -1;
	*out = rule;
	return 0;
}

char *policy_rule_text(const struct policy_rule *rule)
{
	char address[INET_ADDRSTRLEN], prefix[8] = "", port[8] = "";
	struct in_addr network = { htonl(rule->network) };

	if (rule->port)
		snprintf(port, sizeof(port), ":%u", rule->port);
	if (rule->name)
		return str_format("%s%s%s", rule->below ? "*." : "", rule->name,
				  rule->port || rule->web_ports ? port : ":*");
	inet_ntop(AF_INET, &network, address, sizeof(address));
	if (rule->mask != UINT32_MAX)
		snprintf(prefix, sizeof(prefix), "/%d", __builtin_popcount(rule->mask));
	return str_format("%s%s%s", address, prefix, port);
}

static bool rule_equal(const struct policy_rule *a, const struct policy_rule *b)
{
	return (a->name ? str_equal(a->name, b->name) : !b->name) && a->below == b->below && a->network == b->network &&
	       a->mask == b->mask && a->port == b->port && a->web_ports == b->web_ports;
}

/* ---- JSON in ---- */

static int check_keys(json_t *object, const char *where, const char *const *known, size_t count, struct husk_error *err)
{
	const char *key, *near;
	json_t *value;

	json_object_foreach(object, key, value)
	{
		bool found = false;

		for (size_t i = 0; i < count; i++)
			found = found || str_equal(key, known[i]);
		if (found)
			continue;
		near = str_nearest(key, known, count);
		return husk_fail(err, HUSK_INVALID, "%s has no field '%.64s'%s%s%s", where, key,
				 near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
	}
	return 0;
}

/* A list of rules. `no_address`: why none may be an address; NULL: each may. */
static int parse_rules(json_t *list, const char *field, size_t max, const char *no_address, struct policy_rule **out,
		       size_t *count, struct husk_error *err)
{
	size_t index;
	json_t *item;

	if (!list)
		return 0;
	if (!json_is_array(list) || json_array_size(list) > max)
		return husk_fail(err, HUSK_INVALID, "%s must be a list of at most %zu rules", field, max);
	*out = calloc(json_array_size(list) + 1, sizeof(**out));
	if (!*out)
		return husk_fail_memory(err);
	json_array_foreach(list, index, item)
	{
		struct policy_rule *rule = &(*out)[*count];
		bool twice = false;

		if (!json_is_string(item) || strlen(json_string_value(item)) != json_string_length(item))
			return husk_fail(err, HUSK_INVALID, "%s: rule %zu is not a string", field, index + 1);
		if (policy_rule_parse(json_string_value(item), field, rule, err) < 0)
			return -1;
		for (size_t i = 0; i < *count; i++)
			twice = twice || rule_equal(&(*out)[i], rule);
		if (twice)
			free(steal_pointer(rule->name));
		else
			++*count;
		if (no_address && !rule->name && !twice)
			return husk_fail(err, HUSK_INVALID, "%s: '%s' is an address; %s", field,
					 json_string_value(item), no_address);
	}
	return 0;
}

static int parse_number(json_t *limits, const char *key, uint64_t min, uint64_t max, uint64_t *out,
			struct husk_error *err)
{
	json_t *value = json_object_get(limits, key);

	if (!value)
		return 0;
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return husk_fail(err, HUSK_INVALID, "egress limits.%s must be a whole number, not below 0", key);
	uint64_t number = (uint64_t)json_integer_value(value);
	if (number && (number < min || number > max))
		return husk_fail(err, HUSK_INVALID, "egress limits.%s is %llu; it must be 0 or %llu to %llu", key,
				 (unsigned long long)number, (unsigned long long)min, (unsigned long long)max);
	*out = number ? number : *out;
	return 0;
}

static int parse_limits(json_t *root, struct policy *policy, struct husk_error *err)
{
	static const char *const known[] = { "bytes", "rate", "connections" };
	json_t *limits = json_object_get(root, "limits");
	uint64_t connections = POLICY_CONNECTIONS_DEFAULT;

	if (limits && !json_is_object(limits))
		return husk_fail(err, HUSK_INVALID, "egress limits must be an object");
	if (limits && check_keys(limits, "egress limits", known, ARRAY_SIZE(known), err) < 0)
		return -1;
	if (parse_number(limits, "bytes", 1, INT64_MAX, &policy->bytes, err) < 0 ||
	    parse_number(limits, "rate", RATE_MIN, INT64_MAX / 1000000, &policy->rate, err) < 0 ||
	    parse_number(limits, "connections", 1, POLICY_CONNECTIONS_MAX, &connections, err) < 0)
		return -1;
	policy->connections = (uint32_t)connections;
	return 0;
}

static bool is_variable(const char *name)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
	static const char more[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";

	return strspn(name, letters) > 0 && name[strspn(name, more)] == '\0' && strlen(name) <= 128;
}

/* Only the leash may write headers about the end or the destination of a request. */
static bool is_header(const char *name)
{
	static const char *const ours[] = {
		"host",    "connection", "content-length",  "transfer-encoding", "te",    "trailer",
		"upgrade", "keep-alive", "accept-encoding", "http2-settings",    "expect"
	};

	for (size_t i = 0; i < ARRAY_SIZE(ours); i++)
		if (strcasecmp(name, ours[i]) == 0)
			return false;
	for (const char *c = name; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr("!#$%&'*+-.^_`|~", *c))
			return false;
	return *name && strlen(name) <= 128 && strncasecmp(name, "proxy-", 6) != 0;
}

static int parse_header(json_t *item, struct policy_secret *secret, struct husk_error *err)
{
	json_t *value = json_object_get(item, "header");
	const char *header = json_string_value(value);

	if (!value)
		return 0;
	if (!header || !is_header(header))
		return husk_fail(err, HUSK_INVALID, "egress secret '%s': '%.64s' is not a header that can be set",
				 secret->name, header ? header : "?");
	secret->header = strdup(header);
	return secret->header ? 0 : husk_fail_memory(err);
}

static int parse_secret(json_t *item, struct policy *policy, struct husk_error *err)
{
	static const char *const known[] = { "name", "hosts", "header" };
	struct policy_secret *secret = &policy->secrets[policy->secret_count];
	const char *name = json_string_value(json_object_get(item, "name"));

	if (!json_is_object(item) || !name || !is_variable(name))
		return husk_fail(err, HUSK_INVALID,
				 "egress secret %zu needs a name of letters, digits and _, not starting with a digit",
				 policy->secret_count + 1);
	if (check_keys(item, "an egress secret", known, ARRAY_SIZE(known), err) < 0)
		return -1;
	for (size_t i = 0; i < policy->secret_count; i++)
		if (str_equal(policy->secrets[i].name, name))
			return husk_fail(err, HUSK_INVALID,
					 "egress secret '%s' is given twice; give it once with all its hosts", name);
	secret->name = strdup(name);
	if (!secret->name)
		return husk_fail_memory(err);
	policy->secret_count++;
	if (parse_header(item, secret, err) < 0)
		return -1;
	cleanup_free char *field = str_format("egress secret '%s'", name);
	if (!field)
		return husk_fail_memory(err);
	if (parse_rules(json_object_get(item, "hosts"), field, POLICY_RULES_MAX, "a secret belongs to a host's name",
			&secret->hosts, &secret->host_count, err) < 0)
		return -1;
	if (secret->host_count == 0)
		return husk_fail(err, HUSK_INVALID, "%s has no host; write NAME=VALUE@host", field);
	return 0;
}

static int parse_secrets(json_t *root, struct policy *policy, struct husk_error *err)
{
	json_t *list = json_object_get(root, "secrets"), *item;
	size_t index;

	if (!list)
		return 0;
	if (!json_is_array(list) || json_array_size(list) > POLICY_SECRETS_MAX)
		return husk_fail(err, HUSK_INVALID, "egress secrets must be a list of at most %d", POLICY_SECRETS_MAX);
	policy->secrets = calloc(json_array_size(list) + 1, sizeof(*policy->secrets));
	if (!policy->secrets)
		return husk_fail_memory(err);
	json_array_foreach(list, index, item)
	{
		if (parse_secret(item, policy, err) < 0)
			return -1;
	}
	return 0;
}

static int parse_mode(json_t *root, struct policy *policy, struct husk_error *err)
{
	json_t *value = json_object_get(root, "mode");
	const char *text = json_string_value(value);

	if (!value) {
		policy->mode = policy->rule_count ? POLICY_ALLOW : POLICY_OFF;
		return 0;
	}
	for (size_t mode = 0; text && mode < ARRAY_SIZE(mode_names); mode++) {
		if (str_equal(text, mode_names[mode])) {
			policy->mode = (enum policy_mode)mode;
			return 0;
		}
	}
	return husk_fail(err, HUSK_INVALID, "egress mode '%.64s' is unknown; it is off, allow or open",
			 text ? text : "?");
}

static int parse_trust(json_t *root, struct policy *policy, struct husk_error *err)
{
	json_t *value = json_object_get(root, "trust");
	const char *text = json_string_value(value);

	if (!value)
		return 0;
	if (!text || strlen(text) != json_string_length(value))
		return husk_fail(err, HUSK_INVALID, "egress trust must be a string: certificates as PEM");
	return trust_read(text, "egress trust", &policy->trust, err);
}

/* ---- settings that conflict ---- */

/* True if a rule of the policy allows all names of this host rule, over TLS. */
static bool host_is_allowed(const struct policy *policy, const struct policy_rule *host)
{
	if (policy->mode == POLICY_OPEN)
		return true;
	/* A wildcard is allowed by a wildcard at its level or above: this checks one name below it. */
	cleanup_free char *probe = str_format("%s%s", host->below ? "-." : "", host->name);

	return probe && policy_allows_name(policy, probe, host->port ? host->port : 443);
}

/* Only what is read can be held: in the mode allow, all that goes to a name. */
static int check_holds(const struct policy *policy, struct husk_error *err)
{
	if (policy->hold_count && policy->mode != POLICY_ALLOW)
		return husk_fail(err, HUSK_INVALID,
				 "egress hold goes with the mode allow; in the mode open a program could reach a held "
				 "host by its address, unread: list the hosts with allow");
	for (size_t i = 0; i < policy->hold_count; i++) {
		cleanup_free char *host = policy_rule_text(&policy->holds[i]);

		if (!host_is_allowed(policy, &policy->holds[i]))
			return husk_fail(err, HUSK_INVALID,
					 "egress hold: no rule allows %s; add the rule '%s', or drop it from hold",
					 host ? host : "a host", host ? host : "");
	}
	return 0;
}

static int check_conflicts(const struct policy *policy, struct husk_error *err)
{
	if (policy->mode == POLICY_OFF && (policy->rule_count || policy->secret_count))
		return husk_fail(err, HUSK_INVALID,
				 "egress mode off goes with no rules and no secrets; use the mode allow, or drop them");
	if (policy->mode != POLICY_OPEN && policy->denied_count)
		return husk_fail(err, HUSK_INVALID,
				 "egress deny goes with the mode open; the others reach what is listed");
	for (size_t i = 0; i < policy->denied_count; i++)
		if (policy->denied[i].name)
			return husk_fail(
				err, HUSK_INVALID,
				"egress deny: '%s' is a name; what is not to be reached is denied by its addresses",
				policy->denied[i].name);
	for (size_t i = 0; policy->mode == POLICY_OPEN && i < policy->rule_count; i++)
		if (policy->rules[i].name)
			return husk_fail(
				err, HUSK_INVALID,
				"egress mode open reaches every name, so the rule '%s' says nothing; drop it, or use "
				"the mode allow",
				policy->rules[i].name);
	for (size_t s = 0; s < policy->secret_count; s++)
		for (size_t i = 0; i < policy->secrets[s].host_count; i++) {
			cleanup_free char *host = policy_rule_text(&policy->secrets[s].hosts[i]);

			if (!host_is_allowed(policy, &policy->secrets[s].hosts[i]))
				return husk_fail(
					err, HUSK_INVALID,
					"egress secret '%s' is for %s, which no rule allows; add the rule '%s'",
					policy->secrets[s].name, host ? host : "a host", host ? host : "");
		}
	return check_holds(policy, err);
}

static int parse_all(json_t *root, struct policy *policy, struct husk_error *err)
{
	static const char *const known[] = { "mode", "allow", "deny", "secrets", "hold", "limits", "trust" };

	if (check_keys(root, "the egress policy", known, ARRAY_SIZE(known), err) < 0 ||
	    parse_rules(json_object_get(root, "allow"), "egress allow", POLICY_RULES_MAX, NULL, &policy->rules,
			&policy->rule_count, err) < 0 ||
	    parse_rules(json_object_get(root, "deny"), "egress deny", POLICY_RULES_MAX, NULL, &policy->denied,
			&policy->denied_count, err) < 0 ||
	    parse_rules(json_object_get(root, "hold"), "egress hold", POLICY_HOLDS_MAX,
			"requests are read, and can be held, only by a host's name", &policy->holds,
			&policy->hold_count, err) < 0 ||
	    parse_secrets(root, policy, err) < 0 || parse_limits(root, policy, err) < 0 ||
	    parse_mode(root, policy, err) < 0 || parse_trust(root, policy, err) < 0)
		return -1;
	return check_conflicts(policy, err);
}

int policy_parse(const char *json, struct policy **out, struct husk_error *err)
{
	json_error_t why;
	bool empty = !json || !*json;

	if (!empty && strlen(json) > POLICY_TEXT_MAX)
		return husk_fail(err, HUSK_INVALID, "the egress policy is longer than %u bytes", POLICY_TEXT_MAX);
	cleanup_json json_t *root = empty ? json_object() : json_loads(json, JSON_REJECT_DUPLICATES, &why);
	if (!root && empty)
		return husk_fail_memory(err);
	if (!json_is_object(root))
		return husk_fail(err, HUSK_INVALID, "the egress policy is not a JSON object%s%s", root ? "" : ": ",
				 root ? "" : why.text);
	struct policy *policy = calloc(1, sizeof(*policy));
	if (!policy)
		return husk_fail_memory(err);
	if (parse_all(root, policy, err) < 0) {
		policy_free(policy);
		return -1;
	}
	*out = policy;
	return 0;
}

static void rules_free(struct policy_rule *rules, size_t count)
{
	for (size_t i = 0; rules && i < count; i++)
		free(rules[i].name);
	free(rules);
}

void policy_free(struct policy *policy)
{
	if (!policy)
		return;
	rules_free(policy->rules, policy->rule_count);
	rules_free(policy->denied, policy->denied_count);
	for (size_t i = 0; i < policy->secret_count; i++) {
		free(policy->secrets[i].name);
		free(policy->secrets[i].header);
		rules_free(policy->secrets[i].hosts, policy->secrets[i].host_count);
	}
	free(policy->secrets);
	rules_free(policy->holds, policy->hold_count);
	free(policy->trust);
	free(policy);
}

/* ---- JSON out ---- */

static json_t *rules_json(const struct policy_rule *rules, size_t count)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < count; i++) {
		cleanup_free char *text = policy_rule_text(&rules[i]);

		if (!text || json_array_append_new(list, json_string(text)) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

static json_t *secrets_json(const struct policy *policy)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < policy->secret_count; i++) {
		const struct policy_secret *secret = &policy->secrets[i];

		if (json_array_append_new(list, json_pack("{s:s,s:o,s:s*}", "name", secret->name, "hosts",
							  rules_json(secret->hosts, secret->host_count), "header",
							  secret->header)) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

static json_t *limits_json(const struct policy *policy)
{
	json_t *limits = json_object();
	int bad = limits ? 0 : -1;

	if (policy->bytes)
		bad |= json_object_set_new(limits, "bytes", json_integer((json_int_t)policy->bytes));
	if (policy->rate)
		bad |= json_object_set_new(limits, "rate", json_integer((json_int_t)policy->rate));
	if (policy->connections != POLICY_CONNECTIONS_DEFAULT)
		bad |= json_object_set_new(limits, "connections", json_integer(policy->connections));
	if (bad)
		json_decref(limits);
	return bad ? NULL : limits;
}

char *policy_text(const struct policy *policy)
{
	cleanup_json json_t *root = json_pack("{s:s}", "mode", mode_names[policy->mode]);
	json_t *limits = limits_json(policy);
	int bad = root && limits ? 0 : -1;

	if (policy->rule_count)
		bad |= json_object_set_new(root, "allow", rules_json(policy->rules, policy->rule_count));
	if (policy->denied_count)
		bad |= json_object_set_new(root, "deny", rules_json(policy->denied, policy->denied_count));
	if (policy->secret_count)
		bad |= json_object_set_new(root, "secrets", secrets_json(policy));
	if (policy->hold_count)
		bad |= json_object_set_new(root, "hold", rules_json(policy->holds, policy->hold_count));
	if (json_object_size(limits))
		bad |= json_object_set(root, "limits", limits);
	json_decref(limits);
	if (policy->trust)
		bad |= json_object_set_new(root, "trust", json_string(policy->trust));
	return bad ? NULL : json_dumps(root, JSON_COMPACT);
}
