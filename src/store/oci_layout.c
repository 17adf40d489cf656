/*
 * The files of a container image's layout (oci.h): opened so that no name leads outside, read within bounds, and checked
 * against their digests. oci.c parses the documents, unpack.c unpacks the layers.
 */
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "store/oci.h"

#define DOCUMENT_MAX (4u << 20)
#define NESTING_MAX 4 /* of indexes in an index */
#define PIECE (1u << 20)

int oci_open(const char *directory, const char *where, const char *path, struct husk_error *err)
{
	struct open_how how = { .flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK, .resolve = RESOLVE_BENEATH };
	cleanup_close int top = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	cleanup_close int fd = top < 0 ? -1 : (int)syscall(SYS_openat2, top, path, &how, sizeof(how));
	struct stat status;

	if (fd < 0)
		return husk_fail_errno(err, "'%s': cannot read '%.120s'", where, path);
	if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode))
		return husk_fail(err, HUSK_INVALID, "'%s': '%.120s' is not a file", where, path);
	return steal_fd(&fd);
}

/* ---- digests ---- */

struct sum {
	EVP_MD_CTX *context;
};

static void sum_free(struct sum *sum)
{
	EVP_MD_CTX_free(sum->context);
}

static int sum_begin(struct sum *sum, struct husk_error *err)
{
	sum->context = EVP_MD_CTX_new();
	if (!sum->context || EVP_DigestInit_ex(sum->context, EVP_sha256(), NULL) != 1)
		return husk_fail_memory(err);
	return 0;
}

static int sum_check(struct sum *sum, const char *where, const char *path, const char *wanted, struct husk_error *err)
{
	unsigned char bytes[EVP_MAX_MD_SIZE];
	char found[OCI_HEX_LENGTH + 1];
	unsigned size = 0;

	if (EVP_DigestFinal_ex(sum->context, bytes, &size) != 1 || size * 2 != OCI_HEX_LENGTH)
		return husk_fail(err, HUSK_INTERNAL, "cannot compute a sha256");
	for (unsigned i = 0; i < size; i++)
		snprintf(found + 2 * i, 3, "%02x", bytes[i]);
	if (str_equal(found, wanted))
		return 0;
	return husk_fail(err, HUSK_INVALID, "'%s': '%.120s' is damaged: its sha256 is %.12s…, and should be %.12s…",
			 where, path, found, wanted);
}

/* ---- documents ---- */

/* A file that may be missing: NULL with err->code 0. */
static char *read_document(const char *directory, const char *where, const char *path, struct husk_error *err)
{
	struct husk_error why = { 0 };
	cleanup_close int fd = oci_open(directory, where, path, &why);
	cleanup_free char *text = malloc(DOCUMENT_MAX + 1);

	*err = (struct husk_error){ 0 };
	if (fd < 0 && why.code != HUSK_NOT_FOUND)
		*err = why;
	if (fd < 0 || !text)
		return NULL;
	ssize_t size = read_full(fd, text, DOCUMENT_MAX + 1);
	if (size < 0 || (size_t)size > DOCUMENT_MAX || memchr(text, '\0', (size_t)size)) {
		husk_fail(err, HUSK_INVALID, "'%s': '%.120s' is not a document of less than %u bytes", where, path,
			  DOCUMENT_MAX);
		return NULL;
	}
	text[size] = '\0';
	return steal_pointer(text);
}

/* Reads a document that must exist and must have its digest. */
static char *read_checked(const char *directory, const char *where, const char *path, const char *digest,
			  struct husk_error *err)
{
	cleanup_free char *text = read_document(directory, where, path, err);
	cleanup(sum_free) struct sum sum = { 0 };

	if (!text && err->code == HUSK_OK)
		husk_fail(err, HUSK_INVALID, "'%s' is not whole: '%.120s' is missing", where, path);
	if (!text || sum_begin(&sum, err) < 0)
		return NULL;
	EVP_DigestUpdate(sum.context, text, strlen(text));
	return sum_check(&sum, where, path, digest, err) < 0 ? NULL : steal_pointer(text);
}

static char *read_blob(const char *directory, const char *where, const char *digest, uint64_t size,
		       struct husk_error *err)
{
	char path[sizeof("blobs/sha256/") + OCI_HEX_LENGTH];

	snprintf(path, sizeof(path), "blobs/sha256/%s", digest);
	char *text = read_checked(directory, where, path, digest, err);
	if (!text || strlen(text) == size)
		return text;
	free(text);
	husk_fail(err, HUSK_INVALID, "'%s': '%s' has not the %llu bytes it is said to have", where, path,
		  (unsigned long long)size);
	return NULL;
}

/* Follows an index to the manifest of the image, if necessary through other indexes. */
static int load_index(const char *directory, const char *where, const char *index, const char *reference,
		      struct oci_image *out, struct husk_error *err)
{
	cleanup_free char *text = strdup(index);
	char digest[OCI_HEX_LENGTH + 1];
	uint64_t size = 0;
	int nested = text ? 1 : husk_fail_memory(err);

	for (int depth = 0; nested > 0; depth++) {
		if (depth == NESTING_MAX)
			return husk_fail(err, HUSK_INVALID, "'%s' has more than %d indexes inside each other", where,
					 NESTING_MAX);
		if (oci_choose(text, where, depth ? NULL : reference, digest, &size, err) < 0)
			return -1;
		free(text);
		text = read_blob(directory, where, digest, size, err);
		nested = text ? oci_manifest(text, where, out, digest, &size, err) : -1;
	}
	if (nested < 0)
		return -1;
	memcpy(out->config, digest, sizeof(digest));
	cleanup_free char *config = read_blob(directory, where, digest, size, err);
	return config ? oci_config(config, where, false, out, err) : -1;
}

static int load_docker(const char *directory, const char *where, const char *manifest, const char *reference,
		       struct oci_image *out, struct husk_error *err)
{
	cleanup_free char *path = NULL;
	char digest[OCI_HEX_LENGTH + 1];

	if (oci_docker(manifest, where, reference, out, &path, digest, err) < 0)
		return -1;
	memcpy(out->config, digest, sizeof(digest));
	cleanup_free char *config = read_checked(directory, where, path, digest, err);
	return config ? oci_config(config, where, true, out, err) : -1;
}

/* Newer versions of docker save write both kinds. Then the names are in manifest.json, so a name is looked up there
 * first. */
int oci_load(const char *directory, const char *where, const char *reference, struct oci_image *out,
	     struct husk_error *err)
{
	struct husk_error why = { 0 };
	cleanup_free char *manifest = read_document(directory, where, "manifest.json", &why);
	cleanup_free char *index = why.code ? NULL : read_document(directory, where, "index.json", &why);
	int result;

	*out = (struct oci_image){ 0 };
	if (why.code)
		return husk_fail(err, why.code, "%s", why.message);
	if (!manifest && !index)
		return husk_fail(
			err, HUSK_INVALID,
			"'%s' is neither an OCI image layout (index.json) nor saved by docker (manifest.json); "
			"a plain root filesystem goes with --tar or --rootfs",
			where);
	result = index ? load_index(directory, where, index, reference, out, &why) : -1;
	if (!index || (result < 0 && why.code == HUSK_NOT_FOUND && manifest)) {
		oci_image_free(out);
		result = load_docker(directory, where, manifest, reference, out, &why);
	}
	if (result < 0) {
		oci_image_free(out);
		return husk_fail(err, why.code, "%s", why.message);
	}
	return 0;
}

/* ---- layers ---- */

/* Hashes the bytes of the layer, as stored or decompressed. */
static int sum_layer(struct sum *sum, struct archive *in, int fd, const char *where, const struct oci_layer *layer,
		     struct husk_error *err)
{
	cleanup_free char *piece = malloc(PIECE);
	struct archive_entry *entry;
	la_ssize_t count;

	if (!piece || !in)
		return husk_fail_memory(err);
	if (layer->unpacked) {
		archive_read_support_filter_all(in);
		archive_read_support_format_raw(in);
		archive_read_support_format_empty(in);
		if (archive_read_open_fd(in, fd, PIECE) != ARCHIVE_OK ||
		    archive_read_next_header(in, &entry) != ARCHIVE_OK)
			return husk_fail(err, HUSK_INVALID, "'%s': layer '%.120s' cannot be read: %s", where,
					 layer->path, archive_error_string(in));
	}
	while ((count = layer->unpacked ? archive_read_data(in, piece, PIECE) : read_full(fd, piece, PIECE)) > 0)
		EVP_DigestUpdate(sum->context, piece, (size_t)count);
	if (count < 0)
		return husk_fail(err, HUSK_INVALID, "'%s': layer '%.120s' cannot be read", where, layer->path);
	return 0;
}

int oci_verify(int fd, const char *where, const struct oci_layer *layer, struct husk_error *err)
{
	cleanup(sum_free) struct sum sum = { 0 };

	if (sum_begin(&sum, err) < 0)
		return -1;
	struct archive *in = archive_read_new();
	int result = sum_layer(&sum, in, fd, where, layer, err);
	archive_read_free(in);
	if (result < 0 || sum_check(&sum, where, layer->path, layer->digest, err) < 0)
		return -1;
	return lseek(fd, 0, SEEK_SET) < 0 ? husk_fail_errno(err, "cannot read '%s' again", where) : 0;
}

/* ---- images by name ---- */

/* index.json and manifest.json of a tar, NULL if missing; other files are skipped. */
static void peek_tar(const char *path, char **index, char **manifest)
{
	struct archive *in = archive_read_new();
	struct archive_entry *entry;

	if (in) {
		archive_read_support_filter_all(in);
		archive_read_support_format_tar(in);
	}
	if (in && archive_read_open_filename(in, path, PIECE) == ARCHIVE_OK)
		while (archive_read_next_header(in, &entry) == ARCHIVE_OK && !(*index && *manifest)) {
			const char *name = archive_entry_pathname(entry);
			name += name && str_starts(name, "./") ? 2 : 0;
			char **out = str_equal(name, "index.json")      ? index
				     : str_equal(name, "manifest.json") ? manifest
									: NULL;
			la_int64_t size = archive_entry_size(entry);
			if (!out || *out || size <= 0 || size > DOCUMENT_MAX)
				continue;
			*out = calloc(1, (size_t)size + 1);
			if (*out && archive_read_data(in, *out, (size_t)size) != size)
				free(steal_pointer(*out));
		}
	archive_read_free(in);
}

/* The name without extensions: "python" for python.tar.gz. */
static char *stem_of(const char *name)
{
	const char *dot = strstr(name, ".tar");

	return strndup(name, dot ? (size_t)(dot - name) : strlen(name));
}

/* 1: the layout at `path` holds the image, as *reference. */
static int look_into(const char *path, const char *file, const char *name, char **reference, struct husk_error *err)
{
	cleanup_free char *index = NULL, *manifest = NULL, *stem = stem_of(file);
	cleanup_strv char **names = NULL;
	struct husk_error ignored = { 0 };
	struct stat status;

	if (!stem)
		return husk_fail_memory(err);
	if (stat(path, &status) < 0)
		return 0;
	if (S_ISDIR(status.st_mode)) {
		index = read_document(path, path, "index.json", &ignored);
		manifest = read_document(path, path, "manifest.json", &ignored);
	} else if (S_ISREG(status.st_mode)) {
		peek_tar(path, &index, &manifest);
	}
	if (oci_names(index, manifest, stem, &names, &ignored) < 0)
		return 0;
	for (size_t i = 0; names && names[i]; i += 2) {
		if (!oci_same_name(names[i], name))
			continue;
		*reference = strdup(names[i + 1]);
		return *reference ? 1 : husk_fail_memory(err);
	}
	return 0;
}

int oci_find(const char *folder, const char *name, char **path, char **reference, struct husk_error *err)
{
	struct dirent **entries = NULL;
	int count = scandir(folder, &entries, NULL, alphasort), found = 0;

	for (int i = 0; i < count; i++) {
		cleanup_free char *each = str_format("%s/%s", folder, entries[i]->d_name);
		if (found == 0 && entries[i]->d_name[0] != '.')
			found = each ? look_into(each, entries[i]->d_name, name, reference, err)
				     : husk_fail_memory(err);
		if (found > 0 && !*path)
			*path = steal_pointer(each);
		free(entries[i]);
	}
	free(entries);
	return found;
}
