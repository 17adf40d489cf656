/*
 * One call of the guest's own git, as the sandbox's user, for Daytona's git routes: reads the request, runs git, and turns
 * git's error text into the status and code that Daytona's clients turn into exceptions. Credentials of a clone, pull or
 * push are passed to that one git in its environment, with a one-line credential helper. So they are in no command line,
 * file or log.
 */
#include "server/dialects/daytona/daytona_git.h"

#define CREDENTIALS 2 /* variables */

void git_free(struct git *git)
{
	daytona_box_free(&git->box);
	daytona_output_free(&git->output);
	free(git->path);
}

/* ---- errors ---- */

static const struct {
	const char *words;
	unsigned status;
	const char *code;
} complaints[] = {
	{ "Authentication failed", 401, "GIT_AUTH_FAILED" },
	{ "could not read Username", 401, "GIT_AUTH_FAILED" },
	{ "Permission denied (publickey", 401, "GIT_AUTH_FAILED" },
	{ "[rejected]", 409, "GIT_PUSH_REJECTED" },
	{ "remote rejected", 409, "GIT_REMOTE_REJECTED" },
	{ "already exists and is not an empty", 409, "CONFLICT" },
	{ "error: remote ", 409, "CONFLICT" },
	{ "already exists", 409, "GIT_BRANCH_EXISTS" },
	{ "not a git repository", 404, "GIT_REPO_NOT_FOUND" },
	{ "does not appear to be a git repository", 404, "GIT_REPO_NOT_FOUND" },
	{ "epository not found", 404, "GIT_REPO_NOT_FOUND" },
	{ "does not exist", 404, "GIT_REPO_NOT_FOUND" },
	{ "did not match any files", 404, "FILE_NOT_FOUND" }, /* of add */
	{ "did not match any file", 404, "GIT_BRANCH_NOT_FOUND" },
	{ "annot delete", 409, "CONFLICT" }, /* the branch that is checked out */
	{ "not found in upstream", 404, "GIT_BRANCH_NOT_FOUND" },
	{ "branch '", 404, "GIT_BRANCH_NOT_FOUND" },
	{ "would be overwritten", 409, "GIT_DIRTY_WORKTREE" },
	{ "CONFLICT", 409, "GIT_MERGE_CONFLICT" },
	{ "Could not resolve host", 400, "GIT_TRANSPORT_FAILED" },
	{ "unable to access", 400, "GIT_TRANSPORT_FAILED" },
};

static int failed(struct git *git, struct husk_error *err)
{
	struct daytona_output *output = &git->output;
	const char *said = output->err.size ? output->err.data : output->out.data;

	for (size_t i = 0; said && i < ARRAY_SIZE(complaints); i++)
		if (strstr(said, complaints[i].words) ||
		    (output->out.data && strstr(output->out.data, complaints[i].words)))
			return daytona_fail(git->request, complaints[i].status, complaints[i].code, "%.800s", said);
	if (output->exit_code == 127)
		return dialect_unsupported(git->request, "git in a sandbox that has none", err);
	return daytona_fail(git->request, 400, "BAD_REQUEST", "%.800s", said && *said ? said : "git failed");
}

/* ---- running ---- */

void git_add(struct git *git, const char *argument)
{
	if (git->count < GIT_ARGUMENTS_MAX)
		git->argv[git->count++] = argument;
}

/* `within`: the repository, as git's working directory; NULL: the home. */
static int run_with(struct git *git, const char *within, const struct husk_pair *more, size_t more_count,
		    struct husk_error *err)
{
	struct husk_pair pairs[CREDENTIALS + 3] = { { "LC_ALL", "C" }, { "GIT_TERMINAL_PROMPT", "0" } };
	struct daytona_command command = {
		.argv = git->argv, .cwd = within, .environment = pairs, .environment_count = 2 + more_count
	};

	memcpy(pairs + 2, more, more_count * sizeof(*more));
	git->argv[git->count] = NULL;
	daytona_output_free(&git->output);
	git->output = (struct daytona_output){ 0 };
	int result = daytona_run(git->request, &git->box, &command, &git->output, err);
	git->count = 0;
	if (result < 0 && within && git->request->fault.status == 400)
		return daytona_fail(git->request, 404, "GIT_REPO_NOT_FOUND", "repository does not exist: %.400s",
				    within);
	if (result < 0)
		return -1;
	return git->output.exit_code ? failed(git, err) : 0;
}

int git_run(struct git *git, struct husk_error *err)
{
	static const struct husk_pair none[1];

	return run_with(git, git->path, none, 0, err);
}

/* The shell that git starts for the helper prints the values in the environment. */
#define HELPER "credential.helper=!f() { echo \"username=$HUSK_GIT_USER\"; echo \"password=$HUSK_GIT_PASSWORD\"; }; f"

int git_run_as(struct git *git, const char *within, const char *username, const char *password, struct husk_error *err)
{
	const struct husk_pair pairs[CREDENTIALS] = { { "HUSK_GIT_USER", username && *username ? username : "git" },
						      { "HUSK_GIT_PASSWORD", password ? password : "" } };

	return run_with(git, within, pairs, password && *password ? CREDENTIALS : 0, err);
}

void git_begin(struct git *git, const char *password)
{
	git_add(git, "git");
	if (password && *password) {
		git_add(git, "-c");
		git_add(git, "credential.helper=");
		git_add(git, "-c");
		git_add(git, HELPER);
	}
}

/* ---- the request ---- */

static int open_path(struct git *git, const char *given, struct husk_error *err)
{
	if (!given || !*given)
		return husk_fail_field(err, "path", "path is required");
	return daytona_path(&git->box, given, &git->path, err);
}

/* A body with `path`. */
int git_open_body(struct git *git, struct request *request, struct husk_error *err)
{
	git->request = request;
	if (fields_begin(&git->fields, request_read_json(request, err)) < 0 ||
	    daytona_enter(request, &git->box, err) < 0)
		return -1;
	return open_path(git, fields_string(&git->fields, "path"), err);
}

int git_open_query(struct git *git, struct request *request, struct husk_error *err)
{
	git->request = request;
	if (daytona_enter(request, &git->box, err) < 0)
		return -1;
	return open_path(git, request_query(request, "path"), err);
}

const char *git_text(struct git *git, const char *name)
{
	const char *value = fields_string(&git->fields, name);

	return value && *value ? value : NULL;
}

/* A word that git must not read as an option. */
const char *git_word(struct git *git, const char *name)
{
	const char *value = git_text(git, name);

	if (value && value[0] == '-' && git->fields.error.code == HUSK_OK)
		husk_fail_field(&git->fields.error, name, "'%.80s' is not a name", value);
	return value;
}

int git_require(struct git *git, const char *name, const char *value, struct husk_error *err)
{
	if (fields_done_open(&git->fields, err) < 0)
		return -1;
	return value ? 0 : husk_fail_field(err, name, "%s is required", name);
}

void git_add_files(struct git *git, const char **files)
{
	for (size_t i = 0; files && files[i]; i++)
		git_add(git, files[i]);
}

int git_check_count(const char **files, struct husk_error *err)
{
	size_t count = 0;

	while (files && files[count])
		count++;
	return count + 12 > GIT_ARGUMENTS_MAX
		       ? husk_fail_field(err, "files", "more than %d files", GIT_ARGUMENTS_MAX - 12)
		       : 0;
}
