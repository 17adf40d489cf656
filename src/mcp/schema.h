/*
 * Arguments against the schema that a tool shows to its callers, so that what is promised and what is checked cannot
 * drift apart. Knows the part of JSON Schema that tools.json uses, and says so when it meets another.
 */
#ifndef HUSK_MCP_SCHEMA_H
#define HUSK_MCP_SCHEMA_H

#include "json/json.h"

/* 0, or INVALID naming the argument and what it must be. The schema is ours, `value` is anybody's. */
int schema_check(const json_t *schema, const json_t *value, struct husk_error *err);

#endif
