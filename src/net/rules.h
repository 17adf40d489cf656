/*
 * The packet rules of a gateway namespace, loaded through libnftables.
 */
#ifndef HUSK_RULES_H
#define HUSK_RULES_H

#include "net/address.h"

/* Loads the rules into the calling thread's network namespace, for guest frames that arrive on `device`. */
int rules_load(const char *device, const struct address_link *link, struct husk_error *err);

#endif
