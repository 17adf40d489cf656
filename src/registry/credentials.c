/*
 * Reads docker's config.json and asks credential helpers (credentials.h). A helper is a program docker-credential-NAME in
 * PATH: it gets the server's name on stdin and prints JSON.
 */
#include "registry/credentials.h"

#include <ctype.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/mman.h>

#include "base/jansson.h"
#include "registry/reference.h"

#define CONFIG_MAX (1u << 20)
#define DEPTH_MAX 16
#define SECRET_MAX (64u << 10)
#define HELPER_MS 60000
#define HUB_SERVER "https://index.docker.io/v1/" /* docker's name for docker.io in its config */

extern char **environ;

void credentials_free(struct credentials *credentials)
{
	free(credentials->user);
	str_wipe(credentials->secret);
	*credentials = (struct credentials){ 0 };
}

char *credentials_basic(const struct credentials *credentials)
{
	char *pair = str_format("%s:%s", credentials->user, credentials->secret);
	size_t size = pair ? strlen(pair) : 0;
	char *encoded = pair ? malloc(4 * ((size + 2) / 3) + 1) : NULL;
	char *header = NULL;

	if (encoded) {
		EVP_EncodeBlock((unsigned char *)encoded, (const unsigned char *)pair, (int)size);
		header = str_format("Basic %s", encoded);
	}
	str_wipe(pair);
	str_wipe(encoded);
	return header;
}

/* ---- config.json ---- */

static json_t *parse(const char *text, const char *what, struct husk_error *err)
{
	size_t size = strlen(text);
	json_t *root = str_json_deeper(text, size, DEPTH_MAX) ? NULL : json_loadb(text, size, 0, NULL);

	if (json_is_object(root))
		return root;
	json_decref(root);
	husk_fail(err, HUSK_INVALID, "%s is not a JSON object", what);
	return NULL;
}

static const char *text_of(json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text && *text && strlen(text) < SECRET_MAX ? text : NULL;
}

/* "https://localhost:5000/v1/" and "localhost:5000" name one registry. */
static bool is_of(const char *key, const char *host)
{
	if (str_equal(key, HUB_SERVER))
		return str_equal(host, REFERENCE_REGISTRY);
	if (str_starts(key, "https://"))
		key += strlen("https://");
	else if (str_starts(key, "http://"))
		key += strlen("http://");
	size_t length = strcspn(key, "/");
	return length == strlen(host) && strncasecmp(key, host, length) == 0;
}

static json_t *find_key(json_t *object, const char *host, const char **found)
{
	const char *key;
	json_t *value;

	json_object_foreach(object, key, value)
	{
		if (!is_of(key, host))
			continue;
		*found = key;
		return value;
	}
	return NULL;
}

static int take(struct credentials *out, const char *user, const char *secret, bool is_token, struct husk_error *err)
{
	out->user = strdup(user);
	out->secret = strdup(secret);
	out->is_token = is_token;
	if (out->user && out->secret)
		return 0;
	credentials_free(out);
	return husk_fail_memory(err);
}

/* base64 of "user:secret" */
static int take_auth(const char *encoded, const char *host, struct credentials *out, struct husk_error *err)
{
	size_t size = strlen(encoded);
	char *plain = calloc(1, size + 4);
	int count = plain ? EVP_DecodeBlock((unsigned char *)plain, (const unsigned char *)encoded, (int)size) : -1;
	char *colon = count > 0 ? strchr(plain, ':') : NULL;
	int result;

	if (colon && colon > plain && colon[1]) {
		*colon = '\0';
		result = take(out, plain, colon + 1, false, err);
		*colon = ':';
	} else {
		result = husk_fail(err, HUSK_INVALID,
				   "docker's config.json has a login for '%.80s' that cannot be read; log in again",
				   host);
	}
	str_wipe(plain);
	return result;
}

int credentials_read(const char *text, const char *host, struct credentials *out, char **helper, char **server,
		     struct husk_error *err)
{
	cleanup_json json_t *root = parse(text, "docker's config.json", err);
	const char *key = str_equal(host, REFERENCE_REGISTRY) ? HUB_SERVER : host;

	*out = (struct credentials){ 0 };
	if (!root)
		return -1;
	const char *named = json_string_value(find_key(json_object_get(root, "credHelpers"), host, &key));
	json_t *entry = named ? NULL : find_key(json_object_get(root, "auths"), host, &key);
	const char *token = text_of(entry, "identitytoken"), *auth = text_of(entry, "auth");
	if (token)
		return take(out, "<token>", token, true, err);
	if (auth)
		return take_auth(auth, host, out, err);
	named = named ? named : text_of(root, "credsStore");
	if (!named)
		return 0;
	for (const char *at = named; *at; at++)
		if (!isalnum((unsigned char)*at) && !strchr("-_.", *at))
			return husk_fail(err, HUSK_INVALID, "docker's config.json names the helper '%.80s'", named);
	*helper = strdup(named);
	*server = strdup(key);
	return *helper && *server ? 0 : husk_fail_memory(err);
}

/* ---- helpers ---- */

int credentials_helped(const char *text, struct credentials *out, struct husk_error *err)
{
	cleanup_json json_t *root = parse(text, "what the credential helper printed", err);
	const char *user = text_of(root, "Username"), *secret = text_of(root, "Secret");

	*out = (struct credentials){ 0 };
	if (!root)
		return -1;
	if (!user || !secret)
		return 0;
	return take(out, user, secret, str_equal(user, "<token>"), err);
}

/* A file with the text for the helper's stdin. */
static int name_file(const char *server, struct husk_error *err)
{
	cleanup_close int fd = memfd_create("server", MFD_CLOEXEC);

	if (fd < 0 || write_full(fd, server, strlen(server)) < 0 || lseek(fd, 0, SEEK_SET) < 0)
		return husk_fail_errno(err, "cannot ask a credential helper");
	return steal_fd(&fd);
}

static int ask_helper(const char *helper, const char *server, struct credentials *out, struct husk_error *err)
{
	cleanup_free char *program = str_format("docker-credential-%s", helper);
	cleanup_buf struct buf answer = { 0 };
	cleanup_close int name = name_file(server, err);
	struct husk_error why = { 0 };

	if (name < 0 || !program)
		return name < 0 ? -1 : husk_fail_memory(err);
	struct command command = {
		COMMAND_INIT,
		.argv = (const char *[]){ program, "get", NULL },
		.environment = (const char *const *)environ,
		.output = &answer,
		.timeout_ms = HELPER_MS,
	};
	command.stdin_fd = name;
	int result = command_run(&command, &why);
	if (result == 0)
		result = credentials_helped(answer.data ? answer.data : "", out, err);
	/* Helpers print this, and fail, for a server without a login. */
	else if (answer.data && strstr(answer.data, "credentials not found"))
		result = 0;
	else
		result = husk_fail(err, HUSK_UNAVAILABLE, "the credential helper of docker's config.json failed: %s",
				   why.message);
	if (answer.data)
		explicit_bzero(answer.data, answer.size);
	return result;
}

/* `docker-credential-NAME store|erase`, with its input. */
static int tell_helper(const char *helper, const char *verb, const char *input, struct husk_error *err)
{
	cleanup_free char *program = str_format("docker-credential-%s", helper);
	cleanup_close int text = name_file(input, err);
	struct husk_error why = { 0 };

	if (text < 0 || !program)
		return text < 0 ? -1 : husk_fail_memory(err);
	struct command command = {
		COMMAND_INIT,
		.argv = (const char *[]){ program, verb, NULL },
		.environment = (const char *const *)environ,
		.timeout_ms = HELPER_MS,
	};
	command.stdin_fd = text;
	if (command_run(&command, &why) == 0)
		return 0;
	return husk_fail(err, HUSK_UNAVAILABLE, "the credential helper of docker's config.json failed: %s",
			 why.message);
}

static char *config_path(void)
{
	const char *folder = getenv("DOCKER_CONFIG"), *home = getenv("HOME");

	if (folder && *folder)
		return str_format("%s/config.json", folder);
	return home && *home ? str_format("%s/.docker/config.json", home) : NULL;
}

int credentials_find(const char *host, struct credentials *out, struct husk_error *err)
{
	cleanup_free char *path = config_path(), *helper = NULL, *server = NULL;
	struct husk_error why = { 0 };

	*out = (struct credentials){ 0 };
	char *text = path ? file_read(path, CONFIG_MAX, NULL, &why) : NULL;
	if (!text)
		return !path || why.code == HUSK_NOT_FOUND ? 0 : husk_fail(err, why.code, "%s", why.message);
	int result = credentials_read(text, host, out, &helper, &server, err);
	str_wipe(text);
	if (result < 0)
		return husk_wrap(err, "%s", path);
	return helper ? ask_helper(helper, server, out, err) : 0;
}

/* ---- keeping ---- */

/* config.json as an object that is changed and written back; other programs' keys in it stay. */
static json_t *load_config(const char *path, struct husk_error *err)
{
	struct husk_error why = { 0 };
	char *text = file_read(path, CONFIG_MAX, NULL, &why);

	if (!text && why.code != HUSK_NOT_FOUND) {
		*err = why;
		return NULL;
	}
	json_t *root = text && text[strspn(text, " \t\r\n")] ? parse(text, path, err)
		       : text || why.code                    ? json_object()
							     : NULL;
	str_wipe(text);
	return root;
}

static int save_config(const char *path, json_t *root, struct husk_error *err)
{
	cleanup_free char *folder = strndup(path, (size_t)(strrchr(path, '/') - path));
	char *text = json_dumps(root, JSON_INDENT(4));

	int result = !folder || !text ? husk_fail_memory(err) : dir_make(folder, 0700, err);
	if (result == 0)
		result = file_write_atomic(path, text, strlen(text), 0600, err);
	str_wipe(text);
	return result;
}

/* The helper that the file names for the host, and the server's name for it; NULL: none. Caller frees both. */
static int find_helper(json_t *root, const char *host, char **helper, char **server, struct husk_error *err)
{
	cleanup_json json_t *without = json_copy(root);
	struct credentials unused = { 0 };

	json_object_del(without, "auths"); /* a login there does not mean that the helper is not used */
	cleanup_free char *text = without ? json_dumps(without, JSON_COMPACT) : NULL;
	return text ? credentials_read(text, host, &unused, helper, server, err) : husk_fail_memory(err);
}

static int store_in_file(json_t *root, const char *host, const struct credentials *credentials, struct husk_error *err)
{
	char *header = credentials_basic(credentials);
	const char *key = str_equal(host, REFERENCE_REGISTRY) ? HUB_SERVER : host;
	json_t *auths = json_object_get(root, "auths");
	int failed = !header;

	if (!json_is_object(auths)) {
		auths = json_object();
		failed |= json_object_set_new(root, "auths", auths) < 0;
	}
	const char *known = NULL;
	while (!failed && find_key(auths, host, &known))
		json_object_del(auths, known);
	failed = failed || json_object_set_new(auths, key, json_pack("{s:s}", "auth", header + strlen("Basic "))) < 0;
	str_wipe(header);
	return failed ? husk_fail_memory(err) : 0;
}

int credentials_store(const char *host, const struct credentials *credentials, struct husk_error *err)
{
	cleanup_free char *path = config_path(), *helper = NULL, *server = NULL;
	cleanup_json json_t *root = path ? load_config(path, err) : NULL;

	if (!path)
		return husk_fail(err, HUSK_INVALID, "no place for logins: set HOME or DOCKER_CONFIG");
	if (!root || find_helper(root, host, &helper, &server, err) < 0)
		return -1;
	if (!helper)
		return store_in_file(root, host, credentials, err) < 0 ? -1 : save_config(path, root, err);
	cleanup_json json_t *input = json_pack("{s:s, s:s, s:s}", "ServerURL", server, "Username", credentials->user,
					       "Secret", credentials->secret);
	cleanup_wipe char *text = input ? json_dumps(input, JSON_COMPACT) : NULL;
	return text ? tell_helper(helper, "store", text, err) : husk_fail_memory(err);
}

int credentials_erase(const char *host, struct husk_error *err)
{
	cleanup_free char *path = config_path(), *helper = NULL, *server = NULL;
	cleanup_json json_t *root = path ? load_config(path, err) : NULL;
	struct credentials found = { 0 };
	const char *key = NULL;
	bool known = false;

	if (!path)
		return husk_fail(err, HUSK_INVALID, "no place for logins: set HOME or DOCKER_CONFIG");
	if (!root || find_helper(root, host, &helper, &server, err) < 0)
		return -1;
	if (helper) {
		known = credentials_find(host, &found, NULL) == 0 && found.secret;
		credentials_free(&found);
		if (known && tell_helper(helper, "erase", server, err) < 0)
			return -1;
	}
	json_t *auths = json_object_get(root, "auths");
	bool in_file = false;
	while (find_key(auths, host, &key)) {
		json_object_del(auths, key);
		in_file = true;
	}
	if (!known && !in_file)
		return husk_fail(err, HUSK_NOT_FOUND, "no login for %s in %s", host, path);
	return in_file ? save_config(path, root, err) : 0;
}
