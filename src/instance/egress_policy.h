/*
 * Converts egress policies between three forms: struct husk_egress of the public API, the text in the catalog, and the
 * checked struct policy. Also reads and writes the file of a sandbox's secrets.
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

/* Checks the requested policy: INVALID names the field. */
int egress_check(const struct husk_egress *egress, struct policy **out, struct husk_error *err);
/* True if the policy says nothing but `trust` and `hold`: everything else is inherited. */
bool egress_is_addition(const struct husk_egress *egress);
/* The inherited policy (text of the catalog) with the `hold` of `added`, which may be NULL. A held host is also allowed; if
 * nothing could be reached, the mode becomes allow. */
int egress_inherit(const char *text, const struct husk_egress *added, struct policy **out, struct husk_error *err);
/* Adds the certificates of the setting network.trust to a policy that says nothing about trust. */
int egress_default_trust(struct policy *policy, struct husk_error *err);
/* The other direction; free with husk_egress_free. */
struct husk_egress *egress_from_text(const char *text, struct husk_error *err);
/* The secrets text that a policy needs (secrets.h), from the given values and those of `old` (may be NULL). */
int egress_secrets(const struct policy *policy, const struct husk_egress *given, const char *old, char **out,
		   struct husk_error *err);

/* The secrets file of a sandbox: reads (NULL with err->code 0: no secrets), writes and removes it. */
char *egress_secrets_load(struct husk *husk, const char *id, struct husk_error *err);
int egress_secrets_save(struct husk *husk, const char *id, const char *text, struct husk_error *err);
void egress_secrets_drop(struct husk *husk, const char *id);

/* The path of the counters and log of a sandbox without a leash (hibernated, ended); caller frees. */
char *egress_record_path(struct husk *husk, const char *id);
/* The same for the connections to its ports. */
char *egress_visits_path(struct husk *husk, const char *id);

#endif
