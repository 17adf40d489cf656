/*
 * Shared by the files that run a plan: build.c (stages, sandboxes, kept results), run.c (RUN) and copy.c (COPY, ADD).
 */
#ifndef HUSK_BUILD_WORK_H
#define HUSK_BUILD_WORK_H

#include "build/build.h"
#include "build/plan.h"

struct build {
	struct husk *husk, *owner;         /* for sandboxes and snapshots; for images and templates */
	const struct build_client *client; /* NULL: the build is the owner's, and makes an image */
	const struct husk_dockerfile_options *options;
	struct plan plan;
	char id[24];
	char **sandboxes;     /* of each stage, when it has one */
	char **images;        /* template and sandbox, alternating, of COPY --from of images */
	char *cache;          /* directory for caches and unfinished files */
	size_t number, steps; /* of the current step, and how many its stage has */
	const char *stage;    /* its name or number */
	const struct plan_step *step;
	size_t cached, ran;
};

/* ---- build.c ---- */

/* Non-zero: the caller wants the build to end. */
int build_tell(struct build *build, enum husk_build_kind kind, const char *text, size_t size, bool error_output,
	       int64_t duration_ms);
bool build_stopped(struct build *build, struct husk_error *err); /* fills err with GONE */
/* Tells something about the build, not about a step; `format` has one %s. */
void build_note(struct build *build, const char *format, const char *word);
/* A sandbox of a template or of a snapshot; the caller frees its id and ends it. */
int build_sandbox(struct build *build, const char *template, const char *snapshot, char **out, struct husk_error *err);
/* The sandbox of a stage, in its last state. */
int build_stage(struct build *build, size_t index, const char **sandbox, struct husk_error *err);
/* A sandbox of a template, to copy from. */
int build_image(struct build *build, const char *template, const char **sandbox, struct husk_error *err);
/* An unnamed file for bytes on their way. */
int build_scratch(const struct build *build, struct husk_error *err);

/* ---- bases.c ---- */

/* A plan_resolve; `data` is the build. */
int base_resolve(void *data, const char *word, struct plan_base *out, struct husk_error *err);
struct husk_build_options base_options(struct build *build); /* for templates that the build makes */

/* ---- fetch.c ---- */

/* A plan_fetch; `data` is the build. The connection is one of a sandbox with the build's egress policy. */
int step_fetch(void *data, struct plan_download *out, struct husk_error *err);

/* ---- send.c ---- */

/* husk_build on a server. */
struct remote;
int build_on_server(struct remote *remote, const struct husk_dockerfile_options *options, struct husk_image **out,
		    bool *fresh, struct husk_error *err);

/* ---- run.c ---- */

int step_run(struct build *build, const char *sandbox, const struct plan_step *step, struct husk_error *err);
/* Runs a program of the guest as root, without output; its exit status, or -1. */
int run_quietly(struct build *build, const char *sandbox, const char *const *argv, struct husk_error *err);

/* ---- copy.c ---- */

int step_copy(struct build *build, const char *sandbox, const struct plan_step *step, struct husk_error *err);
/* Copies one path of the context, or of another sandbox (`from`), to a path of the sandbox. */
int copy_to(struct build *build, const char *sandbox, const char *from, const char *source, const char *target,
	    const char *owner, struct husk_error *err);
/* Moves a tree between a sandbox and a file as a tar of its content. */
int tree_out(struct build *build, const char *sandbox, const char *path, int fd, uint64_t limit,
	     struct husk_error *err);
int tree_in(struct build *build, const char *sandbox, const char *path, const char *owner, int fd,
	    struct husk_error *err);

#endif
