/*
 * The volumes of a supervisor's machine. If the engine can show the volume to the guest as a directory (a share,
 * engine/engine.h), the agent only mounts it. Otherwise the guest mounts it over the agent link: a jailed process serves it
 * (volume/process.h), and a thread here relays. Every wait has a deadline, or ends with the machine.
 */
#ifndef HUSK_SANDBOX_VOLUMES_H
#define HUSK_SANDBOX_VOLUMES_H

#include "supervisor/supervisor.h"

/* Before the image is restored: shows the machine the shares that it had. */
int volumes_show(struct supervisor *s, const char *image, const char *mounts, struct husk_error *err);
/* Mounts the volumes in the row's JSON, before any process of the guest runs. Their state in the image is restored. */
int volumes_begin(struct supervisor *s, const char *mounts, struct husk_error *err);
/* Around a checkpoint, with the link held and the guest frozen: when it returns, no request is in progress. */
int volumes_hold(struct supervisor *s, struct husk_error *err);
void volumes_go_on(struct supervisor *s);
/* Writes what the guest's kernel knows about the volumes into the image, for the machine that continues it. */
int volumes_save(struct supervisor *s, const char *image, struct husk_error *err);
/* The link is down. Waits for no guest and no disk: a process that does not end at once is killed. Other threads may be
 * in one of the calls above, which then fails. */
void volumes_end(struct supervisor *s);

#endif
