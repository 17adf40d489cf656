/*
 * Credentials in git's configuration. A workspace takes .git along, and .git/config may hold what opens the caller's
 * repositories: those stay at home.
 *
 *     url = https://ada:ghp_x@example.com/r.git      url = https://example.com/r.git
 *     extraheader = Authorization: Basic …           the line is left out
 *     url = ssh://git@example.com/r.git              stays: the name is no secret
 */
#ifndef HUSK_WORKSPACE_REDACT_H
#define HUSK_WORKSPACE_REDACT_H

#include "base/base.h"

/* True for the configuration of a repository: ".git/config", ".git/modules/x/config", ".git/worktrees/x/config.worktree". */
bool redact_applies(const char *path);
/* Appends the text without credentials to `out`. Returns 1 if something was left out, 0 if not, -1: no memory. */
int redact_config(const char *text, size_t size, struct buf *out);

#endif
