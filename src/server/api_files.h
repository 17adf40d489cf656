/*
 * Shared with api_watch.c and e2b_files.c.
 */
#ifndef HUSK_SERVER_FILES_H
#define HUSK_SERVER_FILES_H

#include "server/server.h"

/* The query's `path`, after a check that the query has known names only. */
int files_path(struct request *request, const char *const *known, const char **path, struct husk_error *err);
/* Answers with the content of a file of the request's sandbox, or the range in its headers. */
int files_send(struct request *request, const char *path, struct husk_error *err);
/* ---- api_watch.c: its route in api_files.c's table ---- */

int files_watch(struct request *request, struct husk_error *err);

/* ---- api_files.c: for other files (api_volumes.c) ---- */

/* "0644", "755"; NULL: 0, the caller's default. */
int files_mode(const char *text, uint32_t *mode, struct husk_error *err);

/* Sends the content of a file to the client. The answer begins with the first byte, so that a failure before it has its
 * own status. */
struct files_download {
	struct request *request;
	unsigned status;
	const char *type;
	int64_t length; /* -1: unknown */
	bool begun;
	struct husk_error failure; /* of the client's side */
};

int files_sink(void *download, const void *bytes, size_t size); /* a husk_sink */
/* `result`: of the call that used the sink. */
int files_download_end(struct files_download *download, int result, struct husk_error *err);
ssize_t files_source(void *request, void *bytes, size_t size); /* a husk_source: the body */
/* Answers with the list, and frees it. */
int files_entries(struct request *request, struct husk_file *list, size_t count, struct husk_error *err);

#endif
