/*
 * Daytona's sessions, kept by daytona_sessions.c and followed by daytona_logs.c. A session is one live shell, a process
 * of the sandbox with the label "daytona-session:<id>". Each of its commands has a directory in the guest with the
 * command, its two streams, its input (a pipe) and, after its end, its exit code. So the server keeps nothing, and
 * sessions hibernate and fork with the sandbox.
 */
#ifndef HUSK_SERVER_DAYTONA_SESSIONS_H
#define HUSK_SERVER_DAYTONA_SESSIONS_H

#include "server/dialects/daytona/daytona.h"

#define SESSION_LABEL "daytona-session:"
#define SESSION_MAX 128 /* letters of an id */

struct daytona_session {
	struct daytona_box box;
	char *directory; /* of its commands */
	int64_t pid;     /* of its shell; 0: none */
	bool running;    /* the shell is */
};
void daytona_session_free(struct daytona_session *session);
#define cleanup_session cleanup(daytona_session_free)

/* The session that the route's {session} names; 404 if there is none. */
int daytona_session_find(struct request *request, struct daytona_session *session, struct husk_error *err);
/* A file of one of its commands, as text; *there: whether it exists. */
int daytona_session_read(struct request *request, const struct daytona_session *session, const char *command,
			 const char *name, struct buf *out, bool *there, struct husk_error *err);
/* The same from an offset on: what was added. */
int daytona_session_read_from(struct request *request, const struct daytona_session *session, const char *command,
			      const char *name, uint64_t offset, struct buf *out, struct husk_error *err);
/* 404 if the session has no such command. */
int daytona_session_command(struct request *request, const struct daytona_session *session, const char *command,
			    struct husk_error *err);
/* ---- daytona_logs.c ---- */

/* The route of the logs: a document, or a socket that follows them. */
int daytona_session_logs(struct request *request, struct husk_error *err);

#endif
