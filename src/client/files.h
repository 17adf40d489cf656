/*
 * A file as the agent describes it: shared by the calls of files.c, diff.c and image_commit.c.
 */
#ifndef HUSK_CLIENT_FILES_H
#define HUSK_CLIENT_FILES_H

#include "husk.h"

/* The fields of an entry (wire.h). The agent is the guest's: a value that makes no sense is a protocol error or 0. */
int file_from_fields(const char *fields, size_t size, struct husk_file *file, struct husk_error *err);

/* From enum wire_entry; what is unknown is HUSK_OTHER. */
enum husk_file_type file_type_of(int64_t type);

struct call;

/* husk_file_read of a whole file in two steps, so that several reads can be under way. `begin` sends the request. `end` receives
 * the file, or the reason why there is none, and frees the call. call_free gives a call up. */
int file_read_begin(struct husk *husk, const char *sandbox, const char *path, struct call **out,
		    struct husk_error *err);
int file_read_end(struct call *call, husk_sink sink, void *data, struct husk_error *err);

/* husk_tar_read with flags of the wire (enum wire_tar_flags). */
int tar_read_flags(struct husk *husk, const char *sandbox, const char *path, int64_t flags, husk_sink sink, void *data,
		   struct husk_error *err);
/* husk_tar_write likewise. */
int tar_write_flags(struct husk *husk, const char *sandbox, const char *path, const char *user, int64_t flags,
		    husk_source source, void *data, struct husk_error *err);

#endif
