/*
 * What is kept of what a leash saw: the newest events and the bytes per destination. It lives in the supervisor, so it
 * outlives the leash process, and as text in the sandbox's directory while the sandbox hibernates.
 */
#ifndef HUSK_LEASH_RECORD_H
#define HUSK_LEASH_RECORD_H

#include <jansson.h>

#include "net/leash.h"

struct leash_record;

struct leash_record *leash_record_new(
	const char *saved); /* NULL without memory; a text it cannot read counts as none */
void leash_record_free(struct leash_record *record);
/* Of the process's messages; both bounded. The process is the less trusted side: anything odd is left out. */
void leash_record_event(struct leash_record *record, json_t *event, json_int_t count);
void leash_record_traffic(struct leash_record *record, json_t *list);
uint64_t leash_record_bytes(const struct leash_record *record); /* both ways */
void leash_record_totals(const struct leash_record *record, struct leash_totals *out);
json_t *leash_record_traffic_json(const struct leash_record *record); /* new reference */
char *leash_record_log(const struct leash_record *record, size_t limit);
char *leash_record_text(const struct leash_record *record);

#endif
