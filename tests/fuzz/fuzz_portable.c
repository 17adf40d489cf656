/*
 * Fuzzes the reader of portable machines: the input is taken for a description, for a manifest and for a tar in turn. Whatever it
 * says, the names in a description stay in three folders, sizes are within bounds and add up, digests are hexadecimal;
 * and every blob that a scan finds is inside the file. What can be unpacked is. It is also taken for an encrypted stream.
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "store/portable.h"
#include "store/sealed.h"

#include "place.h"

static void check_description(const struct portable *portable)
{
	for (size_t i = 0; i < portable->file_count; i++) {
		const struct portable_file *file = &portable->files[i];
		const char *slash = strchr(file->name, '/');
		uint64_t sum = 0;

		require(slash && slash[1] && slash[1] != '.' && !strchr(slash + 1, '/'));
		for (size_t k = 0; k < file->count; k++) {
			require(portable_is_digest(file->chunks[k].digest));
			require(file->chunks[k].size && file->chunks[k].size <= PORTABLE_CHUNK_MAX);
			require(file->chunks[k].packed && file->chunks[k].packed <= 2 * PORTABLE_CHUNK_MAX);
			sum += file->chunks[k].size;
		}
		require(sum == file->size);
	}
	require(portable->isolation && portable->architecture && portable->template_name && portable->template_digest);
	/* What was read can be written and read again. */
	cleanup_free char *text = portable_text(portable);
	cleanup(portable_free) struct portable again = { 0 };
	require(text && portable_parse(text, strlen(text), &again, NULL) == 0);
	require(again.file_count == portable->file_count);
}

static void feed_documents(const char *text, size_t size)
{
	cleanup(portable_free) struct portable portable = { 0 };
	cleanup(portable_seal_free) struct portable_seal seal = { 0 };

	if (portable_parse(text, size, &portable, NULL) == 0)
		check_description(&portable);
	if (portable_parse_manifest(text, size, &seal, NULL) == 0)
		require(portable_is_digest(seal.config) && seal.key && seal.signature);
	if (seal.key && seal.signature)
		require(portable_verify(seal.key, seal.signature, seal.config, NULL) < 0 || portable_is_key(seal.key));
}

static void feed_tar(const uint8_t *data, size_t size)
{
	cleanup_close int fd = memfd_create("tar", MFD_CLOEXEC);
	cleanup(portable_layout_free) struct portable_layout layout = { .fd = -1 };
	cleanup(portable_seal_free) struct portable_seal seal = { 0 };
	cleanup(portable_free) struct portable portable = { 0 };
	size_t length = 0;

	require(fd >= 0 && write_full(fd, data, size) == 0);
	if (portable_scan(fd, &layout, NULL) < 0)
		return;
	for (size_t i = 0; i < layout.count; i++)
		require(portable_is_digest(layout.blobs[i].digest) && layout.blobs[i].offset <= size &&
			layout.blobs[i].size <= size - layout.blobs[i].offset);
	if (portable_open_seal(&layout, &seal, NULL) < 0)
		return;
	cleanup_free char *text = portable_document(&layout, seal.config, &length, NULL);
	if (!text || portable_parse(text, length, &portable, NULL) < 0)
		return;
	cleanup_free char *tree = str_format("%s/tree", place);
	require(tree && dir_make(tree, 0700, NULL) == 0);
	portable_unpack(&layout, &portable, "root image files", tree, NULL);
	require(dir_remove(tree, NULL) == 0);
}

/* An encrypted stream that nobody with the key made gives out nothing. */
static void feed_sealed(const uint8_t *data, size_t size)
{
	static const unsigned char key[SEALED_KEY_SIZE] = { 7, 1, 4 };
	struct bytes input = { data, size };
	struct unsealed *unsealed = NULL;
	char bytes[4096];

	if (unsealed_begin_key(key, bytes_give, &input, &unsealed, NULL) < 0)
		return;
	require(unsealed_source(unsealed, bytes, sizeof(bytes)) < 0 && unsealed_why(unsealed)->code == HUSK_DENIED);
	unsealed_free(unsealed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_free char *text = malloc(size + 1);

	require(text != NULL);
	memcpy(text, data, size);
	text[size] = '\0';
	feed_documents(text, size);
	feed_tar(data, size);
	feed_sealed(data, size);
	return 0;
}
