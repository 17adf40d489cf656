/*
 * Checks the CPU and memory limits of a sandbox, when it is created (create.c) and when it is resized (client/resize.c).
 */
#ifndef HUSK_INSTANCE_LIMITS_H
#define HUSK_INSTANCE_LIMITS_H

#include "husk.h"
#include "store/catalog.h"

/* INVALID with the field if the value is neither 0 (not given) nor in the range. */
int limits_check_range(const char *field, uint64_t value, uint64_t min, uint64_t max, const char *unit,
		       struct husk_error *err);
int limits_check(uint32_t cpu_milli, uint64_t memory_bytes, struct husk_error *err);
/* The same, with the limits that a sandbox has from its beginning. */
int limits_check_all(uint32_t cpu_milli, uint64_t memory_bytes, uint64_t disk_bytes, uint32_t pids,
		     struct husk_error *err);
/* The engine of the row may have less memory to give than was asked for. */
int limits_check_engine(const struct catalog_sandbox *row, struct husk_error *err);

#endif
