/*
 * What files.c and watch.c share.
 */
#ifndef HUSK_SERVER_FILES_H
#define HUSK_SERVER_FILES_H

#include "server/server.h"

/* The query's `path`, after the whole query was found to hold known names only. */
int files_path(struct request *request, const char *const *known, const char **path, struct husk_error *err);
/* watch.c's route, in files.c's table */
int files_watch(struct request *request, struct husk_error *err);

#endif
