/*
 * What other families need of api_templates.c.
 */
#ifndef HUSK_SERVER_TEMPLATES_H
#define HUSK_SERVER_TEMPLATES_H

#include "server/server.h"

/* A template that was asked for and not found: when it is a bundled one that nobody has built yet, builds it, for
 * everyone. 1: it is there now; -1: it is not, and `err` says why. One build at a time. */
int template_ensure(struct request *request, const char *name, struct husk_error *err);
/* The same for a thread that has no request: `husk` sees the tenant's templates, `owner` builds. */
int template_ensure_for(struct husk *husk, struct husk *owner, const char *name, struct husk_error *err);
/* Builds a template when its turn comes; nothing when it is built already. */
int template_import(struct husk *husk, const struct husk_build_options *options, struct husk_error *err);

#endif
