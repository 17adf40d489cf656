/*
 * `husk doctor --fix`: see doctor_fix.c.
 */
#ifndef HUSK_CLI_DOCTOR_FIX_H
#define HUSK_CLI_DOCTOR_FIX_H

#include "cli/cli.h"

/* Repairs what it can on this host, and prints on stderr what was done, and what failed and why. DENIED if the user is
 * not root, UNAVAILABLE over a server. */
int doctor_fix(struct cli *cli, struct husk_error *err);

#endif
