/*
 * The clients of a supervisor; see session.c.
 */
#ifndef HUSK_SESSION_H
#define HUSK_SESSION_H

#include "supervisor/supervisor.h"

/* Serves one client on its own threads; takes ownership of the descriptor. */
void session_start(struct supervisor *s, int fd);

#endif
