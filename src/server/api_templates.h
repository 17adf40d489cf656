/*
 * Shared with other families of the API.
 */
#ifndef HUSK_SERVER_TEMPLATES_H
#define HUSK_SERVER_TEMPLATES_H

#include "server/server.h"

/* For a template that was not found: if it is a bundled one that was never built, builds it, for everyone. 1: it exists
 * now; -1: it does not, and `err` says why. One build at a time. */
int template_ensure(struct request *request, const char *name, struct husk_error *err);
/* The same for a thread that has no request. `husk` finds the tenant's templates, and `owner` builds. */
int template_ensure_for(struct husk *husk, struct husk *owner, const char *name, struct husk_error *err);
/* Builds a template when no other build runs; does nothing if it is built already. */
int template_import(struct husk *husk, const struct husk_build_options *options, struct husk_error *err);

#endif
