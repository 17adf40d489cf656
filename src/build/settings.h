/*
 * Shared by the two files that make a plan: plan.c walks stages and steps, settings.c keeps what they change in the variables and in
 * the config of the image.
 */
#ifndef HUSK_BUILD_SETTINGS_H
#define HUSK_BUILD_SETTINGS_H

#include <openssl/evp.h>

#include "build/plan.h"

struct maker {
	const struct husk_dockerfile_options *options;
	plan_resolve resolve;
	plan_fetch fetch;
	void *data;
	struct plan *plan;
	json_t *globals; /* ARGs before the first FROM, and those that are always there */
	/* The stage that is walked: */
	struct plan_stage *stage;
	json_t *arguments; /* its ARGs: name to value */
	bool has_command;  /* CMD was set by this stage */
	EVP_MD_CTX *hash;
	struct husk_error *err;
};

/* Fails with file, line and column of the step in front. */
int maker_fail(const struct maker *maker, const struct dockerfile_step *step, const struct husk_error *why);
#define fail_invalid(maker, step, ...)                                                                                 \
	({                                                                                                             \
		struct husk_error why_ = { 0 };                                                                        \
		husk_fail(&why_, HUSK_INVALID, __VA_ARGS__);                                                           \
		maker_fail(maker, step, &why_);                                                                        \
	})

/* The value of a variable in a config; NULL: it has none. */
const char *maker_variable(json_t *config, const char *name);
/* For dockerfile_expand: variables of the image, then ARGs; in FROM, the ARGs before the first one. `data` is the maker. */
const char *maker_lookup(void *data, const char *name);
int maker_expand(struct maker *maker, const struct dockerfile_step *step, const char *text, char **out);
/* All words of the step, replaced. */
int maker_words(struct maker *maker, const struct dockerfile_step *step, char ***out);
/* Sets a key of the config; takes the value over. */
int maker_set(struct maker *maker, const char *key, json_t *value);
/* The value that the caller of the build gave for an ARG; NULL: none. */
const char *maker_given(const struct maker *maker, const char *name);
/* ARG: the value that was given, else the default, else the one before the first FROM. */
int maker_argument(struct maker *maker, const struct dockerfile_step *step, json_t *into);
/* The shell of the stage, then the command: "/bin/sh", "-c", "make". */
int maker_shell(struct maker *maker, const char *command, char ***out);
/* The words of RUN, CMD or ENTRYPOINT, in either form. */
int maker_command(struct maker *maker, const struct dockerfile_step *step, char ***out);
/* A step that changes the config of the image and no files. */
int maker_setting(struct maker *maker, const struct dockerfile_step *step);

#endif
