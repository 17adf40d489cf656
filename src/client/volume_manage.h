/*
 * Shared by libhusk's files about volumes.
 */
#ifndef HUSK_SANDBOX_VOLUME_H
#define HUSK_SANDBOX_VOLUME_H

#include "instance/instance.h"
#include "volume/volume.h"

/* The volume with this id or name, as the handle sees it; close with volume_close. */
int volume_find(struct husk *husk, const char *id_or_name, struct volume *out, struct husk_error *err);

#endif
