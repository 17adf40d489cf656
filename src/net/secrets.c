/*
 * The file of secrets, which the guest must never see. libhusk makes it when a sandbox gets secrets, fork copies it,
 * the supervisor reads it for the leash. No value and no key may appear in an error message, a log or a temporary file
 * of another mode.
 *
 *   {"values":{"TOKEN":"…"},"certificate":"PEM","key":"PEM"}
 */
#include "net/secrets.h"

#include "base/jansson.h"
#include "net/authority.h"

static json_t *parse(const char *text, struct husk_error *err)
{
	json_t *root = json_loads(text, 0, NULL);

	/* jansson's own message is not used, because it quotes its input. */
	if (json_is_object(root) && json_is_object(json_object_get(root, "values")) &&
	    json_is_string(json_object_get(root, "certificate")) && json_is_string(json_object_get(root, "key")))
		return root;
	json_decref(root);
	husk_fail(err, HUSK_INTERNAL, "the sandbox's secrets cannot be read; set them anew");
	return NULL;
}

/* A value becomes part of a header line, so it must not contain a line end. */
static int check_value(const char *name, const char *value, struct husk_error *err)
{
	size_t size = strlen(value);

	if (size == 0 || size > SECRET_VALUE_MAX)
		return husk_fail(err, HUSK_INVALID, "secret '%s' must have a value of 1 to %d bytes", name,
				 SECRET_VALUE_MAX);
	for (size_t i = 0; i < size; i++)
		if ((unsigned char)value[i] < 0x20 || value[i] == 0x7f)
			return husk_fail(err, HUSK_INVALID,
					 "secret '%s' has a control character in its value; no header can carry it",
					 name);
	if (!str_is_utf8(value, size))
		return husk_fail(err, HUSK_INVALID, "secret '%s' has a value that is not utf-8", name);
	return 0;
}

static const char *find_value(const struct husk_pair *values, size_t count, json_t *old, const char *name)
{
	for (size_t i = count; i > 0; i--)
		if (str_equal(values[i - 1].key, name))
			return values[i - 1].value;
	return json_string_value(json_object_get(json_object_get(old, "values"), name));
}

static int check_names(const struct policy *policy, const struct husk_pair *values, size_t count,
		       struct husk_error *err)
{
	for (size_t i = 0; i < count; i++) {
		bool known = false;

		for (size_t s = 0; s < policy->secret_count; s++)
			known = known || str_equal(policy->secrets[s].name, values[i].key);
		if (!known)
			return husk_fail(err, HUSK_INVALID,
					 "secret '%.64s' has a value but no host; write NAME=VALUE@host",
					 values[i].key ? values[i].key : "");
	}
	return 0;
}

static json_t *collect(const struct policy *policy, const struct husk_pair *values, size_t count, json_t *old,
		       struct husk_error *err)
{
	cleanup_json json_t *kept = json_object();

	for (size_t i = 0; i < policy->secret_count; i++) {
		const char *name = policy->secrets[i].name, *value = find_value(values, count, old, name);

		if (!value) {
			husk_fail(err, HUSK_INVALID, "secret '%s' has no value; write %s=VALUE@host", name, name);
			return NULL;
		}
		if (check_value(name, value, err) < 0)
			return NULL;
		if (json_object_set_new(kept, name, json_string(value)) < 0) {
			husk_fail_memory(err);
			return NULL;
		}
	}
	return steal_pointer(kept);
}

static int add_authority(json_t *root, json_t *old, struct husk_error *err)
{
	char *certificate = NULL, *key = NULL;

	if (old) {
		if (json_object_set(root, "certificate", json_object_get(old, "certificate")) < 0 ||
		    json_object_set(root, "key", json_object_get(old, "key")) < 0)
			return husk_fail_memory(err);
		return 0;
	}
	if (authority_make(&certificate, &key, err) < 0)
		return -1;
	int bad = json_object_set_new(root, "certificate", json_string(certificate)) |
		  json_object_set_new(root, "key", json_string(key));

	free(certificate);
	str_wipe(key);
	return bad ? husk_fail_memory(err) : 0;
}

char *secrets_make(const struct policy *policy, const struct husk_pair *values, size_t count, const char *old,
		   struct husk_error *err)
{
	cleanup_json json_t *before = NULL, *root = NULL, *kept = NULL;
	char *text;

	if (err)
		err->code = HUSK_OK;
	if (check_names(policy, values, count, err) < 0 || !policy_opens_tls(policy))
		return NULL;
	if (old && !(before = parse(old, err)))
		return NULL;
	kept = collect(policy, values, count, before, err);
	root = kept ? json_pack("{s:O}", "values", kept) : NULL;
	if (!root || add_authority(root, before, err) < 0)
		return NULL;
	text = json_dumps(root, JSON_COMPACT);
	if (!text)
		husk_fail_memory(err);
	if (text && strlen(text) > SECRETS_TEXT_MAX) {
		str_wipe(text);
		husk_fail(err, HUSK_INVALID, "the secrets are longer than %u bytes together", SECRETS_TEXT_MAX);
		return NULL;
	}
	return text;
}

int secrets_save(const char *path, const char *text, struct husk_error *err)
{
	return file_write_atomic(path, text, strlen(text), 0600, err);
}

char *secrets_load(const char *path, struct husk_error *err)
{
	if (err)
		err->code = HUSK_OK;
	if (access(path, F_OK) < 0 && errno == ENOENT)
		return NULL;
	return file_read(path, SECRETS_TEXT_MAX, NULL, err);
}

char *secrets_certificate(const char *text, struct husk_error *err)
{
	cleanup_json json_t *root = parse(text, err);
	char *certificate = root ? strdup(json_string_value(json_object_get(root, "certificate"))) : NULL;

	if (root && !certificate)
		husk_fail_memory(err);
	return certificate;
}

char *secrets_placeholder(const char *name)
{
	return str_format("husk-secret-%s-hidden", name);
}
