/*
 * The seccomp filters of husk-vmm's threads: which kinds there are, and putting one on. The lists themselves are in
 * rules.c, one block per module, in the order of the files.
 */
#ifndef HUSK_VMM_RULES_H
#define HUSK_VMM_RULES_H

#include "base/base.h"

enum rules_kind { RULES_MAIN, RULES_DISK, RULES_VCPU, RULES_COUNT };

/* Compiles all of them; once, before anything of the guest is looked at. */
int rules_compile(struct husk_error *err);
/* On the calling thread, for good. Does nothing when nothing was compiled: tests use the machine without a jail. */
int rules_install(enum rules_kind kind, struct husk_error *err);

#endif
