/*
 * What the files of the microvm engine share, and what engine.c knows of it.
 */
#ifndef HUSK_MICROVM_H
#define HUSK_MICROVM_H

#include "engine/engine.h"

/* ---- probe.c ---- */

/* Can /dev/kvm run a stock Linux kernel at speed? Runs a tiny guest, in some milliseconds where it can. 0, or -1 with
 * everything that failed, why, and the way out. Leaves nothing behind. */
int microvm_probe(struct husk_error *err);

#endif
