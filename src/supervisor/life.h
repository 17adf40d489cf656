/*
 * The life of a supervised sandbox. Only this module knows the state of the sandbox, the steps that are allowed in it,
 * which thread has the turn, when the TTL is over, and that the sandbox ends. All other code takes a turn (life_begin,
 * life_finish) or reads a copy (life_look).
 *
 * Ending wins. life_end kills the machine and marks the end. It waits for nothing, so the thread that keeps time may
 * call it. The thread that has the turn then fails soon, because the machine is dead. A thread that waits for a turn
 * fails at once.
 */
#ifndef HUSK_LIFE_H
#define HUSK_LIFE_H

#include <pthread.h>

#include "engine/engine.h"
#include "store/catalog.h"

/* The steps. life.c has the table: which states a step requires, and which state it leads to. */
enum life_step {
	LIFE_POOL,       /* prepared; waits to be claimed */
	LIFE_START,      /* started for a sandbox that already exists */
	LIFE_CLAIM,      /* taken from the pool */
	LIFE_CHECKPOINT, /* saved while it runs on */
	LIFE_HIBERNATE,
	LIFE_REWIND, /* the machine is replaced by one that continues an older image */
	LIFE_PAUSE,
	LIFE_RESUME,
	LIFE_EGRESS,  /* another policy */
	LIFE_RESIZE,  /* other limits */
	LIFE_EFFECT,  /* a held request is sent */
	LIFE_RELIEVE, /* processes of the guest are killed from outside */
	LIFE_STEPS
};

struct life {
	pthread_mutex_t lock; /* the last of all locks; never held while its thread waits for anything else */
	pthread_cond_t changed;
	int clock_fd; /* a timer on a clock that never stops and is never set; readable when something is due */
	int wake_fd;  /* eventfd: a change that the main loop has to handle */
	char *id; /* a claimed machine gets another id; the old one stays allocated, because other threads may still read it */
	enum catalog_state state;
	bool busy; /* a thread has the turn, for `step` */
	enum life_step step;
	int end_fd; /* readable when the machine has ended; -1: no machine yet */
	const struct engine *engine;
	struct engine_machine *machine; /* to be killed */
	bool ending, over;
	char reason[16];            /* why the sandbox ends; "": the machine never became a sandbox */
	int64_t expires_ms, due_ms; /* by the wall clock, for people; by our clock, which decides. 0: never */
	bool persistent;
	int64_t idle_seconds;
	int64_t idle_ms; /* when the last session ended */
	size_t sessions;
};

/* A copy of the state, for other modules. */
struct life_view {
	const char *id;
	enum catalog_state state;
	bool ending, over;
	bool sleepy; /* the sandbox is being hibernated, or is hibernated */
	char reason[16];
	int64_t expires_ms;
	size_t sessions;
};

int life_open(struct life *life, const char *id, enum catalog_state state, struct husk_error *err);
struct life_view life_look(struct life *life);
/* The id of the sandbox, for messages; from any thread. */
const char *life_id(struct life *life);
int life_rename(struct life *life, const char *id);

/* Waits until no other thread has the turn, then takes it for a step. CONFLICT: not allowed in this state; GONE: the
 * sandbox ends. */
int life_begin(struct life *life, enum life_step step, struct husk_error *err);
/* Called by the thread that has the turn, before it reports success: the step has happened. A later end sees the new
 * state. False: an end came first and wins. */
bool life_commit(struct life *life);
/* Gives the turn back. `done`: the step has happened. */
void life_finish(struct life *life, bool done);
/* Sets the machine that an end has to kill. If the end came first, the machine is killed at once. The machine stays
 * valid until the thread with the turn frees it, after an end or a hibernation. */
void life_arm(struct life *life, const struct engine *engine, struct engine_machine *machine);
/* A descriptor that is readable when the machine has ended; -1: no machine yet. It stays open until the process
 * ends. */
int life_end_fd(struct life *life);

/* Ends the sandbox; the first reason counts. False: too late, because the sandbox is hibernated, or returns to that
 * state after a failed wake. */
bool life_end(struct life *life, const char *reason);
/* For the thread that takes the machine apart: waits for the turn without a limit, and keeps it. */
void life_seize(struct life *life);
/* Everything is done; the process only has to exit. */
void life_set_over(struct life *life);
/* True if the end is complete within that time. */
bool life_wait_over(struct life *life, int timeout_ms);

/* ---- time ---- */

/* expires_ms by the wall clock; 0: never. */
void life_set_expiry(struct life *life, int64_t expires_ms, bool persistent);
void life_set_idle(struct life *life, int64_t idle_seconds);
/* A client came or went. -1: too many clients; one more may not use the guest. */
int life_session(struct life *life, bool begins);

enum life_due { LIFE_NOTHING_DUE, LIFE_EXPIRED, LIFE_IDLE };
/* Returns what is due now, and sets the clock for the next thing. After it was returned, an idle time starts again. */
enum life_due life_due(struct life *life);

#endif
