/*
 * Checkpoints of a supervised sandbox, and the rewind to one; see rewind.c.
 */
#ifndef HUSK_REWIND_H
#define HUSK_REWIND_H

#include "supervisor/supervisor.h"

/* Takes a checkpoint: *number is its number, *pause_ms how long the guest was frozen. */
int machine_point(struct supervisor *s, const char *label, int64_t *number, int64_t *pause_ms, struct husk_error *err);
/* A checkpoint before a call, if the sandbox is to have one (`checkpoints` of struct husk_create_options): `method` with its
 * arguments. -1: it could not be taken, and the call must not be made. */
int machine_point_before(struct supervisor *s, int64_t method, const char *payload, size_t size,
			 struct husk_error *err);
/* Hibernates the sandbox with the image of a checkpoint as its image. The guest takes no part. */
int machine_rewind(struct supervisor *s, int64_t number, struct husk_error *err);

#endif
