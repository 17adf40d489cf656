/*
 * What api_files.c gives to api_watch.c and to e2b_files.c.
 */
#ifndef HUSK_SERVER_FILES_H
#define HUSK_SERVER_FILES_H

#include "server/server.h"

/* The query's `path`, after the whole query was found to hold known names only. */
int files_path(struct request *request, const char *const *known, const char **path, struct husk_error *err);
/* The bytes of a file of the request's sandbox as the answer, or the range of them that its headers ask for. */
int files_send(struct request *request, const char *path, struct husk_error *err);
/* ---- api_watch.c: its route, in api_files.c's table ---- */

int files_watch(struct request *request, struct husk_error *err);

/* ---- api_files.c: for whoever else has files (api_volumes.c) ---- */

/* "0644", "755"; NULL: 0, the default of whoever asks. */
int files_mode(const char *text, uint32_t *mode, struct husk_error *err);

/* Bytes of a file to the client. The answer begins with the first of them, so that a failure before it is told with
 * its own status. */
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
