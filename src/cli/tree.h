/*
 * Trees of files on the host, to and from tar streams, for `husk cp`. A stream that comes from a sandbox is hostile.
 */
#ifndef HUSK_CLI_TREE_H
#define HUSK_CLI_TREE_H

#include "base/base.h"

/* Called for each entry that is left out, with the reason. */
typedef void (*tree_skipped)(void *data, const char *name, const char *reason);

/* Packs the content of `path` (entries are relative to it) as a tar into fd, owned by root and without names of host
 * users. Sockets, devices and links that lead outside are left out; the guest would refuse them. */
int tree_pack(const char *path, int fd, tree_skipped skipped, void *data, struct husk_error *err);
/* Unpacks the tar from fd into the open directory, without the first component of each name if it is `strip`. Absolute
 * names and ".." are refused; devices, pipes and links that lead outside are left out; setuid bits and owners are
 * dropped. Changes the working directory of the calling thread only. */
int tree_unpack(int fd, int directory, const char *strip, tree_skipped skipped, void *data, struct husk_error *err);

#endif
