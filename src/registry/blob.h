/*
 * One blob of a registry into the store of images.
 */
#ifndef HUSK_REGISTRY_BLOB_H
#define HUSK_REGISTRY_BLOB_H

#include "registry/registry.h"
#include "store/image_store.h"

struct blob {
	struct registry *registry;
	const struct image_store *store;
	const char *name;   /* of the image, for errors */
	const char *digest; /* hexadecimal */
	uint64_t size;
	void (*count)(void *data, int64_t bytes); /* bytes that came, or (less than 0) are thrown away; may be NULL */
	bool (*stop)(void *data);
	void *data;
};

/* Goes on with what an earlier pull left of it, does nothing when it is here, and waits while another process fetches it. */
int blob_fetch(const struct blob *blob, struct husk_error *err);
/* The sha256 of bytes, hexadecimal. */
int blob_digest(const char *bytes, size_t size, char out[static OCI_HEX_LENGTH + 1], struct husk_error *err);

#endif
