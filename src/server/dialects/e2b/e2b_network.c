/*
 * Translates E2B's network options to Husk's egress policy. E2B's sandboxes reach the internet unless told otherwise;
 * private and local addresses stay closed unless a rule names them. Headers that rules set are secrets of the policy and
 * are never shown again. Options that a policy cannot express (proxies, identity tokens) are refused by name.
 */
#include <arpa/inet.h>
#include <ctype.h>

#include "server/core.h"
#include "server/dialects/e2b/e2b.h"

#define ALL_IPV4 "0.0.0.0/0"
#define ALL_IPV6 "::/0"
#define PLACEHOLDER "${e2b."
#define STORED "${e2b.secrets."
#define HTTPS_MAX 64

void e2b_network_free(struct e2b_network *network)
{
	for (size_t i = 0; i < network->header_count; i++) {
		str_wipe((char *)network->headers[i].value);
		free((char *)network->headers[i].name);
		free((void *)network->headers[i].hosts);
	}
	free(network->headers);
	free(network->allow);
	free(network->deny);
	free(network->https);
}

/* ---- rules ---- */

/* Inserts stored secrets into a value. */
static int fill(struct request *request, const char *text, struct buf *out, struct husk_error *err)
{
	for (const char *mark; (mark = strstr(text, PLACEHOLDER)); text = strchr(mark, '}') + 1) {
		size_t length = strcspn(mark, "}");
		cleanup_wipe char *value = NULL;
		struct husk_error why = { 0 };

		if (!str_starts(mark, STORED) || !mark[length])
			return dialect_unsupported(request,
						   "a header with a placeholder other than ${e2b.secrets.NAME}", err);
		cleanup_free char *name = strndup(mark + strlen(STORED), length - strlen(STORED));
		for (char *at = name; at && *at; at++)
			*at = (char)tolower((unsigned char)*at);
		if (!name)
			return husk_fail_memory(err);
		if (husk_secret_value(request_husk(request), name, &value, &why) < 0)
			return husk_fail_field(err, "network.rules", "%s", why.message);
		if (buf_append(out, text, (size_t)(mark - text)) < 0 || buf_append_string(out, value) < 0)
			return husk_fail_memory(err);
	}
	return buf_append_string(out, text) < 0 ? husk_fail_memory(err) : 0;
}

/* The place for another header. If an earlier rule of the host sets the same header, its place: the last rule
 * counts. */
static struct husk_secret *header_slot(struct e2b_network *out, const char *host, const char *header)
{
	for (size_t i = 0; i < out->header_count; i++)
		if (str_equal(out->headers[i].hosts[0], host) && strcasecmp(out->headers[i].header, header) == 0)
			return &out->headers[i];
	struct husk_secret *grown = reallocarray(out->headers, out->header_count + 1, sizeof(*grown));
	const char **hosts = calloc(1, sizeof(*hosts));
	char *name = str_format("RULE_%zu", out->header_count + 1);
	if (grown)
		out->headers = grown;
	if (!grown || !hosts || !name) {
		free(hosts);
		free(name);
		return NULL;
	}
	hosts[0] = host;
	grown[out->header_count] =
		(struct husk_secret){ .name = name, .header = header, .hosts = hosts, .host_count = 1 };
	return &grown[out->header_count++];
}

static int add_header(struct request *request, struct e2b_network *out, const char *host, const char *header,
		      const char *text, struct husk_error *err)
{
	struct husk_secret *secret = header_slot(out, host, header);
	cleanup_buf struct buf value = { 0 };

	if (!secret)
		return husk_fail_memory(err);
	free((char *)secret->value);
	secret->value = NULL;
	int result = fill(request, text, &value, err);
	if (result == 0 && !(secret->value = buf_steal(&value)))
		result = husk_fail_memory(err);
	if (value.data)
		explicit_bzero(value.data, value.capacity);
	return result;
}

/* Names of headers and hosts belong to the document, which outlives the policy. */
static int read_rule(struct request *request, json_t *rule, const char *host, struct e2b_network *out,
		     struct husk_error *err)
{
	json_t *transform = json_object_get(rule, "transform"), *set = json_object_get(transform, "headers"), *value;
	struct fields fields;
	const char *name;

	if (!json_is_object(rule) || (transform && !json_is_object(transform)) || (set && !json_is_object(set)))
		return husk_fail_field(err, "network.rules", "a rule of '%.80s' is not {transform: {headers: {…}}}",
				       host);
	fields_begin(&fields, rule);
	fields_any(&fields, "transform");
	if (e2b_refuse_rest(request, &fields, "the network rule", err) < 0)
		return -1;
	if (transform) {
		fields_begin(&fields, transform);
		fields_any(&fields, "headers");
		if (e2b_refuse_rest(request, &fields, "the transform", err) < 0)
			return -1;
	}
	json_object_foreach(set, name, value)
	{
		if (!json_is_string(value))
			return husk_fail_field(err, "network.rules", "header '%.80s' of '%.80s' is no string", name,
					       host);
		if (add_header(request, out, host, name, json_string_value(value), err) < 0)
			return -1;
	}
	return 0;
}

static int read_rules(struct request *request, json_t *rules, struct e2b_network *out, struct husk_error *err)
{
	json_t *list, *rule;
	const char *host;
	size_t i;

	if (rules && !json_is_object(rules))
		return husk_fail_field(err, "network.rules", "rules is no object of hosts");
	json_object_foreach(rules, host, list)
	{
		if (!json_is_array(list))
			return husk_fail_field(err, "network.rules", "the rules of '%.80s' are no list", host);
		json_array_foreach(list, i, rule)
		{
			if (read_rule(request, rule, host, out, err) < 0)
				return -1;
		}
	}
	return 0;
}

/* ---- reachable addresses ---- */

/* All traffic, or ranges of it; IPv6 is never reachable. */
static int read_denied(struct e2b_network *out, bool *all, struct husk_error *err)
{
	size_t kept = 0;

	for (size_t i = 0; out->deny && out->deny[i]; i++) {
		const char *each = out->deny[i];
		cleanup_free char *address = strndup(each, strcspn(each, "/"));
		struct in6_addr six;

		if (str_equal(each, ALL_IPV4) || str_equal(each, ALL_IPV6)) {
			*all = true;
			continue;
		}
		if (address && inet_pton(AF_INET6, address, &six) == 1)
			continue;
		if (each[strspn(each, "0123456789./")])
			return husk_fail_field(err, "network.denyOut",
					       "'%.80s' is no address or range; names cannot be denied", each);
		out->deny[kept++] = each;
	}
	out->egress.deny = out->deny;
	out->egress.deny_count = *all ? 0 : kept;
	return 0;
}

static bool is_name(const char *rule)
{
	return rule[strspn(rule, "0123456789./:*")] != '\0';
}

/* If everything is open, a name has an effect only as an exception from what is denied. */
static int read_allowed(struct request *request, struct e2b_network *out, bool all, struct husk_error *err)
{
	for (size_t i = 0; out->allow && out->allow[i]; i++) {
		if (!all && is_name(out->allow[i])) {
			if (out->egress.deny_count)
				return dialect_unsupported(request,
							   "a name in allowOut together with ranges in denyOut", err);
			continue;
		}
		out->allow[out->egress.allow_count++] = out->allow[i];
	}
	out->egress.allow = out->allow;
	out->egress.mode = !all ? "open" : out->egress.allow_count ? "allow" : "off";
	return 0;
}

/* It becomes a header. */
static int check_host(const char *host, struct husk_error *err)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]${}";

	if (!host || (*host && strlen(host) <= 255 && host[strspn(host, plain)] == '\0'))
		return 0;
	return husk_fail_field(err, "network.maskRequestHost",
			       "'%.80s' cannot be a host; give one such as localhost:${PORT}", host);
}

/* [8443, 9443] as "8443,9443" */
static int read_https(const json_t *ports, struct e2b_network *out, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	json_t *port;
	size_t i;

	if (!ports || json_is_null(ports))
		return 0;
	if (!json_is_array(ports) || json_array_size(ports) > HTTPS_MAX)
		return husk_fail_field(err, "network.httpsPorts", "httpsPorts is a list of at most %d ports",
				       HTTPS_MAX);
	json_array_foreach(ports, i, port)
	{
		json_int_t number = json_integer_value(port);
		if (number < 1 || number > 65535)
			return husk_fail_field(err, "network.httpsPorts",
					       "httpsPorts has a port that is not from 1 to 65535");
		if (buf_printf(&text, "%s%d", i ? "," : "", (int)number))
			return husk_fail_memory(err);
	}
	if (text.size && !(out->https = buf_steal(&text)))
		return husk_fail_memory(err);
	return 0;
}

int e2b_network_read(struct request *request, json_t *document, bool internet, struct e2b_network *out,
		     struct husk_error *err)
{
	cleanup_json json_t *none = json_is_object(document) ? NULL : json_object();
	struct fields fields;

	*out = (struct e2b_network){ 0 };
	fields_begin(&fields, none ? none : document);
	out->allow = fields_strings(&fields, "allowOut");
	out->deny = fields_strings(&fields, "denyOut");
	out->closed = !fields_bool(&fields, "allowPublicTraffic", true);
	out->host = fields_string(&fields, "maskRequestHost");
	json_t *rules = fields_any(&fields, "rules"), *https = fields_any(&fields, "httpsPorts");
	bool all = !fields_bool(&fields, "allow_internet_access", internet);
	if (fields_done_open(&fields, err) < 0 || e2b_refuse_rest(request, &fields, "the network option", err) < 0 ||
	    read_denied(out, &all, err) < 0 || read_allowed(request, out, all, err) < 0 ||
	    read_rules(request, rules, out, err) < 0 || check_host(out->host, err) < 0 ||
	    read_https(https, out, err) < 0)
		return -1;
	/* Nothing is reachable, so no header can be set. */
	bool off = str_equal(out->egress.mode, "off");
	out->egress.secrets = off ? NULL : out->headers;
	out->egress.secret_count = off ? 0 : out->header_count;
	return 0;
}

static json_t *texts(const char *const *list, size_t count)
{
	json_t *array = json_array();

	for (size_t i = 0; i < count; i++)
		json_array_append_new(array, json_text0(list[i]));
	return array;
}

/* Headers by their names; their values are not shown. */
static json_t *rules_document(const struct husk_egress *egress)
{
	json_t *rules = json_object();

	for (size_t i = 0; i < egress->secret_count; i++) {
		const struct husk_secret *secret = &egress->secrets[i];
		if (!secret->header || !secret->host_count)
			continue;
		json_t *set = json_object_get(
			json_object_get(json_array_get(json_object_get(rules, secret->hosts[0]), 0), "transform"),
			"headers");
		if (set)
			json_object_set_new(set, secret->header, json_string("***"));
		else
			json_object_set_new(
				rules, secret->hosts[0],
				json_pack("[{s:{s:{s:s}}}]", "transform", "headers", secret->header, "***"));
	}
	return rules;
}

static json_t *https_document(const char *ports)
{
	json_t *array = json_array();

	for (const char *at = ports; *at; at += strcspn(at, ","), at += *at == ',')
		json_array_append_new(array, json_integer(atoi(at)));
	return array;
}

json_t *e2b_network_document(struct request *request, const char *id, const struct e2b_settings *settings)
{
	struct husk_egress *egress = NULL;
	json_t *document = json_pack("{s:b}", "allowPublicTraffic", !settings->closed);

	if (document && settings->https)
		json_object_set_new(document, "httpsPorts", https_document(settings->https));
	if (document && settings->host)
		json_object_set_new(document, "maskRequestHost", json_text0(settings->host));
	if (!document || husk_egress_get(request_husk(request), id, &egress, NULL) < 0)
		return document;
	json_object_set_new(document, "allowOut", texts(egress->allow, egress->allow_count));
	json_object_set_new(document, "denyOut",
			    str_equal(egress->mode, "open") ? texts(egress->deny, egress->deny_count)
							    : json_pack("[s]", ALL_IPV4));
	json_object_set_new(document, "rules", rules_document(egress));
	husk_egress_free(egress);
	return document;
}

/* PUT: replaces the policy; missing options have the defaults of a new sandbox. */
int e2b_network_update(struct request *request, struct husk_error *err)
{
	cleanup(e2b_network_free) struct e2b_network network = { 0 };
	json_t *body = request_json(request, err);

	if (!body || e2b_network_read(request, body, true, &network, err) < 0)
		return -1;
	if (network.closed || network.host || network.https)
		return dialect_unsupported(request,
					   network.https  ? "a change of httpsPorts"
					   : network.host ? "a change of maskRequestHost"
							  : "a change of allowPublicTraffic",
					   err);
	if (husk_egress_set(request_husk(request), request_path(request, "id"), &network.egress, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}
