/*
 * The plan of a build: every step of the stages that are needed, with its variables replaced and with the key of its
 * result. All of this is known before anything runs, from the Dockerfile, the arguments, the files of the context and
 * the configs of base images.
 *
 * A key is a hash of everything that the files after the step depend on: the key before it, the step, its variables,
 * user and directory, and the content that it copies. Two steps with the same key have the same result, so a result is
 * stored under its key.
 */
#ifndef HUSK_BUILD_PLAN_H
#define HUSK_BUILD_PLAN_H

#include "base/jansson.h"
#include "build/context.h"
#include "build/dockerfile.h"
#include "husk.h"

#define KEY_LENGTH 64

/* A URL of ADD. */
struct plan_download {
	char *url;
	char *name;       /* of the file, when the target is a directory; NULL: the URL names none */
	char digest[65];  /* sha256 of the content: of --checksum, or of what was downloaded */
	int fd;           /* the content; -1: not downloaded yet */
	int64_t modified; /* its time, in seconds since 1970; 0: unknown */
};

struct plan_step {
	const struct dockerfile_step *step;
	char key[KEY_LENGTH + 1]; /* after the step */
	bool works;               /* it changes files: RUN, COPY, ADD, WORKDIR */
	bool secret;              /* it sees a secret */
	bool force;               /* no earlier result is used: of it, or of a step before it */
	/* What it needs when it runs; NULL where its kind does not. */
	char **environment; /* KEY=value */
	char *user, *cwd;   /* cwd NULL: the user's home */
	char **argv;        /* RUN */
	char **words;       /* COPY, ADD: sources and target, replaced. WORKDIR: the directory */
	char *owner;        /* --chown */
	int64_t mode;       /* --chmod; -1: none */
	char **texts;       /* its heredocs, replaced */
	char *image;        /* COPY --from of an image: its template */
	struct plan_download *downloads;
	size_t download_count;
	struct dockerfile_mount *mounts;
	size_t mount_count;
};

struct plan_stage {
	bool needed;
	char *template, *snapshot; /* that it begins with; both NULL: `base`, another stage */
	int base;
	struct plan_step *steps;
	size_t count;
	struct dockerfile *triggers; /* steps of ONBUILD of the base */
	size_t trigger_count;
	json_t *config;    /* of the image, after the last step */
	json_t *inherited; /* variables of its base image */
	char key[KEY_LENGTH + 1];
	bool secret; /* one of its steps, or of its bases, saw a secret */
	bool force;  /* … must not use an earlier result */
};

struct plan {
	struct dockerfile file;
	struct context context;
	struct plan_stage *stages; /* as many as in the file */
	size_t target;             /* the stage to build */
	size_t work;               /* how many steps of needed stages there are */
};

/* How the base of a stage, or the image of COPY --from, is found: the name of its template or the id of its snapshot, a digest of its
 * content, and the `config` of its image (an object). Caller frees the texts and the object. */
struct plan_base {
	char *template, *snapshot, *digest;
	json_t *config;
};
void plan_base_free(struct plan_base *base);
typedef int (*plan_resolve)(void *data, const char *word, struct plan_base *out, struct husk_error *err);
/* How the content of a URL is got: fills everything but the URL and the name. */
typedef int (*plan_fetch)(void *data, struct plan_download *out, struct husk_error *err);

/* The Dockerfile of the options, and its text; the caller frees both. */
int plan_read(const struct husk_dockerfile_options *options, char **out_text, struct dockerfile *out,
	      struct husk_error *err);
/* Takes the file over, also after a failure. */
int plan_make(const struct husk_dockerfile_options *options, struct dockerfile *file, plan_resolve resolve,
	      plan_fetch fetch, void *data, struct plan *out, struct husk_error *err);
void plan_free(struct plan *plan);

#endif
