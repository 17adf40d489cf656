/*
 * Converts metadata and environments between lists of pairs and JSON. Everything in libhusk that takes pairs from a caller,
 * or reads a catalog row, uses this file. Pairs are checked both ways. An environment value must never appear in an error
 * message.
 */
#include "instance/pairs.h"

#include "base/jansson.h"

#define KEY_MAX_BYTES 128
#define VALUE_MAX_BYTES (32 * 1024)
#define PAIRS_MAX 1024

/* ---- checking ---- */

static bool is_environment_name(const char *key)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
	static const char letters_and_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";

	return strspn(key, letters) > 0 && key[strspn(key, letters_and_digits)] == '\0';
}

static bool is_printable(const char *key)
{
	for (const char *c = key; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			return false;
	return str_is_utf8(key, strlen(key));
}

/* The field's name in the HTTP API. */
static const char *field_of(const char *what)
{
	return str_equal(what, "environment") ? "env" : what;
}

static int check_value(const char *what, const struct husk_pair *pair, struct husk_error *err)
{
	size_t size = pair->value ? strlen(pair->value) : 0;

	if (!pair->value)
		return husk_fail_field(err, field_of(what), "%s '%s' has no value; write %s=value", what, pair->key,
				       pair->key);
	if (size > VALUE_MAX_BYTES)
		return husk_fail_field(err, field_of(what), "%s '%s' has a value of %zu bytes; at most %d are allowed",
				       what, pair->key, size, VALUE_MAX_BYTES);
	if (!str_is_utf8(pair->value, size))
		return husk_fail_field(err, field_of(what), "%s '%s' has a value that is not utf-8", what, pair->key);
	return 0;
}

static int check_count(const char *what, const struct husk_pair *pairs, size_t count, struct husk_error *err)
{
	if (count && !pairs)
		return husk_fail_field(err, field_of(what), "%s: a count of %zu without a list", what, count);
	if (count > PAIRS_MAX)
		return husk_fail_field(err, field_of(what), "%s: %zu pairs given; at most %d are allowed", what, count,
				       PAIRS_MAX);
	return 0;
}

int pairs_check_metadata(const struct husk_pair *pairs, size_t count, struct husk_error *err)
{
	if (check_count("metadata", pairs, count, err))
		return -1;
	for (size_t i = 0; i < count; i++) {
		const char *key = pairs[i].key;

		if (!key || !*key)
			return husk_fail_field(err, "metadata", "metadata: pair %zu has an empty key; write key=value",
					       i + 1);
		if (strlen(key) > KEY_MAX_BYTES)
			return husk_fail_field(err, "metadata",
					       "metadata key '%.40s…' has %zu bytes; at most %d are allowed", key,
					       strlen(key), KEY_MAX_BYTES);
		if (!is_printable(key))
			return husk_fail_field(err, "metadata",
					       "metadata: the key of pair %zu is not printable utf-8 text", i + 1);
		if (check_value("metadata", &pairs[i], err))
			return -1;
	}
	return 0;
}

int pairs_check_environment(const struct husk_pair *pairs, size_t count, struct husk_error *err)
{
	if (check_count("environment", pairs, count, err))
		return -1;
	for (size_t i = 0; i < count; i++) {
		const char *key = pairs[i].key;

		if (!key || !is_environment_name(key))
			return husk_fail_field(
				err, "env",
				"environment: the name of pair %zu is not valid; use letters, digits and _, "
				"not starting "
				"with a digit",
				i + 1);
		if (strlen(key) > VALUE_MAX_BYTES)
			return husk_fail_field(err, "env", "environment: the name of pair %zu is longer than %d bytes",
					       i + 1, VALUE_MAX_BYTES);
		if (check_value("environment", &pairs[i], err))
			return -1;
	}
	return 0;
}

/* ---- converting ---- */

/* An object of strings, or NULL. */
static json_t *parse(const char *json, struct husk_error *err)
{
	json_error_t why;
	const char *key;
	json_t *value;
	cleanup_json json_t *object = json && *json ? json_loads(json, 0, &why) : json_object();

	if (!object && (!json || !*json)) {
		husk_fail_memory(err);
		return NULL;
	}
	if (!json_is_object(object)) {
		husk_fail(err, HUSK_INTERNAL, "the catalog holds something that is not an object of strings%s%s",
			  object ? "" : ": ", object ? "" : why.text);
		return NULL;
	}
	json_object_foreach(object, key, value)
	{
		if (!json_is_string(value)) {
			husk_fail(err, HUSK_INTERNAL, "the catalog's value of '%.64s' is not a string", key);
			return NULL;
		}
	}
	return steal_pointer(object);
}

char *json_with_pairs(const char *base, const struct husk_pair *pairs, size_t count, struct husk_error *err)
{
	cleanup_json json_t *object = parse(base, err);
	char *out;

	if (!object)
		return NULL;
	for (size_t i = 0; i < count; i++) {
		if (json_object_set_new(object, pairs[i].key, json_string(pairs[i].value))) {
			husk_fail(err, HUSK_INVALID, "'%.64s' cannot be kept: its value is not utf-8 text",
				  pairs[i].key);
			return NULL;
		}
	}
	out = json_dumps(object, JSON_COMPACT);
	if (!out)
		husk_fail_memory(err);
	return out;
}

char *pairs_to_json(const struct husk_pair *pairs, size_t count, struct husk_error *err)
{
	return json_with_pairs(NULL, pairs, count, err);
}

int json_to_pairs(const char *json, struct husk_pair **out, size_t *count, struct husk_error *err)
{
	cleanup_json json_t *object = parse(json, err);
	const char *key;
	json_t *value;
	size_t filled = 0;

	if (!object)
		return -1;
	struct husk_pair *pairs = calloc(json_object_size(object) + 1, sizeof *pairs);

	if (!pairs)
		return husk_fail_memory(err);
	json_object_foreach(object, key, value)
	{
		struct husk_pair *pair = &pairs[filled++];

		pair->key = strdup(key);
		pair->value = strdup(json_string_value(value));
		if (!pair->key || !pair->value) {
			pairs_free(pairs, filled);
			return husk_fail_memory(err);
		}
	}
	*out = pairs;
	*count = filled;
	return 0;
}

void pairs_free(struct husk_pair *pairs, size_t count)
{
	for (size_t i = 0; pairs && i < count; i++) {
		free((char *)pairs[i].key);
		free((char *)pairs[i].value);
	}
	free(pairs);
}

int json_has_pairs(const char *json, const struct husk_pair *pairs, size_t count, struct husk_error *err)
{
	cleanup_json json_t *object = parse(json, err);

	if (!object)
		return -1;
	for (size_t i = 0; i < count; i++)
		if (!str_equal(json_string_value(json_object_get(object, pairs[i].key)), pairs[i].value))
			return 0;
	return 1;
}
