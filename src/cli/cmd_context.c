/*
 * `husk context add|use|ls|rm`: servers by name, and which instance a command works on. Contexts are kept in
 * ~/.config/husk/contexts.json, readable by their owner only; a token in it is sent to its own server and never printed.
 */
#include <fcntl.h>
#include <openssl/crypto.h>
#include <pwd.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "config/config.h"

#define LOCAL "local" /* the instance without a context */
#define FILE_LIMIT (1u << 20)
#define TOKEN_LIMIT 4096u
#define NAME_LIMIT 63u

/* ---- the file ---- */

static char *contexts_path(struct husk_error *err)
{
	const char *chosen = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
	const struct passwd *entry = home && *home ? NULL : getpwuid(geteuid());
	char *path = NULL;

	if (chosen && chosen[0] == '/')
		path = str_format("%s/husk/contexts.json", chosen);
	else if ((home && *home) || entry)
		path = str_format("%s/.config/husk/contexts.json", home && *home ? home : entry->pw_dir);
	if (!path)
		husk_fail(err, HUSK_INVALID,
			  "HOME is not set, so there is no place for contexts; set HOME to your home directory");
	return path;
}

/* {"current": NAME?, "contexts": {NAME: {"host", "token"?, "ca"?}}}; empty if there is no file. */
static json_t *contexts_load(struct husk_error *err)
{
	cleanup_free char *path = contexts_path(err);
	struct husk_error why = { 0 };
	size_t size = 0;

	if (!path)
		return NULL;
	char *text = file_read(path, FILE_LIMIT, &size, &why);
	if (!text && why.code == HUSK_NOT_FOUND)
		return json_pack("{s:{}}", "contexts");
	if (!text) {
		husk_fail(err, why.code, "%s", why.message);
		return NULL;
	}
	json_error_t wrong;
	json_t *document = json_loadb(text, size, JSON_REJECT_DUPLICATES, &wrong);
	OPENSSL_cleanse(text, size);
	free(text);
	if (json_is_object(json_object_get(document, "contexts")))
		return document;
	husk_fail(err, HUSK_INVALID, "'%s' is damaged%s%s; mend it, or remove it", path, document ? "" : ": ",
		  document ? "" : wrong.text);
	json_decref(document);
	return NULL;
}

static int contexts_save(const json_t *document, struct husk_error *err)
{
	cleanup_free char *path = contexts_path(err);
	cleanup_free char *directory = path ? strdup(path) : NULL;
	cleanup_wipe char *text = json_dumps(document, JSON_INDENT(2));

	if (!directory || !text)
		return path ? husk_fail_memory(err) : -1;
	*strrchr(directory, '/') = '\0';
	if (dir_make(directory, 0700, err) < 0)
		return -1;
	return file_write_atomic(path, text, strlen(text), 0600, err);
}

static json_t *find(const json_t *document, const char *name)
{
	return json_object_get(json_object_get(document, "contexts"), name);
}

static int fail_unknown(const char *name, struct husk_error *err)
{
	return husk_fail(err, HUSK_NOT_FOUND, "context '%s' not found (husk context ls)", name);
}

/* ---- which instance ---- */

static int open_named(struct cli *cli, const json_t *document, const char *name, struct husk_error *err)
{
	const json_t *context = find(document, name);
	const char *url = json_string_value(json_object_get(context, "host"));
	const char *token = getenv("HUSK_TOKEN"), *ca = getenv("HUSK_CA");

	if (!url)
		return fail_unknown(name, err);
	return husk_open_host(
		&(struct husk_host){
			.url = url,
			.token = token && *token ? token : json_string_value(json_object_get(context, "token")),
			.ca_file = cli->ca     ? cli->ca
				   : ca && *ca ? ca
					       : json_string_value(json_object_get(context, "ca")),
		},
		&cli->husk, err);
}

int context_open(struct cli *cli, struct husk_error *err)
{
	const char *host = cli->host ? cli->host : getenv("HUSK_HOST");
	/* A HUSK_HOME from the machine's settings is the place of the local instance, not a choice for this call. */
	const char *home = config_gave("HUSK_HOME") ? NULL : getenv("HUSK_HOME");
	cleanup_json json_t *document = NULL;

	if (host && *host && (str_starts(host, "unix:") || strstr(host, "://")))
		return husk_open_host(
			&(struct husk_host){ host, getenv("HUSK_TOKEN"), cli->ca ? cli->ca : getenv("HUSK_CA") },
			&cli->husk, err);
	if ((!host || !*host) && home && *home)
		return husk_open(NULL, &cli->husk, err);
	document = contexts_load(err);
	if (!document)
		return -1;
	const char *current = json_string_value(json_object_get(document, "current"));
	const char *name = host && *host ? host : current;
	if (!name || str_equal(name, LOCAL)) {
		unsetenv("HUSK_HOST"); /* it was "local", which is not a URL */
		return husk_open(NULL, &cli->husk, err);
	}
	if (host && *host && !find(document, host))
		return husk_fail_field(
			err, "host",
			"'%s' is neither a context (husk context ls) nor an address; give unix:/path/to/huskd.sock, "
			"http://HOST:PORT or https://HOST",
			host);
	return open_named(cli, document, name, err);
}

/* ---- add ---- */

struct add_arguments {
	const char *token_file;
	bool use;
};

static const struct option_spec add_options[] = {
	OPTION(0, "token-file", OPTION_STRING, struct add_arguments, token_file, "FILE",
	       "where to read the token from; - is standard input"),
	OPTION(0, "use", OPTION_FLAG, struct add_arguments, use, NULL, "make it the current server"),
	{ 0 },
};

static int check_name(const char *name, struct husk_error *err)
{
	size_t size = strlen(name);

	if (size && size <= NAME_LIMIT && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == size &&
	    !strchr("-_.", name[0]) && !str_equal(name, LOCAL))
		return 0;
	return husk_fail_field(err, "name",
			       "'%.80s' cannot be a context's name: use 1 to 63 of a-z 0-9 - _ . and not '" LOCAL "'",
			       name);
}

/* The token, without the newline; the caller overwrites and frees it. */
static char *read_token(const char *path, struct husk_error *err)
{
	bool standard = str_equal(path, "-");
	cleanup_close int fd = standard ? dup(0) : open(path, O_RDONLY | O_CLOEXEC);
	char *text = calloc(1, TOKEN_LIMIT + 1);
	ssize_t size = fd >= 0 && text ? read_full(fd, text, TOKEN_LIMIT) : -1;

	if (size < 0) {
		husk_fail_errno(err, "cannot read the token from '%s'", standard ? "standard input" : path);
		free(text);
		return NULL;
	}
	text[strcspn(text, "\r\n")] = '\0';
	if (*text && strpbrk(text, " \t") == NULL)
		return text;
	OPENSSL_cleanse(text, TOKEN_LIMIT);
	free(text);
	husk_fail(err, HUSK_INVALID, "no token in '%s'; husk token create makes one",
		  standard ? "standard input" : path);
	return NULL;
}

static json_t *make_context(const char *url, const char *token, const char *ca)
{
	return json_pack("{s:s, s:s*, s:s*}", "host", url, "token", token, "ca", ca);
}

static int context_add_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct add_arguments *arguments = data;
	cleanup_free char *ca = cli->ca ? realpath(cli->ca, NULL) : NULL;
	struct husk *checked = NULL;

	(void)argc;
	if (check_name(argv[0], err) < 0)
		return -1;
	if (cli->ca && !ca)
		return husk_fail_errno(err, "cannot read the certificate '%s'", cli->ca);
	cleanup_wipe char *token = arguments->token_file ? read_token(arguments->token_file, err) : NULL;
	if (arguments->token_file && !token)
		return -1;
	cleanup_json json_t *document = contexts_load(err);
	int result = document ? husk_open_host(&(struct husk_host){ argv[1], token, ca }, &checked, err) : -1;
	if (result == 0) {
		husk_close(checked);
		json_t *context = make_context(argv[1], token, ca);
		if (json_object_set_new(json_object_get(document, "contexts"), argv[0], context) < 0 ||
		    (arguments->use && json_object_set_new(document, "current", json_string(argv[0])) < 0))
			result = husk_fail_memory(err);
	}
	if (result < 0 || contexts_save(document, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_pack("{s:s, s:s}", "name", argv[0], "host", argv[1]), err);
	puts(argv[0]);
	return 0;
}

/* ---- use, ls, rm ---- */

static int context_use_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_json json_t *document = contexts_load(err);

	(void)data, (void)argc;
	if (!document)
		return -1;
	if (!str_equal(argv[0], LOCAL) && !find(document, argv[0]))
		return fail_unknown(argv[0], err);
	if (str_equal(argv[0], LOCAL))
		json_object_del(document, "current");
	else if (json_object_set_new(document, "current", json_string(argv[0])) < 0)
		return husk_fail_memory(err);
	if (contexts_save(document, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_pack("{s:s}", "current", argv[0]), err);
	puts(argv[0]);
	return 0;
}

static json_t *contexts_json(const json_t *document)
{
	const char *current = json_string_value(json_object_get(document, "current")), *name;
	json_t *array = json_pack("[{s:s, s:n, s:b, s:b}]", "name", LOCAL, "host", "token", 0, "current", !current);
	json_t *context;

	json_object_foreach(json_object_get(document, "contexts"), name, context) if (array) json_array_append_new(
		array,
		json_pack("{s:s, s:O?, s:b, s:b}", "name", name, "host", json_object_get(context, "host"), "token",
			  json_object_get(context, "token") != NULL, "current", str_equal(name, current)));
	return array;
}

static int context_ls_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_json json_t *document = contexts_load(err);
	cleanup_json json_t *list = document ? contexts_json(document) : NULL;
	static const char *const heading[] = { "NAME", "HOST", "TOKEN" };
	cleanup_table struct table table;

	(void)data, (void)argc, (void)argv;
	table_begin(&table, heading, ARRAY_SIZE(heading));
	if (!document)
		return -1;
	if (cli->json)
		return output_json(json_incref(list), err);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *each = json_array_get(list, i);
		const char *host = json_string_value(json_object_get(each, "host"));
		table_cellf(&table, "%s%s", json_string_value(json_object_get(each, "name")),
			    json_is_true(json_object_get(each, "current")) ? " *" : "");
		table_cell(&table, host ? host : "this machine");
		table_cell(&table, json_is_true(json_object_get(each, "token")) ? "yes" : "no");
	}
	return table_print(&table, err);
}

static int context_rm_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_json json_t *document = contexts_load(err);
	cleanup_json json_t *removed = json_array();

	(void)data, (void)argc;
	if (!document)
		return -1;
	for (char **name = argv; *name; name++)
		if (!find(document, *name))
			return fail_unknown(*name, err);
	for (; *argv; argv++) {
		json_object_del(json_object_get(document, "contexts"), *argv);
		if (str_equal(json_string_value(json_object_get(document, "current")), *argv))
			json_object_del(document, "current");
		json_array_append_new(removed, json_pack("{s:s, s:b}", "name", *argv, "removed", 1));
		if (!cli->json)
			puts(*argv);
	}
	if (contexts_save(document, err) < 0)
		return -1;
	return cli->json ? output_json(json_incref(removed), err) : 0;
}

const struct cli_command cli_context_add = {
	.name = "context add",
	.operands = "NAME URL",
	.summary = "Save a server under a name, with its token and certificate",
	.details = "URL is unix:/path/to/huskd.sock, http://HOST:PORT or https://HOST. The token is read from a file, "
		   "never from\n"
		   "the command line, and stored in ~/.config/husk/contexts.json, which only you can read.\n",
	.groups = { { add_options, 0 } },
	.arguments_size = sizeof(struct add_arguments),
	.min = 2,
	.max = 2,
	.offline = true,
	.run = context_add_run,
};

const struct cli_command cli_context_use = {
	.name = "context use",
	.operands = "NAME",
	.summary = "Use this server from now on; 'local' is this machine",
	.min = 1,
	.max = 1,
	.offline = true,
	.run = context_use_run,
};

const struct cli_command cli_context_ls = {
	.name = "context ls",
	.operands = "",
	.summary = "List servers; the current one has a star",
	.offline = true,
	.run = context_ls_run,
};

const struct cli_command cli_context_rm = {
	.name = "context rm",
	.operands = "NAME…",
	.summary = "Remove servers from the list",
	.min = 1,
	.max = -1,
	.offline = true,
	.run = context_rm_run,
};
