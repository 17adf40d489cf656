/*
 * Forwards one request to a program inside a sandbox, and its answer back. For api_ports.c, which decides on access and
 * the port.
 */
#ifndef HUSK_SERVER_PROXY_H
#define HUSK_SERVER_PROXY_H

#include "server/server.h"

#define ACCESS_COOKIE "husk_access" /* replaces a signed link; the guest never sees it and cannot set it */

struct proxy {
	const char *what;        /* "port 8000 of sandbox sb-…", for errors */
	const char *target;      /* path and query for the guest */
	const char *host;        /* the Host it gets */
	const char *prefix;      /* our own path before the guest's; NULL: the guest has its own host */
	const char *cookie;      /* our Set-Cookie for the answer; NULL: none */
	bool keep_authorization; /* it belongs to the program and is not our token */
	bool drop_origin;        /* the program would take the Origin of the client for its own pages' */
	/* After an upgrade: while this is true, bytes of the client wait. Asked four times a second at most. NULL: never. */
	bool (*held)(struct request *request);
};

/* `fd` is connected to the program; takes ownership. Streams both ways; after an upgrade, raw bytes continue when this
 * has returned. */
int proxy_run(struct request *request, int fd, const struct proxy *proxy, struct husk_error *err);
/* Answers with an upgrade; then bytes go both ways between the client and `fd`. Takes ownership of `fd`, also on
 * failure. */
int proxy_tunnel(struct request *request, int fd, struct husk_error *err);

/* ---- port_tls.c ---- */

/* TLS to the program behind `fd` (taken, also on failure); returns a descriptor of plain bytes. */
int port_tls(int fd, struct husk_error *err);

#endif
