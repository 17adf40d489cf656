/*
 * The addresses on the links between guests and their gateways: a /30 for each machine, chosen by its slot, out of one
 * range for the instance. Each link is in network namespaces of its own without any route, so two sandboxes cannot
 * reach each other. The first /30 belongs to no machine: its gateway address is the resolver of every guest, on every
 * machine.
 */
#ifndef HUSK_ADDRESS_H
#define HUSK_ADDRESS_H

#include <netinet/in.h>

#include "base/base.h"

#define ADDRESS_PREFIX 30
#define ADDRESS_POOL_PREFIX 16 /* of a larger range only the first part is used: 16,384 times a /30 */

struct address_pool {
	struct in_addr network;
	int prefix;
};

struct address_link {
	struct in_addr network, gateway, guest;
	struct in_addr resolver; /* the same in all of the pool */
	struct address_pool pool;
};

/* "10.201.0.0/16". INVALID names the error and `field`. */
int address_parse(const char *text, const char *field, struct address_pool *out, struct husk_error *err);
/* The link of a machine, by its slot from 1 on. LIMIT if the range has no /30 for it. */
int address_link(const struct address_pool *pool, uint32_t slot, struct address_link *out, struct husk_error *err);
/* $HUSK_NET, else the range that this instance already uses (stored in `home`), else the first of a few defaults that
 * no route of the host covers. An address of the host's own networks inside the guest would hide those networks from
 * the guest. CONFLICT names the overlapping route. */
int address_choose(const char *home, struct address_pool *out, struct husk_error *err);
/* Finds a route of the host that overlaps the pool: 1 with its text, 0 if there is none. */
int address_collides(const struct address_pool *pool, char text[static 64], struct husk_error *err);

#endif
