/*
 * Egress policies between their three shapes: struct husk_egress of the public API, the text the catalog keeps, and the
 * checked struct policy; and the file that keeps a sandbox's secrets.
 */
#ifndef HUSK_EGRESS_H
#define HUSK_EGRESS_H

#include "instance/instance.h"
#include "net/policy.h"
#include "net/secrets.h"

static inline void cleanup_policy_pointer(struct policy **policy)
{
	policy_free(*policy);
}
#define cleanup_policy cleanup(cleanup_policy_pointer)

/* What was asked for, checked: INVALID names the field. */
int egress_check(const struct husk_egress *egress, struct policy **out, struct husk_error *err);
/* The other way; husk_egress_free. */
struct husk_egress *egress_from_text(const char *text, struct husk_error *err);
/* The secrets text a policy needs (secrets.h), from the values that were given and those of `old` (may be NULL). */
int egress_secrets(const struct policy *policy, const struct husk_egress *given, const char *old, char **out,
		   struct husk_error *err);

/* The file of a sandbox's secrets: read (NULL with err->code 0: it has none), written, removed. */
char *egress_secrets_load(struct husk *husk, const char *id, struct husk_error *err);
int egress_secrets_save(struct husk *husk, const char *id, const char *text, struct husk_error *err);
void egress_secrets_drop(struct husk *husk, const char *id);

/* Counters and log of a sandbox whose leash is gone (hibernated, ended). The path; caller frees. */
char *egress_record_path(struct husk *husk, const char *id);

#endif
