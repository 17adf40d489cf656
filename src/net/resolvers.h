/*
 * The resolvers that the leash asks: the host's own, as currently configured.
 */
#ifndef HUSK_RESOLVERS_H
#define HUSK_RESOLVERS_H

#include <jansson.h>

#include "base/base.h"

/* $HUSK_DNS ("addr[:port]", several with commas), else the nameservers of `file` (/etc/resolv.conf), as a list of
 * "addr:port" or "[addr]:port". INVALID names the error in HUSK_DNS. New reference; NULL with err. */
json_t *resolvers_list(const char *file, struct husk_error *err);

#endif
