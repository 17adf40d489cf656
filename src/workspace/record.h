/*
 * What is remembered of a workspace: which directory of the caller was brought into which path of a sandbox, and each file as it
 * was then (its "base"). It is kept on the caller's side, because the guest is hostile: a base that the guest could change would
 * let it hide a change, or make a change of the caller look like one of its own.
 *
 *     <directory>/<sandbox>.workspace    the entries: type, mode, SHA-256; inode and time of the copy in the guest
 *     <directory>/<first>.pack           the content of files that can be merged as text; only appended to
 *
 * <directory> is <home>/workspaces, or for a sandbox of a server the caller's ~/.local/state/husk/workspaces. A fork has the
 * record of the sandbox that it came from, until something of its own is applied.
 */
#ifndef HUSK_WORKSPACE_RECORD_H
#define HUSK_WORKSPACE_RECORD_H

#include "instance/instance.h"
#include "workspace/threeway.h"

struct record_entry {
	char *path; /* relative to both directories */
	struct version
		version; /* type 0: the sandbox removed it, and that was applied; after a rewind it is there again */
	int64_t inode, ctime_ns; /* of the copy in the guest, when it was as `version`; 0: unknown */
	int64_t offset;          /* of the content in the pack; -1: not kept */
};

struct record {
	char *sandbox;                /* its id */
	char *directory;              /* of the caller, absolute, without links */
	char *path;                   /* in the guest, absolute, without '/' at its end */
	char *pack;                   /* the name of the file */
	bool all;                     /* files that git ignores belong to it too */
	int64_t since_ns;             /* the guest's time when all was in: what is older was brought in */
	int64_t root;                 /* the inode of `path` in the guest then */
	char *home;                   /* where the record is */
	struct record_entry *entries; /* sorted by listing_compare */
	size_t count, room;
};
void record_free(struct record *record);
#define cleanup_record cleanup(record_free)

/* A new, empty record of a sandbox. Records of sandboxes that have ended are removed. */
int record_begin(struct husk *husk, const char *id, struct record *out, struct husk_error *err);
/* The record of the sandbox (id or name), or of the nearest one that it was forked from. NOT_FOUND: there is none. */
int record_open(struct husk *husk, const char *sandbox, struct record *out, struct husk_error *err);
/* Replaces the record of the sandbox as a whole. */
int record_save(struct record *record, struct husk_error *err);
/* The entry of a path, or NULL. Valid while the entries are sorted and unchanged. */
struct record_entry *record_find(const struct record *record, const char *path);
/* The index of the first entry that is not before this path. */
size_t record_lower(const struct record *record, const char *path);
/* Appends an empty entry; the path is copied. */
struct record_entry *record_add(struct record *record, const char *path, struct husk_error *err);
void record_sort(struct record *record);
/* Keeps content, if it is text that can be merged; sets the offset of the entry. */
int record_keep(struct record *record, struct record_entry *entry, struct text content, struct husk_error *err);
/* The content that was kept. 1: in *out; 0: it was not kept. */
int record_content(const struct record *record, const struct record_entry *entry, struct buf *out,
		   struct husk_error *err);

#endif
