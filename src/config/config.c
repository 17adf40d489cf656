/*
 * The settings of a machine, from /etc/husk/husk.toml and the files in conf.d beside it; a later file wins. HUSK_CONFIG
 * names another first file. The table below is the only list of settings. Each setting sets an environment variable, so
 * the code that uses a setting reads no file. Called by the mains of husk and huskd, and by `husk config show`.
 *
 *     pool = 8                   HUSK_POOL=8
 *     [server]
 *     listen = "0.0.0.0:7820"    HUSK_LISTEN=0.0.0.0:7820
 */
#include "config/config.h"

#include <dirent.h>
#include <unistd.h>

#include "base/log.h"
#include "config/toml_reader.h"

#define FILE_DEFAULT "/etc/husk/husk.toml"
#define FILE_LIMIT (1u << 20)

enum kind { TEXT, NUMBER, SIZE, LEVEL };

static const struct {
	const char *key, *environment;
	enum kind kind;
	int64_t min, max; /* of a NUMBER */
	const char *fallback, *meaning;
} settings[] = {
	{ "home", "HUSK_HOME", TEXT, 0, 0, "/var/lib/husk", "where the instance keeps its state" },
	{ "log", "HUSK_LOG", LEVEL, 0, 0, "info; husk: warn", "how much is logged: error, warn, info or debug" },
	{ "pool", "HUSK_POOL", NUMBER, 0, 64, "2", "prepared machines kept per template in use" },
	{ "pool_idle", "HUSK_POOL_IDLE", NUMBER, 0, 86400, "300", "seconds after which an unused one ends" },
	{ "templates", "HUSK_TEMPLATES", TEXT, 0, 0, "beside the program", "directory of template definitions" },
	{ "cache", "HUSK_CACHE", TEXT, 0, 0, "cache in home", "directory of built root filesystems" },
	{ "recordings", "HUSK_RECORDINGS", SIZE, 0, 0, "64G", "disk of all recordings of desktops" },
	{ "network.range", "HUSK_NET", TEXT, 0, 0, "10.201.0.0/16, or the next free one",
	  "range of the wires to guests" },
	{ "network.dns", "HUSK_DNS", TEXT, 0, 0, "the host's", "resolver of allowed names, address[:port]" },
	{ "network.trust", "HUSK_TRUST", TEXT, 0, 0, "none",
	  "PEM file of certificates that sandboxes trust besides their own" },
	{ "registry.default", "HUSK_REGISTRY", TEXT, 0, 0, "docker.io",
	  "registry of images that are named without one, HOST[:PORT][/PREFIX]" },
	{ "registry.insecure", "HUSK_INSECURE_REGISTRIES", TEXT, 0, 0, "those on this host",
	  "hosts that are asked over plain HTTP, separated by commas" },
	{ "registry.mirrors", "HUSK_REGISTRY_MIRRORS", TEXT, 0, 0, "none",
	  "HOST=MIRROR[/PREFIX], separated by commas: asked before the registry itself" },
	{ "registry.pull", "HUSK_PULL_REGISTRIES", TEXT, 0, 0, "none",
	  "hosts that builds of huskd's clients may pull from, or *" },
	{ "trusted_keys", "HUSK_TRUSTED_KEYS", TEXT, 0, 0, "none",
	  "whose exported machines are taken: ed25519:…, separated by commas" },
	{ "gvisor.runsc", "HUSK_RUNSC", TEXT, 0, 0, "that of make runsc, or in PATH", "the runsc to use" },
	{ "gvisor.disk", "HUSK_DISK", TEXT, 0, 0, "cloned where that works", "memory: disks are part of every image" },
	{ "server.listen", "HUSK_LISTEN", TEXT, 0, 0, "127.0.0.1:7820", "where huskd listens for TCP; none: nowhere" },
	{ "server.socket", "HUSK_SOCKET", TEXT, 0, 0, "huskd.sock in /run/husk", "unix socket of huskd" },
	{ "server.group", "HUSK_GROUP", TEXT, 0, 0, "husk", "whose users may use the socket; none: root alone" },
	{ "server.user_sandboxes", "HUSK_USER_SANDBOXES", NUMBER, 1, 1000000, "no limit", "sandboxes of each of them" },
	{ "server.user_memory", "HUSK_USER_MEMORY", SIZE, 0, 0, "no limit", "memory of their running sandboxes" },
	{ "server.user_snapshots", "HUSK_USER_SNAPSHOTS", SIZE, 0, 0, "no limit", "disk of their snapshots" },
	{ "server.cert", "HUSK_CERT", TEXT, 0, 0, "none", "TLS certificate, PEM" },
	{ "server.key", "HUSK_KEY", TEXT, 0, 0, "none", "its private key, PEM" },
	{ "server.log", "HUSK_LOG_FORM", TEXT, 0, 0, "text", "the form of huskd's log: text or json" },
	{ "server.stop_seconds", "HUSK_STOP_SECONDS", NUMBER, 0, 86400, "30", "how long streams may go on at a stop" },
};

static bool gave[ARRAY_SIZE(settings)];

/* ---- one file ---- */

struct reading {
	struct config_setting *list;
	const char *path;
};

static ssize_t find(const char *key)
{
	for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
		if (str_equal(settings[i].key, key))
			return (ssize_t)i;
	return -1;
}

static int unknown(const struct toml_entry *entry, struct husk_error *err)
{
	const char *keys[ARRAY_SIZE(settings)];

	for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
		keys[i] = settings[i].key;
	const char *near = str_nearest(entry->key, keys, ARRAY_SIZE(keys));
	return husk_fail(err, HUSK_INVALID, "%zu:%zu: unknown setting '%s'%s%s%s", entry->line, entry->column,
			 entry->key, near ? "; did you mean '" : " (husk config show lists them all)", near ? near : "",
			 near ? "'?" : "");
}

static int check_value(size_t at, const struct toml_entry *entry, struct husk_error *err)
{
	struct husk_error why = { 0 };
	enum log_level level;
	int64_t number;
	uint64_t size;

	if (settings[at].kind == NUMBER && str_to_int64(entry->value, settings[at].min, settings[at].max, &number) < 0)
		return husk_fail(err, HUSK_INVALID, "%zu:%zu: %s '%s'; give %lld to %lld", entry->line, entry->column,
				 entry->key, entry->value, (long long)settings[at].min, (long long)settings[at].max);
	if (settings[at].kind == SIZE && (str_to_size(entry->value, 1u << 20, &size) < 0 || size == 0))
		return husk_fail(err, HUSK_INVALID, "%zu:%zu: %s '%s'; give a size like \"512M\" or \"8G\"",
				 entry->line, entry->column, entry->key, entry->value);
	if (settings[at].kind == LEVEL && log_parse_level(entry->key, entry->value, &level, &why) < 0)
		return husk_fail(err, HUSK_INVALID, "%zu:%zu: %s", entry->line, entry->column, why.message);
	return 0;
}

static int take_entry(void *data, const struct toml_entry *entry, struct husk_error *err)
{
	const struct reading *reading = data;
	ssize_t at = find(entry->key);

	if (at < 0)
		return unknown(entry, err);
	if (check_value((size_t)at, entry, err) < 0)
		return -1;
	struct config_setting *setting = &reading->list[at];
	if (str_equal(setting->source, "environment"))
		return 0;
	free(setting->value);
	free(setting->source);
	setting->value = strdup(entry->value);
	setting->source = str_format("%s:%zu", reading->path, entry->line);
	return setting->value && setting->source ? 0 : husk_fail_memory(err);
}

/* A missing file has no settings. */
static int read_file(struct config_setting *list, const char *path, struct husk_error *err)
{
	struct reading reading = { list, path };
	struct husk_error why = { 0 };
	cleanup_free char *text = file_read(path, FILE_LIMIT, NULL, &why);

	if (!text)
		return why.code == HUSK_NOT_FOUND ? 0 : husk_fail(err, why.code, "%s", why.message);
	if (toml_read(text, take_entry, &reading, &why) < 0)
		return husk_fail(err, why.code, "%s:%s", path, why.message);
	return 0;
}

/* ---- all settings ---- */

static int is_toml(const struct dirent *entry)
{
	const char *dot = strrchr(entry->d_name, '.');

	return entry->d_name[0] != '.' && dot && str_equal(dot, ".toml");
}

static int read_directory(struct config_setting *list, const char *path, struct husk_error *err)
{
	struct dirent **entries = NULL;
	int count = scandir(path, &entries, is_toml, alphasort), failed = 0;

	if (count < 0)
		return errno == ENOENT ? 0 : husk_fail_errno(err, "cannot read '%s'", path);
	for (int i = 0; i < count; i++) {
		cleanup_free char *file = str_format("%s/%s", path, entries[i]->d_name);
		if (!failed)
			failed = file ? read_file(list, file, err) : husk_fail_memory(err);
		free(entries[i]);
	}
	free(entries);
	return failed;
}

static int read_all(struct config_setting *list, struct husk_error *err)
{
	const char *named = getenv("HUSK_CONFIG"), *first = named && *named ? named : FILE_DEFAULT;
	const char *slash = strrchr(first, '/');
	cleanup_free char *directory =
		slash ? str_format("%.*s/conf.d", (int)(slash - first), first) : strdup("conf.d");

	if (!directory)
		return husk_fail_memory(err);
	if (read_file(list, first, err) < 0)
		return -1;
	return read_directory(list, directory, err);
}

static int take_environment(struct config_setting *list, struct husk_error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(settings); i++) {
		const char *value = gave[i] ? NULL : getenv(settings[i].environment);

		list[i] = (struct config_setting){ .key = settings[i].key,
						   .environment = settings[i].environment,
						   .fallback = settings[i].fallback,
						   .meaning = settings[i].meaning };
		if (!value || !*value)
			continue;
		list[i].value = strdup(value);
		list[i].source = strdup("environment");
		if (!list[i].value || !list[i].source)
			return husk_fail_memory(err);
	}
	return 0;
}

int config_list(struct config_setting **out, struct husk_error *err)
{
	struct config_setting *list = calloc(ARRAY_SIZE(settings) + 1, sizeof(*list));

	if (!list)
		return husk_fail_memory(err);
	if (take_environment(list, err) < 0 || read_all(list, err) < 0) {
		config_free(list);
		return -1;
	}
	*out = list;
	return 0;
}

void config_free(struct config_setting *list)
{
	for (size_t i = 0; list && i < ARRAY_SIZE(settings); i++) {
		free(list[i].value);
		free(list[i].source);
	}
	free(list);
}

const char *config_value(const struct config_setting *list, const char *key)
{
	ssize_t at = find(key);

	return at < 0 ? NULL : list[at].value;
}

bool config_gave(const char *environment)
{
	for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
		if (str_equal(settings[i].environment, environment))
			return gave[i];
	return false;
}

int config_apply(struct husk_error *err)
{
	struct config_setting *list = NULL;
	int failed = 0;

	if (geteuid() != 0)
		return 0;
	if (config_list(&list, err) < 0)
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(settings) && !failed; i++) {
		if (!list[i].value || str_equal(list[i].source, "environment"))
			continue;
		failed = setenv(settings[i].environment, list[i].value, 1) < 0 ? husk_fail_memory(err) : 0;
		gave[i] = !failed;
	}
	config_free(list);
	return failed;
}
