/*
 * For fuzz targets that unpack: a directory of their own, which is removed at the end, and what must hold.
 */
#ifndef HUSK_FUZZ_PLACE_H
#define HUSK_FUZZ_PLACE_H

#include <stdlib.h>

#include "base/base.h"

static char place[] = "/tmp/husk-fuzz.XXXXXX";

static inline void require(bool condition)
{
	if (!condition)
		abort();
}

static inline void remove_place(void)
{
	dir_remove(place, NULL);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	require(mkdtemp(place) != NULL);
	atexit(remove_place);
	return 0;
}

#endif
