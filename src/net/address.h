/*
 * The addresses on the wire between a guest and its gateway: a /30, the same in every sandbox. Each wire lies in network
 * namespaces of its own with no route to anywhere, so two sandboxes never meet, and a guest that is forked, or wakes in
 * another machine, finds its own address where its open sockets expect it (gVisor ends a guest with a UDP socket bound
 * to an address that is gone).
 */
#ifndef HUSK_ADDRESS_H
#define HUSK_ADDRESS_H

#include <netinet/in.h>

#include "base/base.h"

#define ADDRESS_PREFIX 30

struct address_link {
	struct in_addr network, gateway, guest;
};

/* "10.201.0.0/16" to the first /30 of it. INVALID names the fault and `field`. */
int address_parse(const char *text, const char *field, struct address_link *out, struct husk_error *err);
/* $HUSK_NET, else what this instance uses already (remembered in `home`), else the first of a few defaults that no route of
 * the host covers: an address of the host's own networks inside the guest would hide those from it. CONFLICT names the
 * route in the way. */
int address_choose(const char *home, struct address_link *out, struct husk_error *err);
/* A route of the host that covers the link or lies in it: 1 with its text, 0 for none. */
int address_collides(const struct address_link *link, char text[static 64], struct husk_error *err);

#endif
