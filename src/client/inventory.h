/*
 * What a state has besides its files, as text that the guest wrote: installed packages, processes, listening ports. The parsers read
 * hostile bytes: they are bounded, and skip what they do not understand.
 */
#ifndef HUSK_CLIENT_INVENTORY_H
#define HUSK_CLIENT_INVENTORY_H

#include "base/base.h"

struct item {
	const char *kind; /* "deb", "pip", "npm", "process", "port"; constant text */
	char *name;
	char *version; /* of a package; NULL: none */
};

struct inventory {
	struct item *items;
	size_t count, room;
};
void inventory_free(struct inventory *inventory);
#define cleanup_inventory cleanup(inventory_free)
#define INVENTORY_MAX 100000u /* further items are left out */

/* Copies name and version. -1: no memory. */
int inventory_add(struct inventory *inventory, const char *kind, const char *name, const char *version);
/* By kind, name and version. */
void inventory_sort(struct inventory *inventory);

/* The installed packages of /var/lib/dpkg/status. */
int inventory_deb(struct inventory *inventory, const char *text, size_t size);
/* "name-1.2.dist-info" or "name-1.2.egg-info", the last part of a path. 1: added; 0: it is no such name. */
int inventory_pip(struct inventory *inventory, const char *file);
/* package.json. */
int inventory_npm(struct inventory *inventory, const char *text, size_t size);
/* node_modules/.package-lock.json, which lists all packages of its directory. */
int inventory_npm_lock(struct inventory *inventory, const char *text, size_t size);
/* The listening sockets of /proc/net/tcp, or tcp6. */
int inventory_ports(struct inventory *inventory, const char *text, size_t size);
/* /proc/PID/cmdline: arguments that end with NUL. */
int inventory_process(struct inventory *inventory, const char *text, size_t size);

#endif
