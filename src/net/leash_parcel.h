/*
 * Requests on the control socket between supervisor and leash, in both directions. A request may be longer than a packet:
 * its description comes first, as a JSON object with "key" and "size", and its bytes follow in packets that begin with a NUL
 * byte and the key. Both sides take what they receive for hostile: the number of open parcels and their sizes are bounded.
 */
#ifndef HUSK_LEASH_PARCEL_H
#define HUSK_LEASH_PARCEL_H

#include <jansson.h>

#include "base/base.h"

#define PARCELS_MAX 8
#define PARCEL_BODY_MAX (1u << 20)                 /* of a held request */
#define PARCEL_MAX (PARCEL_BODY_MAX + (96u << 10)) /* with its header lines */

struct parcel {
	json_t *head; /* NULL: free */
	uint64_t key;
	size_t size;
	struct buf data;
};
struct parcels {
	struct parcel list[PARCELS_MAX];
};

/* Sends a parcel under the name `kind`: {"kind":{…}}, then its bytes. Sets "key" and "size" of the head. Waits a few
 * seconds for room. */
int parcel_send(int fd, const char *kind, json_t *head, uint64_t key, const char *data, size_t size);
/* The description of a parcel; takes a reference. -1: refused. */
int parcels_begin(struct parcels *parcels, json_t *head);
/* A packet that begins with NUL. The parcel that it completes, or NULL; parcel_drop frees its content. */
struct parcel *parcels_part(struct parcels *parcels, const char *packet, size_t size);
void parcel_drop(struct parcel *parcel);
void parcels_drop(struct parcels *parcels);

#endif
