/*
 * Egress policies in their three shapes, and the file of a sandbox's secrets; see egress_policy.h. Called by create, fork, the
 * egress calls of libhusk and the supervisor. The value of a secret goes into that file and nowhere else.
 */
#include "instance/egress_policy.h"

#include <fcntl.h>
#include <jansson.h>

#include "net/trust.h"

/* ---- from the public structure ---- */

static json_t *texts(const char *const *list, size_t count)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < count; i++) {
		/* Text that is not UTF-8 cannot be a rule. As "" it is refused with the name of its field. */
		if (json_array_append_new(array, json_string(list[i] ? list[i] : "")) < 0 &&
		    json_array_append_new(array, json_string("")) < 0) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

static json_t *secrets_json(const struct husk_egress *egress)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < egress->secret_count; i++) {
		const struct husk_secret *secret = &egress->secrets[i];

		if (json_array_append_new(array, json_pack("{s:s, s:o, s:s*}", "name", secret->name ? secret->name : "",
							   "hosts", texts(secret->hosts, secret->host_count), "header",
							   secret->header)) < 0) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

static json_t *limits_json(const struct husk_egress *egress)
{
	json_t *limits = json_object();
	int bad = 0;

	if (egress->limit_bytes)
		bad |= json_object_set_new(limits, "bytes", json_integer((json_int_t)egress->limit_bytes));
	if (egress->limit_rate)
		bad |= json_object_set_new(limits, "rate", json_integer((json_int_t)egress->limit_rate));
	if (egress->limit_connections)
		bad |= json_object_set_new(limits, "connections", json_integer(egress->limit_connections));
	if (!bad)
		return limits;
	json_decref(limits);
	return NULL;
}

/* The rules. In mode allow, a held host is allowed without a rule; so is the host of a secret, unless the secret is a header: headers are
 * set only on requests to hosts that are allowed anyway. */
static json_t *rules_json(const struct husk_egress *egress)
{
	json_t *rules = texts(egress->allow, egress->allow_count);
	bool implied = !egress->mode || str_equal(egress->mode, policy_mode_name(POLICY_ALLOW));

	for (size_t i = 0; rules && implied && i < egress->hold_count; i++)
		json_array_append_new(rules, json_string(egress->hold[i] ? egress->hold[i] : ""));
	for (size_t i = 0; rules && implied && i < egress->secret_count; i++) {
		if (egress->secrets[i].header)
			continue;
		json_t *hosts = texts(egress->secrets[i].hosts, egress->secrets[i].host_count);
		int failed = json_array_extend(rules, hosts);

		json_decref(hosts);
		if (failed) {
			json_decref(rules);
			return NULL;
		}
	}
	return rules;
}

int egress_check(const struct husk_egress *egress, struct policy **out, struct husk_error *err)
{
	json_t *root = json_pack("{s:o, s:o, s:o, s:o, s:o}", "allow", rules_json(egress), "deny",
				 texts(egress->deny, egress->deny_count), "secrets", secrets_json(egress), "hold",
				 texts(egress->hold, egress->hold_count), "limits", limits_json(egress));
	cleanup_free char *text = NULL;

	if (root && egress->mode && json_object_set_new(root, "mode", json_string(egress->mode)) < 0) {
		json_decref(root);
		return husk_fail(err, HUSK_INVALID, "egress mode is not UTF-8; use off, allow or open");
	}
	text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	if (!text)
		return husk_fail(err, HUSK_INVALID,
				 "the egress policy cannot be read: is the name of every secret UTF-8?");
	cleanup_policy struct policy *policy = NULL;
	int result = policy_parse(text, &policy, err);
	/* Not through the JSON: comments beside certificates are often not UTF-8. */
	if (result == 0 && egress->trust)
		result = trust_read(egress->trust, "egress trust", &policy->trust, err);
	if (result < 0 && err && err->code == HUSK_INVALID)
		snprintf(err->field, sizeof(err->field), "egress"); /* the message names the part */
	if (result == 0)
		*out = steal_pointer(policy);
	return result;
}

bool egress_is_addition(const struct husk_egress *egress)
{
	return (egress->trust || egress->hold_count) && !egress->mode && !egress->allow_count && !egress->deny_count &&
	       !egress->secret_count && !egress->limit_bytes && !egress->limit_rate && !egress->limit_connections;
}

/* The inherited policy as JSON with the held hosts, which are allowed too. */
static char *with_holds(const char *text, const struct husk_egress *added, struct husk_error *err)
{
	json_t *root = json_loads(text && *text ? text : "{}", 0, NULL);
	json_t *hold = texts(added->hold, added->hold_count), *rules = json_object_get(root, "allow");
	const char *mode = json_string_value(json_object_get(root, "mode"));
	int bad = root && hold ? 0 : -1;

	if (!bad && (!mode || str_equal(mode, policy_mode_name(POLICY_OFF))))
		bad |= json_object_set_new(root, "mode", json_string(policy_mode_name(POLICY_ALLOW)));
	if (!bad && !rules)
		bad |= json_object_set_new(root, "allow", rules = json_array());
	if (!bad)
		bad |= json_array_extend(rules, hold);
	json_t *before = json_object_get(root, "hold");
	if (!bad)
		bad |= before ? json_array_extend(before, hold) : json_object_set(root, "hold", hold);
	char *out = bad ? NULL : json_dumps(root, JSON_COMPACT);

	json_decref(hold);
	json_decref(root);
	if (!out)
		husk_fail_memory(err);
	return out;
}

int egress_inherit(const char *text, const struct husk_egress *added, struct policy **out, struct husk_error *err)
{
	cleanup_free char *held = added && added->hold_count ? with_holds(text, added, err) : NULL;

	if (added && added->hold_count && !held)
		return -1;
	return policy_parse(held ? held : text, out, err);
}

int egress_default_trust(struct policy *policy, struct husk_error *err)
{
	const char *path = getenv("HUSK_TRUST");

	if (policy->trust || !path || !*path)
		return 0;
	return trust_read_file(path, "the setting network.trust (HUSK_TRUST)", &policy->trust, err);
}

/* " --secret NAME@HOST,HOST"; without secrets that are values of headers, because the command line does not support
 * them. */
static int put_secret(const struct policy_secret *secret, struct buf *out)
{
	if (secret->header)
		return 0;
	int bad = buf_printf(out, " --secret %s", secret->name);

	for (size_t i = 0; i < secret->host_count; i++) {
		cleanup_free char *host = policy_rule_text(&secret->hosts[i]);
		bad |= host ? buf_printf(out, "%c%s", i ? ',' : '@', host) : -1;
	}
	return bad;
}

static bool is_host_of_secret(const struct policy *policy, const char *rule)
{
	for (size_t i = 0; i < policy->secret_count; i++)
		for (size_t k = 0; k < policy->secrets[i].host_count; k++) {
			cleanup_free char *host = policy_rule_text(&policy->secrets[i].hosts[k]);
			if (str_equal(host, rule))
				return true;
		}
	return false;
}

/* A policy of a snapshot or template has only the names of its secrets. The error says what to type for the whole
 * policy, because a given policy replaces the inherited one. */
static int fail_values(const struct policy *policy, struct husk_error *err)
{
	cleanup_buf struct buf words = { 0 };
	int bad = policy->mode == POLICY_ALLOW ? buf_append_string(&words, "")
					       : buf_printf(&words, " --egress %s", policy_mode_name(policy->mode));

	for (size_t i = 0; i < policy->rule_count; i++) {
		cleanup_free char *rule = policy_rule_text(&policy->rules[i]);
		if (rule && !is_host_of_secret(policy, rule))
			bad |= buf_printf(&words, " --allow %s", rule);
	}
	for (size_t i = 0; i < policy->secret_count; i++)
		bad |= put_secret(&policy->secrets[i], &words);
	for (size_t i = 0; i < policy->hold_count; i++) {
		cleanup_free char *host = policy_rule_text(&policy->holds[i]);
		bad |= host ? buf_printf(&words, " --hold %s", host) : -1;
	}
	if (bad)
		return husk_fail_memory(err);
	return husk_fail(
		err, HUSK_INVALID,
		"secret '%s' of the policy that comes with it has no value: values are not kept; give%s, which "
		"takes each value from your environment, or another policy (--egress off)",
		policy->secrets[0].name, words.data);
}

int egress_secrets(const struct policy *policy, const struct husk_egress *given, const char *old, char **out,
		   struct husk_error *err)
{
	size_t count = 0, asked = given ? given->secret_count : 0;
	cleanup_free struct husk_pair *values = calloc(asked + 1, sizeof(*values));
	struct husk_error why = { 0 };

	if (!values)
		return husk_fail_memory(err);
	if (policy->secret_count && !given && !old)
		return fail_values(policy, err);
	for (size_t i = 0; i < asked; i++)
		if (given->secrets[i].value)
			values[count++] = (struct husk_pair){ given->secrets[i].name, given->secrets[i].value };
	*out = secrets_make(policy, values, count, old, &why);
	if (*out || why.code == HUSK_OK)
		return 0;
	if (err)
		*err = why;
	return -1;
}

/* ---- back to it ---- */

static int copy_texts(json_t *array, const char *const **out, size_t *count)
{
	size_t size = json_array_size(array);
	char **list = calloc(size + 1, sizeof(*list));

	*out = (const char *const *)list;
	for (size_t i = 0; list && i < size; i++) {
		const char *text = json_string_value(json_array_get(array, i));
		list[i] = strdup(text ? text : "");
		if (!list[i])
			return -1;
		*count = i + 1;
	}
	return list ? 0 : -1;
}

static int copy_secrets(json_t *array, struct husk_egress *out)
{
	size_t size = json_array_size(array);
	struct husk_secret *list = calloc(size + 1, sizeof(*list));

	out->secrets = list;
	for (size_t i = 0; list && i < size; i++) {
		json_t *entry = json_array_get(array, i);
		const char *name = json_string_value(json_object_get(entry, "name"));
		const char *header = json_string_value(json_object_get(entry, "header"));

		out->secret_count = i + 1;
		list[i].name = strdup(name ? name : "");
		list[i].header = header ? strdup(header) : NULL;
		if (!list[i].name || (header && !list[i].header) ||
		    copy_texts(json_object_get(entry, "hosts"), &list[i].hosts, &list[i].host_count) < 0)
			return -1;
	}
	return list ? 0 : -1;
}

struct husk_egress *egress_from_text(const char *text, struct husk_error *err)
{
	struct husk_egress *out = calloc(1, sizeof(*out));
	json_t *root = json_loads(text && *text ? text : "{}", 0, NULL);
	json_t *limits = json_object_get(root, "limits");
	const char *mode = json_string_value(json_object_get(root, "mode"));
	const char *trust = json_string_value(json_object_get(root, "trust"));

	if (!out || !root) {
		husk_fail(err, HUSK_INTERNAL, "the stored egress policy cannot be read");
		goto fail;
	}
	out->mode = strdup(mode ? mode : policy_mode_name(POLICY_OFF));
	out->limit_bytes = (uint64_t)json_integer_value(json_object_get(limits, "bytes"));
	out->limit_rate = (uint64_t)json_integer_value(json_object_get(limits, "rate"));
	out->limit_connections = (uint32_t)json_integer_value(json_object_get(limits, "connections"));
	out->trust = trust ? strdup(trust) : NULL;
	if (!out->mode || (trust && !out->trust) ||
	    copy_texts(json_object_get(root, "allow"), &out->allow, &out->allow_count) < 0 ||
	    copy_texts(json_object_get(root, "deny"), &out->deny, &out->deny_count) < 0 ||
	    copy_texts(json_object_get(root, "hold"), &out->hold, &out->hold_count) < 0 ||
	    copy_secrets(json_object_get(root, "secrets"), out) < 0) {
		husk_fail_memory(err);
		goto fail;
	}
	json_decref(root);
	return out;
fail:
	json_decref(root);
	husk_egress_free(out);
	return NULL;
}

static void free_texts(const char *const *list, size_t count)
{
	for (size_t i = 0; list && i < count; i++)
		free((char *)list[i]);
	free((void *)list);
}

void husk_egress_free(struct husk_egress *egress)
{
	if (!egress)
		return;
	for (size_t i = 0; egress->secrets && i < egress->secret_count; i++) {
		free((char *)egress->secrets[i].name);
		free((char *)egress->secrets[i].header);
		free_texts(egress->secrets[i].hosts, egress->secrets[i].host_count);
	}
	free((void *)egress->secrets);
	free_texts(egress->allow, egress->allow_count);
	free_texts(egress->deny, egress->deny_count);
	free_texts(egress->hold, egress->hold_count);
	free((char *)egress->mode);
	free((char *)egress->trust);
	free(egress);
}

/* ---- files ---- */

static char *file_of(struct husk *husk, const char *id, const char *name)
{
	cleanup_free char *directory = path_sandbox(&husk->paths, id);

	return directory ? str_format("%s/%s", directory, name) : NULL;
}

char *egress_secrets_load(struct husk *husk, const char *id, struct husk_error *err)
{
	cleanup_free char *path = file_of(husk, id, SECRETS_FILE);

	if (path)
		return secrets_load(path, err);
	husk_fail_memory(err);
	return NULL;
}

int egress_secrets_save(struct husk *husk, const char *id, const char *text, struct husk_error *err)
{
	cleanup_free char *directory = path_sandbox(&husk->paths, id);
	cleanup_free char *path = file_of(husk, id, SECRETS_FILE);

	if (!directory || !path)
		return husk_fail_memory(err);
	if (!text) {
		egress_secrets_drop(husk, id);
		return 0;
	}
	return dir_make(directory, 0700, err) < 0 ? -1 : secrets_save(path, text, err);
}

void egress_secrets_drop(struct husk *husk, const char *id)
{
	cleanup_free char *path = file_of(husk, id, SECRETS_FILE);

	if (path)
		unlink(path);
}

char *egress_record_path(struct husk *husk, const char *id)
{
	return file_of(husk, id, "egress");
}

char *egress_visits_path(struct husk *husk, const char *id)
{
	return file_of(husk, id, "visits");
}
