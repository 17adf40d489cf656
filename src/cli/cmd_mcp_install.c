/*
 * `husk mcp install HOST` adds `husk mcp` to the configuration of an agent host, `husk mcp uninstall HOST` removes it.
 * The rest of the file stays: a file that cannot be parsed is refused and not changed, and a file is replaced as a
 * whole or not at all. Nothing here needs the instance, so an ordinary user can run it.
 */
#include <limits.h>
#include <pwd.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/toml.h"

#define NAME "husk"
#define SERVER_SOCKET "/run/husk/huskd.sock"
#define FILE_MAX (64u << 20) /* Claude Code keeps its history in the same file */

static const struct host {
	const char *name;
	const char *title;
	const char *variable;  /* if set, names the directory of the user's file; NULL: none */
	const char *directory; /* of the user's file, below the home directory; "" is the home itself */
	const char *file;
	const char *project; /* the file of a project, relative to its directory */
	const char *key;     /* of the servers, in JSON */
	bool type;           /* an entry has "type": "stdio" */
	bool toml;
} hosts[] = {
	{ "claude", "Claude Code", "CLAUDE_CONFIG_DIR", "", ".claude.json", ".mcp.json", "mcpServers", .type = true },
	{ "codex", "Codex", "CODEX_HOME", "/.codex", "config.toml", ".codex/config.toml", "mcp_servers", .toml = true },
	{ "vscode", "VS Code", NULL, "/.config/Code/User", "mcp.json", ".vscode/mcp.json", "servers", .type = true },
	{ "cursor", "Cursor", NULL, "/.cursor", "mcp.json", ".cursor/mcp.json", "mcpServers", .type = false },
	{ "gemini", "Gemini CLI", NULL, "/.gemini", "settings.json", ".gemini/settings.json", "mcpServers",
	  .type = false },
};

struct install_arguments {
	bool print, project;
};

static const struct option_spec install_options[] = {
	OPTION(0, "project", OPTION_FLAG, struct install_arguments, project, NULL,
	       "in the current directory's file, for this project only"),
	OPTION(0, "print", OPTION_FLAG, struct install_arguments, print, NULL,
	       "only show what would be written, and where"),
	{ 0 },
};

static const struct option_spec uninstall_options[] = {
	OPTION(0, "project", OPTION_FLAG, struct install_arguments, project, NULL, "from the current directory's file"),
	{ 0 },
};

static const struct host *host_find(const char *name, struct husk_error *err)
{
	cleanup_buf struct buf names = { 0 };

	for (size_t i = 0; i < ARRAY_SIZE(hosts); i++) {
		if (str_equal(hosts[i].name, name))
			return &hosts[i];
		if (buf_printf(&names, "%s%s", i ? ", " : "", hosts[i].name) < 0)
			return husk_fail_memory(err), NULL;
	}
	husk_fail(err, HUSK_INVALID,
		  "'%s' is not a host that husk knows; known hosts: %s (for any other, configure `husk mcp` there)",
		  name, names.data);
	return NULL;
}

/* ---- the file ---- */

static char *home_directory(void)
{
	const char *home = getenv("HOME");
	const struct passwd *entry = home && *home ? NULL : getpwuid(getuid());

	return home && *home ? strdup(home) : entry && entry->pw_dir ? strdup(entry->pw_dir) : NULL;
}

/* The host's file; a link is followed, so that the link stays a link. */
static char *host_file(const struct host *host, bool project, struct husk_error *err)
{
	const char *chosen = host->variable ? getenv(host->variable) : NULL;
	cleanup_free char *home = project ? getcwd(NULL, 0) : home_directory(), *path = NULL;
	char real[PATH_MAX];

	if (!home)
		return husk_fail(err, HUSK_INVALID, "there is no %s",
				 project ? "current directory" : "HOME; set it to your home directory"),
		       NULL;
	if (project)
		path = str_format("%s/%s", home, host->project);
	else if (chosen && *chosen)
		path = str_format("%s/%s", chosen, host->file);
	else
		path = str_format("%s%s/%s", home, host->directory, host->file);
	if (!path)
		return husk_fail_memory(err), NULL;
	return realpath(path, real) ? strdup(real) : steal_pointer(path);
}

/* The text of the file; empty if there is no file. */
static char *read_text(const char *path, struct husk_error *err)
{
	struct husk_error why = { 0 };
	size_t size = 0;
	char *text = file_read(path, FILE_MAX, &size, &why);

	if (!text && why.code == HUSK_NOT_FOUND)
		return strdup("");
	if (!text && err)
		*err = why;
	if (text && strlen(text) != size) {
		free(text);
		return husk_fail(err, HUSK_INVALID, "%s is not a text file", path), NULL;
	}
	return text;
}

/* In one step; mode and owner stay. */
static int write_text(const char *path, const char *text, size_t size, struct husk_error *err)
{
	cleanup_free char *directory = strdup(path);
	char *slash = directory ? strrchr(directory, '/') : NULL;
	struct stat before;
	bool there = stat(path, &before) == 0;

	if (!directory)
		return husk_fail_memory(err);
	if (slash && slash != directory) {
		*slash = '\0';
		if (dir_make(directory, 0755, err) < 0)
			return -1;
	}
	if (file_write_atomic(path, text, size, there ? before.st_mode & 07777 : 0600, err) < 0)
		return -1;
	if (there && before.st_uid != geteuid() && chown(path, before.st_uid, before.st_gid) < 0)
		return husk_fail_errno(err, "cannot give %s back to its owner", path);
	return 0;
}

/* ---- the entry ---- */

/* A user who is not root uses the server of this machine, if its socket allows it; otherwise only sudo works. */
static bool needs_sudo(void)
{
	return geteuid() != 0 && access(SERVER_SOCKET, W_OK) < 0;
}

/* How the host starts this program: by its full path, because the PATH of a desktop may lack it. */
static json_t *entry_new(const struct host *host, int argc, char *const *argv, struct husk_error *err)
{
	char program[PATH_MAX];
	ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);
	cleanup_json json_t *arguments = json_array(), *entry = json_object();
	bool sudo = needs_sudo();
	int bad = 0;

	if (size < 0)
		return husk_fail_errno(err, "cannot find the path of this program"), NULL;
	program[size] = '\0';
	if (sudo)
		bad |= json_array_append_new(arguments, json_string("-n")) |
		       json_array_append_new(arguments, json_string(program));
	bad |= json_array_append_new(arguments, json_string("mcp"));
	for (int i = 0; i < argc; i++)
		bad |= json_array_append_new(arguments, json_string(argv[i]));
	if (host->type)
		bad |= json_object_set_new(entry, "type", json_string("stdio"));
	bad |= json_object_set_new(entry, "command", json_string(sudo ? "sudo" : program));
	bad |= json_object_set(entry, "args", arguments);
	if (bad)
		return husk_fail(err, HUSK_INVALID, "an option is not UTF-8"), NULL;
	return steal_pointer(entry);
}

/* Options for `husk mcp` are checked now, because a host that starts it shows no error. */
static int check_options(int argc, char *const *argv, struct husk_error *err)
{
	const struct cli_command *command = &cli_mcp;
	cleanup_free char *arguments = calloc(1, command->arguments_size);
	cleanup_free char **copy = calloc((size_t)argc + 1, sizeof(*copy));
	struct option_group groups[ARRAY_SIZE(command->groups)];

	if (!arguments || !copy)
		return husk_fail_memory(err);
	if (argc)
		memcpy(copy, argv, (size_t)argc * sizeof(*copy));
	for (size_t i = 0; i < ARRAY_SIZE(groups); i++)
		groups[i] = (struct option_group){ command->groups[i].specs, arguments + command->groups[i].offset };
	int result = options_parse(groups, ARRAY_SIZE(groups), 0, &argc, copy, err);
	if (result == 0 && argc > 0)
		result = husk_fail(err, HUSK_INVALID, "unexpected '%s'; only options of husk mcp go there", copy[0]);
	options_free(groups, ARRAY_SIZE(groups));
	return result < 0 ? husk_wrap(err, "mcp") : 0;
}

/* ---- JSON ---- */

static int fail_by_hand(const struct host *host, const char *path, const char *why, struct husk_error *err)
{
	return husk_fail(err, HUSK_INVALID, "%s cannot be edited: %s; edit it by hand: husk mcp install %s --print",
			 path, why, host->name);
}

/* Adds `entry`, or removes it (NULL). *changed: false if there is nothing to do. */
static int edit_json(const struct host *host, const char *path, const char *text, json_t *entry, struct buf *out,
		     bool *changed, struct husk_error *err)
{
	json_error_t where = { .text = "out of memory" };
	bool empty = text[strspn(text, " \t\r\n")] == '\0';
	cleanup_json json_t *document =
		empty ? json_object() : json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
	char why[256];

	if (!document) {
		snprintf(why, sizeof(why), "line %d: %s", where.line, where.text);
		return fail_by_hand(host, path, why, err);
	}
	json_t *servers = json_object_get(document, host->key);
	if (!json_is_object(document) || (servers && !json_is_object(servers))) {
		snprintf(why, sizeof(why), "'%s' is not an object", servers ? host->key : "the document");
		return fail_by_hand(host, path, why, err);
	}
	const json_t *old = json_object_get(servers, NAME);
	*changed = entry ? !old || !json_equal(old, entry) : old != NULL;
	if (!*changed)
		return 0;
	int bad = 0;
	if (entry && !servers)
		bad = json_object_set_new(document, host->key, json_pack("{s:O}", NAME, entry));
	else if (entry)
		bad = json_object_set(servers, NAME, entry);
	else
		bad = json_object_del(servers, NAME);
	if (!entry && json_object_size(servers) == 0)
		bad |= json_object_del(document, host->key);
	cleanup_free char *dumped = bad ? NULL : json_dumps(document, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
	if (!dumped || buf_printf(out, "%s\n", dumped) < 0)
		return husk_fail_memory(err);
	return 0;
}

/* ---- TOML ---- */

/* Strings of JSON and lists of them are valid TOML too. */
static int print_toml(const struct host *host, const json_t *entry, struct buf *out)
{
	const char *keys[] = { "command", "args" };
	int bad = buf_printf(out, "[%s." NAME "]\n", host->key);

	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		cleanup_free char *value = json_dumps(json_object_get(entry, keys[i]), JSON_ENCODE_ANY);
		bad |= value ? buf_printf(out, "%s = %s\n", keys[i], value) : -1;
	}
	return bad;
}

static int edit_toml(const struct host *host, const char *path, const char *text, const json_t *entry, struct buf *out,
		     bool *changed, struct husk_error *err)
{
	cleanup_free char *table = str_format("%s." NAME, host->key);
	struct husk_error why = { 0 };
	bool found = false;

	if (!table)
		return husk_fail_memory(err);
	if (toml_without(text, table, out, &found, &why) < 0)
		return why.code == HUSK_INVALID ? fail_by_hand(host, path, why.message, err) : (*err = why, -1);
	if (!entry) {
		*changed = found;
		return 0;
	}
	while (out->size && out->data[out->size - 1] == '\n')
		out->size--;
	if (out->size && buf_append_string(out, "\n\n") < 0)
		return husk_fail_memory(err);
	if (print_toml(host, entry, out) < 0)
		return husk_fail_memory(err);
	*changed = !str_equal(text, out->data);
	return 0;
}

/* ---- the commands ---- */

static int print_entry(const struct host *host, const char *path, json_t *entry, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };

	output_note("goes into %s", path);
	if (!host->toml)
		return output_json(json_pack("{s:{s:O}}", host->key, NAME, entry), err);
	if (print_toml(host, entry, &text) < 0)
		return husk_fail_memory(err);
	fputs(text.data, stdout);
	return 0;
}

/* Installs the entry, or uninstalls it (NULL). */
static int apply(struct cli *cli, const struct host *host, const char *path, json_t *entry, struct husk_error *err)
{
	cleanup_free char *text = read_text(path, err);
	cleanup_buf struct buf after = { 0 };
	bool changed = false;

	if (!text)
		return err->code ? -1 : husk_fail_memory(err);
	if ((host->toml ? edit_toml(host, path, text, entry, &after, &changed, err)
			: edit_json(host, path, text, entry, &after, &changed, err)) < 0)
		return -1;
	if (changed && write_text(path, after.data ? after.data : "", after.size, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_pack("{s:s, s:o, s:b, s:b}", "host", host->name, "file", json_text0(path),
					     "installed", entry != NULL, "changed", changed),
				   err);
	const char *what = entry ? (changed ? "written to" : "is in") : changed ? "taken out of" : "is not in";
	printf("husk %s %s\n", what, path);
	if (changed)
		output_note("start %s again to see it", host->title);
	if (entry && needs_sudo())
		output_note(
			"you cannot use a server of this machine, so %s starts husk with sudo -n; allow "
			"that "
			"in sudoers, without a password, or let root run husk serve and add you to the group 'husk'",
			host->title);
	return 0;
}

static int install_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct install_arguments *arguments = data;
	const struct host *host = host_find(argv[0], err);

	if (!host || check_options(argc - 1, argv + 1, err) < 0)
		return -1;
	cleanup_free char *path = host_file(host, arguments->project, err);
	cleanup_json json_t *entry = path ? entry_new(host, argc - 1, argv + 1, err) : NULL;
	if (!entry)
		return -1;
	return arguments->print ? print_entry(host, path, entry, err) : apply(cli, host, path, entry, err);
}

static int uninstall_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct install_arguments *arguments = data;
	const struct host *host = host_find(argv[0], err);
	cleanup_free char *path = host ? host_file(host, arguments->project, err) : NULL;

	(void)argc;
	return path ? apply(cli, host, path, NULL, err) : -1;
}

const struct cli_command cli_mcp_install = {
	.name = "mcp install",
	.operands = "claude|codex|vscode|cursor|gemini [-- OPTIONS]",
	.summary = "Add husk mcp to the configuration of an agent's host",
	.details =
		"OPTIONS are those of husk mcp, such as -t code-interpreter or --allow docs.example.com. What else is\n"
		"in the file stays. Installing again replaces the entry.\n",
	.groups = { { install_options, 0 } },
	.arguments_size = sizeof(struct install_arguments),
	.min = 1,
	.max = -1,
	.offline = true,
	.run = install_run,
};

const struct cli_command cli_mcp_uninstall = {
	.name = "mcp uninstall",
	.operands = "claude|codex|vscode|cursor|gemini",
	.summary = "Remove husk mcp from the configuration of an agent's host",
	.groups = { { uninstall_options, 0 } },
	.arguments_size = sizeof(struct install_arguments),
	.min = 1,
	.max = 1,
	.offline = true,
	.run = uninstall_run,
};
