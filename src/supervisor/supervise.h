/*
 * The entry of `husk supervise`, the process that supervises one sandbox. libhusk starts it; people do not.
 */
#ifndef HUSK_SUPERVISE_H
#define HUSK_SUPERVISE_H

#include "supervisor/supervisor.h"

int supervise_main(int argc, char **argv);
/* Listens on the socket of the current sandbox; a claimed machine moves to another sandbox. */
int supervisor_listen(struct supervisor *s, struct husk_error *err);

#endif
