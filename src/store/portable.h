/*
 * Portable machines: a snapshot or a template as an OCI artifact, which any registry keeps and a tar carries.
 *
 *     oci-layout, index.json
 *     blobs/sha256/<hex>    the manifest: key and signature in its annotations, every chunk as a layer
 *                           the description (its config): what the machine needs, and each file as a list of chunks
 *                           chunks: up to 8 MiB of a file, compressed with zstd
 *
 * The signature covers the description, which names every chunk by its digest. So a byte that the signer did not write
 * is found before it is decompressed. Chunks are cut by content: a page that is inserted into a file changes only the
 * boundaries near it, so the next push of a changed machine sends only the changes.
 *
 * The author of an artifact is not trusted: `husk builder` parses it in a cell.
 */
#ifndef HUSK_PORTABLE_H
#define HUSK_PORTABLE_H

#include "base/base.h"
#include "store/oci.h"

#define PORTABLE_FORMAT 1
#define PORTABLE_TYPE "application/vnd.husk.machine.v1"
#define PORTABLE_CONFIG_TYPE "application/vnd.husk.machine.config.v1+json"
#define PORTABLE_CHUNK_TYPE "application/vnd.husk.machine.chunk.v1+zstd"
#define PORTABLE_MANIFEST_TYPE "application/vnd.oci.image.manifest.v1+json"
#define PORTABLE_DOCUMENT_MAX (8u << 20) /* of a manifest and of a description */
#define PORTABLE_CHUNK_MAX (8u << 20)    /* before it is compressed */
#define PORTABLE_FILES_MAX 64
#define PORTABLE_NAME_SIZE 80
#define PORTABLE_OUTSIDE "image/outside.stream" /* what the engine keeps outside of the image's directory */

/* ---- portable_description.c ---- */

struct portable_chunk {
	char digest[OCI_HEX_LENGTH + 1]; /* of the compressed bytes */
	uint32_t packed, size;
};

struct portable_file {
	char name[PORTABLE_NAME_SIZE]; /* "root/rootfs.img", "image/pages.img": a folder and a plain name */
	uint64_t size;
	struct portable_chunk *chunks;
	size_t count;
};

enum portable_kind { PORTABLE_SNAPSHOT, PORTABLE_TEMPLATE };

struct portable {
	enum portable_kind kind;
	char *name; /* of the snapshot or template; NULL: none */
	char *husk; /* the version of Husk that made it */
	/* What a host needs to continue it. */
	char *isolation, *engine_version, *architecture;
	char **features;                       /* of the processor */
	char *template_name, *template_digest; /* the version that it was made from */
	char *description, *metadata, *egress; /* NULL: none */
	char **environment;                    /* names of variables. Values never travel */
	int64_t created_ms;
	uint64_t memory_bytes, disk_bytes;
	uint32_t cpu_milli, pids;
	struct portable_file *files;
	size_t file_count;
};
void portable_free(struct portable *portable);
/* The description as JSON; caller frees, NULL: no memory. */
char *portable_text(const struct portable *portable);
/* Reads one. INVALID names what is wrong. Afterwards every name, digest and size in it is within bounds. Free *out also
 * after a failure. */
int portable_parse(const char *text, size_t size, struct portable *out, struct husk_error *err);
/* The sha256 of bytes, hexadecimal. */
int portable_digest(const void *bytes, size_t size, char out[static OCI_HEX_LENGTH + 1], struct husk_error *err);
bool portable_is_digest(const char *text);
/* The manifest for a description with this digest and size; caller frees, NULL: no memory. */
char *portable_manifest(const struct portable *portable, const char *digest, size_t size, const char *key,
			const char *signature);
/* Reads a manifest. The texts are the caller's to free, also after a failure. */
struct portable_seal {
	char config[OCI_HEX_LENGTH + 1]; /* digest of the description */
	uint64_t config_size;
	char *key, *signature;
};
int portable_parse_manifest(const char *text, size_t size, struct portable_seal *out, struct husk_error *err);
void portable_seal_free(struct portable_seal *seal);

/* ---- portable_pack.c: files into chunks ---- */

/* The chunks of some files, each once, in a file without a name. */
struct portable_pack {
	int fd;
	struct portable_kept {
		char digest[OCI_HEX_LENGTH + 1];
		uint64_t offset;
		uint32_t size;
	} * kept; /* in the order in which files first use them */
	size_t count;
};
struct portable_source {
	const char *name; /* in the artifact */
	const char *path; /* NULL: `fd`, which stays the caller's */
	int fd;
};
/* Cuts and compresses the files, and fills portable->files. `directory` is where the nameless file is. `progress` (may be
 * NULL) gets bytes done and all bytes, from several threads, one at a time; non-zero ends it with GONE. */
int portable_pack(const struct portable_source *sources, size_t count, const char *directory,
		  int (*progress)(void *data, uint64_t done, uint64_t all), void *data, struct portable *portable,
		  struct portable_pack *out, struct husk_error *err);
void portable_pack_free(struct portable_pack *pack);
/* Where the chunk that begins at `page` ends, in units of PORTABLE_PAGE: for tests. */
#define PORTABLE_PAGE 4096u
size_t portable_cut(const unsigned char *pages, size_t count, size_t average);

/* ---- portable_layout.c: the tar ---- */

typedef int portable_sink(void *data, const void *bytes, size_t size);

/* Writes the artifact as a tar. The sink returns non-zero to end it; then err is GONE, unless the sink filled it. */
int portable_write(const struct portable_pack *pack, const char *description, const char *manifest, const char *name,
		   portable_sink *sink, void *data, struct husk_error *err);

struct portable_blob {
	char digest[OCI_HEX_LENGTH + 1]; /* by its name; not checked */
	uint64_t offset, size;
};
struct portable_layout {
	int fd;
	struct portable_blob *blobs; /* by digest */
	size_t count;
	uint64_t index_offset, index_size;
};
/* Finds the files of the tar in `fd`, a regular file. Free also after a failure. */
int portable_scan(int fd, struct portable_layout *out, struct husk_error *err);
void portable_layout_free(struct portable_layout *layout);
/* Reads a document of the layout and checks its digest; caller frees. `size` is its size (may be NULL). */
char *portable_document(const struct portable_layout *layout, const char *digest, size_t *size, struct husk_error *err);
/* From index.json: the manifest, and what it says. */
int portable_open_seal(const struct portable_layout *layout, struct portable_seal *out, struct husk_error *err);
/* Writes the files of a description whose name begins with one of `folders` ("root image") below `directory`. Every chunk is
 * checked before it is decompressed. */
int portable_unpack(const struct portable_layout *layout, const struct portable *portable, const char *folders,
		    const char *directory, struct husk_error *err);

/* ---- portable_key.c: who made it ---- */

/* Keys are texts: "ed25519:<base64>". */
#define PORTABLE_KEY_SIZE 64
#define PORTABLE_SIGNATURE_SIZE 96

/* The public key of the instance with this home; makes the pair on first use. */
int portable_key(const char *home, char out[static PORTABLE_KEY_SIZE], struct husk_error *err);
/* Signs the digest of a description with it. */
int portable_sign(const char *home, const char *digest, char out[static PORTABLE_SIGNATURE_SIZE],
		  struct husk_error *err);
/* DENIED: not signed by this key. */
int portable_verify(const char *key, const char *signature, const char *digest, struct husk_error *err);
bool portable_is_key(const char *text);

#endif
