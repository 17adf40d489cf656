/*
 * The tar of a portable machine (portable.h): an OCI image layout. Writing streams it. Reading finds the blobs by the
 * names in the headers, and takes nothing else from the tar: no owner, no mode, no link, no long name. portable_scan and
 * the functions after it run in a cell (builder.c), because the tar is untrusted.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <zstd.h>

#include "base/jansson.h"
#include "store/portable.h"

#define BLOCK 512u
#define ENTRIES_MAX (1u << 17)
#define INDEX_MAX (1u << 20)
#define BLOBS "blobs/sha256/"
#define COPY (256u << 10)

/* ---- writing ---- */

struct writer {
	portable_sink *sink;
	void *data;
	struct husk_error *err;
};

static int put(const struct writer *writer, const void *bytes, size_t size)
{
	if (size == 0 || writer->sink(writer->data, bytes, size) == 0)
		return 0;
	if (writer->err && !writer->err->code)
		husk_fail(writer->err, HUSK_GONE, "nobody takes the machine any more");
	return -1;
}

static int put_header(const struct writer *writer, const char *name, uint64_t size)
{
	char header[BLOCK] = { 0 };
	unsigned sum = 0;

	snprintf(header, 100, "%s", name);
	snprintf(header + 100, 8, "0000644");
	snprintf(header + 108, 8, "0000000");
	snprintf(header + 116, 8, "0000000");
	for (size_t i = 0; i < 11; i++) /* octal: documents and chunks are small */
		header[124 + i] = (char)('0' + (size >> (3 * (10 - i)) & 7));
	memcpy(header + 136, "00000000000", 12);
	memset(header + 148, ' ', 8);
	header[156] = '0';
	snprintf(header + 257, 6, "ustar");
	memset(header + 263, '0', 2);
	for (size_t i = 0; i < BLOCK; i++)
		sum += (unsigned char)header[i];
	snprintf(header + 148, 8, "%06o", sum);
	return put(writer, header, sizeof(header));
}

static int put_padding(const struct writer *writer, uint64_t size)
{
	static const char zeros[2 * BLOCK];

	return put(writer, zeros, size % BLOCK ? BLOCK - size % BLOCK : 0);
}

static int put_text(const struct writer *writer, const char *name, const char *text)
{
	return put_header(writer, name, strlen(text)) < 0 || put(writer, text, strlen(text)) < 0
		       ? -1
		       : put_padding(writer, strlen(text));
}

static int put_document(const struct writer *writer, const char *text)
{
	char name[100], digest[OCI_HEX_LENGTH + 1];

	if (portable_digest(text, strlen(text), digest, writer->err) < 0)
		return -1;
	snprintf(name, sizeof(name), BLOBS "%s", digest);
	return put_text(writer, name, text);
}

static int put_chunk(const struct writer *writer, const struct portable_pack *pack, const struct portable_kept *kept,
		     char *buffer)
{
	char name[100];

	snprintf(name, sizeof(name), BLOBS "%s", kept->digest);
	if (put_header(writer, name, kept->size) < 0)
		return -1;
	for (uint32_t done = 0; done < kept->size;) {
		size_t size = MIN(kept->size - done, COPY);
		if (pread(pack->fd, buffer, size, (off_t)(kept->offset + done)) != (ssize_t)size)
			return husk_fail_errno(writer->err, "cannot read a chunk of the machine");
		if (put(writer, buffer, size) < 0)
			return -1;
		done += (uint32_t)size;
	}
	return put_padding(writer, kept->size);
}

static char *index_text(const char *manifest, const char *name, struct husk_error *err)
{
	char digest[OCI_HEX_LENGTH + 1];

	if (portable_digest(manifest, strlen(manifest), digest, err) < 0)
		return NULL;
	cleanup_json json_t *index = json_pack(
		"{s:i, s:[{s:s, s:s, s:o, s:I, s:{s:s}}]}", "schemaVersion", 2, "manifests", "mediaType",
		PORTABLE_MANIFEST_TYPE, "artifactType", PORTABLE_TYPE, "digest", json_sprintf("sha256:%s", digest),
		"size", (json_int_t)strlen(manifest), "annotations", "org.opencontainers.image.ref.name", name);
	char *text = index ? json_dumps(index, JSON_COMPACT) : NULL;
	if (!text)
		husk_fail_memory(err);
	return text;
}

int portable_write(const struct portable_pack *pack, const char *description, const char *manifest, const char *name,
		   portable_sink *sink, void *data, struct husk_error *err)
{
	static const char end[2 * BLOCK];
	const struct writer writer = { sink, data, err };
	cleanup_free char *index = index_text(manifest, name, err);
	cleanup_free char *buffer = malloc(COPY);

	if (!index || !buffer)
		return index ? husk_fail_memory(err) : -1;
	if (put_text(&writer, "oci-layout", "{\"imageLayoutVersion\":\"1.0.0\"}") < 0 ||
	    put_text(&writer, "index.json", index) < 0 || put_document(&writer, manifest) < 0 ||
	    put_document(&writer, description) < 0)
		return -1;
	for (size_t i = 0; i < pack->count; i++)
		if (put_chunk(&writer, pack, &pack->kept[i], buffer) < 0)
			return -1;
	return put(&writer, end, sizeof(end));
}

/* ---- finding ---- */

static int bad(struct husk_error *err, const char *what)
{
	return husk_fail(err, HUSK_INVALID, "the file is not a portable machine, or is damaged: %s", what);
}

/* An octal number, or a binary one as GNU tar writes large sizes. -1: neither. */
static int take_size(const unsigned char field[static 12], uint64_t *out)
{
	uint64_t value = 0;
	size_t i = 0;

	if (field[0] == 0x80) {
		for (i = 1; i < 12; i++) {
			if (value >> 55)
				return -1;
			value = value << 8 | field[i];
		}
		*out = value;
		return 0;
	}
	while (i < 12 && field[i] == ' ')
		i++;
	for (; i < 12 && field[i] >= '0' && field[i] <= '7'; i++)
		value = value << 3 | (uint64_t)(field[i] - '0');
	*out = value;
	return i == 12 || field[i] == '\0' || field[i] == ' ' ? 0 : -1;
}

static bool sum_matches(const unsigned char header[static BLOCK])
{
	unsigned sum = 0;
	unsigned long wanted = 0;

	for (size_t i = 0; i < BLOCK; i++)
		sum += i >= 148 && i < 156 ? ' ' : header[i];
	for (size_t i = 148; i < 156; i++) {
		if (header[i] >= '0' && header[i] <= '7')
			wanted = wanted * 8 + (unsigned long)(header[i] - '0');
		else if (header[i] != ' ')
			break;
	}
	return wanted == sum;
}

static int note_blob(struct portable_layout *layout, const char *digest, uint64_t offset, uint64_t size,
		     struct husk_error *err)
{
	if ((layout->count & (layout->count - 1)) == 0) { /* room doubles at each power of two */
		struct portable_blob *more =
			reallocarray(layout->blobs, layout->count ? 2 * layout->count : 1, sizeof(*more));
		if (!more)
			return husk_fail_memory(err);
		layout->blobs = more;
	}
	struct portable_blob *blob = &layout->blobs[layout->count++];
	*blob = (struct portable_blob){ .offset = offset, .size = size };
	memcpy(blob->digest, digest, sizeof(blob->digest));
	return 0;
}

static int note_entry(struct portable_layout *layout, const unsigned char header[static BLOCK], uint64_t offset,
		      uint64_t size, struct husk_error *err)
{
	char name[101];

	snprintf(name, sizeof(name), "%.100s", (const char *)header);
	const char *plain = str_starts(name, "./") ? name + 2 : name;
	if (header[156] != '0' && header[156] != '\0')
		return 0; /* directories, and the long names of others; no link is followed */
	if (str_equal(plain, "index.json")) {
		layout->index_offset = offset;
		layout->index_size = size;
	}
	if (str_starts(plain, BLOBS) && portable_is_digest(plain + strlen(BLOBS)))
		return note_blob(layout, plain + strlen(BLOBS), offset, size, err);
	return 0;
}

static int compare_blobs(const void *a, const void *b)
{
	return strcmp(((const struct portable_blob *)a)->digest, ((const struct portable_blob *)b)->digest);
}

int portable_scan(int fd, struct portable_layout *out, struct husk_error *err)
{
	unsigned char header[BLOCK];
	struct stat found;
	uint64_t at = 0, size = 0;

	*out = (struct portable_layout){ .fd = fd };
	if (fstat(fd, &found) < 0 || !S_ISREG(found.st_mode))
		return bad(err, "it is not a regular file");
	uint64_t end = (uint64_t)found.st_size;
	for (size_t entries = 0; at + BLOCK <= end; entries++) {
		if (pread(fd, header, BLOCK, (off_t)at) != BLOCK)
			return husk_fail_errno(err, "cannot read the file");
		if (header[0] == '\0')
			break;
		if (entries == ENTRIES_MAX)
			return bad(err, "it has too many entries");
		if (!sum_matches(header) || take_size(header + 124, &size) < 0)
			return bad(err, "it is not a tar");
		at += BLOCK;
		if (size > end - at)
			return bad(err, "it ends early");
		if (note_entry(out, header, at, size, err) < 0)
			return -1;
		at += (size + BLOCK - 1) / BLOCK * BLOCK;
	}
	if (!out->index_size)
		return bad(err, "it has no index.json");
	if (out->count)
		qsort(out->blobs, out->count, sizeof(*out->blobs), compare_blobs);
	return 0;
}

void portable_layout_free(struct portable_layout *layout)
{
	free(layout->blobs);
	*layout = (struct portable_layout){ .fd = -1 };
}

/* ---- reading ---- */

static const struct portable_blob *find(const struct portable_layout *layout, const char *digest)
{
	struct portable_blob wanted;

	if (!layout->count)
		return NULL;
	snprintf(wanted.digest, sizeof(wanted.digest), "%s", digest);
	return bsearch(&wanted, layout->blobs, layout->count, sizeof(wanted), compare_blobs);
}

static char *read_at(const struct portable_layout *layout, uint64_t offset, uint64_t size, uint64_t most,
		     struct husk_error *err)
{
	cleanup_free char *text = size <= most ? malloc((size_t)size + 1) : NULL;

	if (size > most) {
		bad(err, "a document of it is too large");
		return NULL;
	}
	if (!text || pread(layout->fd, text, (size_t)size, (off_t)offset) != (ssize_t)size) {
		husk_fail_errno(err, "cannot read the file");
		return NULL;
	}
	text[size] = '\0';
	return steal_pointer(text);
}

static int check(const void *bytes, size_t size, const char *digest, struct husk_error *err)
{
	char found[OCI_HEX_LENGTH + 1];

	if (portable_digest(bytes, size, found, err) < 0)
		return -1;
	if (str_equal(found, digest))
		return 0;
	return husk_fail(
		err, HUSK_INVALID,
		"the portable machine was changed: a blob has the sha256 %.12s… and is named %.12s…; nothing of it "
		"is kept",
		found, digest);
}

char *portable_document(const struct portable_layout *layout, const char *digest, size_t *size, struct husk_error *err)
{
	const struct portable_blob *blob = find(layout, digest);

	if (!blob) {
		bad(err, "a document of it is missing");
		return NULL;
	}
	cleanup_free char *text = read_at(layout, blob->offset, blob->size, PORTABLE_DOCUMENT_MAX, err);
	if (!text || check(text, (size_t)blob->size, digest, err) < 0)
		return NULL;
	if (size)
		*size = (size_t)blob->size;
	return steal_pointer(text);
}

int portable_open_seal(const struct portable_layout *layout, struct portable_seal *out, struct husk_error *err)
{
	cleanup_free char *index = read_at(layout, layout->index_offset, layout->index_size, INDEX_MAX, err);
	char digest[OCI_HEX_LENGTH + 1];
	uint64_t wanted = 0;
	size_t size = 0;

	if (!index)
		return -1;
	if (str_json_deeper(index, (size_t)layout->index_size, 16) ||
	    oci_choose(index, "the file", NULL, digest, &wanted, err) < 0)
		return err && err->code ? -1 : bad(err, "its index.json makes no sense");
	cleanup_free char *manifest = portable_document(layout, digest, &size, err);
	return manifest ? portable_parse_manifest(manifest, size, out, err) : -1;
}

struct unpacker {
	const struct portable_layout *layout;
	ZSTD_DCtx *zstd;
	char *packed, *raw;
};

static int unpack_chunk(const struct unpacker *unpacker, const struct portable_chunk *chunk, struct husk_error *err)
{
	const struct portable_blob *blob = find(unpacker->layout, chunk->digest);

	if (!blob)
		return bad(err, "a chunk of it is missing");
	if (blob->size != chunk->packed)
		return bad(err, "a chunk of it has another size");
	if (pread(unpacker->layout->fd, unpacker->packed, chunk->packed, (off_t)blob->offset) != (ssize_t)chunk->packed)
		return husk_fail_errno(err, "cannot read the file");
	if (check(unpacker->packed, chunk->packed, chunk->digest, err) < 0)
		return -1;
	size_t size = ZSTD_decompressDCtx(unpacker->zstd, unpacker->raw, chunk->size, unpacker->packed, chunk->packed);
	return ZSTD_isError(size) || size != chunk->size ? bad(err, "a chunk of it cannot be decompressed") : 0;
}

/* The length of the pages at the beginning that are all zero, or all not. */
static size_t run_of(const char *bytes, size_t size, bool *zero)
{
	static const char zeros[PORTABLE_PAGE];
	size_t at = 0;

	for (size_t length; at < size; at += length) {
		length = MIN(size - at, sizeof(zeros));
		bool same = memcmp(bytes + at, zeros, length) == 0;
		if (at == 0)
			*zero = same;
		else if (same != *zero)
			break;
	}
	return at;
}

/* Pages of zeros become holes: disks and memory of machines have many of them. */
static int write_sparse(int fd, const char *bytes, size_t size)
{
	bool zero = false;

	for (size_t at = 0, length; at < size; at += length) {
		length = run_of(bytes + at, size - at, &zero);
		if (zero ? lseek(fd, (off_t)length, SEEK_CUR) < 0 : write_full(fd, bytes + at, length) < 0)
			return -1;
	}
	return 0;
}

static int unpack_file(const struct unpacker *unpacker, const struct portable_file *file, const char *directory,
		       struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/%s", directory, file->name);
	cleanup_free char *parent = path ? strndup(path, (size_t)(strrchr(path, '/') - path)) : NULL;

	if (!parent)
		return husk_fail_memory(err);
	if (mkdir(parent, 0700) < 0 && errno != EEXIST)
		return husk_fail_errno(err, "cannot make '%s'", parent);
	cleanup_close int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return husk_fail_errno(err, "cannot write '%s'", file->name);
	for (size_t i = 0; i < file->count; i++) {
		if (unpack_chunk(unpacker, &file->chunks[i], err) < 0)
			return -1;
		if (write_sparse(fd, unpacker->raw, file->chunks[i].size) < 0)
			return husk_fail_errno(err, "cannot write '%s'", file->name);
	}
	return ftruncate(fd, (off_t)file->size) < 0 ? husk_fail_errno(err, "cannot write '%s'", file->name) : 0;
}

static bool is_wanted(const char *name, const char *folders)
{
	size_t size = strcspn(name, "/");

	for (const char *at = folders; *at; at += strcspn(at, " "), at += strspn(at, " "))
		if (strcspn(at, " ") == size && strncmp(at, name, size) == 0)
			return true;
	return false;
}

int portable_unpack(const struct portable_layout *layout, const struct portable *portable, const char *folders,
		    const char *directory, struct husk_error *err)
{
	cleanup_free char *packed = malloc(2 * (size_t)PORTABLE_CHUNK_MAX), *raw = malloc(PORTABLE_CHUNK_MAX);
	struct unpacker unpacker = { layout, ZSTD_createDCtx(), packed, raw };
	int result = packed && raw && unpacker.zstd ? 0 : husk_fail_memory(err);

	for (size_t i = 0; result == 0 && i < portable->file_count; i++)
		if (is_wanted(portable->files[i].name, folders))
			result = unpack_file(&unpacker, &portable->files[i], directory, err);
	ZSTD_freeDCtx(unpacker.zstd);
	return result;
}
