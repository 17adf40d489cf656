/*
 * The catalog: one SQLite database (WAL) for sandboxes, snapshots, templates and events. It is how things are found and
 * what survives; the truth about a running sandbox is its supervisor. Kept narrow so that a shared store can take its
 * place. Each process opens its own; every call is one transaction; a busy database is waited for (5 s).
 */
#ifndef HUSK_CATALOG_H
#define HUSK_CATALOG_H

#include "base/base.h"
#include "husk.h"

struct catalog;

int catalog_open(const char *path, struct catalog **out, struct husk_error *err);
void catalog_close(struct catalog *catalog);

/* ---- tenants ---- */

/* Who is asking. Through a handle with a tenant nothing of anybody else is found, listed, or suggested; what is added
 * through it is the tenant's, within its quotas (0: none). */
struct catalog_view {
	bool instance;      /* the instance itself, which finds everything by id, and by name what is its own */
	const char *tenant; /* else this one's things only. One of the two must be given: a name that is missing, for
			     * want of memory, say, must not open everything */
	uint32_t max_sandboxes;
	uint64_t max_memory_bytes, max_snapshot_bytes;
};
/* A handle on the same database with this view; `catalog` must outlive it. catalog_close closes. */
int catalog_as(struct catalog *catalog, const struct catalog_view *view, struct catalog **out, struct husk_error *err);
const char *catalog_tenant(const struct catalog *catalog);
/* LIMIT, naming the quota, its use and its limit, when that much more would be over it. What is added later is checked
 * again; asking first saves the work. */
int catalog_quota(struct catalog *catalog, size_t sandboxes, uint64_t memory_bytes, struct husk_error *err);
int catalog_quota_snapshots(struct catalog *catalog, struct husk_error *err);

/* Tokens, by the hash of their secret. CONFLICT when one that is not revoked has the name. husk_token_free. */
int catalog_token_add(struct catalog *catalog, const struct husk_token *token, const char *hash,
		      struct husk_error *err);
int catalog_token_list(struct catalog *catalog, struct husk_token ***out, struct husk_error *err);
/* 1 with *out, also when it is revoked or expired; 0: nobody's. */
int catalog_token_find(struct catalog *catalog, const char *hash, struct husk_token **out, struct husk_error *err);
int catalog_token_revoke(struct catalog *catalog, const char *id_or_name, struct husk_error *err);

/* ---- sandboxes ---- */

/* Beyond the public view: what only the host side needs. */
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
	bool warm; /* POOL: restored already; else a prepared shell */
	int64_t created_ms, expires_ms, ended_ms, idle_seconds;
	bool persistent;
	bool hibernates; /* when its time is over, in place of its end; asleep, its expires_ms is 0 */
	uint64_t memory_bytes, disk_bytes;
	uint32_t cpu_milli, pids;
	uint32_t slot;     /* its number in 1..16383 while not ended: uid range, later its network */
	char *metadata;    /* JSON object of strings */
	char *environment; /* JSON object of strings; kept for the processes started later, never shown */
	char *tenant;      /* as the view it was added through says; what a caller puts here is not looked at */
	char *idempotency_key, *request; /* the caller's key for the request that made it, and that request signed */
	char *egress;                    /* its policy (net/policy.h); NULL: off. Holds no value of a secret */
	char *volumes; /* JSON array of {id, name, path, read_only}, in the order they are mounted; NULL: none */
	int64_t point; /* the number of the checkpoint that it took or went back to last; 0: none */
};
void catalog_sandbox_free(struct catalog_sandbox *row); /* frees fields and the structure; NULL is fine */
void catalog_sandbox_list_free(struct catalog_sandbox **list);

/* Inserts, and gives it a free slot (row->slot). CONFLICT when a live sandbox has that name, or one of the last day the
 * idempotency key. LIMIT when it is over a quota. NOT_FOUND when one of its volumes is gone. */
int catalog_sandbox_add(struct catalog *catalog, struct catalog_sandbox *row, struct husk_error *err);
/* By id or by name (live ones first, then the newest ended). NOT_FOUND names what was asked for and, where one is near,
 * the one that may have been meant. Rows in POOL are not found. */
int catalog_sandbox_get(struct catalog *catalog, const char *id_or_name, struct catalog_sandbox **out,
			struct husk_error *err);
/* Every row in any of the states of `mask` (1u << state), newest first. */
int catalog_sandbox_list(struct catalog *catalog, unsigned mask, struct catalog_sandbox ***out, struct husk_error *err);
struct catalog_query {
	unsigned mask;             /* of states */
	const char *template_name; /* NULL: any */
	const char *after;         /* those that follow this id in the order of the list; NULL: from the newest */
	size_t limit;              /* 0: all */
	bool without_builds;       /* leaves out those whose metadata has "husk.build" */
};
/* INVALID when `after` is no sandbox any more. */
int catalog_sandbox_query(struct catalog *catalog, const struct catalog_query *query, struct catalog_sandbox ***out,
			  struct husk_error *err);
/* The sandbox that a request with this key made, or is making: 1 with *out, or 0. A key is forgotten after a day. */
int catalog_sandbox_by_key(struct catalog *catalog, const char *key, struct catalog_sandbox **out,
			   struct husk_error *err);
/* Moves it from any state of `from_mask` to `to`; CONFLICT ("sandbox X is hibernated") when it is in another. To CREATING,
 * which is waking it: LIMIT when its memory is over the quota. */
int catalog_sandbox_move(struct catalog *catalog, const char *id, unsigned from_mask, enum catalog_state to,
			 struct husk_error *err);
/* Writes name, parent, expiry, idle, persistent, limits, metadata, environment, egress, volumes, created_ms, state and the idempotency
 * key of `row` over the row, which becomes the view's. Refuses as catalog_sandbox_add does. */
int catalog_sandbox_update(struct catalog *catalog, const struct catalog_sandbox *row, struct husk_error *err);
int catalog_sandbox_set_expiry(struct catalog *catalog, const char *id, int64_t expires_ms, bool persistent,
			       struct husk_error *err);
int catalog_sandbox_set_idle(struct catalog *catalog, const char *id, int64_t idle_seconds, struct husk_error *err);
/* The metadata alone, so that a client's change never writes over what the supervisor changed meanwhile. GONE: ended. */
int catalog_sandbox_set_metadata(struct catalog *catalog, const char *id, const char *metadata, struct husk_error *err);
/* The egress policy alone, likewise. */
int catalog_sandbox_set_egress(struct catalog *catalog, const char *id, const char *egress, struct husk_error *err);
/* To ENDED with a reason and the time; frees its name, drops its environment. It keeps its slot, because what is left of its
 * machine is still being removed. Does nothing when it had ended. */
int catalog_sandbox_ending(struct catalog *catalog, const char *id, const char *reason, struct husk_error *err);
/* The same, and nothing is left of its machine: frees its slot too. */
int catalog_sandbox_end(struct catalog *catalog, const char *id, const char *reason, struct husk_error *err);
/* Ended ones whose machine may not be gone yet. catalog_sandbox_list_free. */
int catalog_sandbox_remains(struct catalog *catalog, struct catalog_sandbox ***out, struct husk_error *err);
/* Removes the values of environments that have no row any more: of processes killed between the two. */
int catalog_values_sweep(struct catalog *catalog, struct husk_error *err);
/* Deletes the row altogether (a pool entry, a creation that failed). */
int catalog_sandbox_forget(struct catalog *catalog, const char *id, struct husk_error *err);
/* Takes one pool entry of this template digest, disk size and kind, atomically, moving it to CREATING. 1 with *out, or 0. */
int catalog_pool_claim(struct catalog *catalog, const char *template_digest, uint64_t disk_bytes, bool warm,
		       struct catalog_sandbox **out, struct husk_error *err);
/* A sandbox that wakes in the machine of a claimed pool entry: takes over its slot; the entry's row goes. */
int catalog_pool_adopt(struct catalog *catalog, const char *id, const char *entry, struct husk_error *err);
/* Those on their way into the pool count too. */
int catalog_pool_count(struct catalog *catalog, const char *template_digest, uint64_t disk_bytes, bool warm,
		       struct husk_error *err);

/* ---- snapshots ---- */

struct catalog_snapshot {
	char *id, *name, *sandbox, *template_name, *template_digest, *isolation;
	int64_t created_ms;
	uint64_t bytes, memory_bytes, disk_bytes;
	uint32_t cpu_milli, pids;
	bool ready; /* false while it is being written, and for what a fork passes through */
	char *environment, *metadata, *egress, *volumes; /* of the sandbox */
	char *tenant;                                    /* as of a sandbox */
	bool shared;                                     /* other tenants may create from it */
};
void catalog_snapshot_free(struct catalog_snapshot *row);
void catalog_snapshot_list_free(struct catalog_snapshot **list);
int catalog_snapshot_add(struct catalog *catalog, const struct catalog_snapshot *row, struct husk_error *err);
/* Ready now; LIMIT when its bytes are over the quota. */
int catalog_snapshot_finish(struct catalog *catalog, const char *id, uint64_t bytes, struct husk_error *err);
int catalog_snapshot_get(struct catalog *catalog, const char *id_or_name, struct catalog_snapshot **out,
			 struct husk_error *err);
/* One that `tenant` (NULL: the instance) shares, whoever the view is of. */
int catalog_snapshot_get_shared(struct catalog *catalog, const char *tenant, const char *name,
				struct catalog_snapshot **out, struct husk_error *err);
int catalog_snapshot_share(struct catalog *catalog, const char *id, bool shared, struct husk_error *err);
/* With `unready` only those not ready; else only the ready ones; newest first. */
int catalog_snapshot_list(struct catalog *catalog, bool unready, struct catalog_snapshot ***out,
			  struct husk_error *err);
int catalog_snapshot_remove(struct catalog *catalog, const char *id, struct husk_error *err);
/* A further name; the first one when it has none. CONFLICT: another has it. */
int catalog_snapshot_tag(struct catalog *catalog, const char *id, const char *name, struct husk_error *err);
/* Takes a name off a snapshot. 1: it was its last one, and stays; the caller removes it. NOT_FOUND: nobody's name. */
int catalog_snapshot_untag(struct catalog *catalog, const char *name, struct husk_error *err);
/* Its further names, in order; strv_free. */
int catalog_snapshot_tags(struct catalog *catalog, const char *id, char ***out, struct husk_error *err);

/* ---- checkpoints: of one sandbox, by its id; they go with it ---- */

struct catalog_point {
	char *sandbox, *label;
	int64_t number, parent; /* from 1 on; the one that the sandbox was at before, 0: none */
	int64_t created_ms;
	uint64_t bytes;
	bool ready;    /* false while it is being written */
	char *traffic; /* JSON array of what the sandbox had sent and received by then, by destination; NULL: nothing */
};
#define CATALOG_POINTS_MAX 256 /* of one sandbox */
void catalog_point_free(struct catalog_point *row);
void catalog_point_list_free(struct catalog_point **list);
/* Gives it a number and its parent. CONFLICT: the label is taken; LIMIT: there are too many. */
int catalog_point_add(struct catalog *catalog, struct catalog_point *row, struct husk_error *err);
/* Ready now, and where the sandbox is. */
int catalog_point_finish(struct catalog *catalog, const char *sandbox, int64_t number, uint64_t bytes,
			 struct husk_error *err);
/* Not ready, or ready again: around its removal. */
int catalog_point_show(struct catalog *catalog, const char *sandbox, int64_t number, bool ready,
		       struct husk_error *err);
/* The sandbox has gone back to it. */
int catalog_point_reach(struct catalog *catalog, const char *sandbox, int64_t number, struct husk_error *err);
/* By number or label, of those that are ready. */
int catalog_point_get(struct catalog *catalog, const char *sandbox, const char *word, struct catalog_point **out,
		      struct husk_error *err);
/* With `unready` only those not ready; else only the ready ones; by number. */
int catalog_point_list(struct catalog *catalog, const char *sandbox, bool unready, struct catalog_point ***out,
		       struct husk_error *err);
int catalog_point_remove(struct catalog *catalog, const char *sandbox, int64_t number, struct husk_error *err);

/* ---- stored secrets: each tenant's own; the view's tenant is meant, also by NULL ---- */

/* A row is without its value, which catalog_secret_value alone gives; husk_stored_secret_free. CONFLICT: the name is taken;
 * LIMIT: there are too many. */
int catalog_secret_add(struct catalog *catalog, const struct husk_stored_secret *secret, const char *value,
		       struct husk_error *err);
/* `metadata` NULL: it stays. */
int catalog_secret_change(struct catalog *catalog, const char *id_or_name, const char *value, const char *metadata,
			  struct husk_error *err);
int catalog_secret_get(struct catalog *catalog, const char *id_or_name, struct husk_stored_secret **out,
		       struct husk_error *err);
/* By id. */
int catalog_secret_list(struct catalog *catalog, struct husk_stored_secret ***out, struct husk_error *err);
int catalog_secret_remove(struct catalog *catalog, const char *id_or_name, struct husk_error *err);
int catalog_secret_value(struct catalog *catalog, const char *id_or_name, char **out, struct husk_error *err);

/* ---- templates: a name points at the newest version; older ones stay while something uses them ---- */

struct catalog_template {
	char *name, *description, *isolation;
	char *digest; /* the version: "<digest of the content>-<build>", the name of its directory */
	int64_t created_ms;
	uint64_t bytes, disk_bytes;
	bool current; /* the name points here */
	char *tenant; /* as of a sandbox; NULL: the instance's, which everybody may use */
	char *egress; /* what its sandboxes start with; NULL: off */
};
void catalog_template_free(struct catalog_template *row);
void catalog_template_list_free(struct catalog_template **list);
/* Adds the version and points the name at it. */
int catalog_template_add(struct catalog *catalog, const struct catalog_template *row, struct husk_error *err);
/* The current version by name, the tenant's own before the instance's; NOT_FOUND with a suggestion and
 * "(husk template ls)". */
int catalog_template_get(struct catalog *catalog, const char *name, struct catalog_template **out,
			 struct husk_error *err);
/* Those catalog_template_get would give; with_old: every version of everybody's. */
int catalog_template_list(struct catalog *catalog, bool with_old, struct catalog_template ***out,
			  struct husk_error *err);
/* Drops the name; the versions become old. DENIED when a tenant means the instance's. */
int catalog_template_remove(struct catalog *catalog, const char *name, struct husk_error *err);
/* Old versions that no sandbox (not ended) and no snapshot uses. */
int catalog_template_unused(struct catalog *catalog, struct catalog_template ***out, struct husk_error *err);
/* Forgets such a version. `take` takes its files out of sight, in the same transaction: nobody can begin to use it
 * meanwhile. 1: done; 0: it is in use, and `take` was not called. */
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
/* CONFLICT when the name is taken. */
int catalog_volume_add(struct catalog *catalog, const struct catalog_volume *row, struct husk_error *err);
int catalog_volume_get(struct catalog *catalog, const char *id_or_name, struct catalog_volume **out,
		       struct husk_error *err);
/* Newest first. */
int catalog_volume_list(struct catalog *catalog, struct catalog_volume ***out, struct husk_error *err);
/* The ids of live sandboxes that have it, as a list for strv_free. */
int catalog_volume_users(struct catalog *catalog, const char *id, char ***out, struct husk_error *err);
/* CONFLICT, naming them, while live sandboxes have it: none can get it any more once this has succeeded. */
int catalog_volume_remove(struct catalog *catalog, const char *id, struct husk_error *err);

/* ---- events ---- */

/* `detail` is a JSON object or NULL. Never holds a secret. */
int catalog_event(struct catalog *catalog, const char *sandbox, const char *kind, const char *detail,
		  struct husk_error *err);
/* After `after`, oldest first, of one sandbox (id) or of all (NULL); limit 0: all there are. husk_event_list_free. */
int catalog_events(struct catalog *catalog, const char *sandbox, int64_t after, size_t limit, struct husk_event **out,
		   size_t *count, struct husk_error *err);
int catalog_events_trim(struct catalog *catalog, size_t keep, struct husk_error *err);

#endif
