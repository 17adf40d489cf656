/*
 * Shared by the two halves of E2B's template builds: e2b_build.c keeps builds and answers for them, e2b_steps.c runs
 * one in its own sandbox. Fields below the blank line in the structure are written under e2b_build.c's lock.
 */
#ifndef HUSK_SERVER_E2B_BUILD_H
#define HUSK_SERVER_E2B_BUILD_H

#include "server/dialects/e2b/e2b.h"

#define BUILD_UPLOADS_MAX 64
#define BUILD_LINE_BYTES 2000
#define BUILD_SECONDS 3600
#define E2B_IMAGE "husk.image" /* in a definition: [path, reference] of the image for its template */

#define E2B_PULL "husk.pull" /* in a definition: the name of the image to pull first */

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
	json_t *definition;
	struct husk *view; /* its own handle; NULL: `husk` is the server's */
	struct husk *husk;
	struct husk *owner; /* the instance itself */
	char *sandbox;

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

/* ---- e2b_variables.c ---- */

bool e2b_variables_used(json_t *steps);
/* Replaces them in the steps, with what the build's sandbox has. */
int e2b_variables_replace(struct build *build, json_t *steps, struct husk_error *err);

/* ---- e2b_steps.c ---- */

/* Runs the build: 0, and its snapshots exist; the caller ends the build's sandbox. */
int e2b_build_run(struct build *build, struct husk_error *err);

#endif
