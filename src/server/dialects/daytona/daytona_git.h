/*
 * What daytona_git.c, daytona_git_work.c and daytona_git_view.c share: one call of the guest's git. A handler opens the request,
 * adds the words of the command line, and runs it:
 *
 *     cleanup_git struct git git = { 0 };
 *
 *     if (git_open_query(&git, request, err) < 0)
 *             return -1;
 *     git_add(&git, "git");
 *     git_add(&git, "log");
 *     return git_run(&git, err);
 */
#ifndef HUSK_SERVER_DAYTONA_GIT_H
#define HUSK_SERVER_DAYTONA_GIT_H

#include "server/dialects/daytona/daytona.h"

#define GIT_ARGUMENTS_MAX 64

struct git {
	struct request *request;
	struct daytona_box box;
	struct fields fields;
	char *path; /* of the repository */
	const char *argv[GIT_ARGUMENTS_MAX + 1];
	size_t count; /* of argv */
	struct daytona_output output;
};

void git_free(struct git *git);
#define cleanup_git cleanup(git_free)

/* Begins a call: finds the sandbox, and the repository in `path` of the body or of the query. */
int git_open_body(struct git *git, struct request *request, struct husk_error *err);
int git_open_query(struct git *git, struct request *request, struct husk_error *err);

/* A field of the body; NULL if it is missing or empty. A word that git would read as an option is refused. */
const char *git_text(struct git *git, const char *name);
const char *git_word(struct git *git, const char *name);
/* Ends the reading of the body: fails for an unknown or mistyped field, and if `value` of the field `name` is NULL. */
int git_require(struct git *git, const char *name, const char *value, struct husk_error *err);
/* Do so many files fit into a command line? */
int git_check_count(const char **files, struct husk_error *err);

/* The command line: the first words (with a helper that has the password, if there is one), then the rest. */
void git_begin(struct git *git, const char *password);
void git_add(struct git *git, const char *argument);
void git_add_files(struct git *git, const char **files);

/* Runs git in the repository; afterwards the command line is empty. -1 with Daytona's status and code if git fails. */
int git_run(struct git *git, struct husk_error *err);
/* The same in a directory (NULL: the home), with credentials. */
int git_run_as(struct git *git, const char *within, const char *username, const char *password, struct husk_error *err);

#endif
