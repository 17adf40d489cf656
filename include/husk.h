/*
 * libhusk: throwaway computers from C.
 *
 * No daemon is needed. A `struct husk` is a handle on one Husk instance: of this host (its state directory), or behind a
 * server, by its URL. Each sandbox is looked after by a small process of its own, so it outlives the program that made it,
 * until its TTL.
 *
 * Every call blocks, may be made from any thread, and returns 0 on success or -1 with the reason in `err` (which may be
 * NULL). Strings inside returned structures belong to the structure; free it with the function named beside it.
 * A sandbox is named by its id or its name. A hibernated sandbox is woken by the calls that need it running.
 */
#ifndef HUSK_H
#define HUSK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "husk_error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HUSK_VERSION "0.1.0"

struct husk;

/* A URL ("unix:/run/husk/huskd.sock", "http://host:port", "https://host") opens the instance of that server, as
 * husk_open_host with $HUSK_TOKEN and $HUSK_CA. Anything else is the directory of an instance of this host, for root.
 * NULL: $HUSK_HOST if that is set, else $HUSK_HOME if that is set; else the server on /run/husk/huskd.sock if the caller is
 * not root, else /var/lib/husk (with /run/husk for what lives until reboot). Opening a directory also clears what killed
 * supervisors left behind, and says so in the events. */
int husk_open(const char *home, struct husk **out, struct husk_error *err);
void husk_close(struct husk *husk);

struct husk_host {
	const char *url;
	const char *
		token; /* from husk token create; NULL: none. On a unix socket the server knows the caller without one */
	const char *ca_file; /* https: certificates in PEM that vouch for the server; NULL: the host's trust store */
};
/* Every call goes over the server's API. Nothing is connected yet: a server that is not there is UNAVAILABLE at the first
 * call. What the server's host alone can do (husk_sign, husk_as, builds from local directories …) is UNAVAILABLE too. */
int husk_open_host(const struct husk_host *host, struct husk **out, struct husk_error *err);
/* The URL of the server behind the handle; NULL: it is an instance of this host. */
const char *husk_url(struct husk *husk);

/* ---- tenants ---- */

/* A token opens the instance to one tenant. Only a hash of its secret is kept. */
struct husk_token {
	char *id, *name;
	char *tenant;                   /* NULL with `admin`, and only then */
	bool admin;                     /* the instance itself, with everything in it */
	int64_t created_ms, expires_ms; /* expires_ms 0: never */
	bool revoked;
	/* Quotas of the tenant, checked when this token is used; 0: none. */
	uint32_t max_sandboxes;    /* live ones, hibernated included */
	uint64_t max_memory_bytes; /* of those that run, by their limits */
	uint64_t max_snapshot_bytes;
};
struct husk_token_options {
	const char *name;    /* for people; required, unique among tokens not revoked */
	const char *tenant;  /* NULL: the name; "" with `admin` */
	bool admin;          /* the instance itself */
	bool e2b;            /* a secret in the shape that E2B's clients take for a key */
	int64_t ttl_seconds; /* 0: does not expire */
	uint32_t max_sandboxes;
	uint64_t max_memory_bytes, max_snapshot_bytes;
};
void husk_token_free(struct husk_token *token);
void husk_token_list_free(struct husk_token **list);
/* *secret is given this once and kept nowhere; the caller frees it. */
int husk_token_create(struct husk *husk, const struct husk_token_options *options, char **secret,
		      struct husk_token **out, struct husk_error *err);
int husk_token_list(struct husk *husk, struct husk_token ***out, struct husk_error *err);
int husk_token_revoke(struct husk *husk, const char *id_or_name, struct husk_error *err);
/* Whose secret this is. DENIED: nobody's, or it is expired or revoked (the message says which). */
int husk_token_check(struct husk *husk, const char *secret, struct husk_token **out, struct husk_error *err);
/* The instance as the token's tenant sees it: every call through it finds, lists and makes only what is the tenant's (and
 * the templates of the instance, to use), within the quotas; what is another's is NOT_FOUND. It shares `husk`, which must
 * outlive it. A tenant's names are its own. Close with husk_close. */
int husk_as(struct husk *husk, const struct husk_token *token, struct husk **out, struct husk_error *err);
/* Signs text with a key that only this instance has, for links that stand in for a token. Hex; caller frees. */
int husk_sign(struct husk *husk, const char *text, char **out, struct husk_error *err);

/* ---- sandboxes ---- */

struct husk_pair { /* one "key=value" of metadata or environment */
	const char *key;
	const char *value;
};

/* A value that never enters the guest: the variable `name` holds a placeholder there, which is swapped for the value in
 * headers of requests to `hosts` ("api.example.com", "*.example.com") on their way out, and nowhere else. */
struct husk_secret {
	const char *name;
	const char *value; /* NULL in a change: the value it has stays. Never given back */
	const char *const *hosts;
	size_t host_count;
	/* NULL, or the header that is the value in every request to the hosts, whatever the guest sent under that name; there
	 * is no variable then, and the hosts have to be allowed by themselves. */
	const char *header;
};

/* What a sandbox may reach over the network. A rule is a host ("example.com", "*.example.com:8443"), which stands for TLS
 * and HTTP to it, or an address range ("10.1.2.0/24:5432", "1.2.3.4"), which stands for TCP and UDP. Private and local
 * addresses are reached by such a rule only, whatever the mode. In mode allow the hosts of secrets are rules too. */
struct husk_egress {
	const char *mode; /* "off", "allow" (what the rules name), "open"; NULL: allow when there are rules, else off */
	const char *const *allow;
	size_t allow_count;
	const char *const *deny; /* mode open: address ranges that are not reached, unless `allow` has them */
	size_t deny_count;
	const struct husk_secret *secrets;
	size_t secret_count;
	uint64_t limit_bytes;       /* in its life, both ways; 0: none */
	uint64_t limit_rate;        /* bytes a second, both ways; 0: none */
	uint32_t limit_connections; /* at one time; 0: 512 */
};

/* A volume as a directory of a sandbox. */
struct husk_mount {
	const char *volume; /* id or name; in what is given back, the name */
	const char *path;   /* absolute, in the guest; made there when missing */
	bool read_only;
};

struct husk_create_options {
	const char *template_name; /* NULL: "base" */
	const char *snapshot;      /* id or name: create from it instead of from a template */
	const char *name;          /* NULL: none */
	const char *isolation;     /* NULL or "auto": the strongest that works here */
	/* A create that repeats the key of an earlier one (of the same tenant, within a day) gives that sandbox again, and
	 * CONFLICT when it asks for something else; NULL: none. */
	const char *idempotency_key;
	int64_t ttl_seconds;   /* 0: 3600; a fork ends with its parent then. Ignored when persistent */
	bool persistent;       /* not reaped by TTL or idle time */
	const char *on_expiry; /* NULL or "kill": it ends with its TTL; "hibernate": it sleeps then, without an end, and
				* has an hour when it wakes */
	int64_t idle_seconds;  /* hibernate after this long without a call; 0: never */
	uint64_t memory_bytes; /* 0: 1 GiB */
	uint64_t disk_bytes;   /* 0: the template's (8 GiB unless it says otherwise) */
	uint32_t cpu_milli;    /* 0: 2000, two CPUs */
	uint32_t pids;         /* 0: 512 */
	const struct husk_pair *metadata;
	size_t metadata_count;
	const struct husk_pair *environment; /* given to every process started in it */
	size_t environment_count;
	const struct husk_egress *egress; /* NULL: the template's, or the parent's; else off */
	const struct husk_mount *mounts;  /* volumes; with a snapshot, beside those that it has. At most 16 */
	size_t mount_count;
};

enum husk_state { HUSK_CREATING = 1, HUSK_RUNNING, HUSK_PAUSED, HUSK_HIBERNATED, HUSK_ENDED };
const char *husk_state_name(enum husk_state state);

struct husk_sandbox {
	char *id;
	char *name;   /* NULL: none */
	char *tenant; /* NULL: the instance itself */
	char *template_name;
	char *parent;    /* the sandbox or snapshot it came from; NULL: straight from the template */
	char *isolation; /* "gvisor" … */
	char *boundary;  /* one phrase: what stands between it and the host */
	enum husk_state state;
	char *end_reason;                         /* HUSK_ENDED: killed, ttl, oom, crashed */
	int64_t created_ms, expires_ms, ended_ms; /* wall clock; expires_ms 0: persistent */
	int64_t idle_seconds;
	bool persistent;
	const char *on_expiry; /* "kill" or "hibernate" */
	uint64_t memory_bytes, disk_bytes;
	uint32_t cpu_milli, pids;
	struct husk_pair *metadata; /* environment values are never given back, only their names */
	size_t metadata_count;
	char **environment_names;
	char *egress_mode;         /* "off", "allow", "open" */
	struct husk_mount *mounts; /* its volumes */
	size_t mount_count;
};
void husk_sandbox_free(struct husk_sandbox *sandbox);
void husk_sandbox_list_free(struct husk_sandbox **list); /* NULL-terminated list */

int husk_create(struct husk *husk, const struct husk_create_options *options, struct husk_sandbox **out,
		struct husk_error *err);
int husk_inspect(struct husk *husk, const char *sandbox, struct husk_sandbox **out, struct husk_error *err);

struct husk_filter {
	enum husk_state state; /* 0: every live state (not ended) */
	bool with_ended;
	const struct husk_pair *metadata; /* all must match */
	size_t metadata_count;
	const char *template_name; /* NULL: any */
	const char *after;         /* newest first, those that follow this id; NULL: from the newest */
	size_t limit;              /* 0: all */
	bool with_builds;          /* also those that only build templates: their metadata has "husk.build" */
};
int husk_list(struct husk *husk, const struct husk_filter *filter, struct husk_sandbox ***out, struct husk_error *err);
int husk_kill(struct husk *husk, const char *sandbox, struct husk_error *err);
/* New TTL counted from now; `persistent` takes it off the clock. */
int husk_extend(struct husk *husk, const char *sandbox, int64_t ttl_seconds, bool persistent, int64_t *expires_ms,
		struct husk_error *err);
/* Another idle time: hibernate after so many seconds without a call, counted from now; 0: never. */
int husk_set_idle(struct husk *husk, const char *sandbox, int64_t idle_seconds, struct husk_error *err);
int husk_set_metadata(struct husk *husk, const char *sandbox, const struct husk_pair *pairs, size_t count,
		      struct husk_error *err);
int husk_pause(struct husk *husk, const char *sandbox, struct husk_error *err);
int husk_resume(struct husk *husk, const char *sandbox, struct husk_error *err);
int husk_hibernate(struct husk *husk, const char *sandbox, struct husk_error *err);
int husk_wake(struct husk *husk, const char *sandbox, struct husk_error *err);
/* `count` children from one pause of the parent. `options` may be NULL; of it name (count 1 only), ttl, persistent,
 * on_expiry, idle, memory, cpu, pids, metadata, environment and egress count, the rest is inherited. All or none. */
int husk_fork(struct husk *husk, const char *sandbox, size_t count, const struct husk_create_options *options,
	      struct husk_sandbox ***out, struct husk_error *err);

struct husk_stats {
	uint64_t cpu_us;                     /* used since it started */
	uint64_t memory_bytes, memory_limit; /* what the host accounts to it */
	uint64_t disk_bytes, disk_limit;
	uint64_t processes;
	uint64_t network_sent, network_received; /* bytes that left and entered it through its gateway */
	uint64_t network_connections, network_denied;
};
int husk_stats(struct husk *husk, const char *sandbox, struct husk_stats *out, struct husk_error *err);

/* ---- the network ---- */

void husk_egress_free(struct husk_egress *egress);
int husk_egress_get(struct husk *husk, const char *sandbox, struct husk_egress **out, struct husk_error *err);
/* Replaces the policy. It holds when the call returns: connections it does not allow are cut, also those of before. On
 * failure the old one holds. */
int husk_egress_set(struct husk *husk, const char *sandbox, const struct husk_egress *egress, struct husk_error *err);

/* Secrets that are stored once and named by policies later; each tenant has its own. What is stored never comes back but by
 * husk_secret_value, which is for making policies. */
struct husk_stored_secret {
	char *id, *name; /* the name in lower case, unique; it is found in any case */
	char *metadata;  /* JSON object of strings */
	int64_t version; /* counts its values */
	int64_t created_ms, updated_ms;
};
void husk_stored_secret_free(struct husk_stored_secret *secret);
void husk_stored_secret_list_free(struct husk_stored_secret **list);
int husk_secret_store(struct husk *husk, const char *name, const char *value, const struct husk_pair *metadata,
		      size_t count, struct husk_stored_secret **out, struct husk_error *err);
/* A new value, for policies that are made from now on. `metadata` NULL: it stays. */
int husk_secret_change(struct husk *husk, const char *id_or_name, const char *value, const struct husk_pair *metadata,
		       size_t count, struct husk_stored_secret **out, struct husk_error *err);
int husk_secret_get(struct husk *husk, const char *id_or_name, struct husk_stored_secret **out, struct husk_error *err);
int husk_secret_list(struct husk *husk, struct husk_stored_secret ***out, struct husk_error *err);
int husk_secret_remove(struct husk *husk, const char *id_or_name, struct husk_error *err);
/* The caller overwrites and frees it. */
int husk_secret_value(struct husk *husk, const char *id_or_name, char **out, struct husk_error *err);

struct husk_egress_event {
	int64_t at_ms;
	char *verdict;  /* allowed, denied, failed */
	char *kind;     /* dns, http, tls, tcp, udp */
	char *host;     /* the name, or the address */
	uint16_t port;  /* 0: a lookup */
	char *reason;   /* denied, failed: one sentence; else "" */
	char *rule;     /* denied: the rule that would allow it; "" when none would */
	uint64_t count; /* how many alike */
};
void husk_egress_event_list_free(struct husk_egress_event *list, size_t count);
/* The newest `limit` (0: all that are kept, at most 1000), oldest first. Also of a hibernated or ended sandbox. */
int husk_egress_log(struct husk *husk, const char *sandbox, size_t limit, struct husk_egress_event **out, size_t *count,
		    struct husk_error *err);

struct husk_egress_traffic {
	char *host;
	uint16_t port;
	uint64_t sent, received, connections, denied;
};
void husk_egress_traffic_list_free(struct husk_egress_traffic *list, size_t count);
/* By destination. Also of a hibernated or ended sandbox. */
int husk_egress_traffic(struct husk *husk, const char *sandbox, struct husk_egress_traffic **out, size_t *count,
			struct husk_error *err);

/* ---- snapshots ---- */

struct husk_snapshot {
	char *id;
	char *name;
	char **tags; /* further names, in order; NULL: none */
	char *tenant;
	char *sandbox; /* taken from */
	char *template_name;
	char *isolation;
	int64_t created_ms;
	uint64_t bytes; /* on disk */
	uint64_t memory_bytes, disk_bytes;
	uint32_t cpu_milli;
	struct husk_pair *metadata; /* of the sandbox it was taken from */
	size_t metadata_count;
	bool shared; /* husk_snapshot_share */
};
void husk_snapshot_free(struct husk_snapshot *snapshot);
void husk_snapshot_list_free(struct husk_snapshot **list);
int husk_snapshot_create(struct husk *husk, const char *sandbox, const char *name, struct husk_snapshot **out,
			 struct husk_error *err);
int husk_snapshot_list(struct husk *husk, struct husk_snapshot ***out, struct husk_error *err);
int husk_snapshot_remove(struct husk *husk, const char *snapshot, struct husk_error *err);
/* A further name, by which it is found as by its own; whatever had that name loses it, as by husk_snapshot_untag. */
int husk_snapshot_tag(struct husk *husk, const char *snapshot, const char *name, struct husk_error *err);
/* A shared snapshot is for every tenant to create from, as "tenant/name" ("husk/name" when it is the instance's own). It
 * gives its environment away. CONFLICT: it has volumes. */
#define HUSK_SHARER "husk"
int husk_snapshot_share(struct husk *husk, const char *snapshot, bool shared, struct husk_error *err);
/* Takes this name off the snapshot that has it, which is removed with the last of its names. */
int husk_snapshot_untag(struct husk *husk, const char *name, struct husk_error *err);

/* ---- checkpoints: numbered points of one sandbox, kept with it and removed with it ---- */

struct husk_checkpoint {
	int64_t number; /* from 1 on */
	char *label;    /* NULL: none */
	int64_t parent; /* the checkpoint that the sandbox was at before; 0: none */
	int64_t created_ms;
	uint64_t bytes; /* on disk */
	bool current;   /* the one that the sandbox took or went back to last */
};
void husk_checkpoint_free(struct husk_checkpoint *checkpoint);
void husk_checkpoint_list_free(struct husk_checkpoint **list);
/* Keeps the running sandbox as it is now; it goes on. `label` (NULL: none) follows the rule of names and is not a number.
 * At most 256 of a sandbox. */
int husk_checkpoint(struct husk *husk, const char *sandbox, const char *label, struct husk_checkpoint **out,
		    struct husk_error *err);
/* By number. None of an ended sandbox. */
int husk_history(struct husk *husk, const char *sandbox, struct husk_checkpoint ***out, struct husk_error *err);
/* `point`: its number or label. CONFLICT: the sandbox sleeps at it. */
int husk_checkpoint_remove(struct husk *husk, const char *sandbox, const char *point, struct husk_error *err);

/* What a rewind did, and what it could not take back. */
struct husk_rewound {
	int64_t number;                   /* of the checkpoint */
	char *label;                      /* NULL: none */
	size_t dropped;                   /* later checkpoints, removed */
	struct husk_egress_traffic *left; /* what left the machine since the checkpoint, by destination */
	size_t left_count;
	char **volumes; /* names of those it can write to, which are as they are; NULL: none */
};
void husk_rewound_free(struct husk_rewound *rewound);
/* The same sandbox (id, name, TTL, volumes) goes on from a checkpoint: memory, processes and disk. `point`: number or label;
 * NULL: the current one. Running, paused or hibernated before, it runs afterwards. Calls under way end with GONE. Later
 * checkpoints stay, so that it can go forward again, unless `drop_later`. `out` may be NULL. */
int husk_rewind(struct husk *husk, const char *sandbox, const char *point, bool drop_later, struct husk_rewound **out,
		struct husk_error *err);

/* ---- processes ---- */

struct husk_exec_options {
	const char *const *argv; /* NULL-terminated; or */
	const char *shell;       /* a string for /bin/sh -c */
	/* Run what the container image that the sandbox is from would (ENTRYPOINT and CMD). Where there is none: argv or shell,
	 * if given, else INVALID. */
	bool image_command;
	const struct husk_pair *environment;
	size_t environment_count;
	const char *cwd;    /* NULL: the WORKDIR of its image, else the user's home, or / */
	const char *user;   /* NULL: the USER of its image, else root */
	const char *label;  /* shown in the process list */
	int64_t timeout_ms; /* 0: none; on expiry its whole process group is killed */
	bool keep_stdin;    /* else it reads /dev/null */
	bool detach; /* do not follow it: husk_exec returns once it has started, *out is left alone unless asked */
	uint16_t rows, columns; /* both set: on a terminal */
};

/* A process one is attached to. One thread may read events while another writes. */
struct husk_process;

enum husk_event_kind { HUSK_STDOUT = 1, HUSK_STDERR, HUSK_EXIT };
struct husk_process_event {
	enum husk_event_kind kind;
	const char *data; /* output; valid until the next call */
	size_t size;
	/* HUSK_EXIT: */
	int exit_code; /* 128+n when signalled, 127 not found, 126 not executable, 124 timed out */
	int signal;    /* 0: none */
	bool timed_out, out_of_memory;
	int64_t duration_ms;
};

/* A program that cannot be executed is a process that ends with 126 or 127. Detached, nobody would see that, so it is a
 * failure: NOT_FOUND or INVALID, with this field. */
#define HUSK_FIELD_PROGRAM "program"
int husk_exec(struct husk *husk, const char *sandbox, const struct husk_exec_options *options,
	      struct husk_process **out, int64_t *pid, struct husk_error *err);
struct husk_attach_options {
	int64_t offset_stdout, offset_stderr; /* absolute; -1: the oldest byte still buffered */
	bool keep_stdin;
};
/* What was really given: where the stream starts, and what was lost before it. */
struct husk_attach_result {
	int64_t offset_stdout, offset_stderr, dropped_stdout, dropped_stderr;
};
int husk_attach(struct husk *husk, const char *sandbox, int64_t pid, const struct husk_attach_options *options,
		struct husk_process **out, struct husk_attach_result *result, struct husk_error *err);
/* Blocks for the next event. After HUSK_EXIT there is none: 0 events left is an error. */
int husk_process_next(struct husk_process *process, struct husk_process_event *event, struct husk_error *err);
/* The descriptor to poll before husk_process_next when other things must be watched too. That it is readable does not
 * promise an event: ask husk_process_pending, which takes in what has come and tells whether one is waiting. */
int husk_process_fd(struct husk_process *process);
bool husk_process_pending(struct husk_process *process);
/* Blocks while the process is slow to read. */
int husk_process_write(struct husk_process *process, const void *data, size_t size, struct husk_error *err);
/* As much as can go now, and never waits: the count, or 0 when the process has to read first. Room shows as the
 * descriptor above being readable, and counts once husk_process_pending was asked. */
ssize_t husk_process_write_some(struct husk_process *process, const void *data, size_t size, struct husk_error *err);
/* At most how much of what was written the process may not have read. Who lets go of the handle with up to 512 KiB of
 * it loses none. */
size_t husk_process_unread(struct husk_process *process);
int husk_process_close_stdin(struct husk_process *process, struct husk_error *err);
int husk_process_signal(struct husk_process *process, int signal, struct husk_error *err);
int husk_process_resize(struct husk_process *process, uint16_t rows, uint16_t columns, struct husk_error *err);
/* Detaches: the process goes on. */
void husk_process_free(struct husk_process *process);

/* The whole thing in one call: output collected (each stream bounded to 16 MiB, the rest counted). */
struct husk_result {
	char *output, *error_output; /* NUL-terminated; may hold NULs inside */
	size_t output_size, error_output_size;
	uint64_t output_lost, error_output_lost;
	int exit_code, signal;
	bool timed_out, out_of_memory;
	int64_t duration_ms;
};
void husk_result_free(struct husk_result *result);
int husk_run(struct husk *husk, const char *sandbox, const struct husk_exec_options *options, struct husk_result *out,
	     struct husk_error *err);

struct husk_process_info {
	int64_t pid;
	char *label;
	char **argv;
	char *cwd, *user;
	int64_t started_ms;
	bool running, timed_out, out_of_memory, terminal;
	int exit_code;
	int64_t stdout_bytes, stderr_bytes; /* produced so far */
};
void husk_process_list_free(struct husk_process_info *list, size_t count);
int husk_process_list(struct husk *husk, const char *sandbox, struct husk_process_info **out, size_t *count,
		      struct husk_error *err);
int husk_process_kill(struct husk *husk, const char *sandbox, int64_t pid, int signal, struct husk_error *err);

/* ---- files ---- */

/* A sink takes bytes as they come; a non-zero return stops the call. A source fills up to `size` and returns the count,
 * 0 at the end, -1 to give up (nothing is changed in the guest then). */
typedef int (*husk_sink)(void *data, const void *bytes, size_t size);
typedef ssize_t (*husk_source)(void *data, void *bytes, size_t size);

enum husk_file_type { HUSK_FILE = 1, HUSK_DIRECTORY, HUSK_SYMLINK, HUSK_OTHER };
struct husk_file {
	char *path;
	enum husk_file_type type;
	uint64_t size;
	uint32_t mode, uid, gid;
	char *user, *group, *target; /* NULL: unknown, or not a link */
	int64_t mtime_ms;
	int64_t atime_ms, ctime_ms; /* of a file in a volume; else 0 */
	char **attributes;          /* "key=value", as husk_file_write_with left them; NULL: none */
};
void husk_file_free(struct husk_file *file); /* frees the fields, not the structure */
void husk_file_list_free(struct husk_file *list, size_t count);

int husk_file_read(struct husk *husk, const char *sandbox, const char *path, uint64_t offset,
		   uint64_t length /* 0: all */, husk_sink sink, void *data, struct husk_error *err);
/* All or nothing: readers see the old content until the whole new one is there. Symbolic links are followed. A file that
 * exists keeps its mode (mode 0) and its owner (user NULL); a new one has mode 0644 and belongs to root. */
int husk_file_write(struct husk *husk, const char *sandbox, const char *path, uint32_t mode, const char *user,
		    husk_source source, void *data, struct husk_error *err);
struct husk_write_options {
	uint32_t mode;    /* 0: as it is; 0644 for a new file */
	const char *user; /* NULL: as it is; root for a new file */
	/* "key=value", NULL-terminated, at most 4 KiB: the file keeps them until it is written again, as extended
	 * attributes "user.e2b.key". */
	char *const *attributes;
	/* Into the file itself, as a program in the sandbox would: hard links stay, `user` is of new files only, a watcher
	 * sees one write. A transfer that breaks off leaves what has arrived. */
	bool in_place;
};
int husk_file_write_with(struct husk *husk, const char *sandbox, const char *path,
			 const struct husk_write_options *options, husk_source source, void *data,
			 struct husk_error *err);
int husk_file_stat(struct husk *husk, const char *sandbox, const char *path, bool follow, struct husk_file *out,
		   struct husk_error *err);
int husk_file_list(struct husk *husk, const char *sandbox, const char *path, uint32_t depth, struct husk_file **out,
		   size_t *count, struct husk_error *err);
int husk_file_mkdir(struct husk *husk, const char *sandbox, const char *path, uint32_t mode, const char *user,
		    struct husk_error *err);
int husk_file_move(struct husk *husk, const char *sandbox, const char *path, const char *target,
		   struct husk_error *err);
int husk_file_remove(struct husk *husk, const char *sandbox, const char *path, struct husk_error *err);
int husk_file_chmod(struct husk *husk, const char *sandbox, const char *path, uint32_t mode, struct husk_error *err);
/* A directory (or file) out as a tar stream, and a tar stream into a directory. */
int husk_tar_read(struct husk *husk, const char *sandbox, const char *path, husk_sink sink, void *data,
		  struct husk_error *err);
int husk_tar_write(struct husk *husk, const char *sandbox, const char *path, const char *user, husk_source source,
		   void *data, struct husk_error *err);

struct husk_watch_event {
	const char *kind; /* create, write, remove, rename, chmod, overflow */
	const char *path;
};
/* Blocks, calling back for each event, until the callback returns non-zero. */
int husk_watch(struct husk *husk, const char *sandbox, const char *path, bool recursive,
	       int (*callback)(void *data, const struct husk_watch_event *event), void *data, struct husk_error *err);
/* The same as a handle, for those who must look after other things too. It is armed when this returns: no later change
 * is missed. An event is valid until the next call. The descriptor is used as with husk_process_fd. */
struct husk_watcher;
int husk_watch_open(struct husk *husk, const char *sandbox, const char *path, bool recursive, struct husk_watcher **out,
		    struct husk_error *err);
int husk_watch_fd(struct husk_watcher *watcher);
bool husk_watch_pending(struct husk_watcher *watcher);
int husk_watch_next(struct husk_watcher *watcher, struct husk_watch_event *event, struct husk_error *err);
void husk_watch_free(struct husk_watcher *watcher);

/* A connected stream to a TCP port inside the sandbox, as a socket the caller closes. */
int husk_dial(struct husk *husk, const char *sandbox, uint16_t port, struct husk_error *err);

/* For servers that give libhusk's callers elsewhere a way to the sandbox: a socket on which the wire protocol is spoken
 * (src/wire/wire.h, HELLO done), limited to what the guest's agent answers. A hibernated sandbox is woken. */
int husk_tunnel(struct husk *husk, const char *sandbox, struct husk_error *err);

/* ---- volumes: directories that outlive sandboxes ---- */

/* A sandbox gets one at its create (husk_mount); several may have the same one at a time and see each other's changes. It
 * keeps regular files, directories and symbolic links with their modes, owners and times, up to its limit. */
struct husk_volume {
	char *id, *name;
	char *tenant; /* NULL: the instance itself */
	int64_t created_ms;
	uint64_t limit_bytes; /* past it a write fails with ENOSPC */
	uint64_t used_bytes;  /* each entry counts as a block of 4 KiB and its size in blocks, holes included */
	char **sandboxes;     /* ids of live ones that have it; NULL-terminated */
};
void husk_volume_free(struct husk_volume *volume);
void husk_volume_list_free(struct husk_volume **list);
/* `limit_bytes` 0: 10 GiB. */
int husk_volume_create(struct husk *husk, const char *name, uint64_t limit_bytes, struct husk_volume **out,
		       struct husk_error *err);
int husk_volume_inspect(struct husk *husk, const char *volume, struct husk_volume **out, struct husk_error *err);
int husk_volume_list(struct husk *husk, struct husk_volume ***out, struct husk_error *err);
/* With all that is in it. CONFLICT, naming them, while live sandboxes have it. */
int husk_volume_remove(struct husk *husk, const char *volume, struct husk_error *err);

/* Its files, from outside. Paths begin at its root ("/a/b", or "a/b"); a symbolic link is shown, and never followed. */
#define HUSK_KEEP UINT32_MAX
struct husk_file_attributes { /* HUSK_KEEP: as it is; for something new, the default (root's, 0644 or 0755) */
	uint32_t mode, uid, gid;
	bool fresh; /* of a write: CONFLICT when there is a file already */
};
int husk_volume_file_stat(struct husk *husk, const char *volume, const char *path, struct husk_file *out,
			  struct husk_error *err);
int husk_volume_file_list(struct husk *husk, const char *volume, const char *path, uint32_t depth,
			  struct husk_file **out, size_t *count, struct husk_error *err);
int husk_volume_file_read(struct husk *husk, const char *volume, const char *path, uint64_t offset,
			  uint64_t length /* 0: all */, husk_sink sink, void *data, struct husk_error *err);
/* Written beside and renamed over the target; parents are made. `attributes` may be NULL. */
int husk_volume_file_write(struct husk *husk, const char *volume, const char *path,
			   const struct husk_file_attributes *attributes, husk_source source, void *data,
			   struct husk_error *err);
/* With `parents` those that are missing are made too, and one that is there is fine; else CONFLICT, NOT_FOUND. */
int husk_volume_file_mkdir(struct husk *husk, const char *volume, const char *path,
			   const struct husk_file_attributes *attributes, bool parents, struct husk_error *err);
int husk_volume_file_change(struct husk *husk, const char *volume, const char *path,
			    const struct husk_file_attributes *attributes, struct husk_error *err);
/* A file, or a tree. */
int husk_volume_file_remove(struct husk *husk, const char *volume, const char *path, struct husk_error *err);

/* ---- code ---- */

struct husk_code_options {
	const char *language; /* python (default), javascript, typescript, bash, r, java */
	const char *context;  /* NULL: "default"; state lasts between calls of one context */
	const char *code;
	const struct husk_pair *environment; /* only when this call starts the context */
	size_t environment_count;
	const struct husk_pair *variables; /* for this call alone; the context has its own again afterwards */
	size_t variable_count;
	const char *cwd;
	int64_t timeout_ms; /* 0: none; on expiry the context is interrupted, then restarted */
	/* How to wait for output; NULL: poll(2). 1: `fd` is readable; 0: timeout_ms (-1: no limit) passed; -1: the caller
	 * no longer cares, which ends the call with GONE while the code goes on. */
	int (*wait)(void *data, int fd, int timeout_ms);
	void *wait_data;
	int64_t *
		executions; /* set to how many the context has run, this one included; 0: it does not say. NULL: no matter */
};
enum husk_code_kind { HUSK_CODE_STDOUT = 1, HUSK_CODE_STDERR, HUSK_CODE_RESULT, HUSK_CODE_ERROR };
struct husk_code_event {
	enum husk_code_kind kind;
	const char *text; /* output; plain form of a result; traceback of an error */
	/* HUSK_CODE_RESULT: JSON object of representations by MIME type ({"image/png": base64, "text/html": …}) */
	const char *bundle;
	bool main_result;         /* the value of the last expression */
	const char *name, *value; /* HUSK_CODE_ERROR */
};
/* Calls back as things happen; 0 when the code ran, also when it raised (then an error event was given). */
int husk_code_run(struct husk *husk, const char *sandbox, const struct husk_code_options *options,
		  void (*callback)(void *data, const struct husk_code_event *event), void *data, bool *timed_out,
		  struct husk_error *err);
struct husk_code_context {
	char *name, *language, *cwd;
	int64_t pid;
};
void husk_code_context_list_free(struct husk_code_context *list, size_t count);
int husk_code_contexts(struct husk *husk, const char *sandbox, struct husk_code_context **out, size_t *count,
		       struct husk_error *err);
int husk_code_restart(struct husk *husk, const char *sandbox, const char *context, struct husk_error *err);
int husk_code_remove(struct husk *husk, const char *sandbox, const char *context, struct husk_error *err);

/* ---- templates ---- */

struct husk_template {
	char *name, *description;
	char *digest; /* of the version: "<digest of the content>-<build>" */
	char *tenant; /* NULL: the instance's, for every tenant to use */
	int64_t created_ms;
	uint64_t bytes, disk_bytes;
	char *isolation;     /* of the baked snapshot */
	size_t old_versions; /* earlier ones that are kept, because sandboxes or snapshots of them are there */
};
void husk_template_list_free(struct husk_template **list);
int husk_template_list(struct husk *husk, struct husk_template ***out, struct husk_error *err);
struct husk_build_options {
	const char *name;
	const char *definition; /* directory with a `template` file; or */
	const char *tar;        /* a rootfs tar; or */
	const char *directory;  /* a rootfs directory; or */
	const char *image;      /* a container image: an OCI layout, a tar of one, or what docker saved */
	const char *reference;  /* of several images in one layout, the one of this name; NULL: there is one */
	const char *isolation;
	bool force; /* also when nothing changed */
	/* One line of progress at a time; may be NULL. */
	void (*progress)(void *data, const char *line);
	void *data;
};
/* Makes a new version and points the name at it; does nothing when the same content is baked already (*fresh says which), unless
 * forced. Earlier versions are not touched: they go when no sandbox and no snapshot is left that was made from them. */
int husk_template_build(struct husk *husk, const struct husk_build_options *options, struct husk_template **out,
			bool *fresh, struct husk_error *err);
/* The container image of that name ("python:3.12") among those in the instance's folder <home>/images: its path and its
 * reference for husk_template_build, which the caller frees. NOT_FOUND: it is not there. */
int husk_image_find(struct husk *husk, const char *name, char **path, char **reference, struct husk_error *err);
int husk_template_remove(struct husk *husk, const char *name, struct husk_error *err);
void husk_template_free(struct husk_template *value);

/* ---- images of registries ---- */

struct husk_image_layer {
	char *digest; /* "sha256:…" */
	uint64_t bytes;
};
struct husk_image {
	char *name;          /* whole: "docker.io/library/python:3.12" */
	char *digest;        /* of its manifest: "sha256:…" */
	char *template_name; /* what sandboxes of it are made from, once it is built */
	bool built;
	int64_t pulled_ms;
	uint64_t bytes; /* of its layers as they are kept; other images may share some */
	struct husk_image_layer *layers;
	size_t layer_count;
	char **command;              /* ENTRYPOINT and CMD; NULL: none */
	char **environment;          /* NULL: none */
	char *user, *cwd;            /* NULL: root; the user's home */
	size_t sandboxes, snapshots; /* that were made from it and are there */
};
void husk_image_free(struct husk_image *image);
void husk_image_list_free(struct husk_image **list);

struct husk_pull_progress {
	size_t layers, layers_done;
	uint64_t bytes, bytes_done; /* of the layers that were not here */
};
struct husk_pull_options {
	const char *name; /* [HOST[:PORT]/]NAME[:TAG|@DIGEST], as Docker has it */
	/* Called from several threads, one at a time; non-zero ends the pull with GONE. May be NULL. */
	int (*progress)(void *data, const struct husk_pull_progress *progress);
	void *data;
};
/* Whether a word can only be an image's name, not a template's: it has a tag, a digest or a folder. */
bool husk_image_is_name(const char *word);
/* Whether the registry of an image is among `registries` (hosts, separated by commas; "*": all). A server asks this before it
 * pulls for a client: the client chooses which host is asked, and the server's logins are shown to it. */
bool husk_image_allowed(const char *name, const char *registries);
/* Fetches an image from its registry into <home>/images/pulled: what is not there yet, each byte checked. It is not built:
 * husk_image_build does that. The owner's. NOT_FOUND, DENIED (log in), LIMIT (no space), UNAVAILABLE, PROTOCOL. */
int husk_image_pull(struct husk *husk, const struct husk_pull_options *options, struct husk_image **out,
		    struct husk_error *err);
/* Makes the template of a pulled image, as husk_template_build does; `options` say the isolation and who hears of the
 * progress. */
int husk_image_build(struct husk *husk, const char *name, const struct husk_build_options *options,
		     struct husk_template **out, bool *fresh, struct husk_error *err);
int husk_image_list(struct husk *husk, struct husk_image ***out, struct husk_error *err);
int husk_image_inspect(struct husk *husk, const char *name, struct husk_image **out, struct husk_error *err);
/* Removes the image with its template, and layers that no other image has. CONFLICT while sandboxes or snapshots of it are
 * there. */
int husk_image_remove(struct husk *husk, const char *name, struct husk_error *err);
/* Removes all images that no sandbox and no snapshot was made from; *count of them, *bytes of disk. */
int husk_image_prune(struct husk *husk, size_t *count, uint64_t *bytes, struct husk_error *err);

/* ---- the instance ---- */

struct husk_event {
	int64_t sequence, at_ms;
	char *sandbox; /* NULL: of the instance */
	char *kind;   /* created, forked, snapshot, hibernated, woken, extended, oom, ended, recovered, template, … */
	char *detail; /* JSON object */
};
void husk_event_list_free(struct husk_event *list, size_t count);
/* Events after `after`, oldest first, at most `limit`; of one sandbox when given. Waits up to wait_ms for the first. */
int husk_events(struct husk *husk, const char *sandbox, int64_t after, size_t limit, int wait_ms,
		struct husk_event **out, size_t *count, struct husk_error *err);

enum husk_log_source {
	HUSK_LOG_SUPERVISOR, /* what Husk's own processes logged for the sandbox, a line each, with time and level */
	HUSK_LOG_CONSOLE,    /* what the guest wrote on its console: kernel, agent, crashes */
};
/* Where a reader stands, for the next call. Zeroed: at the beginning. */
struct husk_log_position {
	uint64_t file, offset;
};
/* A log or console of a sandbox as text, also after its end; the caller frees. With `position`, what has come since the
 * call before; without (NULL), the newest MiB. The text is UTF-8 without control characters but newline and tab. */
int husk_logs(struct husk *husk, const char *sandbox, enum husk_log_source source, struct husk_log_position *position,
	      char **out, struct husk_error *err);

struct husk_check {
	char *name;
	enum { HUSK_CHECK_OK = 1, HUSK_CHECK_WARN, HUSK_CHECK_FAIL } result;
	char *text; /* what was found, and the fix */
};
void husk_check_list_free(struct husk_check *list, size_t count);
/* What works on this host, what does not, and why. Each engine's probe really runs something. */
int husk_doctor(struct husk *husk, struct husk_check **out, size_t *count, struct husk_error *err);
/* Processes, mounts, cgroups, directories and sockets of this instance that belong to no live sandbox: one check each. */
int husk_leaks(struct husk *husk, struct husk_check **out, size_t *count, struct husk_error *err);
/* What a server or a timer does every half minute: clears up after supervisors that were killed, and ends hibernated
 * sandboxes whose time is over. Waits for no sandbox. *changed: how many there were. */
int husk_tend(struct husk *husk, size_t *changed, struct husk_error *err);
/* Ends the machines that are kept ready for creates, and says how many; the next create starts new ones. The owner's: 0 for
 * a tenant. */
size_t husk_pool_drain(struct husk *husk);
struct husk_gc_result {
	size_t sandboxes, snapshots, templates, pool;
	uint64_t bytes;
};
/* Clears remains, expired hibernated sandboxes, unused template versions; with `all` also the pool and old events. */
int husk_gc(struct husk *husk, bool all, struct husk_gc_result *out, struct husk_error *err);
/* Removes the instance: its home and run directory with snapshots, volumes, templates and tokens. CONFLICT, and nothing is
 * removed, while a server serves it or a sandbox is awake. Afterwards the handle is only good for husk_close. */
int husk_erase(struct husk *husk, struct husk_error *err);

#ifdef __cplusplus
}
#endif
#endif
