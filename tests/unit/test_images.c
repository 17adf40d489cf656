/*
 * Images as directories: what counts as one, how it appears and how it goes. Images are made of the engines' own files by
 * hand; nothing is started. test_gvisor.c has those of a real machine.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>

#include "engine/gvisor/gvisor.h"
#include "engine/marker.h"
#include "scratch.h"

#define DISK_SIZE (64u << 20)

static void make_root(const char *name, const char *content)
{
	put(at(name), content);
}

/* An image of the microvm engine: state, one layer of memory, one of the disk. */
static void make_image(const char *name, const char *rootfs)
{
	struct marker_identity identity;
	struct husk_error err = { 0 };

	assert_int_equal(dir_make(at(name), 0700, NULL), 0);
	cleanup_free char *image = strdup(at(name));
	static const char *const files[] = { "state", "memory.0", "disk.0" };
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		cleanup_free char *path = str_format("%s/%s", image, files[i]);
		put(path, "12345");
	}
	assert_int_equal(marker_identify("microvm", at(rootfs), DISK_SIZE, &identity, &err), 0);
	assert_int_equal(marker_write(image, &identity,
				      json_pack("{s:i, s:i, s:i, s:[i], s:[i]}", "state", 5, "vcpus", 1, "memory_bytes",
						1 << 20, "memory", 5, "disk", 5),
				      &err),
			 0);
}

static char *inside(const char *image, const char *file)
{
	char *path = str_format("%s/%s", at(image), file);

	assert_non_null(path);
	return path;
}

static void expect_unfit(const char *image, const char *rootfs, uint64_t disk, const char *words)
{
	struct husk_error err = { 0 };

	assert_int_equal(engine_image_check("microvm", at(image), at(rootfs), disk, &err), -1);
	if (!strstr(err.message, words))
		fail_msg("'%s' does not say '%s'", err.message, words);
}

static void only_whole_images_count(void **state)
{
	(void)state;
	make_root("root", "a root image");
	make_image("image", "root");
	assert_false(engine_image_whole(at("nowhere")));
	assert_false(engine_image_whole(at("image"))); /* not on disk yet */
	assert_int_equal(engine_image_sync(at("image"), NULL), 0);
	assert_true(engine_image_whole(at("image")));
	static const char *const files[] = { "state", "memory.0", "disk.0", "ok", "durable" };
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		cleanup_free char *path = inside("image", files[i]), *aside = inside("image", "aside");
		assert_int_equal(rename(path, aside), 0);
		assert_false(engine_image_whole(at("image")));
		assert_int_equal(rename(aside, path), 0);
		assert_true(engine_image_whole(at("image")));
	}
	for (size_t i = 0; i < 3; i++) { /* cut short */
		cleanup_free char *path = inside("image", files[i]);
		assert_int_equal(truncate(path, 4), 0);
		assert_false(engine_image_whole(at("image")));
		put(path, "12345");
	}
	cleanup_free char *marker = inside("image", "ok");
	put(marker, "{\"engine\":");
	assert_false(engine_image_whole(at("image")));
	put(marker, "{\"engine\":\"abacus\"}");
	assert_false(engine_image_whole(at("image")));
	dir_remove(at("image"), NULL);
}

static void an_image_fits_its_own_root_only(void **state)
{
	struct husk_error err = { 0 };

	(void)state;
	make_root("root", "a root image");
	make_root("other", "another root");
	make_image("image", "root");
	expect_unfit("image", "root", DISK_SIZE, "not on disk");
	assert_int_equal(engine_image_sync(at("image"), NULL), 0);
	assert_int_equal(engine_image_check("microvm", at("image"), at("root"), DISK_SIZE, &err), 0);
	expect_unfit("image", "other", DISK_SIZE, "another root image");
	expect_unfit("image", "missing", DISK_SIZE, "cannot open root image");
	expect_unfit("image", "root", DISK_SIZE * 2, "disk of");
	expect_unfit("nowhere", "root", DISK_SIZE, "no complete image");
	assert_int_equal(engine_image_check("abacus", at("image"), at("root"), DISK_SIZE, &err), -1);
	assert_non_null(strstr(err.message, "no engine"));
	cleanup_free char *layer = inside("image", "memory.0");
	assert_int_equal(truncate(layer, 1), 0);
	expect_unfit("image", "root", DISK_SIZE, "another size");
	dir_remove(at("image"), NULL);
}

/* The same for gVisor's files, with the sums that they have. */
static void a_changed_gvisor_file_is_noticed(void **state)
{
	struct engine_spec spec = { .rootfs = at("root"), .disk_bytes = DISK_SIZE };
	cleanup_free char *image = strdup(at("image"));
	struct gvisor_identity identity;
	struct gvisor_program program;
	struct husk_error err = { 0 };
	int fds[IMAGE_FILES];

	(void)state;
	if (gvisor_program_find(NULL, NULL, &program, &err) < 0) {
		print_message("%s\n", err.message);
		skip();
	}
	make_root("root", "a root image");
	assert_int_equal(dir_make(image, 0700, NULL), 0);
	assert_int_equal(image_identify(&spec, program.version, &identity, &err), 0);
	assert_int_equal(image_begin(image, fds, &err), 0);
	for (size_t i = 0; i < IMAGE_FILES; i++)
		assert_int_equal(write_full(fds[i], "12345", 5), 0);
	json_t *none = json_array();
	assert_int_equal(image_finish(image, fds, &identity, none, &err), 0);
	json_decref(none);
	image_close(fds);
	assert_int_equal(engine_image_sync(image, &err), 0);
	assert_true(engine_image_whole(image));
	assert_int_equal(engine_image_check("gvisor", image, at("root"), DISK_SIZE, &err), 0);
	cleanup_free char *file = inside("image", "checkpoint.img");
	put(file, "54321");
	assert_int_equal(engine_image_check("gvisor", image, at("root"), DISK_SIZE, &err), -1);
	assert_non_null(strstr(err.message, "checkpoint.img was changed"));
	assert_int_equal(unlink(file), 0);
	assert_false(engine_image_whole(image));
	dir_remove(image, NULL);
}

/* What one version of runsc saved no other continues; which one it was is said. */
static void an_image_of_another_runsc_is_refused(void **state)
{
	struct engine_spec spec = { .rootfs = at("root"), .disk_bytes = DISK_SIZE };
	cleanup_free char *image = strdup(at("image"));
	struct gvisor_identity identity;
	struct gvisor_program program;
	struct husk_error err = { 0 };
	int fds[IMAGE_FILES];

	(void)state;
	if (gvisor_program_find(NULL, NULL, &program, &err) < 0) {
		print_message("%s\n", err.message);
		skip();
	}
	make_root("root", "a root image");
	assert_int_equal(dir_make(image, 0700, NULL), 0);
	assert_int_equal(image_identify(&spec, "release-19991231.0", &identity, &err), 0);
	assert_int_equal(image_begin(image, fds, &err), 0);
	json_t *none = json_array();
	assert_int_equal(image_finish(image, fds, &identity, none, &err), 0);
	image_close(fds);
	assert_int_equal(engine_image_sync(image, &err), 0);
	assert_true(engine_image_whole(image));
	assert_int_equal(engine_image_check("gvisor", image, at("root"), DISK_SIZE, &err), -1);
	assert_int_equal(err.code, HUSK_CONFLICT);
	assert_non_null(strstr(err.message, "was made by runsc release-19991231.0"));
	assert_non_null(strstr(err.message, program.version));
	assert_non_null(strstr(err.message, "HUSK_RUNSC"));
	assert_int_equal(image_identify(&spec, program.version, &identity, &err), 0);
	assert_int_equal(image_open(image, &identity, fds, &none, &err), -1);
	assert_non_null(strstr(err.message, "cannot be continued by"));
	json_decref(none);
	dir_remove(image, NULL);
}

static void images_appear_and_go_by_rename(void **state)
{
	struct husk_error err = { 0 };

	(void)state;
	make_root("root", "a root image");
	assert_int_equal(dir_make(at("kept"), 0700, NULL), 0);
	make_image("kept/image.partial", "root");
	assert_int_equal(image_keep(at("kept/image.partial"), at("kept/image"), &err), 0);
	assert_true(engine_image_whole(at("kept/image")));
	assert_false(exists(at("kept/image.partial")));
	make_image("kept/image.partial", "root");
	assert_int_equal(image_keep(at("kept/image.partial"), at("kept/image"), &err), -1); /* never over another */
	assert_true(engine_image_whole(at("kept/image")));

	/* What a killed removal leaves is no image, and is swept. */
	assert_int_equal(rename(at("kept/image.partial"), at("kept/image.gone-aaaa")), 0);
	assert_true(image_is_gone("image.gone-aaaa"));
	assert_false(image_is_gone("image"));
	image_sweep(at("kept"));
	assert_false(exists(at("kept/image.gone-aaaa")));
	assert_true(engine_image_whole(at("kept/image")));
	assert_int_equal(image_discard(at("kept/image"), &err), 0);
	assert_int_equal(image_discard(at("kept/image"), &err), 0);
	assert_int_equal(rmdir(at("kept")), 0); /* nothing is left in it */
}

static void *sweep(void *data)
{
	image_sweep(data);
	return NULL;
}

/* A link in the place of an image: it reads as the image, changes places with what was there, and goes alone. */
static void an_image_can_be_lent(void **state)
{
	char target[64];

	(void)state;
	make_root("lent-root", "root");
	assert_int_equal(dir_make(at("lent"), 0700, NULL), 0);
	assert_int_equal(dir_make(at("lent/points"), 0700, NULL), 0);
	make_image("lent/points/1", "lent-root");
	assert_int_equal(engine_image_sync(at("lent/points/1"), NULL), 0);
	assert_int_equal(image_lend("points/1", at("lent/image"), NULL), 0);
	image_lend_settle(at("lent/image"));
	assert_true(engine_image_whole(at("lent/image")));
	assert_true(image_is_lent(at("lent/image"), target, sizeof(target)));
	assert_string_equal(target, "points/1");
	assert_int_equal(image_discard(at("lent/image"), NULL), 0);
	assert_int_equal(access(at("lent/image"), F_OK), -1);
	assert_true(engine_image_whole(at("lent/points/1")));

	make_image("lent/image", "lent-root");
	put(at("lent/image/own"), "own");
	assert_int_equal(image_lend("points/1", at("lent/image"), NULL), 0);
	assert_true(image_is_lent(at("lent/image"), target, sizeof(target)));
	image_lend_undo(at("lent/image"));
	assert_false(image_is_lent(at("lent/image"), target, sizeof(target)));
	assert_int_equal(access(at("lent/image/own"), F_OK), 0);
	assert_int_equal(access(at("lent/image.partial"), F_OK), -1);
	assert_int_equal(image_lend("points/1", at("lent/image"), NULL), 0);
	image_lend_settle(at("lent/image"));
	assert_int_equal(access(at("lent/image/own"), F_OK), -1);
	assert_int_equal(access(at("lent/image.partial"), F_OK), -1);
	assert_true(engine_image_whole(at("lent/points/1")));
}

/* Sweeping and discarding may meet: gc of one process, the end of a sandbox in another. */
static void a_sweep_may_meet_a_removal(void **state)
{
	cleanup_free char *kept = strdup(at("kept"));

	(void)state;
	for (int round = 0; round < 50; round++) {
		pthread_t threads[3];

		make_image("kept/image", "root");
		for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
			assert_int_equal(pthread_create(&threads[i], NULL, sweep, kept), 0);
		struct husk_error err = { 0 };
		if (image_discard(at("kept/image"), &err) < 0)
			fail_msg("%s", err.message);
		for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
			pthread_join(threads[i], NULL);
	}
	image_sweep(kept);
	assert_int_equal(rmdir(kept), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_whole_images_count),
		cmocka_unit_test(an_image_fits_its_own_root_only),
		cmocka_unit_test(a_changed_gvisor_file_is_noticed),
		cmocka_unit_test(an_image_of_another_runsc_is_refused),
		cmocka_unit_test(images_appear_and_go_by_rename),
		cmocka_unit_test(an_image_can_be_lent),
		cmocka_unit_test(a_sweep_may_meet_a_removal),
	};

	return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
