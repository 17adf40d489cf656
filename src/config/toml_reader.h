/*
 * A reader of TOML for configuration files: tables, and keys with a string, an integer or a boolean. Other TOML values
 * are refused with their position, because no setting of Husk has such a value.
 */
#ifndef HUSK_CONFIG_TOML_READER_H
#define HUSK_CONFIG_TOML_READER_H

#include "base/base.h"

struct toml_entry {
	const char *key;   /* with its table: "server.listen" */
	const char *value; /* a string without its quotes; a number or a boolean as written */
	size_t line, column;
};

/* Called for each key in turn; -1 with err ends the reading. */
typedef int (*toml_entry_fn)(void *data, const struct toml_entry *entry, struct husk_error *err);

/* INVALID with "LINE:COLUMN: the error". */
int toml_read(const char *text, toml_entry_fn each, void *data, struct husk_error *err);

#endif
