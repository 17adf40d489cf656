/*
 * The user's login for a registry: from `docker login` (or podman, skopeo) in ~/.docker/config.json, or from a
 * credential helper. Secrets are kept in memory for the pull, never logged, and wiped when they are freed.
 */
#ifndef HUSK_REGISTRY_CREDENTIALS_H
#define HUSK_REGISTRY_CREDENTIALS_H

#include "base/base.h"

struct credentials {
	char *user, *secret; /* both NULL: no login; the registry is asked without one */
	bool is_token;       /* the secret is an identity token, which is exchanged for others */
};

/* For a registry's host ("docker.io", "localhost:5000"). No login is not an error; a damaged file or a failing helper
 * is. */
int credentials_find(const char *host, struct credentials *out, struct husk_error *err);
void credentials_free(struct credentials *credentials);
/* Keeps the login for a registry, or removes it: in docker's config.json (mode 0600), or in the credential helper that the file
 * names. NOT_FOUND: there is none to remove. */
int credentials_store(const char *host, const struct credentials *credentials, struct husk_error *err);
int credentials_erase(const char *host, struct husk_error *err);
/* The value of an Authorization header; caller frees, NULL: no memory. */
char *credentials_basic(const struct credentials *credentials);

/* Parsers of the documents; separate, so that tests and fuzzers can call them with any text. */

/* From config.json: the login for the host, or *helper, which has to be asked for `*server`. The caller frees both. */
int credentials_read(const char *text, const char *host, struct credentials *out, char **helper, char **server,
		     struct husk_error *err);
/* What a helper printed. */
int credentials_helped(const char *text, struct credentials *out, struct husk_error *err);

#endif
