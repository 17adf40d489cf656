/*
 * Shared by the files of Daytona's API. Programs written for Daytona's SDKs run against huskd with environment
 * variables only: DAYTONA_API_URL is this server's address with "/daytona", DAYTONA_API_KEY a token (husk token create
 * --daytona). The control plane is below /daytona; the toolbox (what runs inside Daytona's sandboxes) below
 * /daytona/toolbox/{id}.
 *
 * Settings of a sandbox that only Daytona has (intervals, its user, whether it is public) are stored in its metadata as
 * one JSON object under "husk.daytona"; labels are the rest of its metadata. Nothing is kept in the server's memory.
 * What Husk does not support is answered with 501 and its name, never with success.
 */
#ifndef HUSK_SERVER_DAYTONA_H
#define HUSK_SERVER_DAYTONA_H

#include "server/core.h"

#define DAYTONA_PREFIX "/daytona"
#define DAYTONA_TOOLBOX "/daytona/toolbox/{id}"
#define DAYTONA_USER "daytona"
#define DAYTONA_DAEMON_VERSION "0.226.1" /* of the programs inside; clients use it to decide what they may request */
#define DAYTONA_TTL_SECONDS (INT64_C(365) * 86400) /* of a sandbox without an end */
#define DAYTONA_MINUTES_MAX (INT64_C(365) * 1440)

extern const struct dialect daytona_dialect;

/* One for each family; ended by a route without a method. */
extern const struct route daytona_sandbox_routes[], daytona_lifecycle_routes[], daytona_interval_routes[];
extern const struct route daytona_event_routes[], daytona_process_routes[], daytona_session_routes[];
extern const struct route daytona_pty_routes[], daytona_interpreter_routes[], daytona_file_routes[];
extern const struct route daytona_transfer_routes[], daytona_search_routes[], daytona_git_routes[],
	daytona_git_view_routes[], daytona_lsp_routes[];
extern const struct route daytona_system_routes[], daytona_port_routes[], daytona_snapshot_routes[];
extern const struct route daytona_volume_routes[], daytona_secret_routes[], daytona_other_routes[];
extern const struct route daytona_computer_routes[], daytona_desktop_routes[], daytona_recording_routes[];

/* ---- daytona.c: errors, and bodies ---- */

/* What is said of them where they are refused. */
#define DAYTONA_LOCAL_FILES                                                                                            \
	"COPY or ADD of local files into an image (it needs S3 storage, which the Python SDK refuses over http; "      \
	"upload the files to a sandbox and take a snapshot of it)"

/* The error with this status and, for the toolbox, this code of Daytona's. */
#define daytona_fail(request, number, word, ...)                                                                       \
	((request)->fault = (struct fault){ (number), (word) }, husk_fail(err, HUSK_INVALID, __VA_ARGS__))
/* A text that is compared in constant time; false also when one is NULL. */
bool daytona_same(const char *a, const char *b);

/* ---- daytona_box.c: a sandbox as Daytona sees it ---- */

struct daytona_box {
	struct husk_sandbox *sandbox;
	json_t *settings;        /* an object */
	const char *user;        /* the owner of commands and files */
	const char *home;        /* the user's directory, where relative paths begin */
	struct husk_pair *pairs; /* changes of the environment (POST /env) */
	size_t pair_count;
};
void daytona_box_free(struct daytona_box *box);
#define cleanup_box cleanup(daytona_box_free)

/* The sandbox that {id} of the route names, if it has not ended. */
int daytona_find(struct request *request, struct daytona_box *box, struct husk_error *err);
/* Takes the sandbox. */
int daytona_box_of(struct husk_sandbox *sandbox, struct daytona_box *box, struct husk_error *err);
/* The same for the toolbox: 400 if it is not started, because only Daytona's `start` wakes it. */
int daytona_enter(struct request *request, struct daytona_box *box, struct husk_error *err);
/* Between these two calls, only one request of this server changes settings. */
void daytona_lock(void);
void daytona_unlock(void);
/* Saves labels and settings. `labels` NULL: unchanged. */
int daytona_save(struct request *request, struct daytona_box *box, json_t *labels, struct husk_error *err);
/* The metadata of a sandbox: labels, followed by the settings. Caller frees the array and *text. NULL: out of
 * memory. */
struct husk_pair *daytona_metadata(json_t *labels, json_t *settings, size_t *count, char **text);

int64_t daytona_int(const struct daytona_box *box, const char *name, int64_t fallback);
bool daytona_bool(const struct daytona_box *box, const char *name);
const char *daytona_text(const struct daytona_box *box, const char *name);                         /* NULL: none */
int daytona_set(struct daytona_box *box, const char *name, json_t *value, struct husk_error *err); /* takes the value */

/* "started", "stopped", "paused", "archived" … */
const char *daytona_state(const struct daytona_box *box);
json_t *daytona_labels(const struct daytona_box *box);
/* The Sandbox object; `listed`: without the fields that lists leave out. NULL: out of memory. */
json_t *daytona_document(struct request *request, const struct daytona_box *box, bool listed);
/* Answers 200 with the object after the change. */
int daytona_respond(struct request *request, const char *id, struct husk_error *err);
/* How long the sandbox may be without a call before Husk hibernates it, in seconds; 0: no limit. */
int64_t daytona_idle_seconds(const json_t *settings);
/* "http://host:port/daytona", as this caller knows the server; caller frees. */
char *daytona_address(struct request *request);

/* ---- daytona_sandboxes.c ---- */

/* cpu, memory and disk of a body, the latter two in GiB; what is not given stays 0. */
void daytona_read_size(struct fields *fields, struct husk_create_options *options);

/* ---- daytona_user.c ---- */

/* Makes the user if it is missing, and returns its home; caller frees. `name` "root" always exists. */
int daytona_make_user(struct husk *husk, const char *sandbox, const char *name, char **home, struct husk_error *err);
/* Converts a client's path (relative to the home) to an absolute one without "." and ".."; caller frees. */
int daytona_path(const struct daytona_box *box, const char *path, char **out, struct husk_error *err);

/* ---- daytona_run.c: programs in the sandbox on behalf of a request ---- */

struct daytona_command {
	const char *const *argv;
	const char *user; /* NULL: the box's */
	const char *cwd;  /* NULL: its home */
	const struct husk_pair *environment;
	size_t environment_count;
	int64_t timeout_ms;
	const char *input; /* its stdin; NULL: none */
	size_t input_size;
	const char *label;
};
struct daytona_output {
	struct buf out, err;
	int exit_code;
	bool timed_out;
};
void daytona_output_free(struct daytona_output *output);
#define cleanup_output cleanup(daytona_output_free)
/* Runs a program to its end while the client is connected; each stream is kept up to 32 MiB, the rest is dropped. */
int daytona_run(struct request *request, const struct daytona_box *box, const struct daytona_command *command,
		struct daytona_output *output, struct husk_error *err);
/* The first line of its stderr, for errors; borrowed from the output. */
const char *daytona_complaint(struct daytona_output *output);
/* The changes of the box and of the request, which wins; the caller frees the array. NULL: out of memory. */
struct husk_pair *daytona_environment(const struct daytona_box *box, const struct husk_pair *more, size_t more_count,
				      size_t *count);
/* 400 and a reason, if husk_exec could not start the program. */
int daytona_exec_failed(struct request *request, const char *cwd, struct husk_error *err);

/* ---- daytona_intervals.c ---- */

/* A thread that handles sandboxes which hibernated automatically. */
int daytona_tend_start(struct husk_error *err);

/* ---- daytona_network.c ---- */

struct daytona_network {
	struct husk_egress egress;
	char **rules;
	struct husk_secret *secrets;
	size_t secret_count;
};
void daytona_network_free(struct daytona_network *network);
/* The network and secrets of the settings, as Husk's policy. */
int daytona_network_read(struct request *request, json_t *settings, struct daytona_network *out,
			 struct husk_error *err);
/* Copies the given ones of the three fields of a body into the settings. */
int daytona_network_take(struct fields *fields, json_t *settings, struct husk_error *err);
/* [{"ENV": "secret"}, …] into the settings. */
int daytona_secrets_take(json_t *list, json_t *settings, struct husk_error *err);
/* Applies the policy. */
int daytona_network_apply(struct request *request, const struct daytona_box *box, struct husk_error *err);

/* ---- daytona_snapshots.c ---- */

/* Creates from Daytona's name of a snapshot: a template (*template, may be built first) or a snapshot of Husk. */
int daytona_create(struct request *request, const char *snapshot, struct husk_create_options *options,
		   struct husk_sandbox **out, char **shown, struct husk_error *err);
/* The template or snapshot of Husk that a word of FROM can mean; caller frees. NULL: none. */
char *daytona_base(struct husk *husk, const char *word);
/* "My Name:1.0" as a valid name in Husk; caller frees. */
int daytona_name(const char *field, const char *given, char **out, struct husk_error *err);

/* ---- daytona_build.c ---- */

/* One build. */
struct daytona_order {
	struct husk *husk, *owner;                              /* the client's and the instance's */
	const json_t *info;                                     /* buildInfo */
	const struct husk_create_options *size;                 /* processors, memory and disk count */
	const char *name;                                       /* of the snapshot that is made */
	void (*say)(void *data, const char *text, size_t size); /* a piece of the log; NULL: there is none */
	bool (*stops)(void *data);                              /* true: the build is given up */
	void *data;
};
/* INVALID: what the Dockerfile is to blame for, with the end of the step's output. */
int daytona_build_run(const struct daytona_order *order, struct husk_error *err);
/* Is the buildInfo {dockerfileContent, contextHashes} one that can be built? */
int daytona_build_check(struct request *request, const json_t *info, struct husk_error *err);
/* For a create: the name of the snapshot that is built from the buildInfo. An earlier create with the same text and size may have built
 * it; otherwise *build is the id of the build, which goes on. Caller frees both. */
int daytona_build(struct request *request, json_t *info, const struct husk_create_options *size, char **snapshot,
		  char **build, struct husk_error *err);

/* ---- daytona_pending.c: creates that wait for the build of their image ---- */

struct daytona_pending {
	json_t *document;  /* of the sandbox, as it was announced */
	json_t *body;      /* of the create; set for the one caller that has to carry it out now */
	char *build;       /* the id of the build */
	char reason[1024]; /* why no sandbox can be made; "": it can */
};
void daytona_pending_free(struct daytona_pending *pending);
/* Announces a sandbox. Its id, for now, is the name in `document`, or one that is made here. CONFLICT: another one has that name. */
int daytona_pending_add(struct request *request, json_t *document, const json_t *body, const char *build,
			struct husk_error *err);
bool daytona_is_pending(struct request *request, const char *id);
/* One of the caller's. `claim`: if nobody carries it out yet, this caller has to, and tells the end. */
int daytona_pending_find(struct request *request, const char *id, bool claim, struct daytona_pending *out,
			 struct husk_error *err);
/* `reason` NULL: the sandbox is there, and has that id as its name. False: it was removed meanwhile. */
bool daytona_pending_end(struct request *request, const char *id, const char *reason);
/* Forgets it; a build that nobody else waits for ends. */
void daytona_pending_remove(struct request *request, const char *id);

/* ---- daytona_builds.c ---- */

/* Starts the build of a snapshot; *document: the snapshot, which is being built. */
int daytona_build_start(struct request *request, const char *name, json_t *info, const struct husk_create_options *size,
			json_t **document, struct husk_error *err);
/* Adds the caller's running builds to a list of snapshots. */
int daytona_builds_add(struct request *request, json_t *array);
/* The snapshot of a build that runs or failed, by id or name; NULL: none. *name: that of the finished snapshot; caller frees. */
json_t *daytona_build_find(struct request *request, const char *word, char **name);
/* Ends a running build, or forgets a failed one; false: there is none. */
bool daytona_build_remove(struct request *request, const char *word);
int daytona_build_log(struct request *request, struct husk_error *err); /* the route's */
/* Called when the server stops: cancels running builds. False: one did not end in time. */
bool daytona_builds_end(void);

/* ---- daytona_ports.c ---- */

bool daytona_port_open(struct request *request, const char *sandbox, struct husk_error *err);
/* For files with a signed address, and for WebSockets of browsers. */
int daytona_authorise(struct request *request, struct husk_error *err);

#endif
