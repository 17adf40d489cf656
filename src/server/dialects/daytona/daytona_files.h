/*
 * Shared by daytona_files.c, daytona_transfer.c and daytona_search.c.
 */
#ifndef HUSK_SERVER_DAYTONA_FILES_H
#define HUSK_SERVER_DAYTONA_FILES_H

#include "server/api_files.h"
#include "server/dialects/daytona/daytona.h"

/* The status and code for an error message of the guest's programs, and for an error of libhusk. */
int daytona_file_failed(struct request *request, const char *path, const char *complaint, struct husk_error *err);
int daytona_file_error(struct request *request, const char *path, struct husk_error *err);
/* A path of the query, absolute; caller frees. */
int daytona_query_path(struct request *request, const struct daytona_box *box, const char *name, char **out,
		       struct husk_error *err);
/* Has the box's user the right ("r", "w") to this file? Otherwise 403 or 404. */
int daytona_may(struct request *request, const struct daytona_box *box, const char *path, const char *right,
		struct husk_error *err);
/* ---- daytona_transfer.c ---- */

/* Writes a file in place, as the user: mode, owner and links of an existing file stay. Missing directories are made. */
int daytona_write(struct request *request, const struct daytona_box *box, const char *path, husk_source source,
		  void *data, struct husk_error *err);

#endif
