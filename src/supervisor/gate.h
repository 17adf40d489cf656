/*
 * How many machines of an instance may start at the same time; see gate.c.
 */
#ifndef HUSK_GATE_H
#define HUSK_GATE_H

#include "supervisor/supervisor.h"

/* Waits for a place among the machines that start. `ahead`: for the pool, so that a create which is waited for finds a place.
 * Returns 0 with a descriptor to close when the machine has started; -1 as descriptor: none, and the start need not wait. Fails
 * only if the sandbox ends meanwhile. */
int gate_enter(struct supervisor *s, bool ahead, int *place, struct husk_error *err);

#endif
