/*
 * Which volumes a sandbox has, and where: as options of callers, and as JSON in its row.
 */
#ifndef HUSK_SANDBOX_MOUNTS_H
#define HUSK_SANDBOX_MOUNTS_H

#include "instance/instance.h"

#define MOUNTS_MAX 16

struct mount_row {
	char *id, *name, *path;
	bool read_only;
	char *subpath; /* NULL: the whole volume */
};

/* NULL counts as none. */
int mounts_parse(const char *json, struct mount_row **out, size_t *count, struct husk_error *err);
void mounts_free(struct mount_row *rows, size_t count);
/* INVALID: a path that is not valid or that lies in another one, or too many. */
int mounts_check(const struct husk_mount *mounts, size_t count, struct husk_error *err);
/* The inherited mounts (JSON, or NULL), followed by the requested ones, whose volumes are looked up through the handle.
 * The caller frees *out; NULL: no mounts. */
int mounts_plan(struct husk *husk, const char *inherited, const struct husk_mount *mounts, size_t count, char **out,
		struct husk_error *err);
/* For the view: names and paths. */
int mounts_view(const char *json, struct husk_mount **out, size_t *count);
void mounts_view_free(struct husk_mount *mounts, size_t count);

#endif
