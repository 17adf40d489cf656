/*
 * Answers FUSE requests of one guest on one volume. The bytes are an attacker's: everything about them is checked here,
 * and what they ask for is done by volume.h beneath the volume's directory. Runs in the jailed process of a volume
 * (process.h), which has one server and one thread.
 */
#ifndef HUSK_VOLUME_FUSE_H
#define HUSK_VOLUME_FUSE_H

#include "volume/volume.h"

#define SERVE_REQUEST_MIN 40u                      /* a header */
#define SERVE_DATA_MAX (128u * 1024u)              /* of one read or write */
#define SERVE_REQUEST_MAX (SERVE_DATA_MAX + 4096u) /* headers and names beside it; the agent reads no longer ones */
#define SERVE_ANSWER_MIN 16u                       /* a header */
#define SERVE_ANSWER_MAX (SERVE_DATA_MAX + 4096u)
#define SERVE_HANDLES_MAX 1024u /* open files of one guest */
#define SERVE_NODES_MAX 131072u /* names that one guest knows */

struct volume_server;

/* Takes the volume over on success. */
int volume_server_open(struct volume *volume, bool read_only, size_t nodes_max, struct volume_server **out,
		       struct husk_error *err);
/* Before the first request: see volume_join. */
int volume_server_join(struct volume_server *server, struct husk_error *err);
void volume_server_free(struct volume_server *server);
/* One request, whole. The size of the answer in `answer` (at least SERVE_ANSWER_MAX bytes), 0: it takes none; -1: the
 * bytes are no request at all, and nothing more should be taken from where they came. */
ssize_t volume_serve(struct volume_server *server, const char *request, size_t size, char *answer);
/* What a guest that is restored will still use, and the same given to the server that takes it over. */
int volume_server_save(const struct volume_server *server, struct buf *out);
int volume_server_load(struct volume_server *server, const char *bytes, size_t size);

#endif
