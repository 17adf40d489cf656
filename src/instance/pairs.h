/*
 * Metadata and environments in two forms: lists of pairs, as in husk.h, and JSON objects of strings, as in the catalog.
 */
#ifndef HUSK_SANDBOX_JSON_H
#define HUSK_SANDBOX_JSON_H

#include "base/base.h"
#include "husk.h"

/* INVALID with the name of the offending key. Values: UTF-8, at most 32 KiB. Metadata keys: printable, 1 to 128 bytes.
 * Environment names: [A-Za-z_][A-Za-z0-9_]*. */
int pairs_check_metadata(const struct husk_pair *pairs, size_t count, struct husk_error *err);
int pairs_check_environment(const struct husk_pair *pairs, size_t count, struct husk_error *err);

/* In the given order; if a key is given twice, the last value counts. The caller frees the string; NULL with err. */
char *pairs_to_json(const struct husk_pair *pairs, size_t count, struct husk_error *err);
/* NULL and "" count as {}. Anything except an object of strings is refused. Free *out (never NULL) with pairs_free. */
int json_to_pairs(const char *json, struct husk_pair **out, size_t *count, struct husk_error *err);
void pairs_free(struct husk_pair *pairs, size_t count);
/* Returns the object `base` (inherited, may be NULL) with the pairs (requested) set over it. */
char *json_with_pairs(const char *base, const struct husk_pair *pairs, size_t count, struct husk_error *err);
/* Are all the pairs in the object, with these values? 1, 0, or -1. */
int json_has_pairs(const char *json, const struct husk_pair *pairs, size_t count, struct husk_error *err);

#endif
