/*
 * Builds for clients of a server (server/api_build.c, server/dialects). The client is not trusted: it can use bases of
 * the instance and its own, and everything that the build creates belongs to the client and counts in its quotas. The
 * result is not an image but a sandbox, from which the caller takes a snapshot or the files.
 */
#ifndef HUSK_BUILD_BUILD_H
#define HUSK_BUILD_BUILD_H

#include "base/jansson.h"
#include "build/dockerfile.h"
#include "husk.h"

struct build_result {
	const char *sandbox;      /* in the state after the last step; ends when `finish` returns */
	char *const *environment; /* KEY=value that the steps set or changed; NULL: none */
	const char *user, *cwd;   /* for processes; NULL: the base's */
	const char *config;       /* all that the Dockerfile says, as `config` of an OCI image in JSON */
};

struct build_client {
	struct husk *husk;  /* the client's: sandboxes, kept steps, own templates and snapshots */
	struct husk *owner; /* the instance's: images and templates */
	/* The template or snapshot that a word of FROM means, if it is not the name of an image; caller frees. NULL: none. */
	char *(*alias)(void *data, const char *word);
	/* A client whose steps are a list (struct dockerfile) has these three; otherwise NULL. */
	/* The steps, instead of the text of a Dockerfile; the builder frees them, also after a failure. */
	int (*steps)(void *data, struct dockerfile *out, struct husk_error *err);
	/* Changes the config that a base gives its stage. `sandbox`: one of that base; NULL: the base is an image, or bundled. */
	int (*base)(void *data, const char *sandbox, json_t *config, struct husk_error *err);
	/* Prepares a sandbox of the base for the first step. */
	int (*begin)(void *data, const char *sandbox, struct husk_error *err);
	int (*finish)(void *data, const struct build_result *result, struct husk_error *err);
	void *data;
	/* The result is the files of the sandbox, without its processes: those that a RUN leaves behind end with that RUN. */
	bool files;
};

/* As husk_build, with these differences: FROM can also name a snapshot, the options' name is not used, caches of RUN --mount
 * are empty, and processes that a RUN leaves behind continue, unless `files` is set. */
int build_for_client(const struct build_client *client, const struct husk_dockerfile_options *options,
		     struct husk_error *err);

/* ---- settings.c ---- */

/* Sets a variable in the config of an image. -1: no memory, or the value is not UTF-8. */
int build_set_variable(json_t *config, const char *name, const char *value);

/* ---- upload.c ---- */

/* The context of a client: a directory of the instance. build_upload_close removes it; after a kill, the sweep of the instance does. */
struct build_upload;
int build_upload_open(struct husk *owner, struct build_upload **out, struct husk_error *err);
/* A jailed process unpacks a tar, the regular file `fd`, into the context, or into the folder `name` of it. Only the tar of a folder
 * may be compressed. INVALID, LIMIT: the tar is damaged, or the context becomes too large. */
int build_upload_add(struct build_upload *upload, const char *name, int fd, struct husk_error *err);
const char *build_upload_path(const struct build_upload *upload);
void build_upload_close(struct build_upload *upload); /* NULL is allowed */

#endif
