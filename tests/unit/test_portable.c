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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_page_more_changes_little),
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_keys),
	};

	return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
