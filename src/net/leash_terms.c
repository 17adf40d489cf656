/*
 * The terms of a leash: reads them from the supervisor's message, and holds the one set in force. Secrets stay in memory
 * while their terms are in force, and are wiped with the last flow that uses them. No error text may repeat any part of the
 * terms.
 */
#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <sys/socket.h>

#include "base/jansson.h"
#include "net/authority.h"
#include "net/leash_proxy.h"
#include "net/secrets.h"

void terms_drop(struct terms *terms)
{
	if (!terms || atomic_fetch_sub(&terms->references, 1) != 1)
		return;
	for (size_t i = 0; terms->values && i < terms->policy->secret_count; i++) {
		str_wipe(terms->values[i]);
		free(terms->placeholders ? terms->placeholders[i] : NULL);
	}
	free(terms->values);
	free(terms->placeholders);
	authority_free(terms->authority);
	SSL_CTX_free(terms->client);
	policy_free(terms->policy);
	free(terms);
}

/* "192.0.2.1:53" or "[2001:db8::1]:53". */
static int read_resolver(const char *text, struct resolver *out)
{
	struct sockaddr_in *four = (struct sockaddr_in *)&out->address;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&out->address;
	const char *colon = strrchr(text, ':');
	char address[INET6_ADDRSTRLEN + 2];
	int64_t port;

	if (!colon || (size_t)(colon - text) >= sizeof(address) || str_to_int64(colon + 1, 1, 65535, &port) < 0)
		return -1;
	memcpy(address, text, (size_t)(colon - text));
	address[colon - text] = '\0';
	memset(out, 0, sizeof(*out));
	if (address[0] == '[' && str_ends(address, "]")) {
		address[strlen(address) - 1] = '\0';
		six->sin6_family = AF_INET6;
		six->sin6_port = htons((uint16_t)port);
		out->size = sizeof(*six);
		return inet_pton(AF_INET6, address + 1, &six->sin6_addr) == 1 ? 0 : -1;
	}
	four->sin_family = AF_INET;
	four->sin_port = htons((uint16_t)port);
	out->size = sizeof(*four);
	return inet_pton(AF_INET, address, &four->sin_addr) == 1 ? 0 : -1;
}

static int read_resolvers(json_t *list, struct terms *terms, struct husk_error *err)
{
	size_t index;
	json_t *item;

	json_array_foreach(list, index, item)
	{
		const char *text = json_string_value(item);

		if (terms->resolver_count == RESOLVERS_MAX)
			break;
		if (!text || read_resolver(text, &terms->resolvers[terms->resolver_count]) < 0)
			return husk_fail(err, HUSK_INVALID, "'%.64s' is not the address of a resolver",
					 text ? text : "?");
		terms->resolver_count++;
	}
	return 0;
}

static int read_secrets(json_t *secrets, struct terms *terms, struct husk_error *err)
{
	const struct policy *policy = terms->policy;
	const char *certificate = json_string_value(json_object_get(secrets, "certificate"));
	const char *key = json_string_value(json_object_get(secrets, "key"));

	if (!policy_opens_tls(policy))
		return 0;
	if (!certificate || !key)
		return husk_fail(err, HUSK_INVALID,
				 "the policy has secrets or held hosts, but their values or the authority are missing");
	terms->values = calloc(policy->secret_count + 1, sizeof(char *));
	terms->placeholders = calloc(policy->secret_count + 1, sizeof(char *));
	if (!terms->values || !terms->placeholders)
		return husk_fail_memory(err);
	for (size_t i = 0; i < policy->secret_count; i++) {
		const char *name = policy->secrets[i].name;
		const char *value = json_string_value(json_object_get(json_object_get(secrets, "values"), name));

		if (!value)
			return husk_fail(err, HUSK_INVALID, "the secret '%s' has no value", name);
		terms->values[i] = strdup(value);
		terms->placeholders[i] = secrets_placeholder(name);
		if (!terms->values[i] || !terms->placeholders[i])
			return husk_fail_memory(err);
	}
	return authority_open(certificate, key, &terms->authority, err);
}

static int read_message(json_t *root, struct terms *terms, uint64_t *serial, uint64_t *used, struct husk_error *err)
{
	json_t *policy = json_object_get(root, "policy");
	cleanup_free char *text = json_is_object(policy) ? json_dumps(policy, JSON_COMPACT) : NULL;

	*serial = (uint64_t)json_integer_value(json_object_get(root, "serial"));
	*used = (uint64_t)json_integer_value(json_object_get(root, "used"));
	if (!text)
		return husk_fail(err, HUSK_INVALID, "the message has no policy");
	if (policy_parse(text, &terms->policy, err) < 0 ||
	    read_resolvers(json_object_get(root, "resolvers"), terms, err) < 0)
		return -1;
	return read_secrets(json_object_get(root, "secrets"), terms, err);
}

struct terms *terms_read(const char *message, uint64_t *serial, uint64_t *used, struct husk_error *err)
{
	cleanup_json json_t *root = json_loads(message, 0, NULL);
	struct terms *terms = calloc(1, sizeof(*terms));

	*serial = 0;
	if (!terms) {
		husk_fail_memory(err);
		return NULL;
	}
	atomic_init(&terms->references, 1);
	if (read_message(root, terms, serial, used, err) == 0)
		return terms;
	terms_drop(terms);
	return NULL;
}

struct terms *proxy_terms(struct proxy *proxy)
{
	pthread_mutex_lock(&proxy->lock);
	struct terms *terms = proxy->terms;
	if (terms)
		atomic_fetch_add(&terms->references, 1);
	pthread_mutex_unlock(&proxy->lock);
	return terms;
}

void proxy_apply(struct proxy *proxy, struct terms *terms)
{
	char reason[FLOW_TEXT], rule[FLOW_TEXT];

	pthread_mutex_lock(&proxy->lock);
	struct terms *old = proxy->terms;
	proxy->terms = terms;
	for (struct flow *flow = proxy->flows; flow; flow = flow->next) {
		bool held = *flow->host && policy_holds(terms->policy, flow->host, flow->port);

		/* What was opened to a host before it was held may be unread. */
		if (!flow->permitted || (!flow->secret && !held && flow_allows(flow, terms, flow->host, reason, rule)))
			continue;
		/* The flow's thread finds both ends closed and cleans up; it still owns the descriptors. */
		flow->reset = true;
		shutdown(flow->guest, SHUT_RDWR);
		if (flow->remote >= 0)
			shutdown(flow->remote, SHUT_RDWR);
	}
	pthread_mutex_unlock(&proxy->lock);
	terms_drop(old);
}
