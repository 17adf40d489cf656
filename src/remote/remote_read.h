/*
 * Converts the server's documents to the structures of husk.h, which the free functions of husk.h free. Documents are
 * not trusted: a required field that is missing, or of the wrong type, is PROTOCOL.
 */
#ifndef HUSK_REMOTE_READ_H
#define HUSK_REMOTE_READ_H

#include "base/jansson.h"
#include "husk.h"

/* Reads the fields of one object; errors are reported at the end. */
struct reading {
	const json_t *from;
	const char *wrong; /* the first field that was missing or invalid */
	bool no_memory;
};
char *read_text(struct reading *reading, const char *key); /* NULL: missing, or null */
char *read_needed(struct reading *reading, const char *key);
int64_t read_number(struct reading *reading, const char *key); /* 0: missing */
uint64_t read_count(struct reading *reading, const char *key); /* never negative */
int64_t read_time(struct reading *reading, const char *key);   /* RFC 3339 in UTC to wall clock milliseconds; 0: null */
char **read_texts(struct reading *reading, const char *key);   /* NULL-terminated, never NULL unless out of memory */
int read_done(const struct reading *reading, const char *what, struct husk_error *err);

/* Each NULL with err. */
struct husk_sandbox *read_sandbox(const json_t *document, struct husk_error *err);
struct husk_snapshot *read_snapshot(const json_t *document, struct husk_error *err);
struct husk_checkpoint *read_checkpoint(const json_t *document, struct husk_error *err);
/* "change": "added", "removed" or "changed"; 0: something else. */
enum husk_change_kind read_change_kind(const json_t *document);
/* The files that changed before a checkpoint, if the document has them. -1: no memory. */
int read_changed_files(const json_t *document, struct husk_checkpoint *out);
struct husk_template *read_template(const json_t *document, struct husk_error *err);
struct husk_image *read_image(const json_t *document, struct husk_error *err);
struct husk_volume *read_volume(const json_t *document, struct husk_error *err);
struct husk_token *read_token(const json_t *document, struct husk_error *err);
struct husk_egress *read_egress(const json_t *document, struct husk_error *err);
/* The array "traffic" of a document. */
int read_traffic(const json_t *document, struct husk_egress_traffic **out, size_t *count, struct husk_error *err);
int read_file(const json_t *document, struct husk_file *out, struct husk_error *err);
/* What a changed file was (`old_*`); zeroed if the document does not say. */
int read_before(const json_t *document, struct husk_file *out, struct husk_error *err);

/* The array `key` of a document as a NULL-terminated list; `read` (one of the above) makes each item. -1 with err. */
int read_list(const json_t *document, const char *key, void *(*read)(const json_t *item, struct husk_error *err),
	      void (*drop)(void *item), void ***out, struct husk_error *err);
/* The array `key` itself; NULL with err if it is missing. */
const json_t *read_array(const json_t *document, const char *key, struct husk_error *err);

/* ---- remote_effects.c ---- */

/* The array "effects" of a document. */
int read_effects(const json_t *document, struct husk_effect ***out, struct husk_error *err);

#endif
