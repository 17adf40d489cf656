/*
 * The list of dialects that huskd serves (server/dialect.h): the one place where a new one is registered.
 */
#include "server/dialect.h"
#include "server/dialects/daytona/daytona.h"
#include "server/dialects/e2b/e2b.h"

const struct dialect *const dialects[] = { &e2b_dialect, &daytona_dialect, NULL };
