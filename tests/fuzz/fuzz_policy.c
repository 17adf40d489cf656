/*
 * Egress policies from anybody: what is accepted must come back the same from its own text, and match without harm.
 */
#include "net/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct policy *policy = NULL, *again = NULL;
	cleanup_free char *json = strndup((const char *)data, size);

	if (!json || policy_parse(json, &policy, NULL) < 0)
		return 0;
	cleanup_free char *text = policy_text(policy);
	if (!text || policy_parse(text, &again, NULL) < 0)
		abort();
	cleanup_free char *twice = policy_text(again);
	if (!twice || strcmp(text, twice) != 0)
		abort();
	policy_allows_name(policy, "www.example.com", 443);
	policy_allows_address(policy, 0x0a010203, 443, policy_place(0x0a010203));
	/* Whatever the rules say, a range never means the host. */
	if (policy->mode == POLICY_OPEN && policy->rule_count == 0 &&
	    policy_allows_address(policy, 0x01020304, 443, PLACE_HOST))
		abort();
	policy_secret_for(policy, "www.example.com", 443, 0);
	policy_free(policy);
	policy_free(again);
	return 0;
}
