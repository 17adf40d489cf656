/*
 * The `egress` field of requests that make or change sandboxes.
 */
#ifndef HUSK_SERVER_EGRESS_H
#define HUSK_SERVER_EGRESS_H

#include "server/server.h"

/* The strings belong to the document. */
struct egress_request {
	struct husk_egress egress;
	const char **allow, **deny, **hold;
	struct husk_secret *secrets;
	size_t count; /* of secrets */
};
/* "off", or
 * {"mode","allow":[…],"deny":[…],"secrets":[{"name","value","hosts":[…],"header"}],"limits":{"bytes","rate","connections"},
 * "hold":[…],"trust":PEM}.
 * Free it also after a failure. */
int egress_parse(json_t *document, struct egress_request *out, struct husk_error *err);
void egress_free(struct egress_request *egress);
#define cleanup_egress cleanup(egress_free)

#endif
