/*
 * The network of a supervised machine: the wire to its gateway, the leash that carries the allowed traffic, and what
 * the guest is told about both. Called by machine.c, on the thread that has the turn. A machine without a leash reaches
 * nothing, and every failure here leaves the machine without one. No secret may get into a log, an event or the guest.
 */
#include "supervisor/network.h"

#include <arpa/inet.h>
#include <jansson.h>

#include "instance/egress_policy.h"
#include "instance/spawn.h"
#include "net/trust.h"
#include "supervisor/supervisor.h"

#define AGENT_TIMEOUT_MS 30000
#define RECORD_MAX (4u << 20)
#define VISITS_TEXT_MAX 4096
#define VIEW_MAX (192u << 10) /* largest view that fits in one frame */
/* Denials become events: a burst, then one in a while. The log of the leash has all of them. */
#define EVENTS_BURST 50
#define EVENTS_PAUSE_MS 10000

/* ---- records of the leash ---- */

/* May this denial become an event? It has its own lock, because the thread of the leash asks. */
static bool take_event(struct network *network, uint64_t *missed)
{
	int64_t now = time_monotonic_ms();
	bool yes;

	pthread_mutex_lock(&network->events_lock);
	int64_t gained = (now - network->events_since_ms) / EVENTS_PAUSE_MS;
	if (gained > 0) {
		network->events_used -= MIN(network->events_used, (uint64_t)gained);
		network->events_since_ms = now;
	}
	yes = network->events_used < EVENTS_BURST;
	network->events_used += yes;
	*missed = yes ? network->events_missed : 0;
	network->events_missed = yes ? 0 : network->events_missed + 1;
	pthread_mutex_unlock(&network->events_lock);
	return yes;
}

static void on_event(void *data, const struct leash_event *event)
{
	struct supervisor *s = data;
	uint64_t missed = 0;

	if (!str_equal(event->verdict, "denied") || !take_event(&s->network, &missed))
		return;
	json_t *detail =
		json_pack("{s:s, s:s, s:s, s:i, s:s, s:s}", "verdict", event->verdict, "kind", event->kind, "host",
			  event->host, "port", event->port, "reason", event->reason, "rule", event->rule);
	if (detail && missed)
		json_object_set_new(detail, "missed", json_integer((json_int_t)missed));
	cleanup_free char *text = detail ? json_dumps(detail, JSON_COMPACT) : NULL;
	json_decref(detail);
	if (text)
		catalog_event(s->husk.catalog, life_id(&s->life), "egress", text, NULL);
}

/* {"traffic":{…},"log":[…],"requests":{…},"saved":"the state that the leash continues from"} */
static char *record_text(struct leash *leash)
{
	cleanup_free char *traffic = leash_traffic(leash), *log = leash_log(leash, 0), *saved = leash_save(leash);
	cleanup_free char *requests = leash_requests(leash);
	json_t *root = json_object();
	int bad = root && traffic && log && saved && requests ? 0 : -1;

	if (!bad) {
		bad |= json_object_set_new(root, "traffic", json_loads(traffic, 0, NULL));
		bad |= json_object_set_new(root, "log", json_loads(log, 0, NULL));
		bad |= json_object_set_new(root, "requests", json_loads(requests, 0, NULL));
		bad |= json_object_set_new(root, "saved", json_string(saved));
	}
	char *text = bad ? NULL : json_dumps(root, JSON_COMPACT);
	json_decref(root);
	return text;
}

static char *record_saved(struct supervisor *s)
{
	cleanup_free char *path = egress_record_path(&s->husk, life_id(&s->life));
	cleanup_free char *text = path ? file_read(path, RECORD_MAX, NULL, NULL) : NULL;
	json_t *root = text ? json_loads(text, 0, NULL) : NULL;
	const char *saved = json_string_value(json_object_get(root, "saved"));
	char *copy = saved ? strdup(saved) : NULL;

	json_decref(root);
	return copy;
}

static void save_record(struct supervisor *s)
{
	cleanup_free char *text = record_text(s->network.leash);
	cleanup_free char *path = text ? egress_record_path(&s->husk, life_id(&s->life)) : NULL;
	struct husk_error err = { 0 };

	if (path && file_write_atomic(path, text, strlen(text), 0600, &err) < 0)
		log_line(LOG_WARN, "%s", err.message);
}

/* ---- visitors ---- */

void network_visit(struct supervisor *s, uint16_t port)
{
	struct visit *place = &s->network.visits[NETWORK_VISITS_MAX - 1];

	pthread_mutex_lock(&s->network.events_lock);
	for (size_t i = NETWORK_VISITS_MAX - 1; i-- > 0;)
		if (s->network.visits[i].port == port || s->network.visits[i].port == 0)
			place = &s->network.visits[i];
	for (size_t i = 0; i < NETWORK_VISITS_MAX; i++)
		if (s->network.visits[i].port == port)
			place = &s->network.visits[i];
	place->port = place->port ? place->port : port;
	place->count++;
	pthread_mutex_unlock(&s->network.events_lock);
}

/* {"8080":3} */
static json_t *visits_json(struct network *network)
{
	json_t *root = json_object();
	char port[8];

	pthread_mutex_lock(&network->events_lock);
	for (size_t i = 0; root && i < NETWORK_VISITS_MAX; i++) {
		snprintf(port, sizeof(port), "%u", network->visits[i].port);
		if (network->visits[i].port)
			json_object_set_new(root, port, json_integer((json_int_t)network->visits[i].count));
	}
	pthread_mutex_unlock(&network->events_lock);
	return root;
}

/* A sandbox that wakes continues counting. */
static void load_visits(struct supervisor *s)
{
	cleanup_free char *path = egress_visits_path(&s->husk, life_id(&s->life));
	cleanup_free char *text = path ? file_read(path, VISITS_TEXT_MAX, NULL, NULL) : NULL;
	json_t *root = text ? json_loads(text, 0, NULL) : NULL, *value;
	const char *key;
	size_t used = 0;

	memset(s->network.visits, 0, sizeof(s->network.visits));
	json_object_foreach(root, key, value)
	{
		int64_t port;

		if (used < NETWORK_VISITS_MAX && str_to_int64(key, 1, 65535, &port) == 0)
			s->network.visits[used++] =
				(struct visit){ (uint16_t)port, (uint64_t)json_integer_value(value) };
	}
	json_decref(root);
}

static void save_visits(struct supervisor *s)
{
	cleanup_free char *path = egress_visits_path(&s->husk, life_id(&s->life));
	json_t *root = visits_json(&s->network);
	cleanup_free char *text = json_object_size(root) ? json_dumps(root, JSON_COMPACT) : NULL;
	struct husk_error err = { 0 };

	json_decref(root);
	if (path && text && file_write_atomic(path, text, strlen(text), 0600, &err) < 0)
		log_line(LOG_WARN, "%s", err.message);
}

/* Exchanges the leash; the caller owns the old one. */
static struct leash *swap_leash(struct supervisor *s, struct leash *leash)
{
	pthread_mutex_lock(&s->network.lock);
	struct leash *old = s->network.leash;
	s->network.leash = leash;
	pthread_mutex_unlock(&s->network.lock);
	return old;
}

static void stop_leash(struct supervisor *s)
{
	if (!s->network.leash)
		return;
	save_record(s);
	leash_stop(swap_leash(s, NULL));
}

/* ---- the leash ---- */

static int start_leash(struct supervisor *s, struct husk_error *err)
{
	cleanup_free char *saved = record_saved(s);
	cleanup_free char *program = husk_program(err);
	struct leash_spec spec = {
		.program = program,
		.gateway = s->network.gateway.space,
		.resolver = s->network.gateway.link.resolver,
		.uid = LEASH_UID_BASE + s->slot,
		.cgroup = s->cgroup,
		.on_event = on_event,
		.on_hold = effects_hold,
		.on_sent = effects_sent,
		.data = s,
	};

	struct leash *leash = NULL;

	s->network.resumed = saved != NULL;
	if (!program || leash_start(&spec, saved, &leash, err) < 0)
		return -1;
	swap_leash(s, leash);
	return 0;
}

static void *stop_dropped(void *leash)
{
	leash_stop(leash);
	return NULL;
}

/* Ends a leash of the pool that the sandbox has no use for, while the machine is made its own. */
static void drop_leash(struct supervisor *s)
{
	struct leash *leash = swap_leash(s, NULL);

	if (!leash)
		return;
	s->network.dropping = pthread_create(&s->network.dropper, NULL, stop_dropped, leash) == 0;
	if (!s->network.dropping)
		leash_stop(leash);
}

static void await_drop(struct supervisor *s)
{
	if (s->network.dropping)
		pthread_join(s->network.dropper, NULL);
	s->network.dropping = false;
}

/* Only the mode counts here; a policy that cannot be read is refused when the machine becomes a sandbox. */
static bool wants_leash(const struct catalog_sandbox *row)
{
	cleanup_policy struct policy *policy = NULL;

	return policy_parse(row->egress, &policy, NULL) == 0 && policy->mode != POLICY_OFF;
}

int network_prepare(struct supervisor *s, const struct catalog_sandbox *row, struct husk_error *err)
{
	struct address_pool pool;
	struct address_link addresses;
	enum gateway_kind kind = s->engine->own_kernel ? GATEWAY_TAP : GATEWAY_SOCKET;

	if (address_choose(s->husk.paths.home, &pool, err) < 0 || address_link(&pool, row->slot, &addresses, err) < 0 ||
	    gateway_make(&addresses, kind, &s->network.gateway, err) < 0)
		return -1;
	return wants_leash(row) ? start_leash(s, err) : 0;
}

int network_begin(struct supervisor *s, const struct catalog_sandbox *row, struct husk_error *err)
{
	load_visits(s);
	policy_free(s->network.policy);
	s->network.policy = NULL;
	if (policy_parse(row->egress, &s->network.policy, err) < 0)
		return husk_wrap(err, "egress of %s", row->id);
	if (s->network.policy->mode == POLICY_OFF) {
		drop_leash(s);
		return 0;
	}
	/* Started in the pool, for no sandbox yet: a sandbox that wakes continues from its own counters. */
	cleanup_free char *saved = s->network.leash && !s->network.resumed ? record_saved(s) : NULL;
	if (saved)
		leash_stop(swap_leash(s, NULL));
	return s->network.leash ? 0 : start_leash(s, err);
}

int network_hold(struct supervisor *s, struct husk_error *err)
{
	struct husk_error why = { 0 };
	cleanup_wipe char *secrets = NULL;

	if (s->network.policy->mode == POLICY_OFF) {
		await_drop(s);
		return 0;
	}
	secrets = egress_secrets_load(&s->husk, life_id(&s->life), &why);
	if (!secrets && why.code != HUSK_OK) {
		if (err)
			*err = why;
		return -1;
	}
	if (leash_set(s->network.leash, s->network.policy, secrets, err) < 0)
		return husk_wrap(err, "cannot put the sandbox on its leash");
	return 0;
}

/* ---- what the guest is told ---- */

/* The certificate of the sandbox's own authority, which vouches for the hosts of its secrets and those that are held. */
static char *own_certificate(struct supervisor *s, struct husk_error *err)
{
	cleanup_wipe char *secrets = egress_secrets_load(&s->husk, life_id(&s->life), err);

	if (secrets)
		return secrets_certificate(secrets, err);
	husk_fail(err, HUSK_INTERNAL, "the secrets of %s are missing; set them anew", life_id(&s->life));
	return NULL;
}

struct hashes {
	struct buf *out;
	uint16_t tag;
};

/* The first hash has a tag of its own, because an agent of an older version knows only that one. */
static int put_hash(void *data, X509 *certificate)
{
	struct hashes *hashes = data;
	char hash[TRUST_HASH];
	uint16_t tag = hashes->tag;

	trust_hash(certificate, hash);
	hashes->tag = TAG_HASH;
	return wire_put_string(hashes->out, tag, hash);
}

/* What the guest trusts in addition to its template's certificates. "" removes what an earlier policy had. */
static int put_certificates(struct supervisor *s, struct buf *out, struct husk_error *err)
{
	const struct policy *policy = s->network.policy;
	cleanup_free char *own = policy_opens_tls(policy) ? own_certificate(s, err) : strdup("");
	cleanup_free char *all = own ? str_format("%s%s", own, policy->trust ? policy->trust : "") : NULL;

	if (policy_opens_tls(policy) && !own)
		return -1;
	if (!all || wire_put_string(out, TAG_CERTIFICATE, all) < 0)
		return husk_fail_memory(err);
	struct hashes hashes = { out, TAG_NAME };
	return trust_each(all, put_hash, &hashes, err) < 0 ? husk_fail_memory(err) : 0;
}

/* Variables of programs that do not read the system's trust store. */
static const char *const trust_variables[] = {
	"SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
	"REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt",
	"NODE_EXTRA_CA_CERTS=/usr/local/share/ca-certificates/husk.crt",
};

static bool has_certificates(const struct policy *policy)
{
	return policy_opens_tls(policy) || (policy->trust && *policy->trust);
}

static int put_policy_variables(const struct policy *policy, struct buf *out)
{
	int bad = 0;

	for (size_t i = 0; has_certificates(policy) && i < ARRAY_SIZE(trust_variables); i++)
		bad |= wire_put_string(out, TAG_ENV, trust_variables[i]);
	for (size_t i = 0; i < policy->secret_count; i++) {
		if (policy->secrets[i].header)
			continue;
		cleanup_free char *placeholder = secrets_placeholder(policy->secrets[i].name);
		cleanup_free char *pair =
			placeholder ? str_format("%s=%s", policy->secrets[i].name, placeholder) : NULL;
		bad |= pair ? wire_put_string(out, TAG_ENV, pair) : -1;
	}
	return bad;
}

/* The sandbox's own variables come last, so that they can replace the variables of trust. */
static int put_variables(const char *environment, const struct policy *policy, struct buf *out, struct husk_error *err)
{
	json_t *own = environment ? json_loads(environment, 0, NULL) : NULL, *value;
	int bad = policy && policy->mode != POLICY_OFF ? put_policy_variables(policy, out) : 0;
	const char *key;

	json_object_foreach(own, key, value)
	{
		cleanup_free char *pair = str_format("%s=%s", key, json_string_value(value));
		bad |= pair ? wire_put_string(out, TAG_ENV, pair) : -1;
	}
	json_decref(own);
	return bad ? husk_fail(err, HUSK_LIMIT, "the environment is too large; keep it under 200 KiB") : 0;
}

/* For engines that do not configure the interface inside. */
static int put_interface(const struct gateway *gateway, struct buf *out)
{
	struct wire_interface interface = { .prefix = ADDRESS_PREFIX };

	memcpy(interface.address, &gateway->link.guest, sizeof(interface.address));
	memcpy(interface.gateway, &gateway->link.gateway, sizeof(interface.gateway));
	memcpy(interface.mac, gateway->guest_mac, sizeof(interface.mac));
	memcpy(interface.gateway_mac, gateway_mac, sizeof(interface.gateway_mac));
	return wire_put_bytes(out, TAG_INTERFACE, &interface, sizeof(interface));
}

int network_arguments(struct supervisor *s, const char *environment, struct buf *out, struct husk_error *err)
{
	const struct policy *policy = s->network.policy;
	char address[INET_ADDRSTRLEN];

	if (put_variables(environment, policy, out, err) < 0)
		return -1;
	if (s->engine->own_kernel && put_interface(&s->network.gateway, out) < 0)
		return husk_fail_memory(err);
	if (!policy || policy->mode == POLICY_OFF)
		return 0;
	inet_ntop(AF_INET, &s->network.gateway.link.resolver, address, sizeof(address));
	if (wire_put_string(out, TAG_NAMESERVER, address) < 0)
		return husk_fail_memory(err);
	return put_certificates(s, out, err);
}

int network_tell(struct supervisor *s, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };
	struct catalog_sandbox *row = NULL;

	if (!s->network.untold)
		return 0;
	if (catalog_sandbox_get(s->husk.catalog, life_id(&s->life), &row, err) < 0)
		return -1;
	int result = network_arguments(s, row->environment, &arguments, err);
	catalog_sandbox_free(row);
	if (result < 0 || link_call(s->link, METHOD_NETWORK, &arguments, NULL, AGENT_TIMEOUT_MS, err) < 0)
		return husk_wrap(err, "the policy is in force, but the guest could not be informed");
	s->network.untold = false;
	return 0;
}

/* ---- another policy ---- */

/* Applies `policy` to the leash: starts it, changes it or, if nothing may be reached, ends it. */
static int apply(struct supervisor *s, const struct policy *policy, const char *secrets, struct husk_error *err)
{
	if (policy->mode == POLICY_OFF) {
		stop_leash(s);
		return 0;
	}
	bool fresh = !s->network.leash;
	if (fresh && start_leash(s, err) < 0)
		return -1;
	int result = leash_set(s->network.leash, policy, secrets, err);
	if (result < 0 && fresh)
		stop_leash(s);
	return result;
}

/* Restores the previous policy as far as possible. In no case is more reachable than before. */
static void revert(struct supervisor *s, const char *secrets)
{
	struct husk_error err = { 0 };

	if (apply(s, s->network.policy, secrets, &err) == 0)
		return;
	log_line(LOG_ERROR, "the network is off: %s", err.message);
	stop_leash(s);
}

int network_set(struct supervisor *s, const char *text, const char *secrets, struct husk_error *err)
{
	cleanup_policy struct policy *policy = NULL;
	struct husk_error why = { 0 };

	if (policy_parse(text, &policy, err) < 0)
		return -1;
	cleanup_wipe char *before = egress_secrets_load(&s->husk, life_id(&s->life), &why);
	int result = apply(s, policy, secrets, err);
	if (result == 0)
		result = egress_secrets_save(&s->husk, life_id(&s->life), secrets, err);
	if (result == 0)
		result = catalog_sandbox_set_egress(s->husk.catalog, life_id(&s->life), text, err);
	if (result < 0) {
		egress_secrets_save(&s->husk, life_id(&s->life), before, NULL);
		revert(s, before);
		return -1;
	}
	/* The guest does not know rules, so a change of rules alone need not be sent. */
	s->network.untold |= s->network.policy->mode == POLICY_OFF || has_certificates(s->network.policy) ||
			     has_certificates(policy);
	policy_free(s->network.policy);
	s->network.policy = steal_pointer(policy);
	cleanup_free char *detail = str_format("{\"mode\":\"%s\"}", policy_mode_name(s->network.policy->mode));
	return detail ? catalog_event(s->husk.catalog, life_id(&s->life), "policy", detail, err)
		      : husk_fail_memory(err);
}

/* ---- looking at it ---- */

void network_totals(struct supervisor *s, struct leash_totals *out)
{
	*out = (struct leash_totals){ 0 };
	pthread_mutex_lock(&s->network.lock);
	if (s->network.leash)
		leash_totals(s->network.leash, out);
	pthread_mutex_unlock(&s->network.lock);
}

static char *view_of(struct leash *leash, size_t limit)
{
	cleanup_free char *traffic = leash ? leash_traffic(leash) : strdup("{}");
	cleanup_free char *log = leash && limit ? leash_log(leash, limit) : strdup("[]");

	return traffic && log ? str_format("{\"traffic\":%s,\"log\":%s}", traffic, log) : NULL;
}

char *network_view(struct supervisor *s, size_t limit)
{
	for (limit = limit ? limit : LEASH_LOG_MAX;; limit /= 2) {
		pthread_mutex_lock(&s->network.lock);
		cleanup_free char *text = view_of(s->network.leash, limit);
		pthread_mutex_unlock(&s->network.lock);
		if (!text || strlen(text) <= VIEW_MAX || limit == 0)
			return steal_pointer(text);
	}
}

/* Without a leash, the record of the last one is used. */
static json_t *recorded(struct supervisor *s, const char *key)
{
	cleanup_free char *path = egress_record_path(&s->husk, life_id(&s->life));
	cleanup_free char *text = path ? file_read(path, RECORD_MAX, NULL, NULL) : NULL;
	json_t *root = text ? json_loads(text, 0, NULL) : NULL;
	json_t *part = json_incref(json_object_get(root, key));

	json_decref(root);
	return part;
}

char *network_traffic(struct supervisor *s)
{
	pthread_mutex_lock(&s->network.lock);
	cleanup_free char *text = s->network.leash ? leash_traffic(s->network.leash) : NULL;
	cleanup_free char *sent = s->network.leash ? leash_requests(s->network.leash) : NULL;
	json_t *visits = visits_json(&s->network);
	pthread_mutex_unlock(&s->network.lock);
	json_t *traffic = text ? json_loads(text, 0, NULL) : recorded(s, "traffic");
	json_t *requests = sent ? json_loads(sent, 0, NULL) : recorded(s, "requests");
	json_t *root = json_pack("{s:O*,s:I,s:o*}", "destinations", json_object_get(traffic, "destinations"),
				 "requests", json_integer_value(json_object_get(requests, "total")), "visits", visits);
	char *out = root ? json_dumps(root, JSON_COMPACT) : NULL;

	json_decref(traffic);
	json_decref(requests);
	json_decref(root);
	return out;
}

void network_end(struct supervisor *s)
{
	await_drop(s);
	stop_leash(s);
	save_visits(s);
	policy_free(s->network.policy);
	s->network.policy = NULL;
	gateway_close(&s->network.gateway);
}
