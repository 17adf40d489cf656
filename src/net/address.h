/*
 * The addresses on the wires between guests and their gateways: a /30 for each machine, named by its slot, out of one range
 * for the instance. Each wire lies in network namespaces of its own with no route to anywhere, so two sandboxes never meet.
 * The first /30 is nobody's: its gateway address is where every guest finds its resolver, whatever machine it lives in.
 */
#ifndef HUSK_ADDRESS_H
#define HUSK_ADDRESS_H

#include <netinet/in.h>

#include "base/base.h"

#define ADDRESS_PREFIX 30
#define ADDRESS_POOL_PREFIX 16 /* of a wider range the first part is used: 16,384 times a /30 */

struct address_pool {
	struct in_addr network;
	int prefix;
};

struct address_link {
	struct in_addr network, gateway, guest;
	struct in_addr resolver; /* the same in all of the pool */
	struct address_pool pool;
};

/* "10.201.0.0/16". INVALID names the fault and `field`. */
int address_parse(const char *text, const char *field, struct address_pool *out, struct husk_error *err);
/* The wire of a machine, by its slot from 1 on. LIMIT when the range has no /30 for it. */
int address_link(const struct address_pool *pool, uint32_t slot, struct address_link *out, struct husk_error *err);
/* $HUSK_NET, else what this instance uses already (remembered in `home`), else the first of a few defaults that no route of
 * the host covers: an address of the host's own networks inside the guest would hide those from it. CONFLICT names the
 * route in the way. */
int address_choose(const char *home, struct address_pool *out, struct husk_error *err);
/* A route of the host that covers some of the pool or lies in it: 1 with its text, 0 for none. */
int address_collides(const struct address_pool *pool, char text[static 64], struct husk_error *err);

#endif
