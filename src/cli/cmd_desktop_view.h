/*
 * The verbs of `husk desktop` for the live view, control, recordings and profiles; cmd_desktop.c has the others.
 */
#ifndef HUSK_CLI_DESKTOP_VIEW_H
#define HUSK_CLI_DESKTOP_VIEW_H

#include "cli/cli.h"

/* Is this verb one of these: view, record, recordings, control, profile? */
bool desktop_view_has(const char *verb);
/* What was typed. */
struct desktop_view {
	const char *sandbox, *verb;
	char **words; /* after the verb */
	int count;
	const char *format, *output; /* options; NULL: not given */
};
/* As the `run` of a command. */
int desktop_view_run(struct cli *cli, const struct desktop_view *view, struct husk_error *err);

#endif
