/*
 * Portable machines: boundaries of chunks that survive a page more, files through a tar and back, keys. What a hostile tar can do is in
 * tests/fuzz/fuzz_portable.c and tests/e2e/33_portable.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>

#include "scratch.h"
#include "store/portable.h"
#include "store/sealed.h"

#define PAGES 2000u

/* Pages that differ, and are the same in every run. */
static void fill_page(unsigned char *page, uint64_t seed)
{
	for (size_t i = 0; i < PORTABLE_PAGE; i += sizeof(seed)) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		memcpy(page + i, &seed, sizeof(seed));
	}
}

static void write_pages(const char *name, size_t added)
{
	cleanup_close int fd = open(at(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	unsigned char page[PORTABLE_PAGE];

	assert_true(fd >= 0);
	for (size_t i = 0; i < PAGES; i++) {
		if (i == 3)
			for (size_t k = 0; k < added; k++) {
				fill_page(page, 999999 + k);
				assert_int_equal(write_full(fd, page, sizeof(page)), 0);
			}
		fill_page(page, i);
		assert_int_equal(write_full(fd, page, sizeof(page)), 0);
	}
	assert_int_equal(write_full(fd, "the end", 7), 0);
}

static struct portable describe(void)
{
	return (struct portable){ .isolation = strdup("gvisor"),
				  .engine_version = strdup("1"),
				  .architecture = strdup("x86_64"),
				  .template_name = strdup("base"),
				  .template_digest = strdup("0-a"),
				  .husk = NULL };
}

static void pack(const char *file, struct portable *portable, struct portable_pack *out)
{
	cleanup_free char *path = strdup(at(file));
	const struct portable_source source = { .name = "image/pages.img", .path = path };
	struct husk_error err = { 0 };

	*portable = describe();
	assert_int_equal(portable_pack(&source, 1, at("."), NULL, NULL, portable, out, &err), 0);
}

static bool has(const struct portable_pack *pack_, const char *digest)
{
	for (size_t i = 0; i < pack_->count; i++)
		if (strcmp(pack_->kept[i].digest, digest) == 0)
			return true;
	return false;
}

static void test_a_page_more_changes_little(void **state)
{
	struct portable first, second;
	struct portable_pack one, two;
	size_t new = 0;

	(void)state;
	write_pages("first", 0);
	write_pages("second", 1);
	pack("first", &first, &one);
	pack("second", &second, &two);
	assert_true(one.count > 15);
	for (size_t i = 0; i < two.count; i++)
		new += !has(&one, two.kept[i].digest);
	assert_in_range(new, 1, 2);
	portable_free(&first);
	portable_free(&second);
	portable_pack_free(&one);
	portable_pack_free(&two);
}

static int append(void *data, const void *bytes, size_t size)
{
	return buf_append(data, bytes, size);
}

static void test_there_and_back(void **state)
{
	struct portable portable, found = { 0 };
	struct portable_pack kept;
	struct portable_layout layout;
	struct portable_seal seal = { 0 };
	struct husk_error err = { 0 };
	cleanup_buf struct buf tar = { 0 };
	char digest[OCI_HEX_LENGTH + 1];
	size_t size = 0;

	(void)state;
	write_pages("file", 0);
	pack("file", &portable, &kept);
	cleanup_free char *text = portable_text(&portable);
	assert_int_equal(portable_digest(text, strlen(text), digest, &err), 0);
	cleanup_free char *manifest = portable_manifest(&portable, digest, strlen(text), "ed25519:x", "y");
	assert_int_equal(portable_write(&kept, text, manifest, "name", append, &tar, &err), 0);
	assert_int_equal(file_write_atomic(at("tar"), tar.data, tar.size, 0600, &err), 0);
	cleanup_close int fd = open(at("tar"), O_RDONLY | O_CLOEXEC);
	assert_int_equal(portable_scan(fd, &layout, &err), 0);
	assert_int_equal(layout.count, kept.count + 2);
	assert_int_equal(portable_open_seal(&layout, &seal, &err), 0);
	assert_string_equal(seal.config, digest);
	cleanup_free char *read = portable_document(&layout, seal.config, &size, &err);
	assert_int_equal(portable_parse(read, size, &found, &err), 0);
	assert_int_equal(dir_make(at("out"), 0700, &err), 0);
	assert_int_equal(portable_unpack(&layout, &found, "root image", at("out"), &err), 0);
	cleanup_free char *before = file_read(at("file"), 64u << 20, &size, &err);
	cleanup_free char *after = file_read(at("out/image/pages.img"), 64u << 20, NULL, &err);
	assert_memory_equal(before, after, size);
	portable_layout_free(&layout);
	portable_seal_free(&seal);
	portable_free(&portable);
	portable_free(&found);
	portable_pack_free(&kept);
}

static void test_keys(void **state)
{
	char key[PORTABLE_KEY_SIZE], again[PORTABLE_KEY_SIZE], signature[PORTABLE_SIGNATURE_SIZE];
	char digest[OCI_HEX_LENGTH + 1], other[OCI_HEX_LENGTH + 1];
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(portable_key(at("."), key, &err), 0);
	assert_int_equal(portable_key(at("."), again, &err), 0);
	assert_string_equal(key, again);
	assert_true(portable_is_key(key));
	assert_false(portable_is_key("ed25519:abc") || portable_is_key("rsa:x") || portable_is_key(NULL));
	assert_int_equal(portable_digest("x", 1, digest, &err), 0);
	assert_int_equal(portable_digest("y", 1, other, &err), 0);
	assert_int_equal(portable_sign(at("."), digest, signature, &err), 0);
	assert_int_equal(portable_verify(key, signature, digest, &err), 0);
	assert_int_equal(portable_verify(key, signature, other, &err), -1);
	assert_int_equal(err.code, HUSK_DENIED);
	signature[5] = signature[5] == 'A' ? 'B' : 'A';
	assert_int_equal(portable_verify(key, signature, digest, &err), -1);
	put(at("portable.key"), "not a key");
	assert_int_equal(portable_key(at("."), key, &err), -1);
}

/* ---- encrypted streams ---- */

#define HEAD 30u
#define PIECE_OUT ((64u << 10) + 16)

static int take_all(void *data, const void *bytes, size_t size)
{
	return buf_append(data, bytes, size);
}

struct stream {
	const struct buf *from;
	size_t at;
};

/* A few bytes at a time, as a pipe may give them. */
static ssize_t give(void *data, void *bytes, size_t size)
{
	struct stream *stream = data;
	size_t count = MIN(MIN(size, 50000u), stream->from->size - stream->at);

	memcpy(bytes, stream->from->data + stream->at, count);
	stream->at += count;
	return (ssize_t)count;
}

static void seal(const struct buf *plain, struct buf *out)
{
	struct sealed *sealed = NULL;

	assert_int_equal(sealed_begin("correct horse", take_all, out, &sealed, NULL), 0);
	for (size_t at = 0; at < plain->size;) {
		size_t count = MIN(plain->size - at, 40001u);
		assert_int_equal(sealed_sink(sealed, plain->data + at, count), 0);
		at += count;
	}
	assert_int_equal(sealed_end(sealed, NULL), 0);
	sealed_free(sealed);
	assert_true(sealed_is(out->data, out->size));
}

/* The code of the failure; 0: it was decrypted to the end. */
static int unseal(const struct buf *sealed, const char *passphrase, struct buf *out)
{
	struct stream stream = { .from = sealed };
	struct unsealed *unsealed = NULL;
	struct husk_error err = { 0 };
	char bytes[7000];
	ssize_t got;

	if (unsealed_begin(passphrase, give, &stream, &unsealed, &err) < 0)
		return err.code;
	while ((got = unsealed_source(unsealed, bytes, sizeof(bytes))) > 0)
		assert_int_equal(buf_append(out, bytes, (size_t)got), 0);
	int code = got < 0 ? (int)unsealed_why(unsealed)->code : 0;
	unsealed_free(unsealed);
	return code;
}

static void test_sealed(void **state)
{
	static const size_t sizes[] = { 0, 1, (64u << 10) - 1, 64u << 10, (64u << 10) + 1, 200000 };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		cleanup_buf struct buf plain = { 0 }, sealed = { 0 }, back = { 0 };
		assert_int_equal(buf_reserve(&plain, sizes[i] + 1), 0);
		memset(plain.data, 'x', sizes[i]);
		plain.size = sizes[i];
		seal(&plain, &sealed);
		assert_null(sizes[i] > 100 ? memmem(sealed.data, sealed.size, plain.data, 16) : NULL);
		assert_int_equal(unseal(&sealed, "correct horse", &back), 0);
		assert_int_equal(back.size, plain.size);
		assert_memory_equal(back.data ? back.data : "", plain.data, plain.size);
	}
}

/* Every change is noticed, and nothing of a changed piece is given out. */
static void test_sealed_and_changed(void **state)
{
	cleanup_buf struct buf plain = { 0 }, sealed = { 0 };
	static const size_t cuts[] = { HEAD, HEAD + 5, HEAD + PIECE_OUT, HEAD + 2 * PIECE_OUT, HEAD + PIECE_OUT + 100 };
	static const size_t flips[] = { 20, HEAD, HEAD + PIECE_OUT - 1, HEAD + PIECE_OUT + 3, HEAD + 3 * PIECE_OUT };
	char first[PIECE_OUT];

	(void)state;
	assert_int_equal(buf_reserve(&plain, 200000), 0);
	memset(plain.data, 'y', 200000);
	plain.size = 200000;
	seal(&plain, &sealed);
	for (size_t i = 0; i < ARRAY_SIZE(cuts); i++) {
		const struct buf shorter = { .data = sealed.data, .size = cuts[i] };
		cleanup_buf struct buf back = { 0 };
		assert_int_equal(unseal(&shorter, "correct horse", &back), HUSK_DENIED);
	}
	for (size_t i = 0; i < ARRAY_SIZE(flips); i++) {
		cleanup_buf struct buf back = { 0 };
		sealed.data[flips[i]] ^= 1;
		assert_int_equal(unseal(&sealed, "correct horse", &back), HUSK_DENIED);
		sealed.data[flips[i]] ^= 1;
		assert_true(back.size <= (flips[i] - MIN(flips[i], HEAD)) / PIECE_OUT * (64u << 10));
	}
	cleanup_buf struct buf back = { 0 };
	assert_int_equal(unseal(&sealed, "correct hors", &back), HUSK_DENIED);
	assert_int_equal(unseal(&plain, "correct horse", &back), HUSK_INVALID);
	/* Two pieces in the other order, and one more at the end. */
	memcpy(first, sealed.data + HEAD, PIECE_OUT);
	memcpy(sealed.data + HEAD, sealed.data + HEAD + PIECE_OUT, PIECE_OUT);
	memcpy(sealed.data + HEAD + PIECE_OUT, first, PIECE_OUT);
	assert_int_equal(unseal(&sealed, "correct horse", &back), HUSK_DENIED);
	assert_int_equal(back.size, 0);
	struct sealed *none = NULL;
	assert_int_equal(sealed_begin("short", take_all, &back, &none, NULL), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_page_more_changes_little),
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_sealed),
		cmocka_unit_test(test_sealed_and_changed),
	};

	return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
