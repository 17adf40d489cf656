/*
 * The environment of a process that starts in the guest.
 */
#ifndef HUSK_AGENT_ENVIRONMENT_H
#define HUSK_AGENT_ENVIRONMENT_H

#include "agent/agent.h"
#include "agent/users.h"

/* Defaults, then the template's, then the sandbox's, then the call's pairs (later wins). Caller frees the list. */
char **environment_build(const struct agent *agent, const struct user *user, char *const *call, bool terminal,
			 struct husk_error *err);
/* The value of a variable in a list, or NULL. */
const char *environment_get(char *const *list, const char *key);
/* The lines of a file that read KEY=VALUE; blank lines and # comments are skipped. An absent file is an empty list. */
char **environment_load(const char *path, struct husk_error *err);
/* Takes ownership of the sandbox's pairs, for processes started from now on. A kernel of `run_code` may have started
 * before the sandbox was created, so the pairs are also written to a file for kernels, which only root can read. */
void environment_adopt(struct agent *agent, char **pairs);

#endif
