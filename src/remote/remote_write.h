/*
 * Converts the options of husk.h to the documents that the server reads. NULL with err: a text is not UTF-8, or no
 * memory.
 */
#ifndef HUSK_REMOTE_WRITE_H
#define HUSK_REMOTE_WRITE_H

#include "base/jansson.h"
#include "husk.h"

/* A document that is being built; write_done reports its errors. */
struct writing {
	json_t *to;
	const char *wrong; /* the field whose text is not UTF-8 */
	bool no_memory;
};
void write_begin(struct writing *writing);
/* Each adds nothing for a default value of husk.h: NULL, 0, false. */
void write_text(struct writing *writing, const char *key, const char *value);
void write_number(struct writing *writing, const char *key, int64_t value);
void write_size(struct writing *writing, const char *key, uint64_t value);
void write_bool(struct writing *writing, const char *key, bool value);
void write_json(struct writing *writing, const char *key, json_t *value); /* takes ownership; NULL: no memory */
void write_pairs(struct writing *writing, const char *key, const struct husk_pair *pairs, size_t count);
/* The policy as "egress". -1: the policy cannot be written; the document is freed. */
int write_policy(struct writing *writing, const struct husk_egress *egress, struct husk_error *err);
json_t *write_done(struct writing *writing, struct husk_error *err);

json_t *write_egress(const struct husk_egress *egress, struct husk_error *err);
/* `fork`: omits the options that only a new sandbox has. */
json_t *write_create(const struct husk_create_options *options, bool fork, struct husk_error *err);

#endif
