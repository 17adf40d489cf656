/*
 * Pulls an image: from a name to its manifest, config and layers in the store of images (store/image_store.h). Every byte
 * is checked against digest and size before it counts; what a break leaves is gone on with by the next pull.
 */
#ifndef HUSK_REGISTRY_PULL_H
#define HUSK_REGISTRY_PULL_H

#include "registry/reference.h"
#include "store/image_store.h"

struct pull_progress {
	size_t layers, layers_done;
	uint64_t bytes, bytes_done; /* of the layers that were not here */
};

struct pull_hooks {
	/* Called from several threads, one at a time, about ten times a second; non-zero ends the pull with GONE. */
	int (*progress)(void *data, const struct pull_progress *progress);
	void *data;
};

/* Fetches what is not here, and fills `out` but for its template; image_entry_free frees. The caller holds the store's lock
 * (LOCK_SH). NOT_FOUND, DENIED (a login is needed), INVALID (no image for this host), PROTOCOL (the registry lies), LIMIT
 * (no space), UNAVAILABLE. */
int pull_image(const struct reference *reference, const struct image_store *store, const struct pull_hooks *hooks,
	       struct image_entry *out, struct husk_error *err);

/* Whether an answer of this type may be a manifest (1) or an index (2); 0: neither. */
int pull_kind(const char *type);
/* The names in a registry's list of tags, as far as they are tags; the caller frees the list. -1: no memory. */
int pull_tags(const char *text, char ***tags);

#endif
