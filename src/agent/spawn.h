/*
 * Starts a program in the guest, fast: the child uses the agent's memory until exec.
 */
#ifndef HUSK_AGENT_SPAWN_H
#define HUSK_AGENT_SPAWN_H

#include "agent/users.h"

struct spawn {
	char *const *argv;
	char *const *environment;
	const char *path;      /* directories to search for argv[0] */
	const char *directory; /* working directory */
	bool directory_must;   /* if false, / is used when the directory cannot be entered */
	const struct user *user;
	int stdio[3];    /* -1: inherited from the agent, /dev/null */
	bool terminal;   /* stdio[0] becomes the controlling terminal */
	int group_tasks; /* file through which the child enters its control group; -1: none */

	/* set if the program could not be started: */
	enum { SPAWN_STARTED, SPAWN_FAILED, SPAWN_DIRECTORY, SPAWN_NOT_FOUND, SPAWN_NOT_EXECUTABLE } outcome;
	int error; /* errno */
};

/* Returns the pid of the child, which must be reaped even if the outcome is a failure. -1 with errno: no child could be
 * made. */
pid_t spawn(struct spawn *spawn);

#endif
