/*
 * The keys whose machines this instance accepts: its own key, the trusted keys (one file each in <home>/trusted-keys,
 * with the name of the key), and those of the setting trusted_keys.
 */
#include <sys/stat.h>

#include "instance/portable.h"

#define OWN "own"
#define SETTING "trusted_keys"
#define FOLDER "%s/trusted-keys"
#define KEYS_MAX 1024

void husk_key_list_free(struct husk_key **list)
{
	for (size_t i = 0; list && list[i]; i++) {
		free(list[i]->name);
		free(list[i]->key);
		free(list[i]);
	}
	free(list);
}

/* ---- the list ---- */

struct keys {
	struct husk_key **list;
	size_t count;
};

static int add_key(struct keys *keys, const char *name, const char *text, struct husk_error *err)
{
	struct husk_key *key = calloc(1, sizeof(*key));

	if (!key || keys->count == KEYS_MAX) {
		free(key);
		return key ? husk_fail(err, HUSK_LIMIT, "more than %d keys are trusted", KEYS_MAX)
			   : husk_fail_memory(err);
	}
	key->name = strdup(name);
	key->key = strdup(text);
	keys->list[keys->count++] = key;
	return key->name && key->key ? 0 : husk_fail_memory(err);
}

static int add_setting(struct keys *keys, struct husk_error *err)
{
	const char *at = getenv("HUSK_TRUSTED_KEYS");

	for (size_t size; at && *(at += strspn(at, ", ")); at += size) {
		size = strcspn(at, ", ");
		cleanup_free char *key = strndup(at, size);
		if (!key)
			return husk_fail_memory(err);
		if (!portable_is_key(key))
			return husk_fail(err, HUSK_INVALID, SETTING " has '%.80s', which is not a key (husk key show)",
					 key);
		if (add_key(keys, SETTING, key, err) < 0)
			return -1;
	}
	return 0;
}

static int add_folder(struct husk *husk, struct keys *keys, struct husk_error *err)
{
	cleanup_free char *folder = str_format(FOLDER, husk->paths.home);
	struct dirent **names = NULL;
	int count = folder ? scandir(folder, &names, NULL, alphasort) : -1, result = 0;

	for (int i = 0; i < count; i++) {
		cleanup_free char *path = str_format("%s/%s", folder, names[i]->d_name);
		cleanup_free char *text =
			path && names[i]->d_name[0] != '.' ? file_read(path, PORTABLE_KEY_SIZE * 2, NULL, NULL) : NULL;
		if (text)
			text[strcspn(text, "\n")] = '\0';
		if (text && result == 0 && portable_is_key(text))
			result = add_key(keys, names[i]->d_name, text, err);
		free(names[i]);
	}
	free(names);
	return result;
}

int husk_key_list(struct husk *husk, struct husk_key ***out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "listing keys", "do it on the server's host", err);
	struct keys keys = { calloc(KEYS_MAX + 1, sizeof(*keys.list)), 0 };
	char own[PORTABLE_KEY_SIZE];

	if (!keys.list)
		return husk_fail_memory(err);
	if (portable_key(husk->paths.home, own, err) < 0 || add_key(&keys, OWN, own, err) < 0 ||
	    add_folder(husk, &keys, err) < 0 || add_setting(&keys, err) < 0) {
		husk_key_list_free(keys.list);
		return -1;
	}
	*out = keys.list;
	return 0;
}

int portable_trusted(struct husk *husk, const char *key, struct husk_error *err)
{
	struct husk_key **list = NULL;
	bool found = false;

	if (!portable_is_key(key))
		return husk_fail(err, HUSK_INVALID, "the portable machine is damaged: its key makes no sense");
	if (husk_key_list(husk, &list, err) < 0)
		return -1;
	for (size_t i = 0; list && list[i]; i++)
		found |= str_equal(list[i]->key, key);
	husk_key_list_free(list);
	return found ? 0
		     : husk_fail(err, HUSK_DENIED,
				 "the machine is signed by a key that is not trusted here; if you know whose it is: "
				 "husk key "
				 "trust %s",
				 key);
}

/* ---- changes ---- */

int husk_key_show(struct husk *husk, char **key, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "showing the key", "do it on the server's host", err);
	char text[PORTABLE_KEY_SIZE];

	if (husk_owner_only(husk, "the key of the instance", err) < 0 || portable_key(husk->paths.home, text, err) < 0)
		return -1;
	*key = strdup(text);
	return *key ? 0 : husk_fail_memory(err);
}

int husk_key_trust(struct husk *husk, const char *key, const char *name, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "trusting a key", "do it on the server's host", err);
	cleanup_free char *folder = str_format(FOLDER, husk->paths.home);
	char digest[OCI_HEX_LENGTH + 1];

	if (husk_owner_only(husk, "trusting a key", err) < 0)
		return -1;
	if (!portable_is_key(key))
		return husk_fail_field(err, "key", "'%.80s' is not a key: ed25519: and 44 characters (husk key show)",
				       key);
	if (portable_digest(key, strlen(key), digest, err) < 0)
		return -1;
	cleanup_free char *given = name ? strdup(name) : strndup(digest, 8);
	if (!folder || !given)
		return husk_fail_memory(err);
	if (str_equal(given, OWN) || str_equal(given, SETTING))
		return husk_fail_field(err, "name", "'%s' is the name of another kind of key; choose another name",
				       given);
	if (name_check("name", given, err) < 0 || dir_make(folder, 0700, err) < 0)
		return -1;
	cleanup_free char *path = str_format("%s/%s", folder, given);
	cleanup_free char *old = path ? file_read(path, PORTABLE_KEY_SIZE * 2, NULL, NULL) : NULL;
	if (old)
		old[strcspn(old, "\n")] = '\0';
	if (old && !str_equal(old, key))
		return husk_fail(err, HUSK_CONFLICT, "another key is named '%s' (husk key ls); choose another name",
				 given);
	cleanup_free char *line = str_format("%s\n", key);
	return path && line ? file_write_atomic(path, line, strlen(line), 0600, err) : husk_fail_memory(err);
}

int husk_key_remove(struct husk *husk, const char *name, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "removing a key", "do it on the server's host", err);
	if (husk_owner_only(husk, "removing a key", err) < 0 || name_check("name", name, err) < 0)
		return -1;
	cleanup_free char *path = str_format(FOLDER "/%s", husk->paths.home, name);
	if (!path)
		return husk_fail_memory(err);
	if (unlink(path) == 0)
		return 0;
	return errno == ENOENT ? husk_fail(err, HUSK_NOT_FOUND, "no trusted key is named '%s' (husk key ls)", name)
			       : husk_fail_errno(err, "cannot remove '%s'", path);
}
