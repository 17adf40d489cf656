/*
 * Stored secrets of libhusk: checked here, stored by the catalog, and returned only by husk_secret_value, for callers
 * that build a policy. No value may appear in an error, an event or a log.
 */
#include <ctype.h>
#include <jansson.h>

#include "instance/instance.h"
#include "net/secrets.h"

#define NAME_MAX_BYTES 128
#define PAIRS_MAX 32
#define KEY_MAX 128
#define PAIR_VALUE_MAX 1024
#define METADATA_MAX 8192
#define ID_PREFIX "sec_"

/* Names are stored in lower case, and found in any; ids have no other. Caller frees. */
static char *folded(const char *given, struct husk_error *err)
{
	char *name = strdup(given);

	for (char *at = name; at && *at; at++)
		*at = (char)tolower((unsigned char)*at);
	if (!name)
		husk_fail_memory(err);
	return name;
}

/* Lower-cased; the name must be valid in "${…}". */
static int check_name(const char *given, char **out, struct husk_error *err)
{
	size_t size = given ? strlen(given) : 0;
	bool bad = size == 0 || size > NAME_MAX_BYTES || !str_is_utf8(given, size) ||
		   strncasecmp(given, ID_PREFIX, 4) == 0;

	for (size_t i = 0; i < size; i++)
		bad |= (unsigned char)given[i] < 0x20 || given[i] == 0x7f || strchr("{}/", given[i]);
	if (bad)
		return husk_fail_field(
			err, "name",
			"a secret's name has 1 to %d bytes without {, }, / and control characters, and does not "
			"begin with " ID_PREFIX,
			NAME_MAX_BYTES);
	*out = folded(given, err);
	return *out ? 0 : -1;
}

/* The value becomes part of a header line. */
static int check_value(const char *value, struct husk_error *err)
{
	size_t size = value ? strlen(value) : 0;
	bool bad = size == 0 || size > SECRET_VALUE_MAX || !str_is_utf8(value, size);

	for (size_t i = 0; i < size; i++)
		bad |= (unsigned char)value[i] < 0x20 || value[i] == 0x7f;
	return bad ? husk_fail_field(
			     err, "value",
			     "a secret's value has 1 to %d bytes of UTF-8 without control characters: it is sent in a "
			     "header",
			     SECRET_VALUE_MAX)
		   : 0;
}

static char *metadata_text(const struct husk_pair *pairs, size_t count, struct husk_error *err)
{
	json_t *object = json_object();
	size_t total = 0;
	bool bad = !object || count > PAIRS_MAX;

	for (size_t i = 0; i < count && !bad; i++) {
		size_t key = strlen(pairs[i].key), value = strlen(pairs[i].value);
		total += key + value;
		bad = key > KEY_MAX || value > PAIR_VALUE_MAX || total > METADATA_MAX ||
		      json_object_set_new(object, pairs[i].key, json_string(pairs[i].value)) < 0;
	}
	char *text = bad ? NULL : json_dumps(object, JSON_COMPACT);
	json_decref(object);
	if (!text)
		husk_fail_field(
			err, "metadata",
			"a secret's metadata has at most %d entries, keys of %d bytes, values of %d, and %d in all",
			PAIRS_MAX, KEY_MAX, PAIR_VALUE_MAX, METADATA_MAX);
	return text;
}

int husk_secret_store(struct husk *husk, const char *name, const char *value, const struct husk_pair *metadata,
		      size_t count, struct husk_stored_secret **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "storing secrets", "give their values in the policy of a sandbox",
				     err);
	cleanup_free char *plain = NULL, *text = NULL;
	char id[32];

	if (check_name(name, &plain, err) < 0 || check_value(value, err) < 0 ||
	    !(text = metadata_text(metadata, count, err)))
		return -1;
	if (random_id(ID_PREFIX, 20, id) < 0)
		return husk_fail_errno(err, "cannot make an id");
	struct husk_stored_secret row = { .id = id, .name = plain, .metadata = text, .created_ms = time_wall_ms() };
	if (catalog_secret_add(husk->catalog, &row, value, err) < 0)
		return -1;
	return catalog_secret_get(husk->catalog, id, out, err);
}

int husk_secret_change(struct husk *husk, const char *id_or_name, const char *value, const struct husk_pair *metadata,
		       size_t count, struct husk_stored_secret **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "storing secrets", "give their values in the policy of a sandbox",
				     err);
	cleanup_free char *text = NULL, *name = folded(id_or_name, err);

	if (!name || check_value(value, err) < 0 || (metadata && !(text = metadata_text(metadata, count, err))) ||
	    catalog_secret_change(husk->catalog, name, value, text, err) < 0)
		return -1;
	return catalog_secret_get(husk->catalog, name, out, err);
}

int husk_secret_get(struct husk *husk, const char *id_or_name, struct husk_stored_secret **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "storing secrets", "give their values in the policy of a sandbox",
				     err);
	cleanup_free char *name = folded(id_or_name, err);
	return name ? catalog_secret_get(husk->catalog, name, out, err) : -1;
}

int husk_secret_list(struct husk *husk, struct husk_stored_secret ***out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "storing secrets", "give their values in the policy of a sandbox",
				     err);
	return catalog_secret_list(husk->catalog, out, err);
}

int husk_secret_remove(struct husk *husk, const char *id_or_name, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "storing secrets", "give their values in the policy of a sandbox",
				     err);
	cleanup_free char *name = folded(id_or_name, err);
	return name ? catalog_secret_remove(husk->catalog, name, err) : -1;
}

int husk_secret_value(struct husk *husk, const char *id_or_name, char **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "storing secrets", "give their values in the policy of a sandbox",
				     err);
	cleanup_free char *name = folded(id_or_name, err);
	return name ? catalog_secret_value(husk->catalog, name, out, err) : -1;
}
