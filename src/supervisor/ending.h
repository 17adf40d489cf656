/*
 * The end of a supervised sandbox, once life.h says that it ends; see ending.c.
 */
#ifndef HUSK_ENDING_H
#define HUSK_ENDING_H

#include "supervisor/supervisor.h"

#define ENDING_ANSWER_MS                                                                                               \
	1200 /* how long whoever asked for the end waits for all of it before he is told that it came */

/* Starts the thread that buries it. The main loop calls this once, when an end has begun. */
void ending_start(struct supervisor *s);
/* Kill: ends it, and waits a little for it to be over. CONFLICT: it goes to sleep, ask again. */
int machine_kill(struct supervisor *s, struct husk_error *err);

/* For whoever has the turn. Stops the machine and removes what the engine and the host kept for it. */
void machine_dismantle(struct supervisor *s);
/* New callers learn from the catalog; whoever holds the lock file's name next is not us. */
void machine_give_up_name(struct supervisor *s);

#endif
