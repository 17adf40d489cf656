/*
 * Shared by the files of E2B's API. Programs written for E2B's SDKs run against huskd with environment variables only:
 * E2B_API_URL and E2B_SANDBOX_URL point here, E2B_API_KEY is a token (husk token create --e2b). The key gives access to
 * the control plane. The data plane (what runs inside E2B's sandboxes) requires a token of the one sandbox, which is
 * derived from its id and stored nowhere.
 *
 * Everything uses libhusk. Settings of a sandbox that only E2B has are stored in its metadata under "husk.", which
 * E2B's clients do not see. What Husk does not support is answered with 501 and its name, never with success.
 */
#ifndef HUSK_SERVER_E2B_H
#define HUSK_SERVER_E2B_H

#include "server/dialect.h"

#define E2B_VERSION "0.6.4" /* of the programs inside; clients use it to decide what they may request */
#define E2B_TIMEOUT_SECONDS 300
#define E2B_TIMEOUT_MAX (INT64_C(365) * 86400)
#define E2B_USER "user"
#define E2B_TRAFFIC_HEADER "E2B-Traffic-Access-Token"
#define E2B_ENVD_PORT 49983 /* the port of commands and files */
#define E2B_CODE_PORT 49999 /* … and the code interpreter */

/* Flags of E2B's routes. */
#define E2B_CONTROL 0u            /* of the control plane */
#define E2B_DATA ROUTE_AUTHORISE  /* of one sandbox, named by a header, with its own token */
#define E2B_CONNECT ROUTE_DIALECT /* … over the Connect protocol, with its errors (connect.h) */
#define E2B_UNARY (E2B_DATA | E2B_CONNECT)
#define E2B_STREAM (E2B_UNARY | ROUTE_STREAM)

/* ---- e2b.c: errors, names, and the settings of a sandbox ---- */

extern const struct dialect e2b_dialect;
/* The tables of routes that e2b_dialect lists, each in the file of its family. */
extern const struct route e2b_sandbox_routes[], e2b_snapshot_routes[], e2b_template_routes[], e2b_build_routes[];
extern const struct route e2b_process_routes[], e2b_file_routes[], e2b_filesystem_routes[], e2b_code_routes[];
extern const struct route e2b_log_routes[], e2b_secret_routes[], e2b_volume_routes[], e2b_watcher_routes[];

/* 501 if the object has an unknown option with a value; `what` names the object. */
int e2b_refuse_rest(struct request *request, const struct fields *fields, const char *what, struct husk_error *err);

/* One page of a list (taken). `next`: the token of the page after it; NULL: it is the last one. */
int e2b_respond_page(struct request *request, json_t *page, const char *next, struct husk_error *err);

/* Their name of a template to ours and back; the result may be the argument. */
const char *e2b_template(const char *name);
const char *e2b_template_shown(const char *name);
/* "team/Name:tag" as the name of a snapshot; INVALID if that is not possible. Caller frees. */
int e2b_snapshot_name(const char *name, char **out, struct husk_error *err);

/* Ids of sandboxes have no '-' in E2B, and its clients split them there: sb-abc… is sbabc… to them. A word that is no such id
 * stays as it is, so both forms of an id name the sandbox. */
#define E2B_ID_SIZE 65
void e2b_id(const char *given, char out[static E2B_ID_SIZE]);
const char *e2b_shown_id(const char *id, char out[static E2B_ID_SIZE]); /* returns `out` */
bool e2b_is_shown_id(const char *text);

/* 16 bytes as a UUID of version 4, the form of E2B's ids of builds. */
void e2b_uuid(const unsigned char bytes[static 16], char out[static 37]);
/* "2026-01-31T12:00:00.123Z", or with an offset such as +02:00, in milliseconds; -1: not a time. */
int e2b_time(const char *text, int64_t *out);
/* "team/Name:tag" as the plain name of the template; caller frees. */
int e2b_template_name(const char *given, char **out, struct husk_error *err);

struct e2b_settings {
	int64_t timeout;      /* seconds; counted again when traffic wakes it */
	bool pause;           /* at the end of its time it is hibernated, not killed */
	bool resume;          /* traffic wakes it */
	bool closed;          /* its ports require the traffic token */
	bool built;           /* from a snapshot, which may have its own defaults (e2b_user.c) */
	bool cold;            /* a pause at the end of its time keeps only the disk: waking is a reboot */
	bool ours;            /* E2B's API made it */
	const char *template; /* the template in E2B's terms; NULL: the one in the catalog */
	const char *https;    /* "8443,9443": ports whose programs speak TLS; NULL: none */
	const char *host;     /* Host header for requests to its ports, with "${PORT}" for the port; NULL: unchanged */
};
#define E2B_PAIRS 3                /* pairs of metadata for the settings, at most */
#define E2B_BUILD_KEY "husk.build" /* metadata of a sandbox that builds, and of its snapshot: the build's id */
/* Pointers in the result belong to the sandbox. */
struct e2b_settings e2b_settings_of(const struct husk_sandbox *sandbox);
/* Fills up to pairs[E2B_PAIRS]; they point into *text, which the caller frees. */
int e2b_settings_pairs(const struct e2b_settings *settings, struct husk_pair *pairs, size_t *count, char **text,
		       struct husk_error *err);
/* The template of the sandbox in E2B's terms; the string belongs to the sandbox. */
const char *e2b_template_of(const struct husk_sandbox *sandbox);
bool e2b_hidden(const char *key); /* metadata that is ours */

/* The variables of a process: those that tell a program where it runs (E2B_SANDBOX, E2B_SANDBOX_ID, E2B_TEMPLATE_ID), then the
 * given ones, which win and must outlive it. */
struct e2b_environment {
	struct husk_sandbox *sandbox; /* has strings of the pairs */
	char id[E2B_ID_SIZE];
	struct husk_pair *pairs;
	size_t count;
};
int e2b_environment(struct request *request, const struct husk_pair *given, size_t count, struct e2b_environment *out,
		    struct husk_error *err);
void e2b_environment_free(struct e2b_environment *environment);
/* The same three as files in /run/e2b, for programs that E2B's API did not start. A guest without them still works, so a failure
 * is only logged. */
void e2b_identify(struct husk *husk, const struct husk_sandbox *sandbox);

/* ---- e2b_templates.c, e2b_build.c ---- */

bool e2b_template_exists(struct husk *husk, const char *name); /* built or bundled, by Husk's name */
bool e2b_snapshot_exists(struct husk *husk, const char *name); /* by its name, a tag or its id */
/* Called when the server stops: cancels running builds. False: one did not end in time. */
bool e2b_builds_end(void);

/* ---- e2b_network.c ---- */

struct e2b_network {
	struct husk_egress egress;
	const char **allow, **deny;
	struct husk_secret *headers; /* that its rules set */
	size_t header_count;
	bool closed;      /* ports require the traffic token */
	const char *host; /* the Host header for programs behind ports; belongs to the document */
	char *https;      /* as in struct e2b_settings */
};
/* `document` may be NULL; `internet`: allow_internet_access. */
int e2b_network_read(struct request *request, json_t *document, bool internet, struct e2b_network *out,
		     struct husk_error *err);
void e2b_network_free(struct e2b_network *network);
json_t *e2b_network_document(struct request *request, const char *id, const struct e2b_settings *settings);
int e2b_network_update(struct request *request, struct husk_error *err); /* the route's */

/* ---- e2b_auth.c ---- */

/* For E2B_DATA: finds the sandbox, checks the access, and makes sure that it runs. Afterwards request_path(request,
 * "id") is the sandbox. */
int e2b_authorise(struct request *request, struct husk_error *err);
/* A call failed because the machine is gone. The sandbox's row is updated a moment later, and clients ask for its health next.
 * Waits for the row, then sets `err` to what later calls get. If the sandbox still runs, `err` stays as it is. */
void e2b_explain_end(struct request *request, struct husk_error *err);
/* Ports are open as in E2B, unless the create closed them. Never for sandboxes of other APIs. */
bool e2b_port_open(struct request *request, const char *sandbox, struct husk_error *err);
/* Hex; caller frees. `what`: "access" for the data plane, "traffic" for ports and code. */
int e2b_token(struct request *request, const char *what, const char *id, char **out, struct husk_error *err);

/* ---- e2b_ports.c ---- */

/* What a caller of a port gets instead of the program's answer: a document, or a page in a browser (then NULL: it is answered). */
json_t *e2b_port_error(struct request *request, unsigned *status, const struct husk_error *failure);

/* ---- e2b_user.c ---- */

/* The user of the request: the name in its Basic authorization or `username` query; "user" if there is none. */
int e2b_user(struct request *request, char name[static 33], struct husk_error *err);
/* That user's home; the default user is made if it is missing. DENIED: no such user. */
int e2b_home(struct request *request, const char *user, char **home, struct husk_error *err);
/* Makes the default user if it is missing. */
int e2b_make_user(struct husk *husk, const char *sandbox, struct husk_error *err);
/* Ends all processes of a sandbox, as a reboot would: its disk stays. */
int e2b_reboot(struct husk *husk, const char *sandbox, struct husk_error *err);
/* The default directory of commands, for a sandbox that was built with one; NULL: the home. */
int e2b_directory(struct request *request, char **out, struct husk_error *err);
#define E2B_DEFAULTS "/etc/husk/e2b.json" /* written by e2b_build.c: {"user", "cwd"} */
/* One of them; NULL: the sandbox has none. Caller frees. */
char *e2b_default(struct husk *husk, const char *sandbox, const char *what);
/* Converts a client's path (relative to the home, or "~/…") to an absolute one without "." and "..". */
int e2b_path(struct request *request, const char *user, const char *path, char **out, struct husk_error *err);

/* ---- e2b_volumes.c ---- */

/* volumeMounts of a create; the caller frees the array, its strings belong to the document. NULL with err. */
struct husk_mount *e2b_mounts_read(const json_t *list, size_t *count, struct husk_error *err);
json_t *e2b_mounts_document(const struct husk_sandbox *sandbox);

/* ---- e2b_filesystem.c ---- */

/* EntryInfo of one file; NULL: out of memory. */
json_t *e2b_entry(struct request *request, const struct husk_file *file);
/* "key=value" attributes of a file as an object. */
json_t *e2b_metadata(char *const *attributes);
/* The directory that a message wants to watch. */
int e2b_watched_path(struct request *request, json_t *message, char **path, struct husk_error *err);
/* FilesystemEvent of a change below `root`. LIMIT: changes were lost. */
json_t *e2b_change(struct request *request, const char *root, const struct husk_watch_event *event, bool with_entry,
		   struct husk_error *err);

/* ---- e2b_watchers.c ---- */

void e2b_watchers_end(void); /* at the end of the server */

#endif
