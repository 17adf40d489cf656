/*
 * Translates Daytona's network settings and secrets to Husk's egress policy. Daytona's sandboxes reach the internet unless
 * told otherwise; a list of allowed addresses or names closes everything else. A secret is a stored one
 * (daytona_secrets.c): its variable holds a placeholder inside the sandbox, and the leash inserts the value on the way to
 * the secret's hosts only.
 */
#include "server/dialects/daytona/daytona.h"

void daytona_network_free(struct daytona_network *network)
{
	for (size_t i = 0; i < network->secret_count; i++) {
		str_wipe((char *)network->secrets[i].value);
		free((char *)network->secrets[i].name);
		strv_free((char **)network->secrets[i].hosts);
	}
	free(network->secrets);
	strv_free(network->rules);
	*network = (struct daytona_network){ 0 };
}

/* ---- into the settings ---- */

static int take_list(struct fields *fields, const char *name, json_t *settings)
{
	const json_t *given = json_object_get(fields->object, name);
	const char *text = fields_string(fields, name);

	if (!given)
		return 0;
	if (!text || !*text) {
		json_object_del(settings, name);
		return 0;
	}
	return json_object_set_new(settings, name, json_text0(text));
}

int daytona_network_take(struct fields *fields, json_t *settings, struct husk_error *err)
{
	const json_t *given = json_object_get(fields->object, "networkBlockAll");
	bool block = fields_bool(fields, "networkBlockAll", false);
	int failed = take_list(fields, "networkAllowList", settings) | take_list(fields, "domainAllowList", settings);

	if (json_is_boolean(given))
		failed |= json_object_set_new(settings, "networkBlockAll", json_boolean(block));
	return failed ? husk_fail_memory(err) : 0;
}

int daytona_secrets_take(json_t *list, json_t *settings, struct husk_error *err)
{
	cleanup_json json_t *all = json_object();
	json_t *value;
	const char *name;
	size_t i;

	if (!list)
		return 0;
	if (!json_is_array(list))
		return husk_fail_field(err, "secrets", "'secrets' must be an array of objects {VARIABLE: secret}");
	for (i = 0; i < json_array_size(list); i++) {
		json_object_foreach(json_array_get(list, i), name, value)
		{
			if (!json_is_string(value))
				return husk_fail_field(err, "secrets", "'secrets[%zu].%.80s' must be a secret's name",
						       i, name);
			json_object_set(all, name, value);
		}
	}
	return json_object_set(settings, "secrets", all) < 0 ? husk_fail_memory(err) : 0;
}

/* ---- as a policy ---- */

/* "a, b,c" */
static int add_rules(struct daytona_network *out, const char *list)
{
	cleanup_free char *copy = strdup(list);
	char *save = NULL;

	if (!copy)
		return -1;
	for (char *each = strtok_r(copy, ", \t\n", &save); each; each = strtok_r(NULL, ", \t\n", &save))
		if (strv_add(&out->rules, each) < 0)
			return -1;
	return 0;
}

static int add_secret(struct request *request, struct daytona_network *out, const char *variable, const char *name,
		      struct husk_error *err)
{
	struct husk_secret *secret = &out->secrets[out->secret_count];
	struct husk_stored_secret *stored = NULL;
	char *value = NULL, **hosts = NULL;
	struct husk_error why = { 0 };
	int result = 0;

	if (husk_secret_get(request_husk(request), name, &stored, &why) < 0 ||
	    husk_secret_value(request_husk(request), name, &value, &why) < 0) {
		husk_stored_secret_free(stored);
		return husk_fail_field(err, "secrets", "secret '%.80s': %s", name, why.message);
	}
	cleanup_json json_t *metadata = json_loads(stored->metadata, 0, NULL);
	husk_stored_secret_free(stored);
	const char *list = json_string_value(json_object_get(metadata, "hosts"));
	cleanup_free char *copy = strdup(list ? list : "");
	char *save = NULL;
	for (char *each = copy ? strtok_r(copy, ",", &save) : NULL; each && result == 0;
	     each = strtok_r(NULL, ",", &save))
		result = strv_add(&hosts, each);
	*secret = (struct husk_secret){ .name = strdup(variable),
					.value = value,
					.hosts = (const char *const *)hosts,
					.host_count = strv_length(hosts) };
	out->secret_count++;
	if (!copy || !secret->name || result < 0)
		return husk_fail_memory(err);
	return secret->host_count
		       ? 0
		       : husk_fail_field(err, "secrets",
					 "secret '%.80s' names no hosts, so it could go nowhere; give it some", name);
}

int daytona_network_read(struct request *request, json_t *settings, struct daytona_network *out, struct husk_error *err)
{
	const char *addresses = json_string_value(json_object_get(settings, "networkAllowList"));
	const char *names = json_string_value(json_object_get(settings, "domainAllowList")), *variable;
	json_t *secrets = json_object_get(settings, "secrets"), *value;

	if ((addresses && add_rules(out, addresses) < 0) || (names && add_rules(out, names) < 0))
		return husk_fail_memory(err);
	out->secrets = calloc(json_object_size(secrets) + 1, sizeof(*out->secrets));
	if (!out->secrets)
		return husk_fail_memory(err);
	json_object_foreach(secrets, variable, value)
	{
		if (add_secret(request, out, variable, json_string_value(value), err) < 0)
			return -1;
	}
	bool block = json_is_true(json_object_get(settings, "networkBlockAll"));
	out->egress = (struct husk_egress){ .mode = block        ? "off"
						    : out->rules ? "allow"
								 : "open",
					    .allow = block ? NULL : (const char *const *)out->rules,
					    .allow_count = block ? 0 : strv_length(out->rules),
					    .secrets = out->secrets,
					    .secret_count = block ? 0 : out->secret_count };
	return 0;
}

int daytona_network_apply(struct request *request, const struct daytona_box *box, struct husk_error *err)
{
	cleanup(daytona_network_free) struct daytona_network network = { 0 };

	if (daytona_network_read(request, box->settings, &network, err) < 0)
		return -1;
	return husk_egress_set(request_husk(request), box->sandbox->id, &network.egress, err);
}
