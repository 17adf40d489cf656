/*
 * The seccomp filters of husk-vmm's threads: which kinds there are. The lists themselves are in rules.c, one block per
 * module; the build turns them into programs (scripts/filters.c), and husk-vmm carries only those.
 */
#ifndef HUSK_VMM_RULES_H
#define HUSK_VMM_RULES_H

#include "jail/seccomp.h"

enum rules_kind { RULES_MAIN, RULES_DISK, RULES_VCPU, RULES_COUNT };

/* The lists, for the build and for tests. */
extern const struct jail_filter rules_filters[RULES_COUNT];
/* What jail_filter_install takes. */
extern const struct jail_program rules_programs[RULES_COUNT];

#endif
