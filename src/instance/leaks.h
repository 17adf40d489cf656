/*
 * The search for leaks of an instance on its host; see leaks.c.
 */
#ifndef HUSK_LEAKS_H
#define HUSK_LEAKS_H

#include "instance/instance.h"

/* `kind`: process, cgroup, socket, lock, directory, engine state, mount. */
typedef void (*leak_found)(void *data, const char *kind, const char *text);

int leaks_search(struct husk *husk, leak_found found, void *data, struct husk_error *err);

#endif
