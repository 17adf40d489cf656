/*
 * As much of TOML as it takes to put one table into a configuration file of somebody else and to take it out again. The
 * rest of the file stays as it is, byte by byte: comments and order are its owner's.
 */
#ifndef HUSK_CLI_TOML_H
#define HUSK_CLI_TOML_H

#include "base/base.h"

/* `text` without the table of that name ("mcp_servers.husk") and those below it, into `out`; *found says whether there
 * was one. Fails with INVALID when the text is no TOML, or spells the table as an inline value, which is not edited. */
int toml_without(const char *text, const char *table, struct buf *out, bool *found, struct husk_error *err);

#endif
