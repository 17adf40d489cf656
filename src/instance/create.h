/*
 * What create.c has besides the calls of husk.h (husk_create, husk_fork, husk_wake).
 */
#ifndef HUSK_INSTANCE_CREATE_H
#define HUSK_INSTANCE_CREATE_H

#include "instance/instance.h"

/* Starts a hibernated sandbox anew with the disk of its image. After a failure it is hibernated, with its image. */
int sandbox_reboot(struct husk *husk, const char *sandbox, struct husk_error *err);

#endif
