/*
 * Where the files of a volume are: a share, which an engine keeps and a machine mounts directly (engine/engine.h), or the
 * directory of the volume itself, which is served over the agent link.
 */
#ifndef HUSK_INSTANCE_VOLUME_HOME_H
#define HUSK_INSTANCE_VOLUME_HOME_H

#include "engine/engine.h"
#include "instance/instance.h"
#include "volume/volume.h"

/* Makes the place of the volume if it is missing. The caller frees *directory. *shares is NULL if the files are in the
 * directory. */
int volume_home(struct husk *husk, const struct catalog_volume *row, char **directory,
		const struct engine_shares **shares, struct husk_error *err);
/* Opens its files; close with volume_close. */
int volume_home_open(struct husk *husk, const struct catalog_volume *row, struct volume *out, struct husk_error *err);
/* The used bytes: now, which may wait for the disk, or some seconds ago. */
int volume_home_used(struct husk *husk, const struct catalog_volume *row, bool now, uint64_t *bytes,
		     struct husk_error *err);

#endif
