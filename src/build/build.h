/*
 * Builds for clients of a server (server/api_build.c, server/dialects). The client is not trusted: it can use bases of
 * the instance and its own, and everything that the build creates belongs to the client and counts in its quotas. The
 * result is not an image but a sandbox, from which the caller takes a snapshot or the files.
 */
#ifndef HUSK_BUILD_BUILD_H
#define HUSK_BUILD_BUILD_H

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
	int (*finish)(void *data, const struct build_result *result, struct husk_error *err);
	void *data;
	/* The result is the files of the sandbox, without its processes: those that a RUN leaves behind end with that RUN. */
	bool files;
};

/* As husk_build, with these differences: FROM can also name a snapshot, the options' name is not used, caches of RUN --mount
 * are empty, and processes that a RUN leaves behind continue, unless `files` is set. */
int build_for_client(const struct build_client *client, const struct husk_dockerfile_options *options,
		     struct husk_error *err);

/* ---- upload.c ---- */

/* The context of a client: a tar at `fd`, a regular file, which a jailed process unpacks into a directory of the instance.
 * build_upload_close removes it; after a kill, the sweep of the instance does. INVALID, LIMIT: the tar is compressed, damaged, or too
 * large. */
struct build_upload;
int build_upload_open(struct husk *owner, int fd, struct build_upload **out, struct husk_error *err);
const char *build_upload_path(const struct build_upload *upload);
void build_upload_close(struct build_upload *upload); /* NULL is allowed */

#endif
