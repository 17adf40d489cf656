/*
 * Words that other tools taught people's fingers, Docker's above all: what each means here. One table of commands and
 * one of options, so that no command needs a special case for any of them.
 */
#ifndef HUSK_CLI_ALIAS_H
#define HUSK_CLI_ALIAS_H

#include "base/base.h"

/* Replaces the first words of a command line that are another tool's with ours: *argc and *argv change to a list that
 * lives as long as the program. A word that has no single meaning here fails with what to type instead. */
int alias_command(int *argc, char ***argv, struct husk_error *err);

/* What to type in place of an option that a command does not have ("-p", "--network"); NULL: nothing is known of it. */
const char *alias_option(const char *option);

#endif
