/*
 * Requests on the control socket between supervisor and leash, in both directions. A request may be longer than a
 * packet: its description comes first, as a JSON object with "key" and "size", and its bytes follow in packets that
 * begin with a NUL byte and the key. A sender sends one parcel after another, so a new description ends a parcel that
 * was cut short. Both sides treat what they receive as hostile: sizes are bounded.
 */
#ifndef HUSK_LEASH_PARCEL_H
#define HUSK_LEASH_PARCEL_H

#include <jansson.h>

#include "base/base.h"

#define PARCEL_TARGET_MAX (8u << 10) /* of a held request: its path and query */
#define PARCEL_BODY_MAX (1u << 20)
#define PARCEL_MAX (PARCEL_BODY_MAX + (96u << 10)) /* with its header lines */

struct parcel {
	json_t *head; /* NULL: free */
	uint64_t key;
	size_t size;
	struct buf data;
};

/* Sends a parcel under the name `kind`: {"kind":{…}}, then its bytes. Sets "key" and "size" of the head. Waits a few
 * seconds for room. */
int parcel_send(int fd, const char *kind, json_t *head, uint64_t key, const char *data, size_t size);
/* The description of a parcel; takes a reference. Drops one that is not complete. -1: refused. */
int parcel_begin(struct parcel *parcel, json_t *head);
/* A packet that begins with NUL. True if it completes the parcel; parcel_drop frees the content. */
bool parcel_part(struct parcel *parcel, const char *packet, size_t size);
void parcel_drop(struct parcel *parcel);

#endif
