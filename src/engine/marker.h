/*
 * The marker of an image: a small JSON file, written last, that says what the image was made from. All engines use the
 * same format. So each engine refuses images of other engines, and images that were not on disk when the host went
 * down, with the same message. For engines.
 */
#ifndef HUSK_ENGINE_MARKER_H
#define HUSK_ENGINE_MARKER_H

#include <jansson.h>

#include "base/base.h"

/* The identity in every image. */
struct marker_identity {
	const char *engine;
	char rootfs[80]; /* digest of the root image's ends and size */
	char rootfs_path[512];
	uint64_t disk_bytes;
};

#define MARKER_DIGEST_TEXT 65 /* SHA-256 in hex */

/* Fills in the identity of an image of a machine with this root image. */
int marker_identify(const char *engine, const char *rootfs, uint64_t disk_bytes, struct marker_identity *out,
		    struct husk_error *err);
int marker_digest(const void *data, size_t size, char out[static MARKER_DIGEST_TEXT], struct husk_error *err);

bool marker_exists(const char *image);
/* Writes the marker: the identity, this boot of the host, and the engine's own fields. Takes ownership of `more`, which
 * may be NULL. */
int marker_write(const char *image, const struct marker_identity *identity, json_t *more, struct husk_error *err);
/* Reads it, for json_decref; NULL when it is missing or makes no sense. */
json_t *marker_load(const char *image, struct husk_error *err);
/* Reads it and checks everything in it that all engines have in common; for json_decref. NULL with the reason. */
json_t *marker_read(const char *image, const struct marker_identity *identity, struct husk_error *err);
/* A text of it, "" when it is not there. */
const char *marker_text(json_t *marker, const char *key);

#endif
