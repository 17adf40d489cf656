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
	void (*count)(void *data, int64_t bytes); /* bytes that arrived, or (negative) are discarded; may be NULL */
	bool (*stop)(void *data);
	void *data;
};

/* Continues an earlier download, does nothing if the blob exists, and waits while another process downloads it. */
int blob_fetch(const struct blob *blob, struct husk_error *err);
/* The sha256 of bytes, hexadecimal. */
int blob_digest(const char *bytes, size_t size, char out[static OCI_HEX_LENGTH + 1], struct husk_error *err);

#endif
