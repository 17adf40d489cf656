/*
 * Which volumes a sandbox has and where: as callers say it, and as the JSON of its row.
 */
#ifndef HUSK_SANDBOX_MOUNTS_H
#define HUSK_SANDBOX_MOUNTS_H

#include "instance/instance.h"

#define MOUNTS_MAX 16

struct mount_row {
	char *id, *name, *path;
	bool read_only;
};

/* NULL counts as none. */
int mounts_parse(const char *json, struct mount_row **out, size_t *count, struct husk_error *err);
void mounts_free(struct mount_row *rows, size_t count);
/* INVALID: a path that is none or that another lies in, or too many. */
int mounts_check(const struct husk_mount *mounts, size_t count, struct husk_error *err);
/* The inherited ones (JSON, or NULL) and then those asked for, whose volumes are looked up through the handle. *out is for
 * the caller to free; NULL: none at all. */
int mounts_plan(struct husk *husk, const char *inherited, const struct husk_mount *mounts, size_t count, char **out,
		struct husk_error *err);
/* For the view: names and paths. */
int mounts_view(const char *json, struct husk_mount **out, size_t *count);
void mounts_view_free(struct husk_mount *mounts, size_t count);

#endif
