/*
 * One request handed on to a program inside a sandbox, and its answer handed back. For api_ports.c, which decides whose
 * request it is and which port it goes to.
 */
#ifndef HUSK_SERVER_PROXY_H
#define HUSK_SERVER_PROXY_H

#include "server/server.h"

#define ACCESS_COOKIE "husk_access" /* what a signed link turns into; the guest never sees it, nor sets it */

struct proxy {
	const char *what;        /* "port 8000 of sandbox sb-…", for errors */
	const char *target;      /* path and query, as the guest gets them */
	const char *host;        /* the Host it gets */
	const char *prefix;      /* of our own path before the guest's; NULL: the guest has a host of its own */
	const char *cookie;      /* a Set-Cookie of ours to add to the answer; NULL: none */
	bool keep_authorization; /* it is the program's own, not the token for us */
};

/* `fd` is connected to the program and is taken. Streams both ways; an upgrade goes on as raw bytes after this returns. */
int proxy_run(struct request *request, int fd, const struct proxy *proxy, struct husk_error *err);
/* The answer is an upgrade, and then bytes go both ways between the client and `fd`, which is taken also when this fails. */
int proxy_tunnel(struct request *request, int fd, struct husk_error *err);

#endif
