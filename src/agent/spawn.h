/*
 * Starting a program in the guest, fast: the child borrows the agent's memory until it has become the program.
 */
#ifndef HUSK_AGENT_SPAWN_H
#define HUSK_AGENT_SPAWN_H

#include "agent/users.h"

struct spawn {
	char *const *argv;
	char *const *environment;
	const char *path;      /* directories to search for argv[0] */
	const char *directory; /* to start in */
	bool directory_must;   /* else / will do when it cannot be entered */
	const struct user *user;
	int stdio[3];    /* -1: as the agent has it, /dev/null */
	bool terminal;   /* stdio[0] is the terminal to take as one's own */
	int group_tasks; /* cgroup file to enter by; -1: none */

	/* filled when the program could not be started: */
	enum { SPAWN_STARTED, SPAWN_FAILED, SPAWN_DIRECTORY, SPAWN_NOT_FOUND, SPAWN_NOT_EXECUTABLE } outcome;
	int error; /* errno */
};

/* The pid of the child, which exists (and must be reaped) whenever it is positive, also when the outcome is bad.
 * -1: not even a child could be made; errno says why. */
pid_t spawn(struct spawn *spawn);

#endif
