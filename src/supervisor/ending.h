/*
 * The end of a supervised sandbox, once life.h says that it ends; see ending.c.
 */
#ifndef HUSK_ENDING_H
#define HUSK_ENDING_H

#include "supervisor/supervisor.h"

#define ENDING_ANSWER_MS                                                                                               \
	1200 /* how long the caller that asked for the end waits for all of it before it gets the answer */

/* Starts the thread that takes the sandbox apart. The main loop calls this once, when an end has begun. */
void ending_start(struct supervisor *s);
/* Kill: ends the sandbox and waits a moment until it is over. CONFLICT: the sandbox is being hibernated; try again. */
int machine_kill(struct supervisor *s, struct husk_error *err);

/* For the thread that has the turn. Stops the machine and removes everything that the engine and the host kept for
 * it. */
void machine_dismantle(struct supervisor *s);

#endif
