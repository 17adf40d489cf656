/*
 * What files.c gives to watch.c and to e2b_files.c.
 */
#ifndef HUSK_SERVER_FILES_H
#define HUSK_SERVER_FILES_H

#include "server/server.h"

/* The query's `path`, after the whole query was found to hold known names only. */
int files_path(struct request *request, const char *const *known, const char **path, struct husk_error *err);
/* The bytes of a file of the request's sandbox as the answer, or the range of them that its headers ask for. */
int files_send(struct request *request, const char *path, struct husk_error *err);
/* watch.c's route, in files.c's table */
int files_watch(struct request *request, struct husk_error *err);

#endif
