/*
 * libhusk: throwaway computers from C.
 *
 * No daemon is required. A `struct husk` is a handle on one Husk instance: an instance of this host (its state
 * directory), or the instance of a server, given by its URL. A small process supervises each sandbox, so a sandbox
 * outlives the program that created it, until its TTL.
 *
 * Every call blocks, may be made from any thread, and returns 0 on success or -1 with the reason in `err` (which may be
 * NULL). Strings inside returned structures belong to the structure; free it with the function named beside it. A
 * sandbox is given by its id or its name. A call that needs a running sandbox wakes a hibernated one.
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

/* Opens an instance. A URL ("unix:/run/husk/huskd.sock", "http://host:port", "https://host") opens the instance of that
 * server, as husk_open_host with $HUSK_TOKEN and $HUSK_CA. Anything else is the directory of an instance of this host,
 * for root. NULL: the first of $HUSK_HOST and $HUSK_HOME that is set; otherwise, for root, /var/lib/husk (with
 * /run/husk for files that are kept until reboot), and for other users the server on /run/husk/huskd.sock. Opening a
 * directory also cleans up after killed supervisors and records that as events. */
int husk_open(const char *home, struct husk **out, struct husk_error *err);
void husk_close(struct husk *husk);

struct husk_host {
	const char *url;
	const char *
		token; /* from husk token create; NULL: none. On a unix socket the kernel identifies the caller, without a token */
	const char *ca_file; /* https: certificates in PEM that verify the server; NULL: the host's trust store */
};
/* Every call uses the server's API. This call makes no connection: if the server is not reachable, the first call fails
 * with UNAVAILABLE. Calls that only the server's host can do (husk_sign, husk_as, builds from local directories …) also
 * fail with UNAVAILABLE. */
int husk_open_host(const struct husk_host *host, struct husk **out, struct husk_error *err);
/* The URL of the handle's server; NULL: an instance of this host. */
const char *husk_url(struct husk *husk);

/* ---- tenants ---- */

/* A token gives one tenant access to the instance. Only a hash of its secret is stored. */
struct husk_token {
	char *id, *name;
	char *tenant;                   /* NULL with `admin`, and only then */
	bool admin;                     /* gives access to the whole instance */
	int64_t created_ms, expires_ms; /* expires_ms 0: never */
	bool revoked;
	/* Quotas of the tenant, checked when this token is used; 0: none. */
	uint32_t max_sandboxes;    /* live ones, including hibernated ones */
	uint64_t max_memory_bytes; /* sum of the limits of the running ones */
	uint64_t max_snapshot_bytes;
};
struct husk_token_options {
	const char *name;    /* for people; required, unique among tokens not revoked */
	const char *tenant;  /* NULL: the name; "" with `admin` */
	bool admin;          /* the instance itself */
	bool e2b;            /* a secret in the format that E2B's clients accept as a key */
	int64_t ttl_seconds; /* 0: does not expire */
	uint32_t max_sandboxes;
	uint64_t max_memory_bytes, max_snapshot_bytes;
};
void husk_token_free(struct husk_token *token);
void husk_token_list_free(struct husk_token **list);
/* *secret is returned only once and stored nowhere; the caller frees it. */
int husk_token_create(struct husk *husk, const struct husk_token_options *options, char **secret,
		      struct husk_token **out, struct husk_error *err);
int husk_token_list(struct husk *husk, struct husk_token ***out, struct husk_error *err);
int husk_token_revoke(struct husk *husk, const char *id_or_name, struct husk_error *err);
/* The token with this secret. DENIED: no such token, or it is expired or revoked (the message says which). */
int husk_token_check(struct husk *husk, const char *secret, struct husk_token **out, struct husk_error *err);
/* A handle that sees the instance as the token's tenant does. Every call through it finds, lists and creates only the
 * tenant's objects, within the quotas; templates of the instance can be used. Objects of other tenants are NOT_FOUND.
 * Names belong to the tenant. The handle shares `husk`, which must outlive it. Close with husk_close. */
int husk_as(struct husk *husk, const struct husk_token *token, struct husk **out, struct husk_error *err);
/* Signs text with the key of this instance, for links that work without a token. Hex; caller frees. */
int husk_sign(struct husk *husk, const char *text, char **out, struct husk_error *err);

/* ---- sandboxes ---- */

struct husk_pair { /* one "key=value" of metadata or environment */
	const char *key;
	const char *value;
};

/* A value that never enters the guest. Inside, the variable `name` holds a placeholder. In headers of outgoing requests
 * to `hosts` ("api.example.com", "*.example.com"), and nowhere else, the placeholder is replaced by the value. */
struct husk_secret {
	const char *name;
	const char *value; /* NULL in a change: the value stays. Never returned */
	const char *const *hosts;
	size_t host_count;
	/* NULL, or a header that is set to the value in every request to the hosts, whatever the guest sent under that
	 * name. Then there is no variable, and rules must allow the hosts. */
	const char *header;
};

/* What a sandbox may reach over the network. A rule is a host ("example.com", "*.example.com:8443"), for TLS and HTTP,
 * or an address range ("10.1.2.0/24:5432", "1.2.3.4"), for TCP and UDP. In every mode, private and local addresses
 * require a rule for the address. In mode allow, the hosts of secrets are rules too. */
struct husk_egress {
	const char *mode; /* "off", "allow" (the rules), "open"; NULL: allow if there are rules, otherwise off */
	const char *const *allow;
	size_t allow_count;
	const char *const *deny; /* mode open: address ranges that are not reachable, unless `allow` has them */
	size_t deny_count;
	const struct husk_secret *secrets;
	size_t secret_count;
	/* Hosts ("api.example.com", "*.example.com:8443") to which requests that change something (all but GET, HEAD,
	 * OPTIONS and TRACE) are held: the sandbox gets the answer 202, and the request waits as an effect
	 * (husk_effects). Mode allow only; the hosts are rules too. */
	const char *const *hold;
	size_t hold_count;
	uint64_t limit_bytes;       /* in total, both directions; 0: no limit */
	uint64_t limit_rate;        /* bytes per second, both directions; 0: no limit */
	uint32_t limit_connections; /* at one time; 0: 512 */
	/* Certificates (PEM, at most 64 KiB) that programs in the sandbox trust in addition to those of the template. NULL: the
	 * setting network.trust of the machine; "": none. If only `trust` and `hold` are set in the create options, the
	 * rest of the policy is the template's or the parent's. */
	const char *trust;
};

/* A volume, mounted as a directory of a sandbox. */
struct husk_mount {
	const char *volume; /* id or name; in results, the name */
	const char *path;   /* absolute, in the guest; created if missing */
	bool read_only;
	const char *subpath; /* this directory of the volume alone, created if missing; relative. NULL: all of it */
};

struct husk_create_options {
	const char *template_name; /* NULL: "base" */
	const char *snapshot;  /* id or name: create from this snapshot, not from a template. "SANDBOX@POINT": from a
				    * checkpoint (number or label) of a sandbox */
	const char *name;      /* NULL: none */
	const char *isolation; /* NULL or "auto": the strongest engine that works on this host */
	/* A create with the key of an earlier one (of the same tenant, within a day) returns the earlier sandbox, or
	 * CONFLICT if the options differ; NULL: no key. */
	const char *idempotency_key;
	int64_t ttl_seconds; /* 0: 3600, or for a fork the end of its parent. Ignored if persistent */
	bool persistent;     /* no end by TTL or idle time */
	/* NULL or "kill": it ends at its TTL; "hibernate": it hibernates, without a TTL, and gets one hour when it wakes */
	const char *on_expiry;
	/* NULL or "off"; "each-call": a checkpoint before each call that starts a program or sends input to one (exec,
	 * code, desktop). The newest 32 of these, and at most 4 GiB, are kept. A fork has the setting of its parent. */
	const char *checkpoints;
	int64_t idle_seconds;  /* hibernate after this time without a call; 0: never */
	uint64_t memory_bytes; /* 0: 1 GiB */
	uint64_t disk_bytes;   /* 0: the template's (default 8 GiB) */
	uint32_t cpu_milli;    /* 0: 2000, two CPUs */
	uint32_t pids;         /* 0: 512 */
	const struct husk_pair *metadata;
	size_t metadata_count;
	const struct husk_pair *environment; /* for every process that is started in the sandbox */
	size_t environment_count;
	const struct husk_egress *egress; /* NULL: the template's or the parent's, otherwise off */
	const struct husk_mount
		*mounts; /* volumes; with a snapshot, in addition to those of the snapshot. At most 16 */
	size_t mount_count;
};

enum husk_state { HUSK_CREATING = 1, HUSK_RUNNING, HUSK_PAUSED, HUSK_HIBERNATED, HUSK_ENDED };
const char *husk_state_name(enum husk_state state);

struct husk_sandbox {
	char *id;
	char *name;   /* NULL: none */
	char *tenant; /* NULL: the instance itself */
	char *template_name;
	char *parent; /* the sandbox or snapshot that it was made from; NULL: directly from the template */
	char *origin; /* the state that it started from, for husk_moment_open; NULL: the template, or unknown (`parent` is set) */
	char *isolation; /* "gvisor" … */
	char *boundary;  /* one phrase: what separates the sandbox from the host */
	enum husk_state state;
	char *end_reason;                         /* HUSK_ENDED: killed, ttl, oom, crashed */
	int64_t created_ms, expires_ms, ended_ms; /* wall clock; expires_ms 0: persistent */
	int64_t idle_seconds;
	bool persistent;
	const char *on_expiry;   /* "kill" or "hibernate" */
	const char *checkpoints; /* "off" or "each-call" */
	uint64_t memory_bytes, disk_bytes;
	uint32_t cpu_milli, pids;
	struct husk_pair *metadata; /* of the environment only names are returned, never values */
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
	const char *after;         /* newest first, those after this id; NULL: from the newest */
	size_t limit;              /* 0: all */
	bool with_builds;          /* also sandboxes that only build templates: their metadata has "husk.build" */
};
int husk_list(struct husk *husk, const struct husk_filter *filter, struct husk_sandbox ***out, struct husk_error *err);
int husk_kill(struct husk *husk, const char *sandbox, struct husk_error *err);
/* Sets a new TTL, counted from now; `persistent` removes the TTL. */
int husk_extend(struct husk *husk, const char *sandbox, int64_t ttl_seconds, bool persistent, int64_t *expires_ms,
		struct husk_error *err);
/* Sets another idle time: hibernate after so many seconds without a call, counted from now; 0: never. */
int husk_set_idle(struct husk *husk, const char *sandbox, int64_t idle_seconds, struct husk_error *err);
/* Sets other limits of processors and memory; 0: unchanged. A running sandbox has them at once: if it uses more memory than it
 * may, its largest process is killed. A hibernated one has them when it wakes. CONFLICT: it is paused. The disk cannot change. */
int husk_resize(struct husk *husk, const char *sandbox, uint32_t cpu_milli, uint64_t memory_bytes,
		struct husk_error *err);
int husk_set_metadata(struct husk *husk, const char *sandbox, const struct husk_pair *pairs, size_t count,
		      struct husk_error *err);
int husk_pause(struct husk *husk, const char *sandbox, struct husk_error *err);
int husk_resume(struct husk *husk, const char *sandbox, struct husk_error *err);
int husk_hibernate(struct husk *husk, const char *sandbox, struct husk_error *err);
int husk_wake(struct husk *husk, const char *sandbox, struct husk_error *err);
/* Starts a running or hibernated sandbox anew with its files; processes and memory are lost, as after a reboot. This
 * also works if the memory cannot be continued, because the runsc that saved it is no longer installed. CONFLICT if the
 * disk is a part of the memory (see `husk doctor`), UNAVAILABLE with microvm; then nothing has changed. */
int husk_reboot(struct husk *husk, const char *sandbox, struct husk_error *err);
/* Makes `count` children from one pause of the parent: all or none. `options` may be NULL. Only its name (count 1
 * only), ttl, persistent, on_expiry, checkpoints, idle, memory, cpu, pids, metadata, environment and egress are used; everything
 * else is inherited. */
int husk_fork(struct husk *husk, const char *sandbox, size_t count, const struct husk_create_options *options,
	      struct husk_sandbox ***out, struct husk_error *err);

struct husk_stats {
	uint64_t cpu_us;                     /* used since it started */
	uint64_t memory_bytes, memory_limit; /* as accounted by the host */
	uint64_t disk_bytes, disk_limit;
	uint64_t processes;
	uint64_t network_sent, network_received; /* bytes through its gateway */
	uint64_t network_connections, network_denied;
};
int husk_stats(struct husk *husk, const char *sandbox, struct husk_stats *out, struct husk_error *err);

/* ---- the network ---- */

void husk_egress_free(struct husk_egress *egress);
int husk_egress_get(struct husk *husk, const char *sandbox, struct husk_egress **out, struct husk_error *err);
/* Replaces the policy. The new policy is in force when the call returns: connections that it does not allow are cut,
 * including existing ones. On failure the old policy stays. */
int husk_egress_set(struct husk *husk, const char *sandbox, const struct husk_egress *egress, struct husk_error *err);

/* Secrets that are stored once and used by policies later; each tenant has its own. Only husk_secret_value returns the
 * value, for callers that make policies. */
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
/* Sets a new value, for policies that are made from now on. `metadata` NULL: the metadata stays. */
int husk_secret_change(struct husk *husk, const char *id_or_name, const char *value, const struct husk_pair *metadata,
		       size_t count, struct husk_stored_secret **out, struct husk_error *err);
int husk_secret_get(struct husk *husk, const char *id_or_name, struct husk_stored_secret **out, struct husk_error *err);
int husk_secret_list(struct husk *husk, struct husk_stored_secret ***out, struct husk_error *err);
int husk_secret_remove(struct husk *husk, const char *id_or_name, struct husk_error *err);
/* The caller must overwrite and free the value. */
int husk_secret_value(struct husk *husk, const char *id_or_name, char **out, struct husk_error *err);

struct husk_egress_event {
	int64_t at_ms;
	char *verdict;  /* allowed, denied, failed */
	char *kind;     /* dns, http, tls, tcp, udp */
	char *host;     /* the name, or the address */
	uint16_t port;  /* 0: a lookup */
	char *reason;   /* denied, failed: one sentence; otherwise "" */
	char *rule;     /* denied: the rule that would allow it; "": no rule would */
	uint64_t count; /* how many alike */
};
void husk_egress_event_list_free(struct husk_egress_event *list, size_t count);
/* Returns the newest `limit` entries (0: all that are kept, at most 1000), oldest first. Also for a hibernated or ended
 * sandbox. */
int husk_egress_log(struct husk *husk, const char *sandbox, size_t limit, struct husk_egress_event **out, size_t *count,
		    struct husk_error *err);

struct husk_egress_traffic {
	char *host;
	uint16_t port;
	uint64_t sent, received, connections, denied;
};
void husk_egress_traffic_list_free(struct husk_egress_traffic *list, size_t count);
/* By destination. Also for a hibernated or ended sandbox. */
int husk_egress_traffic(struct husk *husk, const char *sandbox, struct husk_egress_traffic **out, size_t *count,
			struct husk_error *err);

/* ---- snapshots ---- */

struct husk_snapshot {
	char *id;
	char *name;
	char **tags; /* more names, sorted; NULL: none */
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
/* Adds a name to the snapshot. If another snapshot has that name, it loses the name, as by husk_snapshot_untag. */
int husk_snapshot_tag(struct husk *husk, const char *snapshot, const char *name, struct husk_error *err);
/* Every tenant can create sandboxes from a shared snapshot, as "tenant/name" ("husk/name" for a snapshot of the
 * instance). Its environment is shared too. CONFLICT: the snapshot has volumes. */
#define HUSK_SHARER "husk"
int husk_snapshot_share(struct husk *husk, const char *snapshot, bool shared, struct husk_error *err);
/* Removes this name from its snapshot. With its last name, the snapshot is removed. */
int husk_snapshot_untag(struct husk *husk, const char *name, struct husk_error *err);

/* ---- checkpoints: numbered points of one sandbox, stored and removed with the sandbox ---- */

enum husk_change_kind { HUSK_ADDED = 1, HUSK_REMOVED, HUSK_CHANGED };
const char *husk_change_name(enum husk_change_kind kind); /* "added", "removed", "changed" */
struct husk_changed_file {
	enum husk_change_kind kind;
	char *path;
};
struct husk_checkpoint {
	int64_t number; /* from 1 on */
	char *label;    /* NULL: none */
	int64_t parent; /* the previous checkpoint of the sandbox; 0: none */
	int64_t created_ms;
	uint64_t bytes;          /* on disk */
	bool automatic;          /* taken before a call (`checkpoints`), and removed when there are many */
	char *ran;               /* the call, shortened; NULL: none */
	uint64_t sent, requests; /* bytes and requests that left between its parent and it */
	bool current;            /* the last checkpoint that the sandbox took or was rewound to */
	/* From husk_history_files: how many files differ between its parent and it, and the first of them by path. -1:
	 * not requested, or not known, because the earlier state is gone or a machine is too broken to be copied. */
	int64_t files_changed;
	struct husk_changed_file *files;
	size_t file_count;
};
#define HUSK_HISTORY_FILES 100 /* names for each checkpoint */
void husk_checkpoint_free(struct husk_checkpoint *checkpoint);
void husk_checkpoint_list_free(struct husk_checkpoint **list);
/* Saves the state of the running sandbox; the sandbox continues. `label` (NULL: none) follows the rule of names and is
 * not a number. A sandbox has at most 256 checkpoints. */
int husk_checkpoint(struct husk *husk, const char *sandbox, const char *label, struct husk_checkpoint **out,
		    struct husk_error *err);
/* Sorted by number. An ended sandbox has none. */
int husk_history(struct husk *husk, const char *sandbox, struct husk_checkpoint ***out, struct husk_error *err);
/* The same with the files that changed before each checkpoint: against its parent; for the first one, against the
 * origin of the sandbox, as in husk_diff. Each checkpoint that was not compared yet is copied (husk_moment_open), two
 * at a time; the result is stored with the checkpoint. */
int husk_history_files(struct husk *husk, const char *sandbox, struct husk_checkpoint ***out, struct husk_error *err);
/* `point`: its number or label. CONFLICT: the sandbox is hibernated at this checkpoint. */
int husk_checkpoint_remove(struct husk *husk, const char *sandbox, const char *point, struct husk_error *err);

/* A request of the sandbox to a held host (`hold` of struct husk_egress). */
struct husk_effect {
	int64_t number; /* of the sandbox; from 1 on */
	char *method, *url;
	/* "held"; "sending"; "sent": the host has answered with `status`; "uncertain": its sending was interrupted, so
	 * it may have been sent, and is never sent again; "dropped" */
	char *state;
	char *detail;   /* why; NULL: nothing to say */
	int status;     /* of the host's answer; 0: none */
	uint64_t bytes; /* of its body */
	int64_t created_ms;
	int64_t done_ms; /* when it was sent or dropped; 0: not yet, or not known over a server */
};
void husk_effect_free(struct husk_effect *effect);
void husk_effect_list_free(struct husk_effect **list);
/* Sorted by number: those that are held, and the newest of those that are done. They stay when their sandbox ends, until its
 * row is removed (husk_gc). A sandbox holds at most 256 requests and 8 MiB. */
int husk_effects(struct husk *husk, const char *sandbox, struct husk_effect ***out, struct husk_error *err);
/* The request of a held effect, as HTTP text without values of secrets. Caller frees. GONE: it is no longer held. */
int husk_effect_request(struct husk *husk, const char *sandbox, int64_t number, char **out, size_t *size,
			struct husk_error *err);
/* Sends effects in the order of their numbers, each at most once, with secrets inserted; `numbers` NULL: all held
 * effects. Stops at the first one that cannot be sent. `out` has the effects that were tried, each with its new state.
 * CONFLICT: one of them is not held. `out` may be NULL. */
int husk_effects_send(struct husk *husk, const char *sandbox, const int64_t *numbers, size_t count,
		      struct husk_effect ***out, struct husk_error *err);
/* Drops held effects; `numbers` NULL: all. `out` may be NULL. */
int husk_effects_drop(struct husk *husk, const char *sandbox, const int64_t *numbers, size_t count,
		      struct husk_effect ***out, struct husk_error *err);

/* Equal requests of a sandbox in a row. */
struct husk_request {
	char *method, *url; /* the URL is cut at 512 bytes */
	uint64_t count;
};
/* Connections from outside to a port of a sandbox. */
struct husk_visits {
	uint16_t port;
	uint64_t count;
};

/* The result of a rewind, and what it could not undo. */
struct husk_rewound {
	int64_t number;                   /* of the checkpoint */
	char *label;                      /* NULL: none */
	size_t dropped;                   /* number of later checkpoints that were removed */
	struct husk_egress_traffic *left; /* traffic since the checkpoint, by destination */
	size_t left_count;
	char **volumes; /* names of writable volumes, which are not rewound; NULL: none */
	/* Requests since the checkpoint that were read on their way out (HTTP, and TLS that is opened for secrets or held hosts),
	 * oldest first; at most the newest 500. */
	struct husk_request *requests;
	size_t request_count;
	uint64_t requests_more;     /* older ones, of which only the number is known */
	struct husk_visits *visits; /* connections from outside to ports of the sandbox since then */
	size_t visit_count;
	struct husk_effect **effects; /* effects that were held after the checkpoint, and are dropped now; NULL: none */
};
void husk_rewound_free(struct husk_rewound *rewound);
/* The same sandbox (id, name, TTL, volumes) continues from a checkpoint: memory, processes and disk. `point`: number or
 * label; NULL: the current one. The sandbox may be running, paused or hibernated; afterwards it runs. Open calls end
 * with GONE. Later checkpoints stay, so that a rewind can also go forward, unless `drop_later`. `out` may be NULL. */
int husk_rewind(struct husk *husk, const char *sandbox, const char *point, bool drop_later, struct husk_rewound **out,
		struct husk_error *err);

struct husk_promoted {
	char *sandbox;      /* the parent, which continues as the fork was */
	int64_t checkpoint; /* of the parent: the state that it took over */
	char **ended;       /* ids of the fork, and of the other forks of the parent */
	struct husk_effect *
		*effects; /* of the fork, and of the parent until the fork: those that were sent now; NULL: none */
};
void husk_promoted_free(struct husk_promoted *promoted);
/* Puts a fork into the place of the sandbox that it was forked from: the parent (id, name, TTL, policy, volumes)
 * continues with the memory, processes and disk of the fork, as after a rewind, and the fork ends. The other forks of
 * the parent end too, unless `keep`. The state of the fork is a checkpoint of the parent first, so nothing is lost if a
 * later step fails. The parent may be running, paused or hibernated. Effects that the fork holds are sent, as
 * husk_effects_send does; those that the parent has held since the fork, and those of the other forks, are dropped.
 * INVALID: the sandbox is not a fork, or the two differ in disk size or volumes. `out` may be NULL. */
int husk_promote(struct husk *husk, const char *sandbox, bool keep, struct husk_promoted **out, struct husk_error *err);

/* ---- processes ---- */

struct husk_exec_options {
	const char *const *argv; /* NULL-terminated; or */
	const char *shell;       /* a string for /bin/sh -c */
	/* Runs ENTRYPOINT and CMD of the container image of the sandbox. If the image has none: argv or shell, if
	 * given, otherwise INVALID. */
	bool image_command;
	const struct husk_pair *environment;
	size_t environment_count;
	const char *cwd;    /* NULL: the WORKDIR of the image, otherwise the user's home, or / */
	const char *user;   /* NULL: the USER of the image, otherwise root */
	const char *label;  /* shown in the process list */
	int64_t timeout_ms; /* 0: none; on expiry the whole process group is killed */
	bool keep_stdin;    /* else it reads /dev/null */
	bool detach; /* do not follow: husk_exec returns when the process has started; *out is set only if requested */
	uint16_t rows, columns; /* both set: on a terminal */
	/* Bytes of each output stream that husk_attach can read later: 0 (1 MiB) to 1 TiB. The part beyond 1 MiB uses
	 * the sandbox's disk; if the disk is full, the oldest bytes are dropped earlier. */
	int64_t keep_output;
};

/* A handle on an attached process. One thread may read events while another writes. */
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

/* A program that cannot be executed is a process that ends with 126 or 127. For a detached process that would go
 * unnoticed, so husk_exec fails: NOT_FOUND or INVALID, with this field. */
#define HUSK_FIELD_PROGRAM "program"
int husk_exec(struct husk *husk, const char *sandbox, const struct husk_exec_options *options,
	      struct husk_process **out, int64_t *pid, struct husk_error *err);
struct husk_attach_options {
	int64_t offset_stdout, offset_stderr; /* absolute; -1: the oldest byte still buffered */
	bool keep_stdin;
};
/* The actual start of the streams, and how many bytes were lost before it. */
struct husk_attach_result {
	int64_t offset_stdout, offset_stderr, dropped_stdout, dropped_stderr;
};
int husk_attach(struct husk *husk, const char *sandbox, int64_t pid, const struct husk_attach_options *options,
		struct husk_process **out, struct husk_attach_result *result, struct husk_error *err);
/* Blocks until the next event. After HUSK_EXIT there are no more events, and another call is an error. */
int husk_process_next(struct husk_process *process, struct husk_process_event *event, struct husk_error *err);
/* A descriptor to poll before husk_process_next, for callers that also wait for other things. A readable descriptor
 * does not guarantee an event: husk_process_pending receives what has arrived and returns whether an event is
 * waiting. */
int husk_process_fd(struct husk_process *process);
bool husk_process_pending(struct husk_process *process);
/* Blocks while the process does not read. */
int husk_process_write(struct husk_process *process, const void *data, size_t size, struct husk_error *err);
/* Writes as much as possible without waiting. Returns the count; 0: the process has to read first. When there is room
 * again, the descriptor above is readable; call husk_process_pending then. */
ssize_t husk_process_write_some(struct husk_process *process, const void *data, size_t size, struct husk_error *err);
/* At most how many written bytes the process may not have read. If a handle is freed with up to 512 KiB unread, nothing
 * is lost. */
size_t husk_process_unread(struct husk_process *process);
int husk_process_close_stdin(struct husk_process *process, struct husk_error *err);
int husk_process_signal(struct husk_process *process, int signal, struct husk_error *err);
int husk_process_resize(struct husk_process *process, uint16_t rows, uint16_t columns, struct husk_error *err);
/* Detaches, and waits until everything that was written is in the sandbox: input that is written later, through any handle,
 * follows it. The process continues. Only husk_process_free may follow. */
int husk_process_detach(struct husk_process *process, struct husk_error *err);
/* Detaches without a wait: the process continues. */
void husk_process_free(struct husk_process *process);

/* Runs a command in one call and collects its output (each stream up to 16 MiB; the rest is counted). */
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

/* A sink gets bytes as they arrive; a non-zero return ends the call. A source fills up to `size` bytes and returns the
 * count, 0 at the end, -1 to cancel (then nothing is changed in the guest). */
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
	char **attributes;          /* "key=value", as written by husk_file_write_with; NULL: none */
};
void husk_file_free(struct husk_file *file); /* frees the fields, not the structure */
void husk_file_list_free(struct husk_file *list, size_t count);

int husk_file_read(struct husk *husk, const char *sandbox, const char *path, uint64_t offset,
		   uint64_t length /* 0: all */, husk_sink sink, void *data, struct husk_error *err);
/* All or nothing: readers see the old content until the new content is complete. Symbolic links are followed. An
 * existing file keeps its mode (mode 0) and its owner (user NULL); a new file has mode 0644 and belongs to root. */
int husk_file_write(struct husk *husk, const char *sandbox, const char *path, uint32_t mode, const char *user,
		    husk_source source, void *data, struct husk_error *err);
struct husk_write_options {
	uint32_t mode;    /* 0: unchanged; 0644 for a new file */
	const char *user; /* NULL: unchanged; root for a new file */
	/* "key=value", NULL-terminated, at most 4 KiB. The file keeps them until it is written again, as extended
	 * attributes "user.e2b.key". */
	char *const *attributes;
	/* Writes into the file itself, as a program in the sandbox would: hard links stay, `user` applies to new files
	 * only, and a watcher sees one write. If the transfer fails, the file holds what has arrived. */
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
/* Reads a directory (or file) as a tar stream, and writes a tar stream into a directory. */
int husk_tar_read(struct husk *husk, const char *sandbox, const char *path, husk_sink sink, void *data,
		  struct husk_error *err);
int husk_tar_write(struct husk *husk, const char *sandbox, const char *path, const char *user, husk_source source,
		   void *data, struct husk_error *err);

/* ---- what changed ---- */

struct husk_change {
	enum husk_change_kind kind;
	struct husk_file file; /* as it is; if it was removed, as it was */
	/* HUSK_CHANGED: as it was, without its path: type, size, mode, owner and link target. `type` 0: not known. */
	struct husk_file before;
};
/* A state of files that can be read: a sandbox (id or name), a checkpoint of one ("work@3", "work@label"), a snapshot, or a
 * template. */
struct husk_moment {
	char *sandbox; /* the id of a sandbox in that state */
	bool is_copy;  /* made for this: its processes are stopped, no list shows it, and it ends after ten minutes */
};
#define HUSK_MOMENT_KEY "husk.moment" /* metadata of such a copy */
/* A sandbox is used as it is; for the others, a copy is started. NOT_FOUND: the word names none of the four. */
int husk_moment_open(struct husk *husk, const char *word, struct husk_moment *out, struct husk_error *err);
/* Ends the copy. */
void husk_moment_close(struct husk *husk, struct husk_moment *moment);

/* The files of `sandbox` that differ from those of `base`, by path: content, mode, owner, type or link target. A
 * directory that was removed is one change. Both are words for husk_moment_open, of the same build of the same
 * template. `base` NULL: the origin of the sandbox, which is the state at its fork, its snapshot, or its template.
 * GONE: that state is no longer stored. `path`: this path and what is below; NULL: everything. Files that differ in
 * every sandbox (host name, machine id, resolver, Husk's certificate) and volumes are left out. The cost depends on how
 * much the two have written, not on how much they hold. UNAVAILABLE from a sandbox whose template was baked by an older
 * Husk. */
int husk_diff(struct husk *husk, const char *sandbox, const char *base, const char *path, struct husk_change ***out,
	      struct husk_error *err);

/* What differs besides files. */
struct husk_difference {
	const char *kind; /* "deb", "pip", "npm": packages; "process", "port"; constant text */
	enum husk_change_kind change;
	char *name;           /* of the package; the command line; "0.0.0.0:8080", "[::]:8080" */
	char *before, *after; /* versions; NULL: none */
};
void husk_difference_list_free(struct husk_difference *list, size_t count);
enum { HUSK_DIFF_PACKAGES = 1, HUSK_DIFF_PROCESSES = 2 };
/* Installed packages (Debian, pip, npm), or processes and listening TCP ports, or both (`what`), that differ between two states, as
 * for husk_diff; by kind and name. It reads what the guest wrote about itself. */
int husk_diff_system(struct husk *husk, const char *sandbox, const char *base, unsigned what,
		     struct husk_difference **out, size_t *count, struct husk_error *err);
void husk_change_list_free(struct husk_change **list); /* NULL-terminated list */
/* A regular file as the template has it, not as the sandbox changed it. No symbolic link is followed. */
int husk_template_file_read(struct husk *husk, const char *sandbox, const char *path, husk_sink sink, void *data,
			    struct husk_error *err);

/* ---- workspaces: a directory of the caller, copied into a sandbox and applied back ---- */

struct husk_workspace_options {
	const char *directory; /* of the caller; nothing of it is mounted */
	const char *path;      /* in the guest, absolute; NULL: /workspace */
	bool all;              /* also the files that git ignores */
	const char *user;      /* who owns the copies; NULL: the USER of the image, otherwise root */
	/* Called for each file that is left out (sockets, devices, links that lead outside), from another thread; NULL:
	 * no call. */
	void (*left_out)(void *data, const char *name, const char *why);
	void *data;
};
/* Copies the directory into the sandbox, with .git, and remembers each file as it is now: the base of husk_workspace_diff and
 * husk_workspace_apply. The record is on the caller's side (<home>/workspaces, or ~/.local/state/husk for the sandbox of a
 * server). Forks of the sandbox have the workspace too. */
int husk_workspace_bring(struct husk *husk, const char *sandbox, const struct husk_workspace_options *options,
			 struct husk_error *err);

/* One path of a merge. */
struct husk_merge_entry {
	char *path; /* relative to the workspace, or absolute in a merge of sandboxes */
	enum husk_change_kind kind;
	bool merged;    /* both sides had changed it, and the text of both is in it */
	char *conflict; /* one phrase; NULL: none */
	bool resolved;  /* the conflict was resolved as the options said */
};
struct husk_merged {
	struct husk_merge_entry *entries; /* by path */
	size_t count;
	size_t conflicts;           /* that are not resolved */
	bool written;               /* false: nothing was written */
	char *target;               /* the directory, or the sandbox */
	char **left_out, **reasons; /* paths that are never written, and why; NULL: none */
	size_t ignored;             /* new files that git ignores in the directory */
};
void husk_merged_free(struct husk_merged *merged);
struct husk_merge_options {
	bool dry_run;
	/* NULL: with a conflict nothing is written. "markers": text gets conflict markers, and other conflicts keep the target's
	 * version. "ours": the target's version. "theirs": the version of the sandbox that the changes come from. */
	const char *conflicts;
	uint64_t limit_bytes; /* of changed files; 0: 1 GiB */
};
/* Writes the files that the sandbox changed in its workspace back to the directory: three-way with the changes that
 * were made there meanwhile, all or nothing. With conflicts it also returns 0, and nothing is written unless the
 * options allow it. Never written: anything in .git, links that lead outside, devices, and new files that git ignores.
 * Killed in the middle, each file is old or new, and another call completes it. */
int husk_workspace_apply(struct husk *husk, const char *sandbox, const struct husk_merge_options *options,
			 struct husk_merged **out, struct husk_error *err);

/* What a sync did, or found. */
struct husk_sync_event {
	const char *path; /* relative; NULL: `note` is about the sync as a whole */
	enum husk_change_kind kind;
	bool to_sandbox;      /* it went from the directory into the sandbox; otherwise the other way */
	bool merged;          /* both sides had changed it, and the text of both is in it */
	const char *conflict; /* one phrase: nothing was written; NULL: none */
	const char *note;
};
struct husk_sync_options {
	bool watch;            /* go on until `stop` */
	const char *conflicts; /* as for husk_merge_options; "ours" is the directory's version; NULL: conflicts stay */
	uint64_t limit_bytes;  /* of changed files in one round and direction; 0: 1 GiB */
	void (*report)(void *data, const struct husk_sync_event *event); /* may be NULL */
	int stop_fd; /* with `watch`: readable when it should end; -1: none */
	void *data;
};
/* Carries the changes of the directory into the sandbox and those of the sandbox into the directory, three-way as
 * husk_workspace_apply does, but a conflict does not stop other paths. *conflicts (may be NULL): how many are left.
 * With `watch` it also carries later changes of both sides, until stop_fd is readable or the sandbox has ended (GONE).
 * It waits for a hibernated or paused sandbox. CONFLICT: another husk writes to the directory; or the sandbox was
 * rewound, and its older files would replace what was sent meanwhile. Nothing in .git is carried over. */
int husk_workspace_sync(struct husk *husk, const char *sandbox, const struct husk_sync_options *options,
			size_t *conflicts, struct husk_error *err);
/* What husk_workspace_apply would carry over, against the directory as it was brought in. Paths are relative. */
int husk_workspace_diff(struct husk *husk, const char *sandbox, struct husk_change ***out, struct husk_error *err);
/* The directory of the workspace, and its path in the guest; the caller frees both. */
int husk_workspace_where(struct husk *husk, const char *sandbox, char **directory, char **path, struct husk_error *err);
/* A file as it was brought in. NOT_FOUND: it was not part of it; LIMIT: it is not text, or larger than 1 MiB. */
int husk_workspace_base_read(struct husk *husk, const char *sandbox, const char *path, husk_sink sink, void *data,
			     struct husk_error *err);

/* Merges the files that `from` changed into `into`, three-way; both keep running. One may be the parent of the other.
 * `base` is a word for husk_moment_open, of the same build of the template. NULL: the state that both last shared,
 * which is that of the fork, or the template if they share nothing else. GONE: that state is no longer stored. `path`:
 * only this path and what is below; NULL: everything. With conflicts it returns 0 too, and nothing is written unless
 * the options say how. All of it is written or nothing, also if the caller is killed. */
int husk_merge(struct husk *husk, const char *from, const char *into, const char *base, const char *path,
	       const struct husk_merge_options *options, struct husk_merged **out, struct husk_error *err);

/* ---- best of several ---- */

struct husk_explore_options {
	const char *score; /* a shell command; the last line that it prints is a number */
	size_t keep;       /* how many branches stay; 0: 1 */
	size_t parallel;   /* how many run at a time; 0: 8 */
	int64_t budget_ms; /* for all plans together; a plan that is not finished by then loses; 0: no limit */
	bool no_promote;   /* the winner does not take the place of the sandbox */
	const struct husk_create_options *options; /* of the forks, as for husk_fork; NULL: none */
	/* Asked between steps, from several threads; non-zero ends all branches with GONE. May be NULL. */
	int (*stop)(void *data);
	void *data;
};
struct husk_branch {
	char *plan;
	char *sandbox; /* of one that stays: its id, or that of the sandbox whose place it took; of another: its id, ended */
	bool scored, kept;
	double score;
	char *error; /* why it has no score; NULL: it has one */
};
void husk_branch_list_free(struct husk_branch *list, size_t count);
/* Forks the sandbox once for each plan (a shell command; at most 256), runs the plan and then the scoring command in each fork, and
 * keeps those with the highest scores; the others end. If one stays, it takes the place of the sandbox (husk_promote), unless
 * no_promote. `out`: `count` branches, the best first. A plan that fails is a branch without a score, not an error. */
int husk_explore(struct husk *husk, const char *sandbox, const char *const *plans, size_t count,
		 const struct husk_explore_options *options, struct husk_branch **out, struct husk_error *err);

struct husk_watch_event {
	const char *kind; /* create, write, remove, rename, chmod, overflow; settled: the answer to husk_watch_ask */
	const char *path;
};
/* Blocks, calling back for each event, until the callback returns non-zero. */
int husk_watch(struct husk *husk, const char *sandbox, const char *path, bool recursive,
	       int (*callback)(void *data, const struct husk_watch_event *event), void *data, struct husk_error *err);
/* The same as a handle, for callers that also wait for other things. When this returns, the watch is active: no later
 * change is missed. An event is valid until the next call. The descriptor is used as with husk_process_fd. */
struct husk_watcher;
int husk_watch_open(struct husk *husk, const char *sandbox, const char *path, bool recursive, struct husk_watcher **out,
		    struct husk_error *err);
int husk_watch_fd(struct husk_watcher *watcher);
bool husk_watch_pending(struct husk_watcher *watcher);
/* Asks for an event 'settled' after the events of all changes up to now. An agent that is older than this call (of a sandbox
 * that has been hibernated since) does not answer. */
int husk_watch_ask(struct husk_watcher *watcher, struct husk_error *err);
int husk_watch_next(struct husk_watcher *watcher, struct husk_watch_event *event, struct husk_error *err);
void husk_watch_free(struct husk_watcher *watcher);

/* Returns a stream to a TCP port inside the sandbox, as a connected socket that the caller closes. */
int husk_dial(struct husk *husk, const char *sandbox, uint16_t port, struct husk_error *err);
/* The same to a unix stream socket inside the sandbox, by its absolute path. INVALID in a sandbox whose agent is older
 * than this call (one that has been hibernated since). */
int husk_dial_unix(struct husk *husk, const char *sandbox, const char *path, struct husk_error *err);

/* ---- who controls a desktop ---- */

/* A person takes control of a sandbox's desktop for a limited time. Until it is given back or expires, actions of
 * agents fail with CONFLICT (husk_control_check). An agent that needs a person asks for one (husk_control_request). The
 * state is a file on the host, so it does not depend on a server, and every program sees it. */
enum husk_human { HUSK_HUMAN_NONE, HUSK_HUMAN_WAITING, HUSK_HUMAN_TAKEN, HUSK_HUMAN_DONE };
struct husk_control {
	char *name;                   /* of the person in control; NULL: nobody is */
	char *holder;                 /* the key of the person's viewer, as given to husk_control_take */
	int64_t since_ms, expires_ms; /* wall clock; 0: nobody is in control */
	enum husk_human request;      /* the last request for a person */
	char *reason;                 /* of the request; NULL: none */
	int64_t requested_ms;         /* 0: none */
};
struct husk_control_options {
	const char *name;    /* 1 to 64 bytes of printable text; required */
	const char *holder;  /* 1 to 64 letters, digits, '-' and '_'; NULL: a random one */
	int64_t ttl_seconds; /* 1 to 3600; 0: 600 */
};
void husk_control_free(struct husk_control *control);
int husk_control_get(struct husk *husk, const char *sandbox, struct husk_control **out, struct husk_error *err);
/* Takes control, or extends it for the same holder. CONFLICT, with the name, if another person is in control. */
int husk_control_take(struct husk *husk, const char *sandbox, const struct husk_control_options *options,
		      struct husk_control **out, struct husk_error *err);
/* Gives control back. `holder` NULL: of any holder. CONFLICT: another person is in control. If nobody is in control,
 * nothing happens. */
int husk_control_release(struct husk *husk, const char *sandbox, const char *holder, struct husk_error *err);
/* Asks for a person. The request is done when a person has taken control and given it back. */
int husk_control_request(struct husk *husk, const char *sandbox, const char *reason, struct husk_control **out,
			 struct husk_error *err);
/* For actions of agents: CONFLICT while a person is in control; the message has the name and the time. */
int husk_control_check(struct husk *husk, const char *sandbox, struct husk_error *err);

/* A link to the live view of a desktop, which the caller frees; `seconds` 0: valid for an hour. The server of the
 * instance makes and serves it: UNAVAILABLE if none runs, or it listens on no TCP port. */
int husk_desktop_link(struct husk *husk, const char *sandbox, bool view_only, int64_t seconds, char **url,
		      struct husk_error *err);

/* ---- recordings of a desktop ---- */

/* The screen of a sandbox, recorded on the host from what its VNC server sends, so that the guest cannot change it
 * afterwards. A recording is kept in the sandbox's directory until it is removed, or the sandbox is (husk_gc). */
enum husk_recording_state {
	HUSK_RECORDING_RUNNING,
	HUSK_RECORDING_COMPLETE,
	HUSK_RECORDING_CUT, /* its recorder died; what it had written can be played */
};
struct husk_recording {
	char *id;
	enum husk_recording_state state;
	char *reason; /* why it ended: "stopped", "time", "size", "disk", "ended"; NULL: it has not, or was cut */
	int64_t started_ms, duration_ms;
	uint64_t bytes;         /* of the screen */
	uint32_t width, height; /* at the beginning */
};
struct husk_record_options {
	int64_t max_seconds; /* 1 to 86400; 0: 3600 */
	uint64_t
		max_bytes; /* 64 KiB to 4 GiB; 0: 256 MiB. Counts in the tenant's quota until the recording has ended */
};
enum husk_recording_part {
	HUSK_RECORDING_SCREEN,  /* an RFB stream with times: the format FBS 001.001 */
	HUSK_RECORDING_ACTIONS, /* a JSON object per line: {"ms", "action"} */
};
void husk_recording_free(struct husk_recording *recording);
void husk_recording_list_free(struct husk_recording **list);
/* Connects to the desktop. husk_recorder_run then records, until husk_recording_stop, a limit, or the end of the
 * desktop; the event "recording_ended" has the reason. Over a server, the server records; husk_recorder_run only waits,
 * and the handle must stay open. LIMIT: the tenant's quota, or that of all recordings ($HUSK_RECORDINGS). */
struct husk_recorder;
int husk_recorder_open(struct husk *husk, const char *sandbox, const struct husk_record_options *options,
		       struct husk_recorder **out, struct husk_error *err);
const char *husk_recorder_id(const struct husk_recorder *recorder);
int husk_recorder_run(struct husk_recorder *recorder, struct husk_error *err);
void husk_recorder_free(struct husk_recorder *recorder);
int husk_recording_list(struct husk *husk, const char *sandbox, struct husk_recording ***out, struct husk_error *err);
/* Waits until the recorder has finished. A recording that has ended already is returned as it is. */
int husk_recording_stop(struct husk *husk, const char *sandbox, const char *id, struct husk_recording **out,
			struct husk_error *err);
/* CONFLICT while it runs. */
int husk_recording_remove(struct husk *husk, const char *sandbox, const char *id, struct husk_error *err);
/* A descriptor on the part, which the caller closes, and its size. */
int husk_recording_read(struct husk *husk, const char *sandbox, const char *id, enum husk_recording_part part,
			uint64_t *size, struct husk_error *err);
/* The recording for other programs, as it is made: "mp4" or "webm" (a video, ten pictures a second; made by ffmpeg of
 * the host: UNAVAILABLE without it), or "json" (its details and actions). Of a running recording: the part so far.
 * LIMIT if the instance already makes two videos. */
int husk_recording_export(struct husk *husk, const char *sandbox, const char *id, const char *format, husk_sink sink,
			  void *data, struct husk_error *err);
/* Adds an action, a JSON object, to the running recordings of the sandbox. If none runs, nothing happens. */
int husk_recording_note(struct husk *husk, const char *sandbox, const char *action, struct husk_error *err);

/* ---- the profile of a desktop's browser ---- */

/* Cookies, logins, history, bookmarks: a tar of the profile's directory, for the same or another sandbox. Anyone who
 * has the tar is logged in where the browser was. Both calls end the browser first, so that all data is written; it
 * starts again at its next use. UNAVAILABLE: the sandbox has no desktop. CONFLICT: a person is in control.
 * husk_profile_save: NOT_FOUND if the browser was never started. husk_profile_load replaces the profile, or changes
 * nothing. */
int husk_profile_save(struct husk *husk, const char *sandbox, husk_sink sink, void *data, struct husk_error *err);
int husk_profile_load(struct husk *husk, const char *sandbox, husk_source source, void *data, struct husk_error *err);

/* For servers that connect remote callers of libhusk to a sandbox: a socket for the wire protocol (src/wire/wire.h,
 * HELLO done), limited to the methods of the guest's agent. A hibernated sandbox is woken. */
int husk_tunnel(struct husk *husk, const char *sandbox, struct husk_error *err);

/* ---- volumes: directories that outlive sandboxes ---- */

/* A sandbox gets volumes when it is created (husk_mount). Several sandboxes may have the same volume at a time and see
 * each other's changes. A volume keeps regular files, directories and symbolic links with their modes, owners and
 * times, up to its limit. */
struct husk_volume {
	char *id, *name;
	char *tenant; /* NULL: the instance itself */
	int64_t created_ms;
	uint64_t limit_bytes; /* beyond it a write fails with ENOSPC */
	uint64_t used_bytes;  /* each entry counts as a block of 4 KiB and its size in blocks, holes included */
	char **sandboxes;     /* ids of live sandboxes that use it; NULL-terminated */
};
void husk_volume_free(struct husk_volume *volume);
void husk_volume_list_free(struct husk_volume **list);
/* `limit_bytes` 0: 10 GiB. */
int husk_volume_create(struct husk *husk, const char *name, uint64_t limit_bytes, struct husk_volume **out,
		       struct husk_error *err);
int husk_volume_inspect(struct husk *husk, const char *volume, struct husk_volume **out, struct husk_error *err);
int husk_volume_list(struct husk *husk, struct husk_volume ***out, struct husk_error *err);
/* Removes the volume with its files. CONFLICT, with their names, while live sandboxes use it. */
int husk_volume_remove(struct husk *husk, const char *volume, struct husk_error *err);

/* Files of a volume, from outside. Paths begin at its root ("/a/b", or "a/b"); a symbolic link is shown and never
 * followed. */
#define HUSK_KEEP UINT32_MAX
struct husk_file_attributes { /* HUSK_KEEP: unchanged; for a new file, the default (root's, 0644 or 0755) */
	uint32_t mode, uid, gid;
	bool fresh; /* for a write: CONFLICT if the file exists already */
};
int husk_volume_file_stat(struct husk *husk, const char *volume, const char *path, struct husk_file *out,
			  struct husk_error *err);
int husk_volume_file_list(struct husk *husk, const char *volume, const char *path, uint32_t depth,
			  struct husk_file **out, size_t *count, struct husk_error *err);
int husk_volume_file_read(struct husk *husk, const char *volume, const char *path, uint64_t offset,
			  uint64_t length /* 0: all */, husk_sink sink, void *data, struct husk_error *err);
/* Writes a new file beside the target and renames it; missing parents are made. `attributes` may be NULL. */
int husk_volume_file_write(struct husk *husk, const char *volume, const char *path,
			   const struct husk_file_attributes *attributes, husk_source source, void *data,
			   struct husk_error *err);
/* With `parents`, missing parents are created and an existing directory is not an error; otherwise CONFLICT, NOT_FOUND. */
int husk_volume_file_mkdir(struct husk *husk, const char *volume, const char *path,
			   const struct husk_file_attributes *attributes, bool parents, struct husk_error *err);
int husk_volume_file_change(struct husk *husk, const char *volume, const char *path,
			    const struct husk_file_attributes *attributes, struct husk_error *err);
/* A file, or a tree. */
int husk_volume_file_remove(struct husk *husk, const char *volume, const char *path, struct husk_error *err);

/* ---- code ---- */

struct husk_code_options {
	const char *language; /* python (default), javascript, typescript, bash, r, java */
	const char *context;  /* NULL: "default"; a context keeps its state between calls */
	const char *code;
	const struct husk_pair *environment; /* used only if this call starts the context */
	size_t environment_count;
	const struct husk_pair *variables; /* for this call only */
	size_t variable_count;
	const char *cwd;
	int64_t timeout_ms; /* 0: none; on expiry the context is interrupted, then restarted */
	/* How to wait for output; NULL: poll(2). 1: `fd` is readable; 0: timeout_ms (-1: no limit) passed; -1: the
	 * caller gives up. Then the call ends with GONE, and the code continues. */
	int (*wait)(void *data, int fd, int timeout_ms);
	void *wait_data;
	int64_t *executions; /* set to the number of runs of the context, including this one; 0: unknown. May be NULL */
};
enum husk_code_kind { HUSK_CODE_STDOUT = 1, HUSK_CODE_STDERR, HUSK_CODE_RESULT, HUSK_CODE_ERROR };
struct husk_code_event {
	enum husk_code_kind kind;
	const char *text; /* output; text form of a result; traceback of an error */
	/* HUSK_CODE_RESULT: JSON object of representations by MIME type ({"image/png": base64, "text/html": …}) */
	const char *bundle;
	bool main_result;         /* the value of the last expression */
	const char *name, *value; /* HUSK_CODE_ERROR */
};
/* Calls back for each event. 0: the code ran, also if it raised an exception (then there was an error event). */
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

/* ---- desktop ---- */

struct husk_desktop_options {
	/* A JSON document: {"actions": [{"action": "left_click", "coordinate": [640, 400]}, …], "space": {"width",
	 * "height"}, "settle": true, "screenshot": {"format": "jpeg", …}}; all fields are optional. docs/desktop.md
	 * lists the actions. It is JSON because models write it: two dozen actions, each with its own fields, are
	 * passed through unchanged. */
	const char *request;
	/* As in husk_code_options; if the caller gives up, the actions continue. */
	int (*wait)(void *data, int fd, int timeout_ms);
	void *wait_data;
};
/* Acts on the screen of a sandbox, one action after the other, and returns {"results": […], "width", "height",
 * "settled"?, "screenshot"?: {"type", "width", "height", "data": base64}} as JSON text, which the caller frees. An
 * action that is not possible ends the list: INVALID with the field "actions[2].coordinate", and a message that names
 * the action; the actions before it have run. GONE: the display had ended and was started again; no action has run.
 * UNAVAILABLE: the template has no desktop. */
int husk_desktop_act(struct husk *husk, const char *sandbox, const struct husk_desktop_options *options, char **answer,
		     struct husk_error *err);

/* ---- templates ---- */

struct husk_template {
	char *name, *description;
	char *digest; /* of the version: "<digest of the content>-<build>" */
	char *tenant; /* NULL: of the instance, which every tenant can use */
	int64_t created_ms;
	uint64_t bytes, disk_bytes;
	char *isolation;     /* of the baked snapshot */
	size_t old_versions; /* earlier versions that sandboxes or snapshots still use */
};
void husk_template_list_free(struct husk_template **list);
int husk_template_list(struct husk *husk, struct husk_template ***out, struct husk_error *err);
struct husk_build_options {
	const char *name;
	const char *definition; /* directory with a `template` file; or */
	const char *tar;        /* a rootfs tar; or */
	const char *directory;  /* a rootfs directory; or */
	const char *image;      /* a container image: an OCI layout, a tar of one, or the output of docker save */
	const char *reference;  /* the name of one image in a layout of several; NULL: the only one */
	const char *isolation;
	/* A shell command that runs to its end before the snapshot; NULL: none. A definition has its own: INVALID with one. */
	const char *warm;
	bool force; /* also if nothing changed */
	/* One line of progress at a time; may be NULL. */
	void (*progress)(void *data, const char *line);
	void *data;
};
/* Makes a new version and points the name at it. If the same content is baked already, nothing is done unless forced
 * (*fresh says which). Earlier versions do not change. A version is removed when no sandbox and no snapshot uses it. */
int husk_template_build(struct husk *husk, const struct husk_build_options *options, struct husk_template **out,
			bool *fresh, struct husk_error *err);
/* Finds a container image by name ("python:3.12") in the instance's folder <home>/images: returns its path and its
 * reference for husk_template_build; the caller frees both. NOT_FOUND: no such image. */
int husk_image_find(struct husk *husk, const char *name, char **path, char **reference, struct husk_error *err);
int husk_template_remove(struct husk *husk, const char *name, struct husk_error *err);
void husk_template_free(struct husk_template *value);

/* ---- images of registries ---- */

struct husk_image_layer {
	char *digest; /* "sha256:…" */
	uint64_t bytes;
};
struct husk_image {
	char *name;          /* full name: "docker.io/library/python:3.12" */
	char *digest;        /* of its manifest: "sha256:…" */
	char *template_name; /* the template of the image, when it is built */
	bool built;
	int64_t pulled_ms;
	uint64_t bytes; /* of its layers as stored; other images may share some */
	struct husk_image_layer *layers;
	size_t layer_count;
	char **command;     /* ENTRYPOINT and CMD; NULL: none */
	char **environment; /* NULL: none */
	char *user, *cwd;   /* NULL: root; the user's home */
	/* Everything that the image says, as its `config` in JSON: Labels, ExposedPorts, Healthcheck, StopSignal … */
	char *config;
	size_t sandboxes, snapshots; /* existing ones that were made from it */
};
void husk_image_free(struct husk_image *image);
void husk_image_list_free(struct husk_image **list);

struct husk_pull_progress {
	size_t layers, layers_done;
	uint64_t bytes, bytes_done; /* of the layers that have to be downloaded */
};
struct husk_pull_options {
	const char *name; /* [HOST[:PORT]/]NAME[:TAG|@DIGEST], as in Docker */
	/* Called from several threads, one at a time; non-zero ends the pull with GONE. May be NULL. */
	int (*progress)(void *data, const struct husk_pull_progress *progress);
	void *data;
};
/* Is this word the name of an image and never of a template? Such a name has a tag, a digest or a folder. */
bool husk_image_is_name(const char *word);
/* Is the registry of an image in `registries` (hosts, separated by commas; "*": all)? A server checks this before it
 * pulls for a client. Otherwise the client would choose the host that the server contacts, and that host would get the
 * server's login. */
bool husk_image_allowed(const char *name, const char *registries);
/* Downloads an image from its registry into <home>/images/pulled: only what is missing, with every byte checked. Does
 * not build it; see husk_image_build. For the owner only. NOT_FOUND, DENIED (log in), LIMIT (no space), UNAVAILABLE,
 * PROTOCOL. */
int husk_image_pull(struct husk *husk, const struct husk_pull_options *options, struct husk_image **out,
		    struct husk_error *err);
/* Builds the template of a pulled image, as husk_template_build does; `options` give the isolation and the progress
 * callback. */
int husk_image_build(struct husk *husk, const char *name, const struct husk_build_options *options,
		     struct husk_template **out, bool *fresh, struct husk_error *err);
int husk_image_list(struct husk *husk, struct husk_image ***out, struct husk_error *err);
int husk_image_inspect(struct husk *husk, const char *name, struct husk_image **out, struct husk_error *err);
/* Removes the image with its template, and layers that no other image uses. CONFLICT while sandboxes or snapshots of it
 * exist. */
int husk_image_remove(struct husk *husk, const char *name, struct husk_error *err);
/* Removes all images without sandboxes and snapshots. *count: how many; *bytes: of disk. */
int husk_image_prune(struct husk *husk, size_t *count, uint64_t *bytes, struct husk_error *err);

/* Logs in to a registry ("ghcr.io", "localhost:5000"; NULL: docker.io, or that of HUSK_REGISTRY): checks the login with
 * the registry, and stores it where docker does, in config.json or in the credential helper that the file names.
 * DENIED: the registry refuses it. */
int husk_login(const char *registry, const char *user, const char *secret, struct husk_error *err);
/* Removes the login. NOT_FOUND: there is none. */
int husk_logout(const char *registry, struct husk_error *err);

/* ---- images of one's own ---- */

struct husk_commit_options {
	const char *name; /* of the image: [HOST[:PORT]/]NAME[:TAG] */
	/* The `config` of the OCI image, in JSON; NULL: that of the sandbox's own image or template. */
	const char *config;
	const char *key; /* kept with the image, for husk_build; NULL: none */
	/* Put the image below this existing directory, as the OCI image layout `pulled`, which every caller may do.
	 * NULL: into the store, for the owner. */
	const char *directory;
};
/* Makes an image of the files of a sandbox: one layer, without Husk's files and without files that differ in every
 * sandbox. The sandbox continues; a file that is written meanwhile may be incomplete in the image. The image is in the
 * store, as if pulled. */
int husk_commit(struct husk *husk, const char *sandbox, const struct husk_commit_options *options,
		struct husk_image **out, struct husk_error *err);
/* Copies an image of the store into a new OCI image layout, a directory that must not exist or is empty: for skopeo, podman and
 * buildah. */
int husk_image_export(struct husk *husk, const char *name, const char *directory, struct husk_error *err);

enum husk_build_kind {
	HUSK_BUILD_STEP = 1, /* begins */
	HUSK_BUILD_CACHED,   /* its result exists */
	HUSK_BUILD_OUTPUT,   /* of the program that it runs */
	HUSK_BUILD_DONE,     /* after duration_ms */
	HUSK_BUILD_NOTE,     /* about the build, not about a step */
};
struct husk_build_event {
	enum husk_build_kind kind;
	size_t step, steps; /* from 1 on; 0: none */
	const char *stage;  /* its name or number; NULL: none */
	unsigned line;      /* in the Dockerfile */
	const char *text;   /* the step as written, or output */
	size_t size;        /* of the text */
	bool error_output;  /* HUSK_BUILD_OUTPUT: to stderr */
	int64_t duration_ms;
};
/* Where a step failed: its sandbox, which ends when the callback returns. */
struct husk_build_failure {
	const char *sandbox;
	const char *user, *cwd;
	const struct husk_pair *environment;
	size_t environment_count;
	unsigned line;
	int exit_code; /* -1: the step failed before its program ended */
};
struct husk_dockerfile_options {
	const char *name;                  /* of the image; without ':', '/' and '@' also of its template */
	const char *dockerfile;            /* a file; NULL: Dockerfile in the context */
	const char *text;                  /* its text instead; `dockerfile` is its name in errors then */
	const char *context;               /* a directory; NULL: COPY and ADD have no files */
	const char *target;                /* the stage to build; NULL: the last */
	const struct husk_pair *arguments; /* ARG */
	size_t argument_count;
	const struct husk_pair *secrets; /* for RUN --mount=type=secret: id and value */
	size_t secret_count;
	const struct husk_egress *egress; /* of RUN, and of ADD of a URL; NULL: off */
	const char *registries;           /* those that FROM may pull from (husk_image_allowed); NULL: all */
	const char *isolation;
	uint64_t memory_bytes, disk_bytes; /* of the sandboxes; 0: 2 GiB, and the base's */
	uint32_t cpu_milli;
	int64_t timeout_ms; /* of each RUN; 0: one hour */
	const char *warm;   /* as in struct husk_build_options, for the template of the image */
	bool no_cache;      /* run every step */
	/* Called for each event, and at least every 200 ms while a program runs (then `event` is NULL). Non-zero: the build
	 * ends with GONE. May be NULL. */
	int (*progress)(void *data, const struct husk_build_event *event);
	void (*failed)(void *data, const struct husk_build_failure *failure); /* may be NULL */
	void *data;
};
/* Builds an image from a Dockerfile, and its template. Every RUN runs in a sandbox. Results of steps are kept as
 * snapshots; a later build continues from them. INVALID, with file, line and column: the Dockerfile has an error or
 * uses something that is not supported; nothing has run then. CONFLICT: a RUN ended with another status than 0. *fresh:
 * something was made. On a server, the files of the context that the Dockerfile can name are sent; with `failed` it is
 * UNAVAILABLE. A tenant gets its own template instead of an image of the instance: the name must be valid for a
 * template, and caches of RUN --mount are empty. On this host, for the owner of the instance. */
int husk_build(struct husk *husk, const struct husk_dockerfile_options *options, struct husk_image **out, bool *fresh,
	       struct husk_error *err);
/* Removes kept results of steps, oldest first, until at most `limit` bytes are left. husk_snapshot_list does not show them. */
int husk_build_prune(struct husk *husk, uint64_t limit, size_t *count, uint64_t *bytes, struct husk_error *err);
/* Metadata of the sandboxes and snapshots that hold a step. */
#define HUSK_STEP_KEY "husk.step"

/* ---- portable machines: snapshots and templates in files and registries ---- */

/* Bytes done, and all of them. Called from several threads, one at a time; non-zero ends the work with GONE. */
typedef int (*husk_progress)(void *data, uint64_t done, uint64_t all);
struct husk_export_options {
	bool files;             /* a snapshot: also its files as a tar, for hosts that cannot continue its memory */
	const char *passphrase; /* an export is encrypted with it, on this host; NULL: not encrypted. Not for a push */
	husk_progress progress; /* may be NULL */
	void *data;
};
/* Writes a snapshot or a template as a tar: an OCI image layout of compressed chunks, signed with the key of the
 * instance (husk_key_show). The root image of its template goes with a snapshot. Values of environment variables,
 * secrets, tokens and volumes are not exported; data in the memory of processes is. CONFLICT: the snapshot has volumes.
 * `options` may be NULL. */
int husk_snapshot_export(struct husk *husk, const char *snapshot, const struct husk_export_options *options,
			 husk_sink sink, void *data, struct husk_error *err);
int husk_template_export(struct husk *husk, const char *name, const struct husk_export_options *options, husk_sink sink,
			 void *data, struct husk_error *err);
struct husk_import_options {
	const char *name;   /* NULL: the name that it had */
	const char *path;   /* a file; or */
	husk_source source; /* its bytes; or */
	void *source_data;
	const char *reference; /* its name in a registry: [HOST[:PORT]/]NAME[:TAG|@DIGEST] */
	const char *
		passphrase; /* of an encrypted file or source; NULL: it is not encrypted. DENIED: it is the wrong one */
	husk_progress progress; /* of a download, then of unpacking; may be NULL */
	void *data;
};
/* Takes a snapshot or a template that husk exported or pushed. For the owner only. DENIED: not signed by a trusted key
 * (husk_key_trust), or changed since. UNAVAILABLE: this host cannot continue it; the message says why. CONFLICT: the name
 * is used. INVALID: it is damaged. After any failure nothing of it is left. */
int husk_snapshot_import(struct husk *husk, const struct husk_import_options *options, struct husk_snapshot **out,
			 struct husk_error *err);
/* Of an exported snapshot, takes its files as a new template; INVALID: it was exported without them. */
int husk_template_import(struct husk *husk, const struct husk_import_options *options, struct husk_template **out,
			 struct husk_error *err);
struct husk_pushed {
	char *name;                 /* full name in the registry */
	char *digest;               /* of its manifest: "sha256:…" */
	uint64_t bytes, sent_bytes; /* of all chunks, and of those that the registry did not have */
	size_t chunks, sent_chunks;
};
void husk_pushed_free(struct husk_pushed *pushed);
/* Exports into a registry. Chunks that the registry has already are not sent. For the owner only. */
int husk_snapshot_push(struct husk *husk, const char *snapshot, const char *reference,
		       const struct husk_export_options *options, struct husk_pushed **out, struct husk_error *err);
int husk_template_push(struct husk *husk, const char *name, const char *reference,
		       const struct husk_export_options *options, struct husk_pushed **out, struct husk_error *err);

/* Sends an image that was built, committed or pulled here to its registry; `reference` is its name there, NULL: the one that it has. Layers
 * that the registry has already are not sent. For the owner only. */
int husk_image_push(struct husk *husk, const char *name, const char *reference, husk_progress progress, void *data,
		    struct husk_pushed **out, struct husk_error *err);

struct husk_key {
	char *name; /* "own": the key of this instance */
	char *key;  /* public: "ed25519:…" */
};
void husk_key_list_free(struct husk_key **list);
/* The public key of the instance, which signs what it exports; the caller frees it. Made on first use. */
int husk_key_show(struct husk *husk, char **key, struct husk_error *err);
/* From now on, imports that are signed by this key are taken. CONFLICT: another key has the name. */
int husk_key_trust(struct husk *husk, const char *key, const char *name, struct husk_error *err);
/* Trusted keys: the instance's own, those of husk_key_trust, and those of the setting trusted_keys
 * (HUSK_TRUSTED_KEYS). */
int husk_key_list(struct husk *husk, struct husk_key ***out, struct husk_error *err);
int husk_key_remove(struct husk *husk, const char *name, struct husk_error *err);

/* ---- the instance ---- */

struct husk_event {
	int64_t sequence, at_ms;
	char *sandbox; /* NULL: of the instance */
	char *kind;    /* created, forked, snapshot, hibernated, woken, extended, oom, pids, disk, ended, … */
	char *detail;  /* JSON object */
};
void husk_event_list_free(struct husk_event *list, size_t count);
/* Returns events after `after`, oldest first, at most `limit`; only of one sandbox if given. Waits up to wait_ms for
 * the first event. */
int husk_events(struct husk *husk, const char *sandbox, int64_t after, size_t limit, int wait_ms,
		struct husk_event **out, size_t *count, struct husk_error *err);

enum husk_log_source {
	HUSK_LOG_SUPERVISOR, /* the log of Husk's own processes for the sandbox, one line each, with time and level */
	HUSK_LOG_CONSOLE,    /* the console of the guest: kernel, agent, crashes */
};
/* The position of a reader, for the next call. Zeroed: the beginning. */
struct husk_log_position {
	uint64_t file, offset;
};
/* Returns a log or console of a sandbox as text, also after its end; the caller frees. With `position`: everything
 * since the last call. Without (NULL): the newest MiB. The text is UTF-8 without control characters except newline and
 * tab. */
int husk_logs(struct husk *husk, const char *sandbox, enum husk_log_source source, struct husk_log_position *position,
	      char **out, struct husk_error *err);

struct husk_check {
	char *name;
	enum { HUSK_CHECK_OK = 1, HUSK_CHECK_WARN, HUSK_CHECK_FAIL } result;
	char *text; /* the result, and the fix */
};
void husk_check_list_free(struct husk_check *list, size_t count);
/* Reports what works on this host, what does not work, and why. The probe of each engine really starts something. */
int husk_doctor(struct husk *husk, struct husk_check **out, size_t *count, struct husk_error *err);
/* Lists processes, mounts, cgroups, directories and sockets of this instance without a live sandbox: one check each. */
int husk_leaks(struct husk *husk, struct husk_check **out, size_t *count, struct husk_error *err);
/* Maintenance that a server or a timer runs every half minute: cleans up after killed supervisors, and ends hibernated
 * sandboxes whose TTL is over. Waits for no sandbox. *changed: the number of sandboxes. */
int husk_tend(struct husk *husk, size_t *changed, struct husk_error *err);
/* Ends the prepared machines and returns their number; the next create starts new ones. For the owner only: 0 for a
 * tenant. */
size_t husk_pool_drain(struct husk *husk);
struct husk_gc_result {
	size_t sandboxes, snapshots, templates, pool;
	uint64_t bytes;
};
/* Removes remains, expired hibernated sandboxes and unused template versions; with `all` also the pool and old
 * events. */
int husk_gc(struct husk *husk, bool all, struct husk_gc_result *out, struct husk_error *err);
/* Removes the instance: its home and run directory with snapshots, volumes, templates and tokens. If a server serves it
 * or a sandbox is awake, fails with CONFLICT and removes nothing. Afterwards only husk_close may be called with the
 * handle. */
int husk_erase(struct husk *husk, struct husk_error *err);

#ifdef __cplusplus
}
#endif
#endif
