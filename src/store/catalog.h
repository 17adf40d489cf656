/*
 * The catalog: one SQLite database (WAL) for sandboxes, snapshots, templates and events. It is used to find objects,
 * and survives restarts. The truth about a running sandbox is in its supervisor. The interface is narrow, so that a
 * shared store can replace it. Each process opens its own handle; every call is one transaction; calls wait up to 5 s
 * for a busy database.
 */
#ifndef HUSK_CATALOG_H
#define HUSK_CATALOG_H

#include "base/base.h"
#include "husk.h"

struct catalog;

int catalog_open(const char *path, struct catalog **out, struct husk_error *err);
void catalog_close(struct catalog *catalog);

/* ---- tenants ---- */

/* The caller. Through a handle with a tenant, only the tenant's objects are found, listed or suggested. Objects that
 * are added through it belong to the tenant, within its quotas (0: none). */
struct catalog_view {
	bool instance;      /* the instance itself: finds everything by id, and its own objects by name */
	const char *tenant; /* else this one's things only. One of the two must be given: a name that is missing, for
			     * want of memory, say, must not open everything */
	uint32_t max_sandboxes;
	uint64_t max_memory_bytes, max_snapshot_bytes;
};
/* A handle on the same database with this view; `catalog` must outlive it. Close with catalog_close. */
int catalog_as(struct catalog *catalog, const struct catalog_view *view, struct catalog **out, struct husk_error *err);
const char *catalog_tenant(const struct catalog *catalog);
/* LIMIT, with the quota, its use and its limit, if that much more would exceed it. The check is repeated when a row is
 * added; asking first saves work. */
int catalog_quota(struct catalog *catalog, size_t sandboxes, uint64_t memory_bytes, struct husk_error *err);
int catalog_quota_snapshots(struct catalog *catalog, struct husk_error *err);
/* By how much the snapshots and checkpoints of the sandbox's tenant exceed the quota of its tokens; 0: they do not. For the
 * supervisor, which has no view. */
int catalog_quota_excess(struct catalog *catalog, const char *sandbox, uint64_t *out, struct husk_error *err);

/* Tokens, by the hash of their secret. CONFLICT: a token that is not revoked has the name. Free with
 * husk_token_free. */
int catalog_token_add(struct catalog *catalog, const struct husk_token *token, const char *hash,
		      struct husk_error *err);
int catalog_token_list(struct catalog *catalog, struct husk_token ***out, struct husk_error *err);
/* 1 with *out, also if the token is revoked or expired; 0: no such token. */
int catalog_token_find(struct catalog *catalog, const char *hash, struct husk_token **out, struct husk_error *err);
int catalog_token_revoke(struct catalog *catalog, const char *id_or_name, struct husk_error *err);

/* ---- sandboxes ---- */

/* Fields beyond the public view, for the host side only. */
enum catalog_state {                        /* stored as text */
		     CATALOG_PREPARING = 1, /* on its way into the pool */
		     CATALOG_POOL,          /* prepared or restored, waiting to be claimed */
		     CATALOG_CREATING,
		     CATALOG_RUNNING,
		     CATALOG_PAUSED,
		     CATALOG_HIBERNATED,
		     CATALOG_ENDED,
};

struct catalog_sandbox {
	char *id, *name, *template_name, *template_digest, *parent, *isolation, *end_reason;
	enum catalog_state state;
	bool warm; /* POOL: already restored; otherwise a prepared shell */
	int64_t created_ms, expires_ms, ended_ms, idle_seconds;
	bool persistent;
	bool hibernates; /* hibernates at the end of its TTL; while hibernated, its expires_ms is 0 */
	uint64_t memory_bytes, disk_bytes;
	uint32_t cpu_milli, pids;
	uint32_t slot;     /* 1..16383 while not ended; decides its uid range and its network */
	char *metadata;    /* JSON object of strings */
	char *environment; /* JSON object of strings; kept for processes that are started later, never shown */
	char *tenant;      /* set from the view through which it is added; a caller's value is ignored */
	char *idempotency_key, *request; /* the caller's key of the request that created it, and the signed request */
	char *egress;                    /* its policy (net/policy.h); NULL: off. Holds no value of a secret */
	char *volumes; /* JSON array of {id, name, path, read_only}, in the order of the mounts; NULL: none */
	int64_t point; /* the number of its current checkpoint; 0: none */
	char *origin; /* of a fork: the moment that it began with (a snapshot's id, or "SANDBOX@NUMBER"); NULL: unknown */
	int64_t effect; /* of a fork: the last effect of its parent at that time */
	bool each_call; /* a checkpoint before each call */
};
void catalog_sandbox_free(struct catalog_sandbox *row); /* frees fields and the structure; NULL is allowed */
static inline void catalog_sandbox_drop(struct catalog_sandbox **row)
{
	catalog_sandbox_free(*row);
}
#define cleanup_row cleanup(catalog_sandbox_drop)
void catalog_sandbox_list_free(struct catalog_sandbox **list);

/* Inserts the row and gives it a free slot (row->slot). CONFLICT: a live sandbox has that name, or one of the last day
 * has the idempotency key. LIMIT: over a quota. NOT_FOUND: one of its volumes is gone. */
int catalog_sandbox_add(struct catalog *catalog, struct catalog_sandbox *row, struct husk_error *err);
/* By id, also without its '-' (as E2B's clients know it), or by name (live ones first, then the newest ended). NOT_FOUND names the word and, if there is a similar one,
 * suggests it. Rows in POOL are not found. */
int catalog_sandbox_get(struct catalog *catalog, const char *id_or_name, struct catalog_sandbox **out,
			struct husk_error *err);
/* Every row in any of the states of `mask` (1u << state), newest first. */
int catalog_sandbox_list(struct catalog *catalog, unsigned mask, struct catalog_sandbox ***out, struct husk_error *err);
struct catalog_query {
	unsigned mask;             /* of states */
	const char *template_name; /* NULL: any */
	const char *after;         /* those after this id in the order of the list; NULL: from the newest */
	size_t limit;              /* 0: all */
	bool without_builds;       /* leaves out sandboxes whose metadata has "husk.build" or "husk.moment" */
};
/* INVALID if `after` is not a sandbox any more. */
int catalog_sandbox_query(struct catalog *catalog, const struct catalog_query *query, struct catalog_sandbox ***out,
			  struct husk_error *err);
/* The sandbox of the request with this key, complete or in progress: 1 with *out, or 0. A key expires after a day. */
int catalog_sandbox_by_key(struct catalog *catalog, const char *key, struct catalog_sandbox **out,
			   struct husk_error *err);
/* Moves the sandbox from any state of `from_mask` to `to`; CONFLICT ("sandbox X is hibernated") if it is in another
 * state. A move to CREATING wakes it: LIMIT if its memory is over the quota. */
int catalog_sandbox_move(struct catalog *catalog, const char *id, unsigned from_mask, enum catalog_state to,
			 struct husk_error *err);
/* Overwrites name, parent, origin, expiry, idle, persistent, limits, metadata, environment, egress, volumes, created_ms,
 * state and the idempotency key with those of `row`. The sandbox then belongs to the view. Fails as
 * catalog_sandbox_add does. */
int catalog_sandbox_update(struct catalog *catalog, const struct catalog_sandbox *row, struct husk_error *err);
int catalog_sandbox_set_expiry(struct catalog *catalog, const char *id, int64_t expires_ms, bool persistent,
			       struct husk_error *err);
int catalog_sandbox_set_idle(struct catalog *catalog, const char *id, int64_t idle_seconds, struct husk_error *err);
/* A limit of 0 stays. `asleep`: only if it is hibernated. 1: changed; 0: it is not hibernated. */
int catalog_sandbox_resize(struct catalog *catalog, const char *id, uint32_t cpu_milli, uint64_t memory_bytes,
			   bool asleep, struct husk_error *err);
/* Changes only the metadata, so that a client's change never overwrites a change of the supervisor. GONE: ended. */
int catalog_sandbox_set_metadata(struct catalog *catalog, const char *id, const char *metadata, struct husk_error *err);
/* The same for the egress policy. */
int catalog_sandbox_set_egress(struct catalog *catalog, const char *id, const char *egress, struct husk_error *err);
/* Sets the state to ENDED with a reason and the time, frees the name and drops the environment. The slot is kept,
 * because the remains of the machine are still being removed. Does nothing if the sandbox had ended. */
int catalog_sandbox_ending(struct catalog *catalog, const char *id, const char *reason, struct husk_error *err);
/* The same, when nothing is left of the machine: also frees the slot. */
int catalog_sandbox_end(struct catalog *catalog, const char *id, const char *reason, struct husk_error *err);
/* Ended sandboxes whose machine may still exist. Free with catalog_sandbox_list_free. */
int catalog_sandbox_remains(struct catalog *catalog, struct catalog_sandbox ***out, struct husk_error *err);
/* Removes values of environments without a row: remains of processes that were killed between the two writes. */
int catalog_values_sweep(struct catalog *catalog, struct husk_error *err);
/* Deletes the row (a pool entry, a failed creation). */
int catalog_sandbox_forget(struct catalog *catalog, const char *id, struct husk_error *err);
/* Claims one pool entry of this template digest, disk size and kind, atomically, and moves it to CREATING. 1 with *out,
 * or 0. */
int catalog_pool_claim(struct catalog *catalog, const char *template_digest, uint64_t disk_bytes, bool warm,
		       struct catalog_sandbox **out, struct husk_error *err);
/* A sandbox wakes in the machine of a claimed pool entry: the sandbox gets the slot, and the row of the entry is
 * deleted. */
int catalog_pool_adopt(struct catalog *catalog, const char *id, const char *entry, struct husk_error *err);
/* Entries that are being prepared count too. */
int catalog_pool_count(struct catalog *catalog, const char *template_digest, uint64_t disk_bytes, bool warm,
		       struct husk_error *err);

/* ---- snapshots ---- */

struct catalog_snapshot {
	char *id, *name, *sandbox, *template_name, *template_digest, *isolation;
	int64_t created_ms;
	uint64_t bytes, memory_bytes, disk_bytes;
	uint32_t cpu_milli, pids;
	bool ready; /* false while it is being written, and for the temporary snapshot of a fork */
	char *environment, *metadata, *egress, *volumes; /* of the sandbox */
	char *tenant;                                    /* as of a sandbox */
	bool shared;                                     /* other tenants may create from it */
	bool moment; /* the state that forks began with: never listed, no quota, removed with the last of them */
};
void catalog_snapshot_free(struct catalog_snapshot *row);
void catalog_snapshot_list_free(struct catalog_snapshot **list);
int catalog_snapshot_add(struct catalog *catalog, const struct catalog_snapshot *row, struct husk_error *err);
/* Marks it as ready; LIMIT: its bytes are over the quota. */
int catalog_snapshot_finish(struct catalog *catalog, const char *id, uint64_t bytes, struct husk_error *err);
int catalog_snapshot_get(struct catalog *catalog, const char *id_or_name, struct catalog_snapshot **out,
			 struct husk_error *err);
/* A snapshot that `tenant` (NULL: the instance) shares, for any view. */
int catalog_snapshot_get_shared(struct catalog *catalog, const char *tenant, const char *name,
				struct catalog_snapshot **out, struct husk_error *err);
int catalog_snapshot_share(struct catalog *catalog, const char *id, bool shared, struct husk_error *err);
/* `unready`: only those that are not ready; otherwise only the ready ones. Newest first. */
int catalog_snapshot_list(struct catalog *catalog, bool unready, struct catalog_snapshot ***out,
			  struct husk_error *err);
int catalog_snapshot_remove(struct catalog *catalog, const char *id, struct husk_error *err);
/* Makes the temporary snapshot of a fork a moment: ready, and never listed. */
int catalog_moment_keep(struct catalog *catalog, const char *id, uint64_t bytes, struct husk_error *err);
/* All moments, newest first. `idle`: only those that no live sandbox nor one of its ancestors began with. */
int catalog_moment_list(struct catalog *catalog, bool idle, struct catalog_snapshot ***out, struct husk_error *err);
/* Adds a name; it is the first one if the snapshot has none. CONFLICT: another snapshot has it. */
int catalog_snapshot_tag(struct catalog *catalog, const char *id, const char *name, struct husk_error *err);
/* Removes a name from a snapshot. 1: it was the last one; the snapshot stays, and the caller removes it. NOT_FOUND: no
 * such name. */
int catalog_snapshot_untag(struct catalog *catalog, const char *name, struct husk_error *err);
/* Its additional names, sorted; free with strv_free. */
int catalog_snapshot_tags(struct catalog *catalog, const char *id, char ***out, struct husk_error *err);

/* ---- checkpoints of one sandbox, by its id; removed with the sandbox ---- */

struct catalog_point {
	char *sandbox, *label;
	int64_t number, parent; /* from 1 on; the previous checkpoint of the sandbox, 0: none */
	int64_t created_ms;
	uint64_t bytes;
	bool ready;            /* false while it is being written */
	char *traffic;         /* JSON array of the sandbox's traffic up to then, by destination; NULL: none */
	int64_t effect;        /* the sandbox's last effect up to then */
	bool automatic;        /* taken before a call; removed when there are many */
	char *ran;             /* the call; NULL: none */
	char *origin;          /* the fork that it was moved from, until it is reached; NULL: none */
	int64_t origin_effect; /* the fork's last effect up to then */
	char *files; /* JSON: what changed since `parent`, for client/history_files.c; NULL: not compared yet */
};
#define CATALOG_POINTS_MAX 256 /* of one sandbox */
void catalog_point_free(struct catalog_point *row);
void catalog_point_list_free(struct catalog_point **list);
static inline void catalog_point_drop(struct catalog_point **row)
{
	catalog_point_free(*row);
}
#define cleanup_point cleanup(catalog_point_drop)
/* Sets its number and its parent. CONFLICT: the label is used; LIMIT: too many. */
int catalog_point_add(struct catalog *catalog, struct catalog_point *row, struct husk_error *err);
/* Marks it as ready and as the current checkpoint of the sandbox. */
int catalog_point_finish(struct catalog *catalog, const char *sandbox, int64_t number, uint64_t bytes, int64_t effect,
			 struct husk_error *err);
/* Marks it as not ready, or ready again: around its removal. */
int catalog_point_show(struct catalog *catalog, const char *sandbox, int64_t number, bool ready,
		       struct husk_error *err);
/* The sandbox was rewound to it: effects that were held later are dropped, and those of `origin` become its own. */
int catalog_point_reach(struct catalog *catalog, const char *sandbox, int64_t number, struct husk_error *err);
/* It is removed to make room: a search for it says so. */
int catalog_point_thin(struct catalog *catalog, const char *sandbox, int64_t number, struct husk_error *err);
int catalog_point_compared(struct catalog *catalog, const char *sandbox, int64_t number, const char *files,
			   struct husk_error *err);
/* By number or label; only ready ones. */
int catalog_point_get(struct catalog *catalog, const char *sandbox, const char *word, struct catalog_point **out,
		      struct husk_error *err);
/* `unready`: only those that are not ready; otherwise only the ready ones. By number. */
int catalog_point_list(struct catalog *catalog, const char *sandbox, bool unready, struct catalog_point ***out,
		       struct husk_error *err);
int catalog_point_remove(struct catalog *catalog, const char *sandbox, int64_t number, struct husk_error *err);

/* ---- recordings of desktops (catalog_recording.c): the space that they take; removed with the sandbox's row ---- */

/* Reserves `bytes`, which count in the quota of the sandbox's tenant, beside snapshots. LIMIT: that quota, or the sum of all
 * recordings of the instance would exceed `all_max`. */
int catalog_recording_add(struct catalog *catalog, const char *id, const char *sandbox, uint64_t bytes,
			  uint64_t all_max, struct husk_error *err);
/* It has ended, and takes this much. */
int catalog_recording_end(struct catalog *catalog, const char *id, uint64_t bytes, struct husk_error *err);
int catalog_recording_remove(struct catalog *catalog, const char *id, struct husk_error *err);

/* ---- effects: requests of a sandbox that are held (catalog_effect.c); removed with the sandbox's row ---- */

struct catalog_effect {
	char *sandbox, *method, *scheme, *host, *target;
	char *state;  /* "held", "sending", "sent", "uncertain", "dropped" */
	char *detail; /* why; NULL: nothing to say */
	int64_t number, created_ms, done_ms, port;
	int64_t status; /* of the host's answer; 0: none */
	uint64_t bytes; /* of the body */
};
#define CATALOG_EFFECTS_MAX 256                      /* held ones of one sandbox */
#define CATALOG_EFFECT_BYTES_MAX (UINT64_C(8) << 20) /* of their header lines and bodies together */
#define CATALOG_EFFECTS_KEPT 512                     /* newest ones that stay listed when they are done */
void catalog_effect_free(struct catalog_effect *row);
void catalog_effect_list_free(struct catalog_effect **list);
/* Sets its number. `request` is stored beside it. LIMIT: the queue is full. */
int catalog_effect_add(struct catalog *catalog, struct catalog_effect *row, const char *request, size_t size,
		       struct husk_error *err);
int catalog_effect_list(struct catalog *catalog, const char *sandbox, struct catalog_effect ***out,
			struct husk_error *err);
/* `request` may be NULL. */
int catalog_effect_get(struct catalog *catalog, const char *sandbox, int64_t which, struct catalog_effect **out,
		       struct buf *request, struct husk_error *err);
/* The number of the newest one; 0: none. */
int catalog_effect_last(struct catalog *catalog, const char *sandbox, int64_t *out, struct husk_error *err);
/* From one state to another: 1, or 0: it is not in that state. */
int catalog_effect_move(struct catalog *catalog, const char *sandbox, int64_t which, const char *from, const char *to,
			int64_t status, const char *detail, struct husk_error *err);
/* Those that were being sent when their supervisor ended may have been sent. */
int catalog_effects_settle(struct catalog *catalog, const char *sandbox, struct husk_error *err);

/* ---- stored secrets, separate for each tenant; NULL also means the tenant of the view ---- */

/* A row has no value: only catalog_secret_value returns it. Free with husk_stored_secret_free. CONFLICT: the name is
 * used; LIMIT: too many. */
int catalog_secret_add(struct catalog *catalog, const struct husk_stored_secret *secret, const char *value,
		       struct husk_error *err);
/* `metadata` NULL: the metadata stays. */
int catalog_secret_change(struct catalog *catalog, const char *id_or_name, const char *value, const char *metadata,
			  struct husk_error *err);
int catalog_secret_get(struct catalog *catalog, const char *id_or_name, struct husk_stored_secret **out,
		       struct husk_error *err);
/* By id. */
int catalog_secret_list(struct catalog *catalog, struct husk_stored_secret ***out, struct husk_error *err);
int catalog_secret_remove(struct catalog *catalog, const char *id_or_name, struct husk_error *err);
int catalog_secret_value(struct catalog *catalog, const char *id_or_name, char **out, struct husk_error *err);

/* ---- templates: a name points at the newest version; an older version stays while it is used ---- */

struct catalog_template {
	char *name, *description, *isolation;
	char *digest; /* the version: "<digest of the content>-<build>", the name of its directory */
	int64_t created_ms;
	uint64_t bytes, disk_bytes;
	bool current; /* the name points here */
	char *tenant; /* as for a sandbox; NULL: of the instance, which everybody may use */
	char *egress; /* the default policy of its sandboxes; NULL: off */
};
void catalog_template_free(struct catalog_template *row);
void catalog_template_list_free(struct catalog_template **list);
/* Adds the version and points the name at it. */
int catalog_template_add(struct catalog *catalog, const struct catalog_template *row, struct husk_error *err);
/* Adds a version that no name points at, for a snapshot that was made from it elsewhere. Does nothing if there is a row
 * of that version. */
int catalog_template_keep(struct catalog *catalog, const struct catalog_template *row, struct husk_error *err);
/* The current version by name, the tenant's own before the instance's; NOT_FOUND with a suggestion and
 * "(husk template ls)". */
int catalog_template_get(struct catalog *catalog, const char *name, struct catalog_template **out,
			 struct husk_error *err);
/* Templates that catalog_template_get would return; with_old: every version of every tenant. */
int catalog_template_list(struct catalog *catalog, bool with_old, struct catalog_template ***out,
			  struct husk_error *err);
/* Drops the name; its versions become old. DENIED: a tenant tries to remove a template of the instance. */
int catalog_template_remove(struct catalog *catalog, const char *name, struct husk_error *err);
/* Old versions that no sandbox (not ended) and no snapshot uses. */
int catalog_template_unused(struct catalog *catalog, struct catalog_template ***out, struct husk_error *err);
/* Deletes such a version. `take` hides its files, in the same transaction, so that nothing can begin to use the version
 * meanwhile. 1: done; 0: the version is in use, and `take` was not called. */
typedef int (*catalog_template_take)(void *data, struct husk_error *err);
int catalog_template_forget(struct catalog *catalog, const char *digest, catalog_template_take take, void *data,
			    struct husk_error *err);

/* ---- volumes ---- */

struct catalog_volume {
	char *id, *name;
	char *tenant; /* as of a sandbox */
	int64_t created_ms;
	uint64_t limit_bytes;
};
void catalog_volume_free(struct catalog_volume *row);
void catalog_volume_list_free(struct catalog_volume **list);
/* CONFLICT: the name is used. */
int catalog_volume_add(struct catalog *catalog, const struct catalog_volume *row, struct husk_error *err);
int catalog_volume_get(struct catalog *catalog, const char *id_or_name, struct catalog_volume **out,
		       struct husk_error *err);
/* Newest first. */
int catalog_volume_list(struct catalog *catalog, struct catalog_volume ***out, struct husk_error *err);
/* The ids of live sandboxes that use it, as a list for strv_free. */
int catalog_volume_users(struct catalog *catalog, const char *id, char ***out, struct husk_error *err);
/* CONFLICT, with their names, while live sandboxes use it. After success, no sandbox can get it any more. */
int catalog_volume_remove(struct catalog *catalog, const char *id, struct husk_error *err);

/* ---- events ---- */

/* `detail` is a JSON object or NULL. Never holds a secret. */
int catalog_event(struct catalog *catalog, const char *sandbox, const char *kind, const char *detail,
		  struct husk_error *err);
/* Events after `after`, oldest first, of one sandbox (id) or of all (NULL); limit 0: all. Free with
 * husk_event_list_free. */
int catalog_events(struct catalog *catalog, const char *sandbox, int64_t after, size_t limit, struct husk_event **out,
		   size_t *count, struct husk_error *err);
int catalog_events_trim(struct catalog *catalog, size_t keep, struct husk_error *err);

#endif
