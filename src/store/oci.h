/*
 * Container images in files of this host: an OCI image layout (a directory, or a tar of one) or the output of `docker
 * save`. Finds the layers and variables of one image in it. Used by rootfs.c to build a template, and by libhusk to
 * find an image by its name. The author of the image is not trusted: every document and every layer is checked against
 * its digest, and no name in it leads outside.
 */
#ifndef HUSK_OCI_H
#define HUSK_OCI_H

#include "base/base.h"

#define OCI_HEX_LENGTH 64 /* of a sha256 */

struct oci_layer {
	char *path; /* in the layout */
	char digest[OCI_HEX_LENGTH + 1];
	uint64_t size; /* from the manifest; 0 for the output of docker save */
	bool unpacked; /* the digest is that of the uncompressed layer */
};

struct oci_image {
	struct oci_layer *layers; /* the lowest first */
	size_t layer_count;
	char config[OCI_HEX_LENGTH + 1]; /* its digest; set by oci_load */
	char **environment;              /* "KEY=value"; NULL: none */
	char **command;                  /* ENTRYPOINT and CMD; NULL: none */
	char *user;                      /* "name", "1000", "name:group"; NULL: root */
	char *directory;                 /* absolute; NULL: none */
	char *settings;                  /* the whole `config` in JSON; NULL: none */
};
void oci_image_free(struct oci_image *image);

/* Loads the image `reference` of a layout (NULL: the only one), for the platform of this host. `where` is the name of
 * the layout in errors. INVALID: the layout is damaged, has several images, or none fits. */
int oci_load(const char *directory, const char *where, const char *reference, struct oci_image *out,
	     struct husk_error *err);
/* Checks that the open layer has its digest; afterwards the descriptor is at the beginning again. */
int oci_verify(int fd, const char *where, const struct oci_layer *layer, struct husk_error *err);
/* Opens a file of a layout for reading; no link in the layout leads outside. */
int oci_open(const char *directory, const char *where, const char *path, struct husk_error *err);

/* Finds the layout or tar in a folder that holds an image of this name: 1 with both (the caller frees), 0: none. Files
 * that cannot be read are skipped. */
int oci_find(const char *folder, const char *name, char **path, char **reference, struct husk_error *err);

/* Parsers of the documents; separate, so that tests and fuzzers can call them with any text. */

/* The names of a layout's images, as pairs of a name and the reference for oci_load; both documents may be NULL. `stem`
 * is the name of the layout itself, for references that are only a tag. */
int oci_names(const char *index, const char *manifest, const char *stem, char ***names, struct husk_error *err);
/* Do two names mean the same image? "python:3.12" is "registry.example.com/library/python:3.12". */
bool oci_same_name(const char *a, const char *b);
/* The digest that an index leads to; *size is its required size. */
int oci_choose(const char *text, const char *where, const char *reference, char digest[static OCI_HEX_LENGTH + 1],
	       uint64_t *size, struct husk_error *err);
/* The same for an index in a registry: the first entry that fits, as in Docker. */
int oci_choose_first(const char *text, const char *where, char digest[static OCI_HEX_LENGTH + 1], uint64_t *size,
		     struct husk_error *err);
/* The layers of a manifest, and the digest of its config. 1: the document is an index. */
int oci_manifest(const char *text, const char *where, struct oci_image *out, char config[static OCI_HEX_LENGTH + 1],
		 uint64_t *size, struct husk_error *err);
/* The same for the output of docker save: layers have paths, and their digests are in the config, whose path is
 * returned. */
int oci_docker(const char *text, const char *where, const char *reference, struct oci_image *out, char **config,
	       char digest[static OCI_HEX_LENGTH + 1], struct husk_error *err);
/* The variables, command, user and directory of a config; with `digests`, also the digests of the layers. */
int oci_config(const char *text, const char *where, bool digests, struct oci_image *out, struct husk_error *err);

#endif
