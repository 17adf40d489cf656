/*
 * A dialect: another service's HTTP API, served by huskd beside the native one so that clients of that service work
 * unchanged. A dialect is a folder below dialects/ and one `struct dialect`, listed in dialects/dialects.c. The core knows
 * dialects through this table only; a hook that is NULL means "as in the native API".
 *
 * Example: POST /sandboxes matches a route of E2B. The core takes the caller's token from X-API-KEY (`token_header`), runs
 * the handler, and when the handler fails asks e2b_error for the document in place of {"error": …}.
 */
#ifndef HUSK_SERVER_DIALECT_H
#define HUSK_SERVER_DIALECT_H

#include "server/server.h"

struct dialect {
	const char *name;                   /* "e2b" */
	const struct route *const *tables;  /* of routes, NULL-terminated; each as in server.h */
	const char *token_header;           /* another header for the caller's token, besides those of the native API */
	const char *const *private_headers; /* NULL-terminated: hold secrets, so they are never forwarded to a guest */
	bool reads_refused;                 /* a refused body without a length is read to its end, and not cut */

	/* For ROUTE_AUTHORISE: may the request continue? Sets request->husk, and on failure request->fault. */
	int (*authorise)(struct request *request, struct husk_error *err);
	/* Does a request without a matching route come from a client of the dialect? Then the client gets the dialect's
	 * error. */
	bool (*speaks)(const struct request *request);
	/* Is a port of a sandbox open to a request without a valid token? Sets request->open. If the dialect made the
	 * sandbox, it may refuse with its own error: request->match.dialect, request->fault and *err. */
	bool (*port_open)(struct request *request, const char *sandbox, struct husk_error *err);
	/* May the dialect itself answer a request to this port of a sandbox, named by the Host header? Then a
	 * ROUTE_AUTHORISE of the dialect that fits the path comes before a program in the sandbox. */
	bool (*answers)(const struct request *request, uint16_t port);
	/* The error document for the dialect's routes, and for what it `speaks` or refuses (then request->match.route
	 * may be NULL or a native one). *status is the status of the native API, and may be changed. The hook may also
	 * answer itself (respond_text) and return NULL. */
	json_t *(*error)(struct request *request, unsigned *status, const struct husk_error *failure);
	/* Called once before anything is served, and once after the last request. stop returns false if work was cut
	 * off. */
	int (*start)(struct husk_error *err);
	bool (*stop)(void);
};

/* All of them, NULL-terminated: dialects/dialects.c. */
extern const struct dialect *const dialects[];

/* Calls the hook of every dialect that has it. */
int dialects_start(struct husk_error *err);
bool dialects_stop(void);
const struct dialect *dialects_speaking(const struct request *request); /* the one that `speaks`; NULL: none */
/* One of them opens it. */
bool dialects_port_open(struct request *request, const char *sandbox, struct husk_error *err);
const struct dialect *dialects_answering(const struct request *request, uint16_t port); /* NULL: none */
bool dialects_private(const char *header); /* a dialect keeps it from guests */

/* ---- for the dialects themselves ---- */

/* Fails with 501: `what` names the thing. */
int dialect_unsupported(struct request *request, const char *what, struct husk_error *err);
/* The stats of a sandbox, and how many percent of one CPU it uses, measured over a tenth of a second. */
int dialect_usage(struct husk *husk, const char *sandbox, struct husk_stats *out, double *cpu_percent,
		  struct husk_error *err);

#endif
