/*
 * The files that a machine has changed, as its agent lists them: one entry for each path that differs from the template.
 * Used to compare two machines (diff.c), and a machine with a directory of the caller (workspace/). The lists come from
 * the guest.
 */
#ifndef HUSK_CLIENT_LISTING_H
#define HUSK_CLIENT_LISTING_H

#include "instance/instance.h"

struct listed {
	struct husk_change change;
	int64_t inode, ctime_ns; /* for listing_untouched */
	int64_t began_ns;        /* when the machine was made; 0: not known */
};

struct listing {
	struct husk *husk;
	const char *sandbox;
	struct listed *entries; /* sorted by listing_compare */
	size_t count, room, bytes;
	bool exact; /* by time: the agent understands several paths, and lists a change of / itself */
};

/* `path`: this path and what is below; NULL: everything. `all`: also what the template had when its sandboxes start.
 * LIMIT: more than a million entries. */
int listing_load(struct listing *listing, const char *path, bool all, struct husk_error *err);
/* The paths that were touched after this time (in the guest), also a directory in which a name was added or removed. An
 * older agent lists everything. A file that was moved here with its directory keeps its time: only the directory is
 * listed. */
int listing_load_since(struct listing *listing, const char *path, int64_t since_ns, struct husk_error *err);
/* Two machines at the same time, added to what is listed already. `paths` NULL: everything; `since_ns` -1: not by time, but all. */
int listing_load_both(struct listing *a, struct listing *b, char *const *paths, int64_t since_ns,
		      struct husk_error *err);
/* Takes the entry of another listing, which is empty then. */
int listing_take(struct listing *listing, struct listed *entry, struct husk_error *err);
void listing_free(struct listing *listing);
#define cleanup_listing cleanup(listing_free)
/* True: nothing has touched this file in either machine since they were one. */
bool listing_untouched(const struct listed *a, const struct listed *b);
/* As strcmp, but '/' comes first: what is below a directory follows it at once. */
int listing_compare(const char *a, const char *b);

#endif
