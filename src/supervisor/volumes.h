/*
 * The volumes of a supervisor's machine: mounted in the guest over the agent link, each served by a jailed process of its own
 * (volume/process.h) with a thread here that relays. Every wait has a deadline, or ends with the machine.
 */
#ifndef HUSK_SANDBOX_VOLUMES_H
#define HUSK_SANDBOX_VOLUMES_H

#include "supervisor/supervisor.h"

/* Mounts what the row's JSON names, before any process of the guest runs. What the image says about them is taken up. */
int volumes_begin(struct supervisor *s, const char *mounts, struct husk_error *err);
/* Around a checkpoint, with the link held and the guest frozen: no request is under way once it returns. */
int volumes_hold(struct supervisor *s, struct husk_error *err);
void volumes_go_on(struct supervisor *s);
/* What the guest's kernel knows of them, into the image, for whoever takes it up. */
int volumes_save(struct supervisor *s, const char *image, struct husk_error *err);
/* The link is down. Waits for no guest and no disk: a process that does not end at once is killed. Others may be in one of
 * the calls above, which then fails. */
void volumes_end(struct supervisor *s);

#endif
