/*
 * Directories whose changes are noted for listings by time; see follow.c. The agent keeps the notes; a worker that walks the tree has
 * a copy of them, and tells the agent which directories it has seen.
 */
#ifndef HUSK_AGENT_FOLLOW_H
#define HUSK_AGENT_FOLLOW_H

#include "agent/agent.h"

struct noted {
	char *name;
	uint32_t turn; /* the listing before which it was noted */
};

struct followed {
	int number;          /* of the watch */
	char *path;          /* "" for the root */
	uint32_t turn;       /* the listing that has seen it */
	int64_t since_ns;    /* with `whole`: every file in it that was changed after this time is noted */
	bool whole;          /* all of its entries were looked at */
	bool leaf;           /* it had no directories, also not in the template */
	bool young;          /* it was itself changed after `since_ns` */
	struct noted *names; /* sorted */
	size_t count;
};

/* ---- in the agent ---- */

/* Reads what has happened, before a worker is made that lists. False: nothing may be followed or trusted. */
bool follow_begin(struct agent *agent);
/* What a worker tells: one directory that it has seen. */
void follow_note(struct agent *agent, const char *message, size_t size);
/* The worker is over. */
void follow_end(struct agent *agent);
/* Reads the events now and then, so that they do not fill the memory. */
void follow_work(struct agent *agent);
/* When follow_work wants to be called, in time_monotonic_ms; 0: not at a certain time. */
int64_t follow_next_ms(const struct agent *agent);

/* ---- in the worker ---- */

/* The directories in the order of their paths, for follow_find. */
void follow_sort(struct follow *follow);
/* The notes about the root (`above` NULL), or about a directory `name` in one that is trusted; NULL: it is not trusted. */
const struct followed *follow_find(const struct follow *follow, const struct followed *above, const char *name,
				   const char *path);
const struct noted *follow_noted(const struct followed *at, const char *name);

/* A directory that is being looked at, which is to be followed. */
struct note {
	int number; /* -1: it is not to be followed */
	bool leaf, young;
	size_t count;
	struct buf message;
};
void note_free(struct note *note);
/* Before the directory is read. */
void note_begin(struct job *job, const char *path, struct note *note);
/* A file in it that later listings must look at. */
void note_name(struct note *note, const char *name);
/* Tells the agent. Returns true if it was told: only then may directories in it be followed. */
bool note_end(struct job *job, struct note *note, const char *path, bool whole, int64_t since_ns);

#endif
