/*
 * A directory of a test program's own in /tmp, with short ways to use it. Included once, after cmocka.h; make_scratch
 * and remove_scratch are the group's set-up and tear-down.
 */
#ifndef HUSK_TEST_SCRATCH_H
#define HUSK_TEST_SCRATCH_H

#include "base/base.h"

#include <limits.h>
#include <sys/stat.h>

static char scratch[] = "/tmp/husk-test.XXXXXX";

/* A path in the scratch directory; four may be in use at a time. */
static inline const char *at(const char *name)
{
	static char paths[4][PATH_MAX];
	static unsigned next;
	char *path = paths[next++ % ARRAY_SIZE(paths)];

	snprintf(path, PATH_MAX, "%s/%s", scratch, name);
	return path;
}

static inline void put(const char *path, const char *text)
{
	assert_int_equal(file_write_atomic(path, text, strlen(text), 0644, NULL), 0);
}

static inline bool exists(const char *path)
{
	struct stat found;

	return lstat(path, &found) == 0;
}

static int make_scratch(void **state)
{
	(void)state;
	umask(022);
	return mkdtemp(scratch) ? 0 : -1;
}

static int remove_scratch(void **state)
{
	(void)state;
	return dir_remove(scratch, NULL);
}

#endif
