/*
 * The layer files of the microvm engine: a second name on the same filesystem, a copy with its holes on another. Needs no
 * KVM.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>

#include "engine/microvm/microvm.h"
#include "scratch.h"

#define LAYER_SIZE (64u << 20)
#define FAR_OFF (40 << 20)

static char elsewhere[] = "/dev/shm/husk-test.XXXXXX";

static void make_layer(struct microvm_layers *layers)
{
	int fd = layers_add(layers, NULL);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "near", 4, 0), 4);
	assert_int_equal(pwrite(fd, "far", 3, FAR_OFF), 3);
	assert_int_equal(ftruncate(fd, LAYER_SIZE), 0);
	close(fd);
}

static void assert_layer(const char *path, struct stat *st)
{
	char near[4], far[3];
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0 && fstat(fd, st) == 0);
	assert_int_equal(st->st_size, LAYER_SIZE);
	assert_true(st->st_blocks * 512 < LAYER_SIZE / 8); /* the holes are still holes */
	assert_int_equal(pread(fd, near, sizeof(near), 0), sizeof(near));
	assert_int_equal(pread(fd, far, sizeof(far), FAR_OFF), sizeof(far));
	assert_memory_equal(near, "near", sizeof(near));
	assert_memory_equal(far, "far", sizeof(far));
	close(fd);
}

/* There and back: what a machine leaves in an image, another machine finds. */
static void through(const char *image, bool shared)
{
	cleanup_free char *file = str_format("%s/memory.0", image), *second = strdup(at("second"));
	struct microvm_layers from, to;
	struct stat original, exported, imported;

	assert_true(file && second);
	layers_init(&from, scratch, "memory");
	make_layer(&from);
	assert_layer(from.paths[0], &original);
	assert_int_equal(layers_export(&from, 1, image, NULL), 0);
	assert_layer(file, &exported);
	assert_int_equal(exported.st_ino == original.st_ino && exported.st_dev == original.st_dev, shared);
	assert_int_equal(dir_make(second, 0700, NULL), 0);
	layers_init(&to, second, "memory");
	assert_int_equal(layers_import(&to, image, 1, NULL), 0);
	assert_layer(to.paths[0], &imported);
	/* Nothing is written over: that would be another machine's. */
	assert_int_equal(layers_export(&from, 1, image, NULL), -1);
	assert_layer(file, &exported);
	layers_drop_newest(&from);
	layers_free(&from);
	layers_free(&to);
	assert_int_equal(dir_remove(second, NULL), 0);
}

static void same_filesystem(void **state)
{
	cleanup_free char *image = strdup(at("image"));

	(void)state;
	assert_int_equal(dir_make(image, 0700, NULL), 0);
	through(image, true);
}

static void another_filesystem(void **state)
{
	struct stat here, there;

	(void)state;
	assert_int_equal(stat(scratch, &here), 0);
	assert_non_null(mkdtemp(elsewhere));
	assert_int_equal(stat(elsewhere, &there), 0);
	if (here.st_dev == there.st_dev) {
		dir_remove(elsewhere, NULL);
		print_message("/tmp and /dev/shm are one filesystem\n");
		skip();
	}
	through(elsewhere, false);
}

static int remove_both(void **state)
{
	dir_remove(elsewhere, NULL);
	return remove_scratch(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(same_filesystem), cmocka_unit_test(another_filesystem) };

	return cmocka_run_group_tests(tests, make_scratch, remove_both);
}
