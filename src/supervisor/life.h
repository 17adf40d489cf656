/*
 * The life of a supervised sandbox: the one place that knows which state it is in, what may be asked of it there, whose
 * turn it is, when its time is over, and that it ends. Everybody else takes a turn (life_begin, life_finish) or reads a
 * copy (life_look).
 *
 * Ending wins. life_end kills the machine and marks the end; it waits for nothing, so
 * that the thread that keeps time may call it. Whoever has the turn then fails soon, because the machine is dead, and
 * whoever waits for a turn fails at once.
 */
#ifndef HUSK_LIFE_H
#define HUSK_LIFE_H

#include <pthread.h>

#include "engine/engine.h"
#include "store/catalog.h"

/* What can be asked for; life.c has the table of the states each needs and leads to. */
enum life_step {
	LIFE_POOL,       /* prepared, and waiting to be claimed */
	LIFE_START,      /* made for a sandbox that exists already */
	LIFE_CLAIM,      /* taken from the pool */
	LIFE_CHECKPOINT, /* saved while it runs on */
	LIFE_HIBERNATE,
	LIFE_REWIND, /* its machine let go for one that continues an older image */
	LIFE_PAUSE,
	LIFE_RESUME,
	LIFE_EGRESS,  /* another policy */
	LIFE_RELIEVE, /* its processes killed from outside */
	LIFE_STEPS
};

struct life {
	pthread_mutex_t lock; /* the last of all locks; never held while anybody waits for anything else */
	pthread_cond_t changed;
	int clock_fd; /* a timer on the clock that neither stands still nor is set: readable when something is due */
	int wake_fd;  /* eventfd: something changed that the main loop has to see */
	char *id;     /* a claimed machine gets another; the old one stays allocated, for those who still read it */
	enum catalog_state state;
	bool busy; /* somebody has the turn: `step` */
	enum life_step step;
	int end_fd; /* readable when the machine has ended; -1: there is none yet */
	const struct engine *engine;
	struct engine_machine *machine; /* to be killed */
	bool ending, over;
	char reason[16];            /* why it ends; "": it never became a sandbox */
	int64_t expires_ms, due_ms; /* by the wall clock, for people; by ours, which counts. 0: never */
	bool persistent;
	int64_t idle_seconds;
	int64_t idle_ms; /* when the last session ended */
	size_t sessions;
};

/* A copy of what others may want to know. */
struct life_view {
	const char *id;
	enum catalog_state state;
	bool ending, over;
	bool sleepy; /* it is falling asleep, or has */
	char reason[16];
	int64_t expires_ms;
	size_t sessions;
};

int life_open(struct life *life, const char *id, enum catalog_state state, struct husk_error *err);
struct life_view life_look(struct life *life);
/* The sandbox's id: for messages, from any thread. */
const char *life_id(struct life *life);
int life_rename(struct life *life, const char *id);

/* Takes the turn for a step, once nobody else has it. CONFLICT: not in this state; GONE: it ends. */
int life_begin(struct life *life, enum life_step step, struct husk_error *err);
/* Whoever has the turn, before he tells anybody: the step has happened. An end after it finds the new state; one that came
 * before it wins: false. */
bool life_commit(struct life *life);
/* Gives the turn back. `done`: the step has happened. */
void life_finish(struct life *life, bool done);
/* The machine that the end has to kill: at once, when the end came first. It is there until whoever has the turn frees it,
 * after an end or a sleep. */
void life_arm(struct life *life, const struct engine *engine, struct engine_machine *machine);
/* A descriptor that is readable when the machine has ended; -1: there is none yet. Open for as long as we are. */
int life_end_fd(struct life *life);

/* Ends it; the first reason counts. False: too late, it has gone to sleep, or goes back to it because its wake failed. */
bool life_end(struct life *life, const char *reason);
/* For whoever takes the machine apart: waits for the turn for as long as it takes, and keeps it. */
void life_seize(struct life *life);
/* Nothing is left but to exit. */
void life_set_over(struct life *life);
/* True when it is over within that time. */
bool life_wait_over(struct life *life, int timeout_ms);

/* ---- time ---- */

/* expires_ms by the wall clock; 0: never. */
void life_set_expiry(struct life *life, int64_t expires_ms, bool persistent);
void life_set_idle(struct life *life, int64_t idle_seconds);
/* A client came or went; -1: there are too many for one more that wants to talk to the guest. */
int life_session(struct life *life, bool begins);

enum life_due { LIFE_NOTHING_DUE, LIFE_EXPIRED, LIFE_IDLE };
/* What is due now; sets the clock for what comes next. An idle time that is told starts anew. */
enum life_due life_due(struct life *life);

#endif
