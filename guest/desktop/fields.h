/*
 * Reading the fields of an action. Every function leaves its target as it is when the field is absent, and fails with the field's
 * name when it is of another kind or out of range.
 */
#ifndef HUSK_DESKTOP_FIELDS_H
#define HUSK_DESKTOP_FIELDS_H

#include "desktop.h"

/* Fails on a field that is not in the list of words, with the nearest one. */
int fields_known(const json_t *object, const char *words, struct husk_error *err);
int field_text(const json_t *object, const char *name, bool required, const char **out, struct husk_error *err);
int field_integer(const json_t *object, const char *name, int min, int max, int *out, bool *given,
		  struct husk_error *err);
int field_seconds(const json_t *object, const char *name, bool required, double *out, struct husk_error *err);
int field_boolean(const json_t *object, const char *name, bool *out, struct husk_error *err);
/* A coordinate in the caller's space, as a pixel of the screen. */
int field_point(const json_t *pair, const char *name, struct point space, struct point screen, struct point *out,
		struct husk_error *err);
int field_region(const json_t *object, struct point space, struct point screen, struct region *out,
		 struct husk_error *err);

#endif
