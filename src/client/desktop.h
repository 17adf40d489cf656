/*
 * Parses the answers of the guest's desktop helper (desktop.c). Separate from the call, so that it can be tested with
 * hostile answers.
 */
#ifndef HUSK_CLIENT_DESKTOP_H
#define HUSK_CLIENT_DESKTOP_H

#include "base/jansson.h"

/* The answer as text for the caller, who frees it; or -1 with the error that the helper reported, fit for a terminal, or PROTOCOL. */
int desktop_answer(json_t *object, char **text, struct husk_error *err);

#endif
