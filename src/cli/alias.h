/*
 * Commands and options that users know from other tools, mostly Docker, and their meaning here. One table of commands
 * and one of options, so that no command needs a special case.
 */
#ifndef HUSK_CLI_ALIAS_H
#define HUSK_CLI_ALIAS_H

#include "base/base.h"

/* If a command line begins with words of another tool, replaces them with ours: *argc and *argv change to a list that
 * is never freed. A word without a single meaning here fails, and the error names what to type. */
int alias_command(int *argc, char ***argv, struct husk_error *err);

/* What to type instead of an option that a command does not have ("-p", "--network"); NULL: unknown option. */
const char *alias_option(const char *option);

#endif
