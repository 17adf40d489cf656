/*
 * One round of a sync: what changed in the directory and in the sandbox goes to the other side, three-way. For
 * husk_workspace_sync; sync_watch.c decides when there is a round, and which paths it is about.
 */
#ifndef HUSK_WORKSPACE_SYNC_H
#define HUSK_WORKSPACE_SYNC_H

#include "workspace/host.h"
#include "workspace/record.h"

struct sync {
	struct husk *husk;
	const struct husk_sync_options *options;
	struct record record;
	int directory;          /* locked, until the sync ends */
	char *user;             /* who owns the workspace in the guest; NULL: not known */
	char *stage;            /* in the guest; one for each directory of a caller */
	struct names conflicts; /* that are open; each is reported once */
	char mark
		[40]; /* what the guest's file `<stage>.mark` says since the last push; a rewound guest has an older one */
	uint64_t pushes;
	bool unsaved;
	int64_t saved_ms, save_took_ms;
};

/* `paths`: which may have changed, relative, in any order; NULL: all. CONFLICT: a file was changed while it was written, nothing was
 * written to the directory, and another round should follow. */
int sync_round(struct sync *sync, const struct names *paths, struct husk_error *err);
/* Saves the record. Unless `now`, seldom enough that a large one costs little: what is not saved is found equal on both sides by a
 * later sync. */
int sync_save(struct sync *sync, bool now, struct husk_error *err);
/* Gives the guest a new mark. */
int sync_mark(struct sync *sync, struct husk_error *err);
/* CONFLICT: the guest is older than the last push. What the caller had sent meanwhile would look like a removal by the sandbox. */
int sync_check_mark(struct sync *sync, struct husk_error *err);
void sync_note(const struct sync *sync, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* With `watch`: rounds as things change, until the caller ends it. */
int sync_watch(struct sync *sync, struct husk_error *err);

#endif
