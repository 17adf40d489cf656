/*
 * Shared by the files of huskd: a request as seen by its handler, the tables of routes, and functions for answers.
 * http.c turns libmicrohttpd's callbacks into straight-line handlers; each family of the API is one file with a table
 * of routes. The server uses libhusk through husk.h only, and keeps no state of any sandbox: it can be killed at any
 * moment.
 *
 * A plain handler runs on the connection's thread with the whole body read, and answers once with respond_json or
 * respond_empty. A streaming handler (ROUTE_STREAM) runs on its own thread beside the connection's, so it may block: it
 * reads the body with request_read as it arrives, and sends its answer in pieces. Both return 0, or -1 with `err`,
 * which becomes the error document and its status if nothing has been sent yet.
 */
#ifndef HUSK_SERVER_H
#define HUSK_SERVER_H

#include <jansson.h>

#include "base/base.h"
#include "husk.h"
#include "json/json.h"

#define BODY_MAX (16u << 20) /* of a body that is read whole */

struct request; /* http.c */

enum route_flags {
	ROUTE_PUBLIC = 1 << 0,    /* needs no token */
	ROUTE_STREAM = 1 << 1,    /* see above */
	ROUTE_SOCKET = 1 << 2,    /* the handler ends with respond_upgrade */
	ROUTE_ADMIN = 1 << 3,     /* only for the owner of the instance: the unix socket, or a token without a tenant */
	ROUTE_SIGNED = 1 << 4,    /* has {id} and {port}: a signature for that port replaces a token (ports_signed) */
	ROUTE_AUTHORISE = 1 << 5, /* of a dialect, whose `authorise` decides on access (dialect.h) */
	ROUTE_VIEW = 1 << 6,      /* has {id}: a signed link to its desktop replaces a token (desktop_link.h) */
	ROUTE_BROWSER = 1 << 7,   /* the same for a link to its browser */
	ROUTE_DIALECT = 1 << 8,   /* from this bit on: flags of the route's own dialect */
};

struct route {
	const char *method; /* "GET"; HEAD is answered by GET's handler; "*": any */
	const char
		*path; /* "/v1/sandboxes/{id}/exec"; a last "{rest*}" takes all that follows, query too, as it came */
	int (*handle)(struct request *request, struct husk_error *err);
	unsigned flags;
};

/* One table per family of the native API, each ended by a route without a method. Dialects have theirs in dialect.h. */
extern const struct route instance_routes[];     /* api_instance.c: healthz, metrics, openapi.json, doctor */
extern const struct route sandbox_routes[];      /* api_sandboxes.c: create, list, get, delete, ttl, fork … */
extern const struct route snapshot_routes[];     /* api_snapshots.c */
extern const struct route portable_routes[];     /* api_portable.c */
extern const struct route point_routes[];        /* api_points.c: checkpoints, rewind, diff, families */
extern const struct route effect_routes[];       /* api_effects.c: requests that are held */
extern const struct route volume_routes[];       /* api_volumes.c */
extern const struct route template_routes[];     /* api_templates.c */
extern const struct route event_routes[];        /* api_events.c: events, logs, stats */
extern const struct route exec_routes[];         /* api_exec.c: exec, processes */
extern const struct route pty_routes[];          /* api_pty.c */
extern const struct route code_routes[];         /* api_code.c */
extern const struct route desktop_routes[];      /* api_desktop.c: the screen */
extern const struct route file_routes[];         /* api_files.c: files, tar, watch */
extern const struct route egress_routes[];       /* api_egress.c */
extern const struct route wire_routes[];         /* api_wire.c: libhusk's connection to the guest */
extern const struct route owner_routes[];        /* api_owner.c: tokens, cleaning up */
extern const struct route port_routes[];         /* api_ports.c: by path, and signing */
extern const struct route mcp_routes[];          /* api_mcp.c: the Model Context Protocol */
extern const struct route desktop_view_routes[]; /* api_desktop_view.c: live view, control */
extern const struct route recording_routes[];    /* api_recordings.c: recordings of desktops */
extern const struct route browser_routes[];      /* api_browser.c: the DevTools protocol of the browser */

/* ---- request.c, stream.c: the request ---- */

/* The caller's view of the instance: it finds and creates only the caller's objects. */
struct husk *request_husk(struct request *request);
struct husk *request_owner(struct request *request);       /* the whole instance, for work on behalf of all tenants */
const char *request_tenant(const struct request *request); /* the caller's name if it is a tenant, otherwise NULL */
const char *request_id(const struct request *request);     /* in the log and in X-Request-Id */
const char *request_method(const struct request *request);
const char *request_target(const struct request *request); /* path and query, not decoded */
const char *request_path(const struct request *request,
			 const char *name); /* a {name} of the route, decoded; never NULL */
const char *request_query(const struct request *request, const char *name); /* decoded; NULL: not given, or empty "" */
const char *request_header(const struct request *request, const char *name);
/* The Host header for the program behind a port, if a dialect chose one; NULL: none. */
const char *request_port_host(const struct request *request);
bool request_port_tls(const struct request *request);
/* Calls back for every header; a non-zero return stops. */
void request_headers(struct request *request, int (*each)(void *data, const char *name, const char *value), void *data);
const char *request_remote(const struct request *request); /* the client: "127.0.0.1:41234", "[::1]:41234", "unix" */
bool request_open(
	const struct request *request); /* a port that requires no token: Authorization belongs to its program */
bool request_secure(const struct request *request);          /* it came over TLS */
uint16_t request_server_port(const struct request *request); /* the server's TCP port; 0: no TCP */
int request_over_fd(
	const struct request *request); /* readable when the graceful time of the server is over; must not be read */
/* The same for every name of the query. */
void request_queries(struct request *request, int (*each)(void *data, const char *name, const char *value), void *data);
/* INVALID with the field if the query has a name that is not in the NULL-terminated list ("metadata.*": any with that
 * beginning). */
int request_query_known(struct request *request, const char *const *names, struct husk_error *err);
int request_query_int(const struct request *request, const char *name, int64_t fallback, int64_t min, int64_t max,
		      int64_t *out, struct husk_error *err);
int request_query_bool(const struct request *request, const char *name, bool fallback, bool *out,
		       struct husk_error *err);

/* The body of a plain route as a JSON object (borrowed); an empty body is an empty object. */
json_t *request_json(struct request *request, struct husk_error *err);
/* Streaming routes: reads the next bytes of the body; 0 at its end, -1 if the client is gone. The body comes before the
 * answer: when the answer begins, the rest of the body is discarded. */
ssize_t request_read(struct request *request, void *bytes, size_t size);
int64_t request_length(const struct request *request);    /* Content-Length; -1: unknown */
bool request_wants_events(const struct request *request); /* Accept names text/event-stream */
/* A streaming route whose body is a small JSON document: reads it whole (BODY_MAX), then as request_json. */
json_t *request_read_json(struct request *request, struct husk_error *err);
/* Waits until `fd` (-1: none) is readable. 1: it is; 0: timeout (-1: no limit); -1: the client is gone or the server
 * stops. */
int request_wait(struct request *request, int fd, int timeout_ms);
bool request_stopping(const struct request *request); /* a handler that only waits should end now */
bool request_over(struct request *request); /* the client is gone, or the server stops and its graceful time is over */

/* ---- fields.c: the fields of a JSON body: strict, so that a typing error is reported and not ignored ---- */

/* Each call removes its field from the rest. A missing field or null gives the fallback. A wrong type is stored as the
 * error, with the name of the field. fields_done fails with that error, or if unknown fields are left. */
struct fields {
	json_t *object; /* borrowed */
	const char *taken[40];
	size_t count;
	struct husk_error error;
};
int fields_begin(struct fields *fields, json_t *object); /* -1: `object` is NULL, a body that could not be read */
const char *fields_string(struct fields *fields, const char *name); /* NULL: absent */
int64_t fields_int(struct fields *fields, const char *name, int64_t fallback, int64_t min, int64_t max);
double fields_number(struct fields *fields, const char *name, double fallback, double min, double max);
bool fields_bool(struct fields *fields, const char *name, bool fallback);
/* "512M", "2G" or a number of bytes. */
uint64_t fields_size(struct fields *fields, const char *name);
/* An object of strings; the caller frees the array, its strings belong to the document. */
struct husk_pair *fields_pairs(struct fields *fields, const char *name, size_t *count);
/* An array of strings, NULL-terminated; the caller frees the array. */
const char **fields_strings(struct fields *fields, const char *name);
int64_t fields_timeout_ms(struct fields *fields);            /* timeout_seconds; 0: none */
json_t *fields_any(struct fields *fields, const char *name); /* borrowed; NULL: absent */
int fields_done(struct fields *fields, struct husk_error *err);
/* The same for dialects, but unknown fields are ignored: newer clients send more. */
int fields_done_open(const struct fields *fields, struct husk_error *err);

/* ---- respond.c, stream.c: the answer ---- */

/* Takes ownership of the document; NULL means that memory ran out while it was made. */
int respond_json(struct request *request, unsigned status, json_t *document, struct husk_error *err);
int respond_text(struct request *request, unsigned status, const char *type, const char *text, size_t size,
		 struct husk_error *err);
int respond_empty(struct request *request, unsigned status, struct husk_error *err); /* 204 … */
/* Adds a header to the answer; call it before the answer. */
int respond_header(struct request *request, const char *name, const char *value, struct husk_error *err);

/* For a plain route whose body asks for a stream: `handle` continues as a streaming handler, with the body that was
 * read (request_json). So a plain answer needs no second thread. */
int respond_streaming(struct request *request, int (*handle)(struct request *request, struct husk_error *err));

/* Streaming routes: status and type, then bytes. `length` -1: unknown (chunked). Each call fails (GONE) if the client
 * is gone; a slow client blocks only its own writer. If a handler fails after stream_begin, the connection is cut, so
 * that a client never takes half an answer for a whole one. */
int stream_begin(struct request *request, unsigned status, const char *type, int64_t length, struct husk_error *err);
int stream_write(struct request *request, const void *bytes, size_t size, struct husk_error *err);
/* Server-sent events: begin, then events with a JSON document each (takes ownership), and keep-alive comments. An error
 * after the beginning is sent as the event `error` with the error document. */
int sse_begin(struct request *request, struct husk_error *err);
int sse_send(struct request *request, const char *event, const char *id, json_t *document, struct husk_error *err);
int sse_ping(struct request *request, struct husk_error *err);
int sse_error(struct request *request, const struct husk_error *failure, struct husk_error *err);
#define SSE_PING_MS 15000

/* ROUTE_SOCKET: answers 101 with the headers added so far, and passes the raw byte stream to `run` on its own thread;
 * `first` are bytes that the client has already sent. `run` owns `data`; the descriptor (a blocking one) is closed
 * afterwards. */
int respond_upgrade(struct request *request,
		    void (*run)(struct request *request, int fd, const void *first, size_t size, void *data),
		    void *data, struct husk_error *err);

/* ---- error_document.c ---- */

/* {"error":{"code","message","field","hint"}} and the status of the code. */
json_t *error_document(const struct husk_error *err);
unsigned error_status(const struct husk_error *err);

/* ---- websocket.c: RFC 6455 over wslay, for api_pty.c and others ---- */

/* Checks the handshake's headers and adds Sec-WebSocket-Accept; INVALID names what is missing. */
int websocket_accept(struct request *request, struct husk_error *err);

/* ---- api_ports.c ---- */

/* Called by http.c before routing: 1 if the Host header names a port of a sandbox ("8000-<id>.localhost:7820"); then
 * the request goes to ports_proxy. 0: not. */
int ports_match(const char *host, uint16_t *port, char *sandbox, size_t size);
/* Forwards the request to the port, and the answer back; streaming; upgrades too. */
int ports_proxy(struct request *request, const char *sandbox, uint16_t port, const char *target,
		struct husk_error *err);
/* Has the request a valid signature for this port, which replaces a token? */
bool ports_signed(struct request *request, const char *sandbox, uint16_t port);
/* The name below which ports have their own hosts ("localhost:7820"), as this caller knows the server; caller frees. */
char *ports_domain(struct request *request, struct husk_error *err);
/* A link to the port that requires no token for this time; the caller frees it. */
int ports_link(struct request *request, const char *id, uint16_t port, int64_t seconds, char **url, int64_t *expires_ms,
	       struct husk_error *err);

/* ---- serve.c ---- */

struct server_options {
	const char *address;           /* "127.0.0.1:7820", "[::1]:7820"; NULL: only the unix socket */
	const char *socket_path;       /* NULL: <run directory>/huskd.sock */
	const char *certificate, *key; /* PEM files; NULL: no TLS */
	int stop_seconds;              /* how long streams may continue after SIGTERM */
	/* The group whose users may use the unix socket, each as a tenant; a name or a number. NULL: "husk" if it
	 * exists; "none": root only. */
	const char *group;
	_Atomic uint32_t user_sandboxes; /* quotas of each user, as for a token; 0: none */
	_Atomic uint64_t user_memory_bytes, user_snapshot_bytes;
	/* Called at SIGHUP: reads the new settings; only the quotas are used. NULL: SIGHUP changes nothing. */
	int (*reload)(struct server_options *out, struct husk_error *err);
	int local_fd, tcp_fd; /* listening sockets from systemd (activation.h); -1: huskd makes its own */
};
/* Serves until SIGTERM or SIGINT. */
int server_run(struct husk *husk, struct server_options *options, struct husk_error *err);

#endif
