/*
 * The verbs of `husk desktop` that people look through; cmd_desktop.c has the others.
 */
#ifndef HUSK_CLI_DESKTOP_VIEW_H
#define HUSK_CLI_DESKTOP_VIEW_H

#include "cli/cli.h"

/* Is this verb one of these: view, record, recordings, control? */
bool desktop_view_has(const char *verb);
/* `words` follow the verb. As the `run` of a command. */
int desktop_view_run(struct cli *cli, const char *sandbox, const char *verb, char **words, int count,
		     struct husk_error *err);

#endif
