/*
 * Answers FUSE requests of one guest on one volume. The bytes are untrusted: they are checked here, and volume.h
 * carries the requests out beneath the volume's directory. Runs in the jailed process of a volume (process.h), which
 * has one server and one thread.
 */
#ifndef HUSK_VOLUME_FUSE_H
#define HUSK_VOLUME_FUSE_H

#include "volume/volume.h"

#define SERVE_REQUEST_MIN 40u                      /* a header */
#define SERVE_DATA_MAX (128u * 1024u)              /* per read or write */
#define SERVE_REQUEST_MAX (SERVE_DATA_MAX + 4096u) /* plus headers and names; the agent reads no longer requests */
#define SERVE_ANSWER_MIN 16u                       /* a header */
#define SERVE_ANSWER_MAX (SERVE_DATA_MAX + 4096u)
#define SERVE_HANDLES_MAX 1024u /* open files of one guest */
#define SERVE_NODES_MAX 131072u /* names that one guest may know */

struct volume_server;

/* Takes ownership of the volume on success. */
int volume_server_open(struct volume *volume, bool read_only, size_t nodes_max, struct volume_server **out,
		       struct husk_error *err);
/* Called before the first request; see volume_join. */
int volume_server_join(struct volume_server *server, struct husk_error *err);
void volume_server_free(struct volume_server *server);
/* Handles one complete request. Returns the size of the answer in `answer` (at least SERVE_ANSWER_MAX bytes); 0: the
 * request has no answer; -1: the bytes are not a request, and the caller should read no more from that guest. */
ssize_t volume_serve(struct volume_server *server, const char *request, size_t size, char *answer);
/* Saves the state that a restored guest will still use; the second function gives it to the new server. */
int volume_server_save(const struct volume_server *server, struct buf *out);
int volume_server_load(struct volume_server *server, const char *bytes, size_t size);

#endif
