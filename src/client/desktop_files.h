/*
 * The directories of recordings: shared by desktop_record.c, which fills one, and desktop_files.c, which lists, reads and
 * removes them.
 */
#ifndef HUSK_CLIENT_DESKTOP_FILES_H
#define HUSK_CLIENT_DESKTOP_FILES_H

#include "instance/instance.h"

#define RECORDINGS_MAX 64 /* of one sandbox */

/* The id of a sandbox that lives, which the caller frees; GONE if it has ended. */
int recording_sandbox(struct husk *husk, const char *sandbox, char **id, struct husk_error *err);
/* A new directory, with its id; the caller frees both. It may take this many bytes. LIMIT: there are too many, or they take too
 * much. */
int recording_make(struct husk *husk, const char *sandbox_id, uint64_t bytes, char **id, char **directory,
		   struct husk_error *err);
/* It is given up. */
void recording_drop(struct husk *husk, const char *id, const char *directory);
/* One recording, which the caller frees. */
int recording_get(struct husk *husk, const char *sandbox, const char *id, struct husk_recording **out,
		  struct husk_error *err);
/* Writes `about`. */
int recording_describe(const char *directory, const struct husk_recording *recording, struct husk_error *err);

#endif
