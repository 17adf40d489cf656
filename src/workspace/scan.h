/*
 * What a sandbox did to its workspace: the paths that differ from the record, each with its content, which is copied out of the
 * guest before anything is decided. Everything here comes from the guest and is bounded.
 */
#ifndef HUSK_WORKSPACE_SCAN_H
#define HUSK_WORKSPACE_SCAN_H

#include "workspace/host.h"
#include "workspace/record.h"

struct work_item {
	char *path;            /* relative, and one that may be written (name_refused) */
	struct version base;   /* of the record */
	struct version theirs; /* of the guest; a file's content is the file `number` of the stage */
	bool recorded;         /* the record has an entry for the path */
	size_t number;
	int64_t inode, ctime_ns;
};

struct work {
	struct work_item *items; /* sorted by listing_compare */
	size_t count, room;
	/* Paths that stay in the sandbox, and why; the two lists have the same length. */
	char **left_out, **reasons;
	size_t ignored; /* new files that git ignores on the caller's side */
	uint64_t bytes;
};
void work_free(struct work *work);
#define cleanup_work cleanup(work_free)

/* Copies contents into the directory `stage`, as files named by numbers, with at most `limit` bytes in total. Entries of the record
 * that were only touched get their new times. GONE: the sandbox no longer has the directory. */
int work_scan(struct husk *husk, struct record *record, int stage, uint64_t limit, struct work *out,
	      struct husk_error *err);
/* The same for some paths, sorted by listing_compare, and what is below them. */
int work_scan_paths(struct husk *husk, struct record *record, const struct names *paths, int stage, uint64_t limit,
		    struct work *out, struct husk_error *err);
/* The content of a file of the stage, if it can be merged as text: 1 with *out, otherwise 0. */
int stage_text(int stage, size_t number, struct buf *out, struct husk_error *err);

#endif
