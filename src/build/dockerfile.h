/*
 * The parser of Dockerfiles: text in, a checked list of steps out. It reads no files and runs nothing. The author of a Dockerfile
 * is not trusted. Everything that a build cannot do is an error here, with file, line and column, so that nothing runs before the
 * whole file is known to be supported.
 *
 *     ARG TAG=3                          step 0: ARG, before the first stage
 *     FROM golang:$TAG AS build          stage 0 "build"; base "golang:$TAG" (not yet expanded)
 *     RUN --mount=type=cache,target=/c go build -o /out .
 *     FROM scratch                       stage 1, without a name
 *     COPY --from=build /out /app        words "/out", "/app"; flag "from", which is stage 0
 */
#ifndef HUSK_BUILD_DOCKERFILE_H
#define HUSK_BUILD_DOCKERFILE_H

#include "base/base.h"

#define DOCKERFILE_MAX (1u << 20) /* bytes */
#define DOCKERFILE_STEPS_MAX 1000
#define DOCKERFILE_WORDS_MAX 4096 /* of one step */

enum dockerfile_kind {
	STEP_FROM = 1,
	STEP_ARG,
	STEP_ENV,
	STEP_LABEL,
	STEP_RUN,
	STEP_COPY,
	STEP_ADD,
	STEP_WORKDIR,
	STEP_USER,
	STEP_SHELL,
	STEP_EXPOSE,
	STEP_ENTRYPOINT,
	STEP_CMD,
	STEP_HEALTHCHECK,
	STEP_STOPSIGNAL,
	STEP_ONBUILD,
	STEP_VOLUME,
	STEP_MAINTAINER,
};

struct dockerfile_pair {
	char *key;
	char *value;           /* not yet expanded; NULL: an ARG without a default, or a flag without a value */
	unsigned line, column; /* of a flag */
};

struct dockerfile_heredoc {
	char *name;
	char *text;
	bool expand; /* variables in it are replaced */
};

struct dockerfile_step {
	enum dockerfile_kind kind;
	unsigned line, column;
	char *source; /* the whole step as written, on one line: for progress and for ONBUILD */
	char *text;   /* what follows the keyword and its flags, on one line */
	bool json;    /* `words` are of a JSON list */
	/* RUN, CMD, ENTRYPOINT, SHELL, HEALTHCHECK: the list (NULL: `text` is for the shell). COPY, ADD: sources, then the
	 * target. EXPOSE, VOLUME: each. FROM: the base. */
	char **words;
	struct dockerfile_pair *pairs; /* ARG, ENV, LABEL */
	size_t pair_count;
	struct dockerfile_pair *flags; /* --key=value */
	size_t flag_count;
	struct dockerfile_heredoc *heredocs;
	size_t heredoc_count;
	int from; /* COPY --from of a stage: its number; -1: an image, or the context */
};

struct dockerfile_stage {
	char *name;          /* NULL: none */
	size_t first, count; /* its steps; the first is FROM */
	int base;            /* the number of the stage that FROM names; -1: an image, a template or scratch */
};

struct dockerfile {
	char escape; /* '\\' or '`' */
	struct dockerfile_step *steps;
	size_t step_count;
	struct dockerfile_stage *stages;
	size_t stage_count;
	/* NULL: it is a Dockerfile. Otherwise its steps are a list that a client sent, in which `line` is the number of a step. Quotes in its values
	 * are part of them. Without WORKDIR, a RUN begins in the home of its user, and other relative paths begin here. Copied files belong to the
	 * user. RUN may have the flag "user"; any step may have the flag "force": no earlier result of it is used. */
	const char *home;
};

/* `name` is for errors: "Dockerfile:3:1: …". */
int dockerfile_parse(const char *name, const char *text, size_t size, struct dockerfile *out, struct husk_error *err);
/* One step of an ONBUILD trigger, as the image that had it stores it. The result has no stages. */
int dockerfile_parse_trigger(const char *name, const char *text, struct dockerfile *out, struct husk_error *err);
void dockerfile_free(struct dockerfile *file);

/* The parser's last step: the steps of each stage, and the stages that they refer to. `name` as above. */
int dockerfile_link(struct dockerfile *file, const char *name, struct husk_error *err);
/* The stage of this name or number, before stage `before`; -1: none. */
int dockerfile_find_stage(const struct dockerfile *file, const char *word, size_t before);
/* What a source of COPY or ADD is. Decided by the word after its variables are replaced. */
enum dockerfile_source {
	SOURCE_FILE, /* of the context, a stage or an image; or a heredoc */
	SOURCE_URL,  /* http or https */
	SOURCE_GIT,  /* a git repository */
	SOURCE_OTHER /* a URL that is none of these */
};
enum dockerfile_source dockerfile_source(const char *word);
/* 0, or INVALID with the reason why the step cannot have such a source. */
int dockerfile_check_source(enum dockerfile_kind kind, const char *word, struct husk_error *err);
/* The digest of --checksum ("sha256:<hex>") in `out`, in lower case; INVALID if it has another form. */
int dockerfile_checksum(const char *value, char out[static 65], struct husk_error *err);
/* Fails with the place of the step: "Dockerfile:3:1: …"; of a list, its number is the field of the error. `name` as above. */
int dockerfile_fail(const struct dockerfile *file, const char *name, const struct dockerfile_step *step,
		    const struct husk_error *why, struct husk_error *err);
/* The value of a flag; NULL: the step does not have it. */
const char *dockerfile_flag(const struct dockerfile_step *step, const char *name);
const char *dockerfile_kind_name(enum dockerfile_kind kind);

/* Replaces $NAME, ${NAME}, ${NAME:-word}, ${NAME:+word} (and both without ':'), and removes quotes and escapes. `value` returns
 * the value of a variable, or NULL if there is none. With `plain`, quotes and escapes are kept, except before a dollar sign
 * (the text of a heredoc). Caller frees. INVALID: a brace that does not end, or another operator. */
typedef const char *(*dockerfile_lookup)(void *data, const char *name);
int dockerfile_expand(const char *text, char escape, bool plain, dockerfile_lookup value, void *data, char **out,
		      struct husk_error *err);

/* One --mount of RUN. Strings belong to the structure; NULL: not given. */
struct dockerfile_mount {
	enum { MOUNT_BIND, MOUNT_CACHE, MOUNT_SECRET, MOUNT_TMPFS } type;
	char *id, *target, *source, *from, *variable;
	bool required;
	uint32_t mode; /* 0: the default */
};
/* Parses the value of a --mount flag: "type=cache,target=/root/.npm". The error names the key. */
int dockerfile_mount_parse(const char *text, struct dockerfile_mount *out, struct husk_error *err);
void dockerfile_mount_free(struct dockerfile_mount *mount);

#endif
