/*
 * Shared with other families of the API.
 */
#ifndef HUSK_SERVER_TEMPLATES_H
#define HUSK_SERVER_TEMPLATES_H

#include "server/server.h"

/* For a template that was not found: if it is a bundled one that was never built, builds it, for everyone. 1: it exists
 * now; -1: it does not, and `err` says why. One build at a time. */
int template_ensure(struct request *request, const char *name, struct husk_error *err);
/* Makes an empty directory for an upload: `path` ends with "husk-upload.XXXXXX", as for mkdtemp. Returns a descriptor that locks it.
 * The caller removes the directory; after a kill, the next upload does. */
int template_scratch(char *path, struct husk_error *err);

/* ---- api_build.c: its route in api_templates.c's table ---- */

int template_build_dockerfile(struct request *request, struct husk_error *err);

#endif
