/*
 * What a command downloads, into a file or to the standard output.
 */
#ifndef HUSK_CLI_SAVE_H
#define HUSK_CLI_SAVE_H

#include "cli/cli.h"

/* Gives everything to the sink. */
typedef int (*save_from)(void *data, husk_sink sink, void *sink_data, struct husk_error *err);

/* The file has its name when it is complete. "-" is the standard output, if that is no terminal. Ctrl-C ends it, and nothing is
 * left. `bytes` gets the size. */
int save_file(const char *path, save_from from, void *data, uint64_t *bytes, struct husk_error *err);

#endif
