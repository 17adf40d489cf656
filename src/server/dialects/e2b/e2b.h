/*
 * What the files of E2B's API share. Programs written for E2B's SDKs run against huskd by their environment alone:
 * E2B_API_URL and E2B_SANDBOX_URL point here, E2B_API_KEY is a token (husk token create --e2b). The control plane is
 * opened by that key; the data plane (what runs inside E2B's sandboxes) by a token of the one sandbox, which is derived
 * from its id and stored nowhere.
 *
 * Everything is done with libhusk: what a sandbox was asked to be that only E2B knows is kept in its metadata under
 * "husk.", which is not shown to E2B's clients. What is beyond us is answered with 501 and its name, never with success.
 */
#ifndef HUSK_SERVER_E2B_H
#define HUSK_SERVER_E2B_H

#include "server/dialect.h"

#define E2B_VERSION "0.6.4" /* of what runs inside, as far as clients decide by it what they may ask for */
#define E2B_TIMEOUT_SECONDS 300
#define E2B_TIMEOUT_MAX (INT64_C(365) * 86400)
#define E2B_USER "user"
#define E2B_TRAFFIC_HEADER "E2B-Traffic-Access-Token"
#define E2B_ENVD_PORT 49983 /* where its clients reach commands and files */
#define E2B_CODE_PORT 49999 /* … and the code interpreter */

/* Flags of E2B's routes. */
#define E2B_CONTROL 0u            /* of the control plane */
#define E2B_DATA ROUTE_AUTHORISE  /* of one sandbox, which a header names and whose own token opens it */
#define E2B_CONNECT ROUTE_DIALECT /* … by the Connect protocol, with its errors (connect.h) */
#define E2B_UNARY (E2B_DATA | E2B_CONNECT)
#define E2B_STREAM (E2B_UNARY | ROUTE_STREAM)

/* ---- e2b.c: errors, names, and what a sandbox was asked to be ---- */

extern const struct dialect e2b_dialect;
/* The tables of routes that e2b_dialect lists, each in the file of its family. */
extern const struct route e2b_sandbox_routes[], e2b_snapshot_routes[], e2b_template_routes[], e2b_build_routes[];
extern const struct route e2b_process_routes[], e2b_file_routes[], e2b_filesystem_routes[], e2b_code_routes[];
extern const struct route e2b_log_routes[], e2b_secret_routes[], e2b_volume_routes[], e2b_watcher_routes[];
/* Answers 501: `what` names the thing. */
int e2b_unsupported(struct request *request, const char *what, struct husk_error *err);
/* As fields_done, but names that nobody asked for are left alone: newer clients send more. */
int e2b_fields_done(const struct fields *fields, struct husk_error *err);

/* 501 when the object has something that nobody took, and that says something; `what` it is an option of. */
int e2b_refuse_rest(struct request *request, const struct fields *fields, const char *what, struct husk_error *err);

/* Their name of a template to ours and back; the result may be the argument. */
const char *e2b_template(const char *name);
const char *e2b_template_shown(const char *name);
/* "team/Name:tag" as the name of a snapshot; INVALID when it cannot be one. Caller frees. */
int e2b_snapshot_name(const char *name, char **out, struct husk_error *err);

/* 16 bytes as a UUID of version 4, the form of E2B's ids of builds. */
void e2b_uuid(const unsigned char bytes[static 16], char out[static 37]);
/* "2026-01-31T12:00:00.123Z", or with an offset such as +02:00, in milliseconds; -1: it is no time. */
int e2b_time(const char *text, int64_t *out);
/* "team/Name:tag" as the plain name of the template; caller frees. */
int e2b_template_name(const char *given, char **out, struct husk_error *err);

struct e2b_settings {
	int64_t timeout;      /* seconds, counted anew when traffic wakes it */
	bool pause;           /* at the end of its time it is hibernated, not killed */
	bool resume;          /* traffic wakes it */
	bool closed;          /* its ports want the traffic token */
	bool built;           /* from a snapshot, which may have defaults of its own (e2b_user.c) */
	bool cold;            /* of a pause at the end of its time only the disk is kept: waking is a reboot */
	bool ours;            /* E2B's API made it */
	const char *template; /* that it was made from, as clients call it; NULL: the one of the catalog */
	const char *host;     /* of requests to its ports, "${PORT}" in it stands for the port; NULL: as they come */
};
#define E2B_PAIRS 3                /* of metadata that the settings become, at most */
#define E2B_BUILD_KEY "husk.build" /* metadata of a machine that builds, and of the snapshot of it: the build's id */
/* Pointers in the result are the sandbox's. */
struct e2b_settings e2b_settings_of(const struct husk_sandbox *sandbox);
/* Fills up to pairs[E2B_PAIRS]; *text is what they point into, the caller's to free. */
int e2b_settings_pairs(const struct e2b_settings *settings, struct husk_pair *pairs, size_t *count, char **text,
		       struct husk_error *err);
/* The template it was made from, as clients call it; the sandbox's string. */
const char *e2b_template_of(const struct husk_sandbox *sandbox);
bool e2b_hidden(const char *key); /* metadata that is ours */

/* ---- e2b_templates.c, e2b_build.c ---- */

bool e2b_template_exists(struct husk *husk, const char *name); /* built or bundled, by our name */
/* At the end of the server: builds that run are given up. False: one did not end in time. */
bool e2b_builds_end(void);

/* ---- e2b_network.c ---- */

struct e2b_network {
	struct husk_egress egress;
	const char **allow, **deny;
	struct husk_secret *headers; /* that its rules set */
	size_t header_count;
	bool closed;      /* ports want the traffic token */
	const char *host; /* that programs behind ports see; the document's */
};
/* `document` may be NULL; `internet`: allow_internet_access beside it. */
int e2b_network_read(struct request *request, json_t *document, bool internet, struct e2b_network *out,
		     struct husk_error *err);
void e2b_network_free(struct e2b_network *network);
json_t *e2b_network_document(struct request *request, const char *id, const struct e2b_settings *settings);
int e2b_network_update(struct request *request, struct husk_error *err); /* the route's */

/* ---- e2b_auth.c ---- */

/* For E2B_DATA: which sandbox is meant, whether the request may talk to it, and that it runs. From then on
 * request_path(request, "id") is the sandbox. */
int e2b_authorise(struct request *request, struct husk_error *err);
/* A call failed since its machine is gone. The sandbox's row says so a moment later, and clients ask for its health next: waits for
 * that, and makes `err` what later calls are told. One that goes on running leaves `err` as it is. */
void e2b_explain_end(struct request *request, struct husk_error *err);
/* For ports: they are open as E2B's are, unless its create said otherwise. Never for sandboxes of other makers. */
bool e2b_port_open(struct request *request, const char *sandbox, struct husk_error *err);
/* Hex; caller frees. `what`: "access" opens the data plane, "traffic" ports and code. */
int e2b_token(struct request *request, const char *what, const char *id, char **out, struct husk_error *err);

/* ---- e2b_user.c ---- */

/* Who the request acts as: the name in its Basic authorization or `username` query; "user" when there is none. */
int e2b_user(struct request *request, char name[static 33], struct husk_error *err);
/* That user's home; the default user is made when the sandbox has none of that name. DENIED: there is no such user. */
int e2b_home(struct request *request, const char *user, char **home, struct husk_error *err);
/* Makes the default user where there is none. */
int e2b_make_user(struct husk *husk, const char *sandbox, struct husk_error *err);
/* Ends all that runs in a sandbox, as a reboot would: its disk stays. */
int e2b_reboot(struct husk *husk, const char *sandbox, struct husk_error *err);
/* The directory that commands start in when they name none, of a sandbox that was built with one; NULL: the home. */
int e2b_directory(struct request *request, char **out, struct husk_error *err);
#define E2B_DEFAULTS "/etc/husk/e2b.json" /* in what e2b_build.c built: {"user", "cwd"} */
/* A path as a client gives it (relative to the home, or "~/…") to an absolute one without "." and "..". */
int e2b_path(struct request *request, const char *user, const char *path, char **out, struct husk_error *err);

/* ---- e2b_volumes.c ---- */

/* volumeMounts of a create; the array is the caller's to free, its strings belong to the document. NULL with err. */
struct husk_mount *e2b_mounts_read(const json_t *list, size_t *count, struct husk_error *err);
json_t *e2b_mounts_document(const struct husk_sandbox *sandbox);

/* ---- e2b_filesystem.c ---- */

/* EntryInfo of one file; NULL: out of memory. */
json_t *e2b_entry(struct request *request, const struct husk_file *file);
/* "key=value" attributes of a file as an object. */
json_t *e2b_metadata(char *const *attributes);
/* The directory that a message asks to watch. */
int e2b_watched_path(struct request *request, json_t *message, char **path, struct husk_error *err);
/* FilesystemEvent of a change below `root`. LIMIT: changes were lost. */
json_t *e2b_change(struct request *request, const char *root, const struct husk_watch_event *event, bool with_entry,
		   struct husk_error *err);

/* ---- e2b_watchers.c ---- */

void e2b_watchers_end(void); /* at the end of the server */

#endif
