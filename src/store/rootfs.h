/*
 * Shared by the files that build a template's root filesystem: paths, hashing, and stage 1. Not for use outside
 * src/store; the bake uses template.h.
 */
#ifndef HUSK_ROOTFS_H
#define HUSK_ROOTFS_H

#include "store/oci.h"
#include "store/template.h"

/* ---- template.c ---- */

/* Directories that may hold shipped files, in the order of preference; caller frees. */
char **template_places(void);

/* ---- digest.c ---- */

struct digest; /* a running sha256 */
struct digest *digest_new(void);
void digest_free(struct digest *digest);
static inline void digest_cleanup(struct digest **digest)
{
	digest_free(*digest);
}
#define cleanup_digest cleanup(digest_cleanup)
/* Hashes a name and a value, framed so that two different sequences of calls never give the same hash. */
int digest_text(struct digest *digest, const char *name, const char *value);
/* A whole file, and a whole tree (names, types, permissions, owners when asked for, contents) in a fixed order. */
int digest_file(struct digest *digest, const char *name, const char *path, struct husk_error *err);
int digest_tree(struct digest *digest, const char *name, const char *path, bool owners, struct husk_error *err);
/* Hashes every file that Husk adds to an image. */
int digest_guest(struct digest *digest, struct husk_error *err);
int digest_finish(struct digest *digest, char out[static TEMPLATE_DIGEST_LENGTH + 1]);
/* Names stage 1 of a definition: its content, the Debian release and the architecture; not the source of the
 * packages. */
int digest_stage1(const struct template_definition *definition, char out[static TEMPLATE_DIGEST_LENGTH + 1],
		  struct husk_error *err);

/* Visits the guest files in a fixed order, each as "name\0path"; the first place that holds a name wins. */
int guest_files(int (*visit)(void *data, const char *name, const char *path, struct husk_error *err), void *data,
		struct husk_error *err);
/* A codename such as "bookworm"; caller frees. UNAVAILABLE: the host is not Debian. */
char *host_codename(struct husk_error *err);

/* ---- progress ---- */

/* A build. Its progress lines carry the name of the template and the seconds since the start. */
struct build {
	const struct template_definition *definition;
	const struct template_jail *jail;
	template_progress progress;
	void *data;
	int64_t started_ms;
	char *work;             /* its own directory for unfinished files */
	struct oci_image image; /* of a container image: its variables and process settings */
};
void build_say(const struct build *build, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- rootfs.c ---- */

/* Makes a directory for a cell to work in. */
int build_directory(const struct build *build, const char *path, struct husk_error *err);
/* Copies a directory of the host into such a directory. The copy goes through a tar, so that names, owners and links
 * are checked in one place. as_root: all files belong to root. */
int build_copy(const struct build *build, const char *from, bool as_root, const char *to, struct husk_error *err);

/* ---- unpack.c ---- */

/* Unpacks a tar (compressed or not) into an existing directory, given by its real path. Refuses entries that lead
 * outside, and entries that no tool and no guest supports: too long, too deep, an owner out of range. For use inside a
 * cell (builder.c): changes the current directory meanwhile. `name` and `field` are for errors. LIMIT: it holds more than `limit`
 * bytes; 0: than 256 GiB. */
int unpack_tar(int fd, const char *name, const char *field, uint64_t limit, const char *directory,
	       struct husk_error *err);
/* Unpacks one layer of a container image over the existing layers below it; `name` is for errors. */
int unpack_layer(int fd, const char *name, const char *directory, struct husk_error *err);

/* ---- debian.c ---- */

/* Stage 1: the definition's root as a tar at out_tar (inside build->work). */
int debian_build(const struct build *build, const char *out_tar, const char *log, struct husk_error *err);

#endif
