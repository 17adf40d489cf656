/*
 * The catalog's rows as the public structures of husk.h.
 */
#ifndef HUSK_SANDBOX_VIEW_H
#define HUSK_SANDBOX_VIEW_H

#include "husk.h"
#include "store/catalog.h"

/* Each copies what callers may see, and nothing else: only the names of environment variables. NULL: out of memory, or
 * damaged JSON in the row. Free with husk_*_free of the structure. */
struct husk_sandbox *sandbox_from_row(const struct catalog_sandbox *row);
struct husk_snapshot *snapshot_from_row(const struct catalog_snapshot *row);
struct husk_template *template_from_row(const struct catalog_template *row);

#endif
