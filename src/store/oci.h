/*
 * Container images that lie on this host: an OCI image layout (a directory, or a tar of one) or what `docker save` writes.
 * From one of these to the layers and variables of the one image that is meant. Used by rootfs.c to build a template from
 * it, and by libhusk to find an image by its name. Whoever made the image is not trusted: every document and every layer
 * is checked against its digest, and no name in it leads outside.
 */
#ifndef HUSK_OCI_H
#define HUSK_OCI_H

#include "base/base.h"

#define OCI_HEX_LENGTH 64 /* of a sha256 */

struct oci_layer {
	char *path; /* in the layout */
	char digest[OCI_HEX_LENGTH + 1];
	uint64_t size; /* as the manifest has it; 0 of what docker saved */
	bool unpacked; /* the digest is that of the layer before it was compressed */
};

struct oci_image {
	struct oci_layer *layers; /* the lowest first */
	size_t layer_count;
	char config[OCI_HEX_LENGTH + 1]; /* its digest; set by oci_load */
	char **environment;              /* "KEY=value"; NULL: none */
	char **command;                  /* ENTRYPOINT and CMD; NULL: none */
	char *user;                      /* "name", "1000", "name:group"; NULL: root */
	char *directory;                 /* absolute; NULL: none */
};
void oci_image_free(struct oci_image *image);

/* The image in a layout that is called `reference` (NULL: the only one), for the platform of this host. `where` is what the
 * layout is called in errors. INVALID: it is damaged, there are several, or none fits. */
int oci_load(const char *directory, const char *where, const char *reference, struct oci_image *out,
	     struct husk_error *err);
/* That the bytes of the open layer are those of its digest; it stands at its beginning afterwards. */
int oci_verify(int fd, const char *where, const struct oci_layer *layer, struct husk_error *err);
/* A file of a layout for reading; no link in it leads outside. */
int oci_open(const char *directory, const char *where, const char *path, struct husk_error *err);

/* Among the layouts and tars in a folder, the one that holds an image of this name: 1 with both (the caller frees), 0 when
 * there is none. What in the folder cannot be read is passed over. */
int oci_find(const char *folder, const char *name, char **path, char **reference, struct husk_error *err);

/* What is said in the documents; apart, so that they can be fed anything. */

/* The names of a layout's images, as pairs of a name and the reference that oci_load takes; both documents may be NULL.
 * `stem` is what the layout itself is called, for references that are a tag alone. */
int oci_names(const char *index, const char *manifest, const char *stem, char ***names, struct husk_error *err);
/* Whether two names mean one image: "python:3.12" is "registry.example.com/library/python:3.12". */
bool oci_same_name(const char *a, const char *b);
/* The digest that an index leads to; *size is what it must have. */
int oci_choose(const char *text, const char *where, const char *reference, char digest[static OCI_HEX_LENGTH + 1],
	       uint64_t *size, struct husk_error *err);
/* The same of an image's index in a registry: the first that fits, as Docker takes it. */
int oci_choose_first(const char *text, const char *where, char digest[static OCI_HEX_LENGTH + 1], uint64_t *size,
		     struct husk_error *err);
/* The layers of a manifest, and the digest of its config. 1: it is an index instead. */
int oci_manifest(const char *text, const char *where, struct oci_image *out, char config[static OCI_HEX_LENGTH + 1],
		 uint64_t *size, struct husk_error *err);
/* The same of what docker saved: its layers have paths, and their digests are in the config, whose path is given. */
int oci_docker(const char *text, const char *where, const char *reference, struct oci_image *out, char **config,
	       char digest[static OCI_HEX_LENGTH + 1], struct husk_error *err);
/* The variables, command, user and directory of a config; with `digests`, also the digests of the layers. */
int oci_config(const char *text, const char *where, bool digests, struct oci_image *out, struct husk_error *err);

#endif
