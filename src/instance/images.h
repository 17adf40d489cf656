/*
 * Images of registries; see images.c.
 */
#ifndef HUSK_IMAGES_H
#define HUSK_IMAGES_H

#include "instance/instance.h"

#define IMAGE_SCRATCH "scratch" /* the empty base of a build */

/* The template of the pulled image with this name; caller frees. NULL: no such image was pulled. */
char *image_template(struct husk *husk, const char *name);
/* Removes incomplete layers, and layers that no image uses. */
int images_sweep(struct husk *husk, uint64_t *bytes, struct husk_error *err);

/* An image that was made here: one layer, which is in the store already, and a config. */
struct image_made {
	const char *layer;        /* sha256 of the blob, which is a tar packed with zstd */
	const char *layer_tar;    /* sha256 of the tar */
	uint64_t layer_size;      /* of the blob */
	const char *config, *key; /* as in husk_commit_options */
};
/* Gives it a name. The caller holds the lock of the store's blobs. */
struct image_store;
int image_add(struct husk *husk, const struct image_store *store, const char *name, const struct image_made *made,
	      struct husk_image **out, struct husk_error *err);
/* Checks a name for an image that is made here: a tag or none, no digest, and no name of a bundled template. */
int image_check_name(const char *name, struct husk_error *err);
/* The image that a build with this key made, under this name: 1. An image of another name with the key gets the name too. 0: there
 * is none. */
int image_find_key(struct husk *husk, const char *name, const char *key, struct husk_image **out,
		   struct husk_error *err);

#endif
