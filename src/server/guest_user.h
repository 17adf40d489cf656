/*
 * The user that a dialect's clients expect inside a sandbox, and paths relative to that user.
 */
#ifndef HUSK_SERVER_GUEST_USER_H
#define HUSK_SERVER_GUEST_USER_H

#include "husk.h"

/* Makes user `name` inside the sandbox unless the sandbox has that user. `first` is a shell script that runs before (NULL: none).
 * *home is the user's home directory, which the caller frees; `home` may be NULL. UNAVAILABLE: the user could not be made. */
int guest_user_make(struct husk *husk, const char *sandbox, const char *name, const char *first, char **home,
		    struct husk_error *err);

/* Removes ".", ".." and doubled slashes from an absolute path, in place. The guest follows links. */
void guest_path_clean(char *path);
/* Resolves `path` for the user: relative paths and "~/" begin at `home`. Cleaned; the caller frees it. */
int guest_path_join(const char *home, const char *path, char **out, struct husk_error *err);

#endif
