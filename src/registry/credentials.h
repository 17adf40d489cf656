/*
 * Whom the user is to a registry: what `docker login` (or podman, skopeo) left in ~/.docker/config.json, or a credential
 * helper gives. Secrets are kept in memory for the pull, never logged, and wiped when they are freed.
 */
#ifndef HUSK_REGISTRY_CREDENTIALS_H
#define HUSK_REGISTRY_CREDENTIALS_H

#include "base/base.h"

struct credentials {
	char *user, *secret; /* both NULL: none are known, and the registry is asked as anybody */
	bool is_token;       /* the secret is an identity token, to be exchanged for others */
};

/* For a registry's host ("docker.io", "localhost:5000"). None is not an error; a file or helper that is broken is. */
int credentials_find(const char *host, struct credentials *out, struct husk_error *err);
void credentials_free(struct credentials *credentials);
/* The value of an Authorization header; caller frees, NULL: no memory. */
char *credentials_basic(const struct credentials *credentials);

/* What is in the documents; apart, so that they can be fed anything. */

/* From config.json: the login of the host, or *helper, which is to be asked for `*server`. Callers free both. */
int credentials_read(const char *text, const char *host, struct credentials *out, char **helper, char **server,
		     struct husk_error *err);
/* What a helper printed. */
int credentials_helped(const char *text, struct credentials *out, struct husk_error *err);

#endif
