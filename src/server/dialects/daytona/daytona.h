/*
 * What the files of Daytona's API share. Programs written for Daytona's SDKs run against huskd by their environment alone:
 * DAYTONA_API_URL is this server's address with "/daytona", DAYTONA_API_KEY a token (husk token create --daytona). The
 * control plane is below /daytona; the toolbox (what runs inside Daytona's sandboxes) below /daytona/toolbox/{id}.
 *
 * What a sandbox was asked to be that only Daytona knows (intervals, its user, whether it is public) is kept in its
 * metadata as one JSON object under "husk.daytona"; labels are the rest of its metadata. Nothing is kept in the server's
 * memory. What is beyond Husk is answered with 501 and its name, never with success.
 */
#ifndef HUSK_SERVER_DAYTONA_H
#define HUSK_SERVER_DAYTONA_H

#include "server/core.h"

#define DAYTONA_PREFIX "/daytona"
#define DAYTONA_TOOLBOX "/daytona/toolbox/{id}"
#define DAYTONA_USER "daytona"
#define DAYTONA_DAEMON_VERSION "0.226.1" /* of what runs inside, as far as clients decide by it what they may ask for */
#define DAYTONA_TTL_SECONDS (INT64_C(365) * 86400) /* of a sandbox that was given no end */
#define DAYTONA_MINUTES_MAX (INT64_C(365) * 1440)

extern const struct dialect daytona_dialect;

/* Of each family; ended by a route without a method. */
extern const struct route daytona_sandbox_routes[], daytona_lifecycle_routes[], daytona_interval_routes[];
extern const struct route daytona_event_routes[], daytona_process_routes[], daytona_session_routes[];
extern const struct route daytona_pty_routes[], daytona_interpreter_routes[], daytona_file_routes[];
extern const struct route daytona_transfer_routes[], daytona_search_routes[], daytona_git_routes[],
	daytona_git_view_routes[], daytona_lsp_routes[];
extern const struct route daytona_system_routes[], daytona_port_routes[], daytona_snapshot_routes[];
extern const struct route daytona_volume_routes[], daytona_secret_routes[], daytona_other_routes[];

/* ---- daytona.c: errors, and bodies ---- */

/* What is said of them where they are refused. */
#define DAYTONA_LOCAL_FILES                                                                                            \
	"COPY or ADD of local files into an image (it needs S3 storage, which the Python SDK refuses over http; "      \
	"upload the files to a sandbox and take a snapshot of it)"

/* Answers 501: `what` names the thing. */
int daytona_unsupported(struct request *request, const char *what, struct husk_error *err);
/* The error with this status and, for the toolbox, this code of Daytona's. */
#define daytona_fail(request, number, word, ...)                                                                       \
	((request)->fault = (struct fault){ (number), (word) }, husk_fail(err, HUSK_INVALID, __VA_ARGS__))
/* As fields_done, but names that nobody asked for are left alone: newer clients send more. */
int daytona_fields_done(const struct fields *fields, struct husk_error *err);
/* A text that is compared in constant time; false also when one is NULL. */
bool daytona_same(const char *a, const char *b);

/* ---- daytona_box.c: a sandbox as Daytona sees it ---- */

struct daytona_box {
	struct husk_sandbox *sandbox;
	json_t *settings;        /* an object */
	const char *user;        /* whom commands and files belong to */
	const char *home;        /* its directory, where relative paths begin */
	struct husk_pair *pairs; /* what the environment was changed to since (POST /env) */
	size_t pair_count;
};
void daytona_box_free(struct daytona_box *box);
#define cleanup_box cleanup(daytona_box_free)

/* The sandbox that {id} of the route names, one that has not ended. */
int daytona_find(struct request *request, struct daytona_box *box, struct husk_error *err);
/* Takes the sandbox. */
int daytona_box_of(struct husk_sandbox *sandbox, struct daytona_box *box, struct husk_error *err);
/* The same for the toolbox: 400 when it is not started, since only Daytona's `start` wakes one. */
int daytona_enter(struct request *request, struct daytona_box *box, struct husk_error *err);
/* Between these, one request of this server changes settings at a time. */
void daytona_lock(void);
void daytona_unlock(void);
/* Writes labels and settings down. `labels` NULL: those it has. */
int daytona_save(struct request *request, struct daytona_box *box, json_t *labels, struct husk_error *err);
/* The metadata of a sandbox: labels and, as the last, settings. Caller frees the array and *text. NULL: out of memory. */
struct husk_pair *daytona_metadata(json_t *labels, json_t *settings, size_t *count, char **text);

int64_t daytona_int(const struct daytona_box *box, const char *name, int64_t fallback);
bool daytona_bool(const struct daytona_box *box, const char *name);
const char *daytona_text(const struct daytona_box *box, const char *name);                         /* NULL: none */
int daytona_set(struct daytona_box *box, const char *name, json_t *value, struct husk_error *err); /* takes the value */

/* "started", "stopped", "paused", "archived" … */
const char *daytona_state(const struct daytona_box *box);
json_t *daytona_labels(const struct daytona_box *box);
/* The Sandbox object; `listed`: without what lists leave out. NULL: out of memory. */
json_t *daytona_document(struct request *request, const struct daytona_box *box, bool listed);
/* Answers 200 with it, as it is after the change. */
int daytona_respond(struct request *request, const char *id, struct husk_error *err);
/* How long Husk waits without a call before it hibernates the sandbox, in seconds; 0: for ever. */
int64_t daytona_idle_seconds(const json_t *settings);
/* "http://host:port/daytona", as this caller knows us; caller frees. */
char *daytona_address(struct request *request);

/* ---- daytona_sandboxes.c ---- */

/* cpu, memory and disk of a body, the latter two in GiB; what is not given stays 0. */
void daytona_read_size(struct fields *fields, struct husk_create_options *options);

/* ---- daytona_user.c ---- */

/* Makes the user where there is none of that name, and tells its home; caller frees. `name` "root": there is one. */
int daytona_make_user(struct husk *husk, const char *sandbox, const char *name, char **home, struct husk_error *err);
/* A path as a client gives it (relative to the home) to an absolute one without "." and ".."; caller frees. */
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
/* Runs it to its end while the client is there; each stream is kept up to 32 MiB, and what is past that is dropped. */
int daytona_run(struct request *request, const struct daytona_box *box, const struct daytona_command *command,
		struct daytona_output *output, struct husk_error *err);
/* The first line that it said on stderr, for errors; borrowed from the output. */
const char *daytona_complaint(struct daytona_output *output);
/* The box's changes and the request's, the latter winning; the array is the caller's to free. NULL: out of memory. */
struct husk_pair *daytona_environment(const struct daytona_box *box, const struct husk_pair *more, size_t more_count,
				      size_t *count);
/* 400 and a reason for what husk_exec could not start. */
int daytona_exec_failed(struct request *request, const char *cwd, struct husk_error *err);

/* ---- daytona_intervals.c ---- */

/* A thread that looks after those that fell asleep by themselves. */
int daytona_tend_start(struct husk_error *err);

/* ---- daytona_network.c ---- */

struct daytona_network {
	struct husk_egress egress;
	char **rules;
	struct husk_secret *secrets;
	size_t secret_count;
};
void daytona_network_free(struct daytona_network *network);
/* What the settings say of the network and of secrets, as Husk's policy. */
int daytona_network_read(struct request *request, json_t *settings, struct daytona_network *out,
			 struct husk_error *err);
/* Takes the three fields of a body into the settings, those that are given. */
int daytona_network_take(struct fields *fields, json_t *settings, struct husk_error *err);
/* [{"ENV": "secret"}, …] into the settings. */
int daytona_secrets_take(json_t *list, json_t *settings, struct husk_error *err);
/* The policy that holds from now on. */
int daytona_network_apply(struct request *request, const struct daytona_box *box, struct husk_error *err);

/* ---- daytona_snapshots.c ---- */

/* Daytona's name of a snapshot as that of a template (*template, may be built first) or of a snapshot of Husk's. */
int daytona_create(struct request *request, const char *snapshot, struct husk_create_options *options,
		   struct husk_sandbox **out, char **shown, struct husk_error *err);
/* "My Name:1.0" as a name that Husk takes; caller frees. */
int daytona_name(const char *field, const char *given, char **out, struct husk_error *err);

/* ---- daytona_build.c ---- */

/* buildInfo {dockerfileContent, contextHashes} of a create: the name of the snapshot that was built from it, now or by an
 * earlier create with the same text and size; caller frees. Of `size`, processors, memory and disk count. */
int daytona_build(struct request *request, json_t *info, const struct husk_create_options *size, char **snapshot,
		  struct husk_error *err);
/* The same under a name of the caller's choice. */
int daytona_build_named(struct request *request, json_t *info, const struct husk_create_options *size, const char *name,
			struct husk_error *err);

/* ---- daytona_ports.c ---- */

bool daytona_port_open(struct request *request, const char *sandbox, struct husk_error *err);
/* For the files of a signed address, and for sockets of browsers. */
int daytona_authorise(struct request *request, struct husk_error *err);

#endif
