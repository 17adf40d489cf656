/*
 * Images of registries; see images.c.
 */
#ifndef HUSK_IMAGES_H
#define HUSK_IMAGES_H

#include "instance/instance.h"

/* The template of the pulled image with this name; caller frees. NULL: no such image was pulled. */
char *image_template(struct husk *husk, const char *name);
/* Removes incomplete layers, and layers that no image uses. */
int images_sweep(struct husk *husk, uint64_t *bytes, struct husk_error *err);

#endif
