/*
 * The entry of `husk supervise`, the process that looks after one sandbox. libhusk starts it; people do not.
 */
#ifndef HUSK_SUPERVISE_H
#define HUSK_SUPERVISE_H

#include "supervisor/supervisor.h"

int supervise_main(int argc, char **argv);
/* Listens on the socket of the sandbox that the supervisor looks after now; a claimed machine moves to another. */
int supervisor_listen(struct supervisor *s, struct husk_error *err);

#endif
