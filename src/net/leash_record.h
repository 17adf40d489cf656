/*
 * The record of a leash: its newest events and requests, and the bytes per destination. It is kept in the supervisor, so it outlives
 * the leash process. While the sandbox hibernates, it is a text in the sandbox's directory.
 */
#ifndef HUSK_LEASH_RECORD_H
#define HUSK_LEASH_RECORD_H

#include <jansson.h>

#include "net/leash.h"

struct leash_record;

struct leash_record *leash_record_new(const char *saved); /* NULL without memory; an unreadable text is ignored */
void leash_record_free(struct leash_record *record);
/* From messages of the process; both bounded. The process is less trusted: malformed parts are ignored. */
void leash_record_event(struct leash_record *record, json_t *event, json_int_t count);
void leash_record_traffic(struct leash_record *record, json_t *list);
/* A request that left, and how many before it are not known. */
void leash_record_request(struct leash_record *record, const json_t *request, json_int_t missed);
json_t *leash_record_requests_json(const struct leash_record *record); /* as leash_requests; new reference */
uint64_t leash_record_bytes(const struct leash_record *record);        /* both ways */
void leash_record_totals(const struct leash_record *record, struct leash_totals *out);
json_t *leash_record_traffic_json(const struct leash_record *record); /* new reference */
char *leash_record_log(const struct leash_record *record, size_t limit);
char *leash_record_text(const struct leash_record *record);

#endif
