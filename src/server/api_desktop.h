/*
 * The one way from a request to the screen of a sandbox, for …/desktop (api_desktop.c) and for dialects that have a screen too.
 */
#ifndef HUSK_SERVER_API_DESKTOP_H
#define HUSK_SERVER_API_DESKTOP_H

#include "server/server.h"

/* Sends a request document of docs/desktop.md to the sandbox of the route's {id}, and returns the answer, which the
 * caller frees. Takes ownership of the document; NULL: out of memory. */
int desktop_act(struct request *request, json_t *document, json_t **answer, struct husk_error *err);

#endif
