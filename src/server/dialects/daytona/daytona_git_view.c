/*
 * Daytona's git routes that read a repository (status, history), and those for git's configuration and stored
 * credentials.
 */
#include "server/dialects/daytona/daytona_git.h"

/* ---- status, history ---- */

static const char *status_of(char letter)
{
	switch (letter) {
	case 'M':
	case 'T':
		return "Modified";
	case 'A':
		return "Added";
	case 'D':
		return "Deleted";
	case 'R':
		return "Renamed";
	case 'C':
		return "Copied";
	case 'U':
		return "Updated but unmerged";
	case '?':
		return "Untracked";
	default:
		return "Unmodified";
	}
}

struct status {
	json_t *document, *files;
	bool published;
};

/* One entry of porcelain v2 with NULs; *at moves past it. */
static void read_entry(struct status *status, const char **at, const char *end)
{
	const char *line = *at, *name = NULL, *extra = "";
	char x = '?', y = '?';

	*at += strlen(line) + 1;
	int fields = line[0] == '1' ? 8 : line[0] == '2' ? 9 : line[0] == 'u' ? 10 : line[0] == '?' ? 1 : 0;
	if (!fields || strlen(line) < (line[0] == '?' ? 3u : 4u))
		return;
	if (line[0] != '?') {
		x = line[2];
		y = line[3];
	}
	name = line;
	for (int i = 0; name && i < fields; i++)
		name = (name = strchr(name, ' ')) ? name + 1 : NULL;
	if (line[0] == '2' && *at < end) { /* the name that it had */
		extra = *at;
		*at += strlen(*at) + 1;
	}
	if (name)
		json_array_append_new(status->files,
				      json_pack("{s:o, s:o, s:s, s:s}", "name", json_text0(name), "extra",
						json_text0(extra), "staging", status_of(x), "worktree", status_of(y)));
}

static void read_header(struct status *status, const char *line)
{
	long long ahead = 0, behind = 0;

	if (str_starts(line, "# branch.head ")) {
		bool detached = str_equal(line + 14, "(detached)");
		json_object_set_new(status->document, "currentBranch", json_text0(detached ? "HEAD" : line + 14));
		json_object_set_new(status->document, "detached", json_boolean(detached));
	} else if (str_starts(line, "# branch.upstream ")) {
		json_object_set_new(status->document, "upstream", json_text0(line + 18));
		status->published = true;
	} else if (sscanf(line, "# branch.ab +%lld -%lld", &ahead, &behind) == 2) {
		json_object_set_new(status->document, "ahead", json_integer(ahead));
		json_object_set_new(status->document, "behind", json_integer(behind));
	}
}

static int handle_status(struct request *request, struct husk_error *err)
{
	static const char *const words[] = { "git",      "status", "--porcelain=v2",
					     "--branch", "-z",     "--untracked-files=all" };
	cleanup_git struct git git = { 0 };

	if (git_open_query(&git, request, err) < 0)
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		git_add(&git, words[i]);
	if (git_run(&git, err) < 0)
		return -1;
	struct status status = { json_pack("{s:s, s:i, s:i}", "currentBranch", "", "ahead", 0, "behind", 0),
				 json_array(), false };
	const char *end = git.output.out.data + git.output.out.size;
	for (const char *at = git.output.out.data; at < end;) {
		if (*at == '#') {
			read_header(&status, at);
			at += strlen(at) + 1;
		} else {
			read_entry(&status, &at, end);
		}
	}
	if (!status.document || !status.files) {
		json_decref(status.document);
		json_decref(status.files);
		return husk_fail_memory(err);
	}
	json_object_set_new(status.document, "fileStatus", status.files);
	json_object_set_new(status.document, "branchPublished", json_boolean(status.published));
	return respond_json(request, 200, status.document, err);
}

static int handle_history(struct request *request, struct husk_error *err)
{
	cleanup_git struct git git = { 0 };
	cleanup_json json_t *array = json_array();

	if (git_open_query(&git, request, err) < 0)
		return -1;
	git_add(&git, "git");
	git_add(&git, "log");
	git_add(&git, "-z");
	git_add(&git, "--format=%H%x1f%an%x1f%ae%x1f%aI%x1f%B");
	if (git_run(&git, err) < 0)
		return -1;
	const char *end = git.output.out.data + git.output.out.size;
	for (char *at = git.output.out.data; at < end; at += strlen(at) + 1) {
		char *part[5] = { at };
		for (int i = 1; i < 5; i++) {
			part[i] = part[i - 1] ? strchr(part[i - 1], 0x1f) : NULL;
			if (part[i])
				part[i]++;
		}
		if (!part[4])
			break;
		json_t *entry = json_pack(
			"{s:o, s:o, s:o, s:o, s:o}", "hash", json_text(part[0], (size_t)(part[1] - part[0] - 1)),
			"author", json_text(part[1], (size_t)(part[2] - part[1] - 1)), "email",
			json_text(part[2], (size_t)(part[3] - part[2] - 1)), "timestamp",
			json_text(part[3], (size_t)(part[4] - part[3] - 1)), "message", json_text0(part[4]));
		json_array_append_new(array, entry);
	}
	return respond_json(request, 200, json_incref(array), err);
}

/* ---- configuration ---- */

static int scope_of(const char *scope, const char **option, struct husk_error *err)
{
	if (!scope || str_equal(scope, "global"))
		*option = "--global";
	else if (str_equal(scope, "local"))
		*option = "--local";
	else if (str_equal(scope, "system"))
		*option = "--system";
	else
		return husk_fail_field(err, "scope", "'%.20s' is not global, local or system", scope);
	return 0;
}

/* Its path is required for the scope "local" only. */
static int open_config(struct git *git, struct request *request, const char **option, struct husk_error *err)
{
	git->request = request;
	if (fields_begin(&git->fields, request_read_json(request, err)) < 0 ||
	    daytona_enter(request, &git->box, err) < 0)
		return -1;
	const char *path = git_text(git, "path");
	if (scope_of(git_text(git, "scope"), option, err) < 0)
		return -1;
	return path ? daytona_path(&git->box, path, &git->path, err) : 0;
}

static int set_config(struct git *git, const char *option, const char *key, const char *value, struct husk_error *err)
{
	const char *const words[] = { "git", "config", option, key, value };

	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		git_add(git, words[i]);
	return git_run(git, err);
}

static int handle_set_config(struct request *request, struct husk_error *err)
{
	cleanup_git struct git git = { 0 };
	const char *option = NULL;

	if (open_config(&git, request, &option, err) < 0)
		return -1;
	const char *key = git_word(&git, "key"), *value = fields_string(&git.fields, "value");
	if (git_require(&git, "key", key, err) < 0 || git_require(&git, "value", value, err) < 0 ||
	    set_config(&git, option, key, value, err) < 0)
		return -1;
	return respond_empty(request, 200, err);
}

static int handle_user(struct request *request, struct husk_error *err)
{
	cleanup_git struct git git = { 0 };
	const char *option = NULL;

	if (open_config(&git, request, &option, err) < 0)
		return -1;
	const char *name = git_text(&git, "name"), *email = git_text(&git, "email");
	if (git_require(&git, "name", name, err) < 0 || git_require(&git, "email", email, err) < 0 ||
	    set_config(&git, option, "user.name", name, err) < 0 ||
	    set_config(&git, option, "user.email", email, err) < 0)
		return -1;
	return respond_empty(request, 200, err);
}

static int handle_get_config(struct request *request, struct husk_error *err)
{
	const char *key = request_query(request, "key"), *path = request_query(request, "path");
	const char *scope = request_query(request, "scope"), *option = NULL;
	cleanup_git struct git git = { .request = request };

	if (daytona_enter(request, &git.box, err) < 0 || (scope && *scope && scope_of(scope, &option, err) < 0) ||
	    (path && *path && daytona_path(&git.box, path, &git.path, err) < 0))
		return -1;
	if (!key || !*key || *key == '-')
		return husk_fail_field(err, "key", "key is required");
	git_add(&git, "git");
	git_add(&git, "config");
	if (option)
		git_add(&git, option);
	git_add(&git, "--get");
	git_add(&git, key);
	if (git_run(&git, err) < 0) {
		if (git.output.exit_code != 1)
			return -1;
		request->fault = (struct fault){ 0 };
		return respond_json(request, 200, json_pack("{s:n}", "value"), err);
	}
	return respond_json(
		request, 200,
		json_pack("{s:o}", "value", json_text(git.output.out.data, strcspn(git.output.out.data, "\n"))), err);
}

/* Credentials for later: git's own store in the home, as the caller requests. */
static int handle_credentials(struct request *request, struct husk_error *err)
{
	static const char script[] = "git config --global credential.helper store && git credential approve";
	const char *argv[] = { "/bin/sh", "-c", script, NULL };
	cleanup_output struct daytona_output output = { 0 };
	cleanup_box struct daytona_box box = { 0 };
	struct fields fields;

	if (fields_begin(&fields, request_read_json(request, err)) < 0)
		return -1;
	const char *host = fields_string(&fields, "host"), *protocol = fields_string(&fields, "protocol");
	const char *username = fields_string(&fields, "username"), *password = fields_string(&fields, "password");
	if (fields_done_open(&fields, err) < 0 || daytona_enter(request, &box, err) < 0)
		return -1;
	if (!username || !password || strpbrk(username, "\r\n") || strpbrk(password, "\r\n"))
		return husk_fail_field(err, "username", "username and password are required");
	cleanup_wipe char *text = str_format("protocol=%s\nhost=%s\nusername=%s\npassword=%s\n\n",
					     protocol && *protocol ? protocol : "https",
					     host && *host ? host : "github.com", username, password);
	struct daytona_command command = { .argv = argv, .input = text, .input_size = text ? strlen(text) : 0 };
	if (!text)
		return husk_fail_memory(err);
	if (daytona_run(request, &box, &command, &output, err) < 0)
		return -1;
	return output.exit_code ? husk_fail(err, HUSK_INVALID, "%s", daytona_complaint(&output))
				: respond_empty(request, 200, err);
}

const struct route daytona_git_view_routes[] = {
	{ "GET", DAYTONA_TOOLBOX "/git/config", handle_get_config, 0 },
	{ "POST", DAYTONA_TOOLBOX "/git/config", handle_set_config, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/git/config/user", handle_user, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/git/credentials", handle_credentials, ROUTE_STREAM },
	{ "GET", DAYTONA_TOOLBOX "/git/history", handle_history, 0 },
	{ "GET", DAYTONA_TOOLBOX "/git/status", handle_status, 0 },
	{ 0 },
};
