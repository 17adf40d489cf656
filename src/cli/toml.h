/*
 * The part of TOML that is needed to add one table to another program's configuration file and to remove it. The rest
 * of the file stays unchanged, byte by byte, with comments and order.
 */
#ifndef HUSK_CLI_TOML_H
#define HUSK_CLI_TOML_H

#include "base/base.h"

/* Writes `text` without the table of that name ("mcp_servers.husk") and those below it to `out`; *found says whether
 * there was one. INVALID: the text is not TOML, or has the table as an inline value, which is not supported. */
int toml_without(const char *text, const char *table, struct buf *out, bool *found, struct husk_error *err);

#endif
