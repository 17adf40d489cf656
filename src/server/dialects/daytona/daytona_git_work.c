/*
 * Daytona's git routes that change a repository: clone, init, add, commit, remotes, branches, reset and restore.
 */
#include "server/dialects/daytona/daytona_git.h"

/* ---- repositories ---- */

static int handle_clone(struct request *request, struct husk_error *err)
{
	cleanup_git struct git git = { 0 };

	if (git_open_body(&git, request, err) < 0)
		return -1;
	const char *url = git_word(&git, "url"), *branch = git_word(&git, "branch"),
		   *commit = git_word(&git, "commit_id");
	const char *username = git_text(&git, "username"), *password = git_text(&git, "password");
	int64_t depth = fields_int(&git.fields, "depth", 0, 0, 1000000);
	bool insecure = fields_bool(&git.fields, "insecure_skip_tls", false);
	char number[32];
	if (git_require(&git, "url", url, err) < 0)
		return -1;
	snprintf(number, sizeof(number), "--depth=%lld", (long long)depth);
	git_begin(&git, password);
	if (insecure) {
		git_add(&git, "-c");
		git_add(&git, "http.sslVerify=false");
	}
	git_add(&git, "clone");
	if (depth)
		git_add(&git, number);
	if (branch) {
		git_add(&git, "--branch");
		git_add(&git, branch);
	}
	git_add(&git, "--");
	git_add(&git, url);
	git_add(&git, git.path);
	if (git_run_as(&git, NULL, username, password, err) < 0)
		return -1;
	if (commit) {
		git_add(&git, "git");
		git_add(&git, "checkout");
		git_add(&git, commit);
		if (git_run(&git, err) < 0)
			return -1;
	}
	return respond_empty(request, 200, err);
}

static int handle_init(struct request *request, struct husk_error *err)
{
	cleanup_git struct git git = { 0 };

	if (git_open_body(&git, request, err) < 0)
		return -1;
	bool bare = fields_bool(&git.fields, "bare", false);
	const char *branch = git_word(&git, "initial_branch");
	if (fields_done_open(&git.fields, err) < 0)
		return -1;
	git_add(&git, "git");
	git_add(&git, "init");
	if (bare)
		git_add(&git, "--bare");
	if (branch) {
		git_add(&git, "-b");
		git_add(&git, branch);
	}
	git_add(&git, "--");
	git_add(&git, git.path);
	if (git_run_as(&git, NULL, NULL, NULL, err) < 0)
		return -1;
	return respond_empty(request, 201, err);
}

static int handle_add(struct request *request, struct husk_error *err)
{
	cleanup_git struct git git = { 0 };

	if (git_open_body(&git, request, err) < 0)
		return -1;
	cleanup_free const char **files = fields_strings(&git.fields, "files");
	if (git_require(&git, "files", files && files[0] ? files[0] : NULL, err) < 0 || git_check_count(files, err) < 0)
		return -1;
	git_add(&git, "git");
	git_add(&git, "add");
	git_add(&git, "--");
	git_add_files(&git, files);
	if (git_run(&git, err) < 0)
		return -1;
	return respond_empty(request, 200, err);
}

static int handle_commit(struct request *request, struct husk_error *err)
{
	cleanup_git struct git git = { 0 };

	if (git_open_body(&git, request, err) < 0)
		return -1;
	const char *author = git_text(&git, "author"), *email = git_text(&git, "email"),
		   *message = git_text(&git, "message");
	bool empty = fields_bool(&git.fields, "allow_empty", false);
	if (git_require(&git, "message", message, err) < 0 || git_require(&git, "author", author, err) < 0 ||
	    git_require(&git, "email", email, err) < 0)
		return -1;
	cleanup_free char *name = str_format("user.name=%s", author), *mail = str_format("user.email=%s", email);
	if (!name || !mail)
		return husk_fail_memory(err);
	const char *const words[] = { "git", "-c", name, "-c", mail, "commit", "-q", "-m", message };
	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		git_add(&git, words[i]);
	if (empty)
		git_add(&git, "--allow-empty");
	if (git_run(&git, err) < 0)
		return -1;
	git_add(&git, "git");
	git_add(&git, "rev-parse");
	git_add(&git, "HEAD");
	if (git_run(&git, err) < 0)
		return -1;
	return respond_json(
		request, 200,
		json_pack("{s:o}", "hash", json_text(git.output.out.data, strcspn(git.output.out.data, "\n"))), err);
}

/* ---- with a remote ---- */

static int with_remote(struct request *request, const char *what, struct husk_error *err)
{
	cleanup_git struct git git = { 0 };

	if (git_open_body(&git, request, err) < 0)
		return -1;
	const char *username = git_text(&git, "username"), *password = git_text(&git, "password");
	const char *remote = git_word(&git, "remote"), *branch = git_word(&git, "branch");
	bool upstream = fields_bool(&git.fields, "set_upstream", false);
	if (fields_done_open(&git.fields, err) < 0)
		return -1;
	git_begin(&git, password);
	git_add(&git, what);
	if (upstream && str_equal(what, "push"))
		git_add(&git, "--set-upstream");
	/* As in go-git, which Daytona's own server uses: the checked-out branch, to origin. */
	bool push = str_equal(what, "push");
	if (remote || branch || push)
		git_add(&git, remote ? remote : "origin");
	if (branch || push)
		git_add(&git, branch ? branch : "HEAD");
	if (git_run_as(&git, git.path, username, password, err) < 0)
		return -1;
	return respond_empty(request, 200, err);
}

static int handle_pull(struct request *request, struct husk_error *err)
{
	return with_remote(request, "pull", err);
}

static int handle_push(struct request *request, struct husk_error *err)
{
	return with_remote(request, "push", err);
}

static int handle_add_remote(struct request *request, struct husk_error *err)
{
	cleanup_git struct git git = { 0 };

	if (git_open_body(&git, request, err) < 0)
		return -1;
	const char *name = git_word(&git, "name"), *url = git_word(&git, "url");
	bool fetch = fields_bool(&git.fields, "fetch", false), overwrite = fields_bool(&git.fields, "overwrite", false);
	if (git_require(&git, "name", name, err) < 0 || git_require(&git, "url", url, err) < 0)
		return -1;
	if (overwrite) { /* a missing one is no failure */
		const char *const words[] = { "git", "remote", "remove", name };
		for (size_t i = 0; i < ARRAY_SIZE(words); i++)
			git_add(&git, words[i]);
		struct husk_error why = { 0 };
		git_run(&git, &why);
		request->fault = (struct fault){ 0 };
	}
	git_add(&git, "git");
	git_add(&git, "remote");
	git_add(&git, "add");
	if (fetch)
		git_add(&git, "-f");
	git_add(&git, name);
	git_add(&git, url);
	if (git_run(&git, err) < 0)
		return -1;
	return respond_empty(request, 201, err);
}

static int handle_remotes(struct request *request, struct husk_error *err)
{
	cleanup_git struct git git = { 0 };
	cleanup_json json_t *array = json_array();
	char *save = NULL;

	if (git_open_query(&git, request, err) < 0)
		return -1;
	git_add(&git, "git");
	git_add(&git, "remote");
	git_add(&git, "-v");
	if (git_run(&git, err) < 0)
		return -1;
	for (char *line = strtok_r(git.output.out.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *tab = strchr(line, '\t'), *end = strrchr(line, ' ');
		if (!tab || !end || !str_equal(end, " (fetch)"))
			continue;
		*tab = *end = '\0';
		json_array_append_new(array,
				      json_pack("{s:o, s:o}", "name", json_text0(line), "url", json_text0(tab + 1)));
	}
	return respond_json(request, 200, json_pack("{s:O}", "remotes", array), err);
}

/* ---- branches ---- */

static int handle_branches(struct request *request, struct husk_error *err)
{
	cleanup_git struct git git = { 0 };
	cleanup_json json_t *array = json_array(), *current = NULL;
	char *save = NULL;

	if (git_open_query(&git, request, err) < 0)
		return -1;
	git_add(&git, "git");
	git_add(&git, "for-each-ref");
	git_add(&git, "--format=%(HEAD)%(refname:short)");
	git_add(&git, "refs/heads");
	if (git_run(&git, err) < 0)
		return -1;
	for (char *line = strtok_r(git.output.out.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		json_array_append_new(array, json_text0(line + 1));
		if (line[0] == '*' && !current)
			current = json_text0(line + 1);
	}
	return respond_json(request, 200, json_pack("{s:O, s:O?}", "branches", array, "current", current), err);
}

static int with_branch(struct request *request, const char *const *words, const char *field, unsigned status,
		       struct husk_error *err)
{
	cleanup_git struct git git = { 0 };

	if (git_open_body(&git, request, err) < 0)
		return -1;
	const char *name = git_word(&git, field);
	if (git_require(&git, field, name, err) < 0)
		return -1;
	for (; *words; words++)
		git_add(&git, *words);
	git_add(&git, name);
	if (git_run(&git, err) < 0)
		return -1;
	return respond_empty(request, status, err);
}

static int handle_create_branch(struct request *request, struct husk_error *err)
{
	static const char *const words[] = { "git", "checkout", "-q", "-b", NULL };

	return with_branch(request, words, "name", 201, err);
}

static int handle_delete_branch(struct request *request, struct husk_error *err)
{
	static const char *const words[] = { "git", "branch", "-q", "-D", NULL };

	return with_branch(request, words, "name", 204, err);
}

static int handle_checkout(struct request *request, struct husk_error *err)
{
	static const char *const words[] = { "git", "checkout", "-q", NULL };

	return with_branch(request, words, "branch", 200, err);
}

/* ---- reset, restore ---- */

static int handle_reset(struct request *request, struct husk_error *err)
{
	static const char *const modes[] = { "soft", "mixed", "hard", "merge", "keep" };
	cleanup_git struct git git = { 0 };
	char option[16];

	if (git_open_body(&git, request, err) < 0)
		return -1;
	const char *mode = git_text(&git, "mode"), *target = git_word(&git, "target");
	cleanup_free const char **files = fields_strings(&git.fields, "files");
	bool known = !mode;
	for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
		known |= str_equal(mode, modes[i]);
	if (fields_done_open(&git.fields, err) < 0 || git_check_count(files, err) < 0)
		return -1;
	if (!known)
		return husk_fail_field(err, "mode", "'%.20s' is not soft, mixed, hard, merge or keep", mode);
	git_add(&git, "git");
	git_add(&git, "reset");
	git_add(&git, "-q");
	if (mode && !(files && files[0])) {
		snprintf(option, sizeof(option), "--%s", mode);
		git_add(&git, option);
	}
	if (target)
		git_add(&git, target);
	if (files && files[0])
		git_add(&git, "--");
	git_add_files(&git, files);
	if (git_run(&git, err) < 0)
		return -1;
	return respond_empty(request, 200, err);
}

static int handle_restore(struct request *request, struct husk_error *err)
{
	cleanup_git struct git git = { 0 };

	if (git_open_body(&git, request, err) < 0)
		return -1;
	cleanup_free const char **files = fields_strings(&git.fields, "files");
	bool staged = fields_bool(&git.fields, "staged", false),
	     worktree = fields_bool(&git.fields, "worktree", !staged);
	const char *source = git_word(&git, "source");
	cleanup_free char *from = source ? str_format("--source=%s", source) : NULL;
	if (git_require(&git, "files", files && files[0] ? files[0] : NULL, err) < 0 || git_check_count(files, err) < 0)
		return -1;
	git_add(&git, "git");
	git_add(&git, "restore");
	if (staged)
		git_add(&git, "--staged");
	if (worktree)
		git_add(&git, "--worktree");
	if (from)
		git_add(&git, from);
	git_add(&git, "--");
	git_add_files(&git, files);
	if (git_run(&git, err) < 0)
		return -1;
	return respond_empty(request, 200, err);
}

const struct route daytona_git_routes[] = {
	{ "POST", DAYTONA_TOOLBOX "/git/add", handle_add, ROUTE_STREAM },
	{ "GET", DAYTONA_TOOLBOX "/git/branches", handle_branches, 0 },
	{ "POST", DAYTONA_TOOLBOX "/git/branches", handle_create_branch, ROUTE_STREAM },
	{ "DELETE", DAYTONA_TOOLBOX "/git/branches", handle_delete_branch, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/git/checkout", handle_checkout, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/git/clone", handle_clone, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/git/commit", handle_commit, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/git/init", handle_init, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/git/pull", handle_pull, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/git/push", handle_push, ROUTE_STREAM },
	{ "GET", DAYTONA_TOOLBOX "/git/remotes", handle_remotes, 0 },
	{ "POST", DAYTONA_TOOLBOX "/git/remotes", handle_add_remote, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/git/reset", handle_reset, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/git/restore", handle_restore, ROUTE_STREAM },
	{ 0 },
};
