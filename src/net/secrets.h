/*
 * The data that the leash needs to use secrets on behalf of a guest that must never see them: their values, and the
 * certificate authority of the sandbox. Stored as one 0600 file in the sandbox's directory; the supervisor reads it and
 * passes it to the leash. It is never part of the catalog, a snapshot, an event or a log. A fork gets a copy; a
 * snapshot does not.
 */
#ifndef HUSK_SECRETS_H
#define HUSK_SECRETS_H

#include "base/base.h"
#include "husk.h"
#include "net/policy.h"

#define SECRETS_FILE "secrets" /* its name in the sandbox's directory */
#define SECRETS_TEXT_MAX (256u << 10)
#define SECRET_VALUE_MAX 8192

/* The text of the file: values, and an authority, which is kept from `old` (may be NULL) so that the guest still trusts
 * it. Values of `old` that the policy still names are kept. Every secret of the policy must have a value: INVALID names
 * the missing one. Caller frees with str_wipe. NULL if the policy opens no TLS (err->code 0) or on failure. */
char *secrets_make(const struct policy *policy, const struct husk_pair *values, size_t count, const char *old,
		   struct husk_error *err);

int secrets_save(const char *path, const char *text, struct husk_error *err); /* 0600, replaced whole */
/* The text; NULL with err->code 0 if the file does not exist. Caller frees with str_wipe. */
char *secrets_load(const char *path, struct husk_error *err);

/* The authority's certificate (PEM), for the guest's trust store. Caller frees. */
char *secrets_certificate(const char *text, struct husk_error *err);
/* The placeholder of a value in the guest's environment: "husk-secret-NAME-hidden". Caller frees. */
char *secrets_placeholder(const char *name);

#endif
