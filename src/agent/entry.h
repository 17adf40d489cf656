/*
 * How a file looks on the wire: the fields of an entry, for FILE_STAT and FILE_LIST.
 */
#ifndef HUSK_AGENT_ENTRY_H
#define HUSK_AGENT_ENTRY_H

#include <sys/stat.h>

#include "wire/wire.h"

#define ATTRIBUTE_PREFIX "user.e2b." /* of the extended attributes that are shown */
#define ATTRIBUTES_MAX 4096          /* per file: names with their prefix, and values */

/* Appends the fields of one entry. The caller knows it as `path`; it is `name` in `directory`. */
int entry_put(struct buf *message, const char *path, int directory, const char *name, const struct stat *status,
	      struct husk_error *err);

/* enum wire_entry of a mode. */
int64_t entry_type(mode_t mode);

#endif
