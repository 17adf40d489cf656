/*
 * A language server in a sandbox, on behalf of one request of Daytona's /lsp routes; see daytona_lsp_server.c. It is a
 * process of the sandbox with the label "daytona-lsp:<language>:<directory of the project>", so the server keeps nothing:
 * language servers outlive it, and hibernate, wake and fork with their sandbox.
 */
#ifndef HUSK_SERVER_DAYTONA_LSP_H
#define HUSK_SERVER_DAYTONA_LSP_H

#include "server/dialects/daytona/daytona.h"
#include "server/dialects/daytona/daytona_frames.h"
#include "server/follow.h"

/* One request at a time talks to one language server: two that write at once would mix their messages. */
struct lsp_turn {
	const char *sandbox, *label;
	struct lsp_turn *next;
	bool taken;
};

struct lsp_language {
	const char *name;    /* Daytona's, and the language server protocol's */
	const char *program; /* as it is named in errors */
	const char *script;  /* starts it, or exits with 127 */
	const char *package; /* what to type to install it */
};

struct lsp {
	struct request *request;
	struct daytona_box box;
	const struct lsp_language *language;
	char *project, *label;
	int64_t pid; /* 0: none runs */
	struct husk_process *process;
	struct follow follow;
	struct frames frames;
	struct buf outgoing, complaint; /* what it is sent; the beginning of its stderr */
	struct lsp_turn turn;
};
void lsp_close(struct lsp *lsp);
#define cleanup_lsp cleanup(lsp_close)

/* Enters the sandbox, waits for the turn, and looks for the language server: `pid` 0 when there is none. */
int lsp_open(struct request *request, const char *language, const char *project, struct lsp *lsp,
	     struct husk_error *err);
/* The same for a language server that must run: LSP_SERVER_NOT_INITIALIZED otherwise. */
int lsp_open_running(struct request *request, const char *language, const char *project, struct lsp *lsp,
		     struct husk_error *err);
/* Starts it and shakes hands, unless it runs. */
int lsp_start(struct lsp *lsp, struct husk_error *err);
/* Asks it to end, and ends it. */
int lsp_stop(struct lsp *lsp, struct husk_error *err);
/* A request, and its result, which the caller releases. `params` is taken; NULL: none. */
int lsp_ask(struct lsp *lsp, const char *method, json_t *params, json_t **result, struct husk_error *err);
/* A notification. `params` is taken. */
int lsp_tell(struct lsp *lsp, const char *method, json_t *params, struct husk_error *err);
/* A path as a file's address; caller frees. NULL: out of memory. */
char *lsp_address(const char *path);

#endif
