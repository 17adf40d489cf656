/*
 * Finds the files that are shipped with Husk: beside the program in a build tree, or where they were installed. Called
 * by the store (templates, guest files) and by engines (husk-vmm, the guest kernel). This file creates nothing.
 */
#include <limits.h>

#include "base/base.h"

#ifndef HUSK_PREFIX
#define HUSK_PREFIX "/usr/local"
#endif

char **place_list(void)
{
	const char *given = getenv("HUSK_LIBDIR");
	char program[PATH_MAX];
	cleanup_strv char **places = NULL;
	/* An installation beside the program, then a build tree (build/husk, build/asan/husk, build/tests/…). In this order,
	 * because the folder above a virtual environment is somebody's project, which may have a folder "templates". */
	static const char *const near[] = { "", "/../lib/husk", "/../share/husk", "/..", "/../.." };
	/* For a program elsewhere that embeds libhusk: the prefix of the build, then the directories of packages. */
	static const char *const installed[] = { HUSK_PREFIX "/lib/husk", HUSK_PREFIX "/share/husk", HUSK_PREFIX "/bin",
						 "/usr/lib/husk", "/usr/share/husk" };
	ssize_t size;

	if (given && given[0] && strv_add(&places, given) < 0)
		return NULL;
	size = readlink("/proc/self/exe", program, sizeof(program) - 1);
	if (size > 0) {
		program[size] = '\0';
		*strrchr(program, '/') = '\0';
		for (size_t i = 0; i < ARRAY_SIZE(near); i++) {
			cleanup_free char *place = str_format("%s%s", program, near[i]);
			if (!place || strv_add(&places, place) < 0)
				return NULL;
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(installed); i++)
		if (strv_add(&places, installed[i]) < 0)
			return NULL;
	return steal_pointer(places);
}

char *place_find(const char *name)
{
	cleanup_strv char **places = place_list();

	for (char **place = places; place && *place; place++) {
		cleanup_free char *path = str_format("%s/%s", *place, name);
		if (path && access(path, F_OK) == 0)
			return realpath(path, NULL);
	}
	return NULL;
}

int place_missing(const char *name, struct husk_error *err)
{
	return husk_fail(
		err, HUSK_UNAVAILABLE,
		"'%s', which comes with husk, is neither beside the program nor installed; install the package "
		"husk, run 'make install', or set HUSK_LIBDIR",
		name);
}
