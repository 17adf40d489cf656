/*
 * Links to the desktop and the browser of a sandbox that need no token: an HMAC over sandbox, kind and time in the
 * query, as links to ports have it (api_ports.c). http.c asks link_signed for routes with ROUTE_VIEW or ROUTE_BROWSER;
 * their handlers ask link_kind what the link permits. There is no cookie that another site's page could use.
 */
#ifndef HUSK_SERVER_DESKTOP_LINK_H
#define HUSK_SERVER_DESKTOP_LINK_H

#include "server/server.h"

enum link_kind {
	LINK_NONE,    /* not by a link: a token, or the unix socket */
	LINK_VIEW,    /* look at the desktop and at recordings */
	LINK_CONTROL, /* also take control */
	LINK_BROWSER, /* the DevTools protocol of the browser */
};

#define LINK_SECONDS 3600
#define LINK_SECONDS_MAX (30 * 24 * 3600)

/* The names in the query of a link, for request_query_known. */
#define LINK_QUERIES "husk_access", "husk_expires", "husk_signature"

/* Has the request a valid signature of this kind for its {id}? A link to control is a link to view too. */
bool link_signed(struct request *request, enum link_kind kind);
/* The kind of the link that the request came by. */
enum link_kind link_kind(struct request *request);
/* The query of a link, without '?'; caller frees. */
int link_query(struct request *request, const char *id, enum link_kind kind, int64_t expires_seconds, char **out,
	       struct husk_error *err);
/* "http://localhost:7820", as this caller knows the server; caller frees. `socket`: ws or wss. */
char *link_server(struct request *request, bool socket, struct husk_error *err);
/* For a handler that makes links: the sandbox's id, which the caller frees. GONE: it has ended. */
int link_sandbox(struct request *request, char **id, struct husk_error *err);

#endif
