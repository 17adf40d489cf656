/*
 * Images that were pulled from registries: one OCI image layout for all of them, <home>/images/pulled. So each layer is
 * stored once, and every program that reads a layout (oci.h, skopeo) can read this one.
 *
 *     index.json            an entry per image: manifest, full name, template, time
 *     blobs/sha256/<hex>    manifests, configs and layers; each was checked, and appeared by rename
 *     partial/<hex>         incomplete blobs; a later pull continues them, `husk gc` removes them
 *     .husk-lock            held shared to add or read blobs, exclusively to remove some
 *     .husk-index           held exclusively while index.json is written
 */
#ifndef HUSK_IMAGE_STORE_H
#define HUSK_IMAGE_STORE_H

#include "base/base.h"
#include "store/oci.h"

struct image_store {
	char *path;
};

struct image_entry {
	char *name;     /* "docker.io/library/python:3.12" */
	char *template; /* the template that is made from it */
	char manifest[OCI_HEX_LENGTH + 1];
	uint64_t size; /* of the manifest */
	int64_t pulled_ms;
	char *key;  /* of the build that made it; NULL: it was pulled or committed */
	char *warm; /* a command that runs before the snapshot of its template; NULL: none */
};
void image_entry_free(struct image_entry *entry);

struct image_list {
	struct image_entry *entries;
	size_t count;
};
void image_list_free(struct image_list *list);

/* `folder` is <home>/images; missing directories are made. */
int image_store_open(const char *folder, struct image_store *out, struct husk_error *err);
void image_store_close(struct image_store *store);
/* Is this directory such a store? */
bool image_store_is(const char *path);
/* Returns a descriptor that holds the blobs (LOCK_SH) or locks all other processes out (LOCK_EX); with LOCK_NB, -1
 * without err if another process holds the lock. */
int image_store_lock(const char *path, int mode, struct husk_error *err);

/* Paths; caller frees, NULL: no memory. */
char *image_store_blob(const struct image_store *store, const char *hex);
char *image_store_partial(const struct image_store *store, const char *hex);
/* Does the blob exist, with this size? */
bool image_store_has(const struct image_store *store, const char *hex, uint64_t size);
/* Writes a document whose digest was checked, as a blob. */
int image_store_write(const struct image_store *store, const char *hex, const char *text, size_t size,
		      struct husk_error *err);

int image_store_list(const struct image_store *store, struct image_list *out, struct husk_error *err);
/* Adds the entry, or replaces the one with the same name. */
int image_store_put(const struct image_store *store, const struct image_entry *entry, struct husk_error *err);
/* Removes a name; its blobs stay until the next sweep. NOT_FOUND. */
int image_store_drop(const struct image_store *store, const char *name, struct husk_error *err);
/* Removes what no image needs: blobs and incomplete downloads. Does nothing while another process uses the store. */
int image_store_sweep(const struct image_store *store, uint64_t *bytes, struct husk_error *err);

#endif
