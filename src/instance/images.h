/*
 * Images of registries; see images.c.
 */
#ifndef HUSK_IMAGES_H
#define HUSK_IMAGES_H

#include "instance/instance.h"

/* The template of the pulled image that `name` means; caller frees. NULL: it is no image that is here. */
char *image_template(struct husk *husk, const char *name);
/* Half-fetched layers, and those that no image needs. */
int images_sweep(struct husk *husk, uint64_t *bytes, struct husk_error *err);

#endif
