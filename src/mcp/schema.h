/*
 * Checks arguments against the schema that a tool shows to its callers, so that documentation and check cannot differ.
 * Supports the part of JSON Schema that tools.json uses, and fails for any other keyword.
 */
#ifndef HUSK_MCP_SCHEMA_H
#define HUSK_MCP_SCHEMA_H

#include "json/json.h"

/* 0, or INVALID with the argument and its allowed values. The schema is trusted, `value` is not. */
int schema_check(const json_t *schema, const json_t *value, struct husk_error *err);

#endif
