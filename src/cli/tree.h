/*
 * Trees of files on the host, to and from tar streams, for `husk cp`. A stream that comes from a sandbox is hostile.
 */
#ifndef HUSK_CLI_TREE_H
#define HUSK_CLI_TREE_H

#include "base/base.h"

/* Called for each thing that is left out, with the reason. */
typedef void (*tree_skipped)(void *data, const char *name, const char *reason);

/* Packs what is inside `path` (entries are relative to it) as a tar into fd, owned by root and with no trace of host
 * users. Sockets and devices are left out, and links that lead outside of it, which the guest would refuse. */
int tree_pack(const char *path, int fd, tree_skipped skipped, void *data, struct husk_error *err);
/* Unpacks the tar from fd into the open directory, less the first component of each name when it is `strip`. Absolute
 * names and ".." are refused; devices, pipes and links that lead outside are left out; setuid bits and owners dropped.
 * It changes the working directory of the calling thread alone. */
int tree_unpack(int fd, int directory, const char *strip, tree_skipped skipped, void *data, struct husk_error *err);

#endif
