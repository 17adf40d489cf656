/*
 * Checkpoints of a supervised sandbox, and the way back to one; see rewind.c.
 */
#ifndef HUSK_REWIND_H
#define HUSK_REWIND_H

#include "supervisor/supervisor.h"

/* Keeps a checkpoint: *number is its number, *pause_ms how long the guest stood still. */
int machine_point(struct supervisor *s, const char *label, int64_t *number, int64_t *pause_ms, struct husk_error *err);
/* Hibernates the sandbox with the image of a checkpoint in place of its own; the guest is not asked. */
int machine_rewind(struct supervisor *s, int64_t number, struct husk_error *err);

#endif
