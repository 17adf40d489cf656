/*
 * `husk doctor --fix`: see doctor_fix.c.
 */
#ifndef HUSK_CLI_DOCTOR_FIX_H
#define HUSK_CLI_DOCTOR_FIX_H

#include "cli/cli.h"

/* Repairs what it can on this host and says on stderr what it did, and what it could not do and why. DENIED for those who
 * are not root, UNAVAILABLE for the host of a server. */
int doctor_fix(struct cli *cli, struct husk_error *err);

#endif
