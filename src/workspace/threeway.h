/*
 * Three versions of a path: `base` (what both sides started from), `ours` (the side that is written to) and `theirs` (the side
 * that the changes come from). Decides what becomes of the path, and merges text. Used to apply a workspace to a directory of
 * the caller, and to merge two sandboxes. It reads no machine and writes no file.
 */
#ifndef HUSK_WORKSPACE_THREEWAY_H
#define HUSK_WORKSPACE_THREEWAY_H

#include "base/base.h"
#include "husk.h"

#define VERSION_HASH 65             /* SHA-256 in hex, with NUL */
#define VERSION_TEXT_MAX (1u << 20) /* a larger file is not merged as text */
#define VERSION_MODE 0777           /* the bits of a mode that are compared and carried over; never set-uid */

struct version {
	enum husk_file_type type; /* 0: there is nothing */
	uint32_t mode;
	uint64_t size;
	char hash[VERSION_HASH]; /* of a file */
	char *target;            /* of a symbolic link */
};
void version_free(struct version *version);
int version_copy(const struct version *from, struct version *to, struct husk_error *err);
bool version_same(const struct version *a, const struct version *b);

enum verdict {
	VERDICT_SAME = 1, /* ours is as theirs, or theirs has not changed: nothing to do */
	VERDICT_TAKE,     /* ours becomes theirs; a file gets `mode` */
	VERDICT_MODE,     /* ours keeps its content and gets `mode` */
	VERDICT_MERGE,    /* two changed files: their text is to be merged; the result gets `mode` */
	VERDICT_CONFLICT, /* `why` */
};
struct decision {
	enum verdict verdict;
	uint32_t mode;
	const char *why; /* one phrase; "here" is our side, "in the sandbox" is their side */
};
struct decision threeway_decide(const struct version *base, const struct version *ours, const struct version *theirs);

struct text {
	const char *data;
	size_t size;
};
/* Can the content be merged line by line? Not with a NUL byte in it. */
bool text_is_plain(struct text text);
/* Merges with diff3(1), which runs without privileges. 0: *out is the merged text; 1: the same with conflict markers, named by
 * the two labels. */
int text_merge(struct text base, struct text ours, struct text theirs, const char *our_label, const char *their_label,
	       struct buf *out, struct husk_error *err);

#endif
