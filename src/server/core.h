/*
 * Shared by the core of huskd, behind server.h: the request, the two flows between the thread of a streaming handler
 * and the thread of its connection, the answer, and the server. The families of the API use server.h only, except
 * api_instance.c and api_events.c, which need the whole server.
 *
 * A request is counted. It is held by libmicrohttpd from the request line until completion, by the thread of a
 * streaming handler while it runs, by a response while it may be read, and by an upgraded connection until its `run`
 * returns. The last holder writes the log line.
 */
#ifndef HUSK_SERVER_CORE_H
#define HUSK_SERVER_CORE_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "server/dialect.h"
#include "server/server.h"

#define TARGET_MAX 8192  /* of a request's path and query */
#define SEGMENTS_MAX 64  /* of a path */
#define QUERY_MAX 64     /* names in a query */
#define PARAMETERS_MAX 4 /* {names} in a route */
#define ROUTES_MAX 400   /* of all families and dialects */
#define FLOW_BYTES (128 * 1024)
#define DISCARD_MAX                                                                                                    \
	(64 << 20) /* of a refused body: read to its end, so that the client gets the reason and can continue */
#define THREAD_STACK (384 * 1024)

struct text_pair {
	char *name, *value; /* value NULL: none given */
};

/* ---- target.c: splits the untrusted path and query ---- */

struct target {
	char *raw;                           /* as it came */
	char *decoded;                       /* the bytes that the fields below point into */
	char *segments[SEGMENTS_MAX];        /* each decoded separately: an encoded slash never divides */
	size_t segment_offset[SEGMENTS_MAX]; /* where each starts in `raw` */
	size_t segment_count;
	struct text_pair query[QUERY_MAX];
	size_t query_count;
};
/* INVALID: bad percent-encoding, NUL or other control characters, "." and "..", or too many pieces. */
int target_parse(struct target *target, struct husk_error *err);
void target_free(struct target *target);

/* ---- route.c ---- */

struct route_match {
	const struct route *route;
	const struct dialect *dialect; /* the dialect of the route; NULL: the native API */
	size_t index;                  /* of the route among all */
	const char *names[PARAMETERS_MAX];
	size_t name_size[PARAMETERS_MAX];
	const char *values[PARAMETERS_MAX];
	size_t count;
};
/* Fills the list of all routes, once, before anything is served. */
int routes_setup(struct husk_error *err);
size_t routes_count(void);
const struct route *routes_at(size_t index);
const struct dialect *routes_dialect(size_t index); /* NULL: the native API */
/* 1: found; 0: no such path; -1: the path exists, but not with this method (`allow` names the allowed ones). */
int route_find(const struct target *target, const char *method, struct route_match *match, char *allow, size_t size);

/* ---- flows: bounded, one per direction ---- */

struct flow {
	char *data; /* a ring, allocated at the first byte, grown up to FLOW_BYTES */
	size_t capacity, start, size;
	bool ended;  /* the writer is done */
	bool closed; /* the reader is done: written bytes are discarded */
};

enum answer_kind { ANSWER_NONE, ANSWER_PLAIN, ANSWER_STREAM, ANSWER_UPGRADE };

struct answer {
	enum answer_kind kind;
	unsigned status;
	char *body; /* PLAIN: passed to libmicrohttpd */
	size_t size;
	int64_t length; /* STREAM: -1: unknown */
	struct text_pair *headers;
	size_t header_count;
	void (*run)(struct request *request, int fd, const void *first, size_t size, void *data); /* UPGRADE */
	void *run_data;
};

/* A status that husk codes cannot express; if set, the handler's error has this status and name. */
struct fault {
	unsigned status;
	const char *name;
};

struct server;
struct listener {
	struct server *server;
	struct MHD_Daemon *daemon;
	bool local; /* the unix socket: the kernel identifies the caller */
};

struct request {
	struct server *server;
	const struct listener *listener;
	struct request *previous, *next; /* of the server's list, under its lock */
	_Atomic int references;
	struct MHD_Connection *connection;
	int socket;
	char id[65]; /* log_is_id holds */
	char method[24];
	char remote[64];
	struct target target;
	struct route_match match;
	int (*handle)(struct request *request,
		      struct husk_error *err); /* replaces the route's handler: respond_streaming */
	char host_sandbox[64], host_port[8];   /* when the Host header names them */
	struct text_pair *headers;
	size_t header_count;
	int64_t length;    /* of the body; -1: unknown; 0: none */
	struct husk *husk; /* the caller's view; the server's own handle for the owner */
	enum { CALLER_UNKNOWN, CALLER_TENANT, CALLER_INSTANCE } caller; /* by its token, or the socket's peer */
	bool open;                                                      /* a port that requires no token */
	bool port_tls;                                                  /* the program behind the port speaks TLS */
	char *port_host; /* the Host header for the program behind a port; NULL: the caller's */
	char *tenant;    /* the tenant's name; NULL: not a tenant */

	bool prepared;      /* the headers were checked */
	bool threaded;      /* a streaming handler was started */
	bool queued;        /* libmicrohttpd has the answer */
	bool upgraded;      /* `run` has the connection */
	uint64_t discarded; /* discarded bytes of a body */
	pthread_t thread;
	struct buf body;
	json_t *json;

	/* shared by the connection's thread and the handler's */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct flow in, out;
	bool wants_body, answered, handled, failed, gone;
	uint64_t written;

	struct answer answer;
	struct fault fault;
	int64_t started_us;
	_Atomic uint64_t sent;
};

struct server {
	struct husk *husk;
	const struct server_options *options;
	struct listener tcp, local;
	uint16_t port;         /* of TCP; 0: no TCP */
	char address[128];     /* of TCP, with the port */
	int over_fd;           /* an eventfd: readable when the time for a graceful stop is over */
	_Atomic bool stopping; /* no new connections; running requests may finish */
	_Atomic bool over;     /* patience has ended */
	_Atomic uint64_t held; /* bytes of bodies in memory, over all requests */
	uid_t uid;
	bool shared; /* a group may use the unix socket too; its users are tenants */
	pthread_mutex_t lock;
	struct request *requests;
	size_t request_count, stream_count;
};

/* ---- request.c ---- */

struct request *request_new(const struct listener *listener, struct MHD_Connection *connection, const char *target);
void request_ref(struct request *request);
void request_unref(struct request *request);
/* The client is gone: both flows end, and waiting threads wake. */
void request_gone(struct request *request);
/* Adds bytes to a body that is read whole, within BODY_MAX and the limit of all requests together. */
int body_add(struct request *request, const char *bytes, size_t size, struct husk_error *err);

/* ---- http.c ---- */

/* `fd` -1: the daemon does not listen; connections are added (tls_listener.c). */
int http_start(struct listener *listener, int fd, struct husk_error *err);
/* While a handler works, a silent connection is not idle. */
void http_patience(struct request *request, bool endless);

/* ---- peers.c: TCP connections, and the time limits of unauthenticated clients ---- */

#define PEERS_MAX 4096u
#define PEERS_SPARE 2048u /* connections that peers.c has cut and whose threads have not ended yet */
int peers_watch(struct husk_error *err);
void peers_notify(void *data, struct MHD_Connection *connection, void **context,
		  enum MHD_ConnectionNotificationCode what); /* for libmicrohttpd */
/* A request with a valid token has begun, or is over. */
void peers_known(struct MHD_Connection *connection, bool known);

/* ---- tls_listener.c: TLS over TCP, in front of libmicrohttpd ---- */

/* PEM files. */
int tls_load(const char *certificate, const char *key, struct husk_error *err);
/* Accepts on `fd` (on success takes ownership), and adds the connections to the daemon, until tls_stop. */
int tls_listen(struct MHD_Daemon *daemon, int fd, struct husk_error *err);
void tls_stop(void);

/* ---- tend.c ---- */

int tend_start(struct husk_error *err);

/* ---- auth.c ---- */

/* Identifies the caller. Fills husk, owner and tenant. DENIED: no valid token. */
int auth_request(struct request *request, struct husk_error *err);
/* A second handle with the caller's view, for work that outlives the request; NULL: the server's own. Close with
 * husk_close. */
int auth_view(struct request *request, struct husk **out, struct husk_error *err);

/* ---- stream.c: the connection's side of the flows ---- */

/* Passes uploaded bytes on. False: they were discarded, because the handler does not read any more. */
bool flow_upload(struct request *request, const char *bytes, size_t size);
void flow_upload_end(struct request *request);
ssize_t flow_download(void *request, uint64_t position, char *bytes, size_t size);
/* After the handler has returned. */
void flow_finish(struct request *request, bool failed);
void flow_free(struct flow *flow);

/* ---- respond.c ---- */

/* Answers with the error document, unless an answer was begun. `fault` NULL: the status of the code. */
void respond_error(struct request *request, const struct fault *fault, const struct husk_error *failure);
enum MHD_Result respond_queue(struct request *request);
void answer_free(struct answer *answer);
/* For an upgrade that was answered but never happened. */
void upgrade_abandon(struct request *request);

int thread_start(pthread_t *out, bool detached, void *(*run)(void *data), void *data);

/* ---- access_log.c, metrics.c ---- */

void log_request(const struct request *request);
void metrics_count(const struct request *request, int64_t us);
int metrics_write(struct server *server, struct buf *out, struct husk_error *err);

/* ---- api_events.c ---- */

/* Wakes all followers of events, at a stop for the last time. */
void events_wake(void);
/* Called when no request is left: nothing reads events any more. */
void events_end(void);

/* ---- api_recordings.c ---- */

/* At a stop: ends the recordings of this server properly. */
void recordings_end(struct husk *husk);

/* ---- error_document.c ---- */

json_t *error_json(const char *name, const struct husk_error *err);

#endif
