/*
 * Where an instance keeps its things: that the directories are made and private, that one instance has one name however
 * it is spelled, and that a home which cannot work is refused before anything is made.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "store/paths.h"

struct world {
	char directory[32];
	struct paths paths;
	struct husk_error err;
};

static int set_up(void **state)
{
	struct world *w = calloc(1, sizeof *w);

	assert_non_null(w);
	strcpy(w->directory, "/tmp/husk-paths-XXXXXX");
	assert_non_null(mkdtemp(w->directory));
	*state = w;
	return 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;

	paths_close(&w->paths);
	assert_int_equal(dir_remove(w->directory, &w->err), 0);
	free(w);
	return 0;
}

static void is(char *path, const char *prefix, const char *rest)
{
	cleanup_free char *expected = str_format("%s/%s", prefix, rest);

	assert_non_null(path);
	assert_string_equal(path, expected);
	free(path);
}

static void makes_private_directories(void **state)
{
	static const char *const names[] = { "",      "run",       "run/runtime", "templates",
					     "cache", "snapshots", "sandboxes",   "machines" };
	struct world *w = *state;
	cleanup_free char *home = str_format("%s/deep/home", w->directory);

	assert_int_equal(paths_open(home, &w->paths, &w->err), 0);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		cleanup_free char *path = str_format("%s/%s", home, names[i]);
		struct stat st;

		assert_int_equal(stat(path, &st), 0);
		assert_true(S_ISDIR(st.st_mode));
		assert_int_equal(st.st_mode & 0777, 0700);
	}
}

static void spells_every_path(void **state)
{
	struct world *w = *state;
	const char *home = w->directory;

	assert_int_equal(paths_open(home, &w->paths, &w->err), 0);
	assert_string_equal(w->paths.home, home);
	is(strdup(w->paths.run), home, "run");
	is(strdup(w->paths.runtime), home, "run/runtime");
	is(path_catalog(&w->paths), home, "catalog.db");
	is(path_template(&w->paths, "d1"), home, "templates/d1");
	is(path_rootfs(&w->paths, "d1"), home, "templates/d1/rootfs.img");
	is(path_snapshot(&w->paths, "sn-1"), home, "snapshots/sn-1");
	is(path_sandbox(&w->paths, "sb-1"), home, "sandboxes/sb-1");
	is(path_machine(&w->paths, 7), home, "machines/7");
	is(path_socket(&w->paths, "sb-1"), home, "run/sb-1.sock");
	is(path_lock(&w->paths, "sb-1"), home, "run/sb-1.lock");
}

static void one_instance_has_one_scope(void **state)
{
	struct world *w = *state;
	cleanup_free char *link = str_format("%s/link", w->directory), *home = str_format("%s/home", w->directory);
	cleanup_free char *other = str_format("%s/other", w->directory);
	struct paths again = { 0 };

	assert_int_equal(symlink("home", link), 0);
	assert_int_equal(paths_open(home, &w->paths, &w->err), 0);
	assert_int_equal(strlen(w->paths.scope), 8);
	assert_int_equal(strspn(w->paths.scope, "0123456789abcdef"), 8);
	assert_int_equal(paths_open(link, &again, &w->err), 0);
	assert_string_equal(again.scope, w->paths.scope);
	assert_string_equal(again.home, home);
	paths_close(&again);
	assert_int_equal(paths_open(other, &again, &w->err), 0);
	assert_string_not_equal(again.scope, w->paths.scope);
	paths_close(&again);
}

static void environment_names_the_home(void **state)
{
	struct world *w = *state;
	const char *set = getenv("HUSK_HOME");
	cleanup_free char *before = set ? strdup(set) : NULL;

	assert_int_equal(setenv("HUSK_HOME", w->directory, 1), 0);
	assert_int_equal(paths_open(NULL, &w->paths, &w->err), 0);
	assert_string_equal(w->paths.home, w->directory);
	assert_int_equal(before ? setenv("HUSK_HOME", before, 1) : unsetenv("HUSK_HOME"), 0);
}

static void refuses_what_cannot_work(void **state)
{
	struct world *w = *state;
	cleanup_free char *lengthy =
		str_format("%s/a-home-that-is-so-far-down-that-no-socket-in-it-could-be-bound", w->directory);
	cleanup_free char *file = str_format("%s/file", w->directory), *shared = str_format("%s/shared", w->directory);

	assert_int_equal(paths_open(lengthy, &w->paths, &w->err), -1);
	assert_int_equal(w->err.code, HUSK_INVALID);
	assert_non_null(strstr(w->err.message, "shorter"));
	assert_int_equal(access(lengthy, F_OK), -1); /* nothing was made */

	assert_int_equal(file_write_atomic(file, "", 0, 0600, &w->err), 0);
	assert_int_equal(paths_open(file, &w->paths, &w->err), -1);
	assert_non_null(strstr(w->err.message, file));

	assert_int_equal(mkdir(shared, 0700), 0);
	assert_int_equal(chmod(shared, 0777), 0);
	assert_int_equal(paths_open(shared, &w->paths, &w->err), -1);
	assert_non_null(strstr(w->err.message, "chmod go-w"));
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(makes_private_directories),  TEST(spells_every_path),        TEST(one_instance_has_one_scope),
		TEST(environment_names_the_home), TEST(refuses_what_cannot_work),
	};

	return cmocka_run_group_tests_name("paths", tests, NULL, NULL);
}
