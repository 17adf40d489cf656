/*
 * Shared by the two halves of E2B's template builds: e2b_build.c keeps builds and answers for them, e2b_steps.c runs
 * one. Fields below the blank line in the structure are written under e2b_build.c's lock.
 */
#ifndef HUSK_SERVER_E2B_BUILD_H
#define HUSK_SERVER_E2B_BUILD_H

#include "server/dialects/e2b/e2b.h"

#define BUILD_UPLOADS_MAX 64
#define BUILD_LINE_BYTES 2000
#define BUILD_SECONDS 3600

enum build_state { BUILD_WAITING, BUILD_RUNNING, BUILD_READY, BUILD_FAILED };

struct build {
	struct build *next;
	char id[40];  /* a UUID */
	char *name;   /* of the template, without its tag */
	char **tags;  /* names of the resulting snapshots */
	char *tenant; /* NULL: the instance itself */
	int64_t cpus, memory_mb;
	struct {
		char hash[80];
		int fd;
	} uploads[BUILD_UPLOADS_MAX];
	size_t upload_count;
	int64_t upload_bytes;
	json_t *definition; /* from "fromImage" or "fromTemplate", not both */
	struct husk *view;  /* its own handle; NULL: `husk` is the server's */
	struct husk *husk;
	struct husk *owner; /* the instance itself */
	struct buf held;    /* output before the end of its line */
	int exit_code;      /* of the command that failed */

	enum build_state state;
	json_t *lines;
	size_t line_bytes; /* of their messages */
	char reason[1100], step[24];
};

/* A line of its log. */
void e2b_build_say(struct build *build, const char *level, const char *text, size_t size);
/* The tar that was uploaded under this hash; the build owns the descriptor. */
int e2b_build_upload(struct build *build, const char *hash, struct husk_error *err);
bool e2b_build_stopped(void); /* the server is stopping: cancel */

/* ---- e2b_steps.c ---- */

/* Runs the build: 0, and its snapshots exist. */
int e2b_build_run(struct build *build, struct husk_error *err);

#endif
