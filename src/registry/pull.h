/*
 * Pulls an image: from a name to its manifest, config and layers in the image store (store/image_store.h). Digest and
 * size are checked before any byte is used. The next pull continues an interrupted one.
 */
#ifndef HUSK_REGISTRY_PULL_H
#define HUSK_REGISTRY_PULL_H

#include "registry/reference.h"
#include "store/image_store.h"

struct pull_progress {
	size_t layers, layers_done;
	uint64_t bytes, bytes_done; /* of the layers that have to be downloaded */
};

struct pull_hooks {
	/* Called from several threads, one at a time, about ten times a second; non-zero ends the pull with GONE. */
	int (*progress)(void *data, const struct pull_progress *progress);
	void *data;
};

/* Downloads what is missing, and fills `out` except its template; free with image_entry_free. The caller holds the
 * store's lock (LOCK_SH). NOT_FOUND, DENIED (a login is required), INVALID (no image for this host), PROTOCOL (the
 * registry sent wrong data), LIMIT (no space), UNAVAILABLE. */
int pull_image(const struct reference *reference, const struct image_store *store, const struct pull_hooks *hooks,
	       struct image_entry *out, struct husk_error *err);

/* Is an answer of this type a manifest (1) or an index (2)? 0: neither. */
int pull_kind(const char *type);
/* The valid tags in a registry's list of tags; the caller frees the list. -1: no memory. */
int pull_tags(const char *text, char ***tags);

#endif
