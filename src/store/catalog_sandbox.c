/*
 * Sandboxes in the catalog: rows, states, slots, and the pool of prepared machines. libhusk and supervisors call it, from
 * many processes at once. What must happen only once (a slot, a name, a claim) is decided inside one write transaction. An
 * ended sandbox must never come back, because its slot has a new owner.
 */
#include "store/catalog_kit.h"

#define SLOT_MAX 16383
#define KEY_LIFE_MS (24ll * 3600 * 1000)

static const struct field sandbox_fields[] = {
	FIELD(catalog_sandbox, FIELD_TEXT, id),
	FIELD(catalog_sandbox, FIELD_TEXT, name),
	FIELD(catalog_sandbox, FIELD_TEXT, template_name),
	FIELD(catalog_sandbox, FIELD_TEXT, template_digest),
	FIELD(catalog_sandbox, FIELD_TEXT, parent),
	FIELD(catalog_sandbox, FIELD_TEXT, isolation),
	FIELD(catalog_sandbox, FIELD_TEXT, end_reason),
	FIELD(catalog_sandbox, FIELD_STATE, state),
	FIELD(catalog_sandbox, FIELD_BOOL, warm),
	FIELD(catalog_sandbox, FIELD_INT64, created_ms),
	FIELD(catalog_sandbox, FIELD_INT64, expires_ms),
	FIELD(catalog_sandbox, FIELD_INT64, ended_ms),
	FIELD(catalog_sandbox, FIELD_INT64, idle_seconds),
	FIELD(catalog_sandbox, FIELD_BOOL, persistent),
	FIELD(catalog_sandbox, FIELD_UINT64, memory_bytes),
	FIELD(catalog_sandbox, FIELD_UINT64, disk_bytes),
	FIELD(catalog_sandbox, FIELD_UINT32, cpu_milli),
	FIELD(catalog_sandbox, FIELD_UINT32, pids),
	FIELD(catalog_sandbox, FIELD_UINT32, slot),
	FIELD(catalog_sandbox, FIELD_TEXT, metadata),
	FIELD(catalog_sandbox, FIELD_TEXT, environment),
	FIELD(catalog_sandbox, FIELD_TEXT, tenant),
	FIELD(catalog_sandbox, FIELD_TEXT, idempotency_key),
	FIELD(catalog_sandbox, FIELD_TEXT, request),
	FIELD(catalog_sandbox, FIELD_TEXT, egress),
	FIELD(catalog_sandbox, FIELD_TEXT, volumes),
	FIELD(catalog_sandbox, FIELD_BOOL, hibernates),
	FIELD(catalog_sandbox, FIELD_INT64, point),
	FIELD(catalog_sandbox, FIELD_TEXT, origin),
	FIELD(catalog_sandbox, FIELD_INT64, effect),
	FIELD(catalog_sandbox, FIELD_BOOL, each_call),
};
static const struct table sandboxes = { "sandboxes", sizeof(struct catalog_sandbox), sandbox_fields,
					ARRAY_SIZE(sandbox_fields) };

void catalog_sandbox_free(struct catalog_sandbox *row)
{
	table_free_row(&sandboxes, row);
}

void catalog_sandbox_list_free(struct catalog_sandbox **list)
{
	table_free_list(&sandboxes, (void **)list);
}

/* ---- finding ---- */

/* Names belong to tenants, so the owner names a tenant's sandbox by its id. 1: there is one with this name. */
static int is_of_tenant(struct catalog *catalog, const char *name, struct husk_error *err)
{
	void *found = NULL;
	int result = table_one(catalog, &sandboxes,
			       "WHERE name = ?1 AND state NOT IN ('preparing', 'pool', 'ended') LIMIT 1",
			       ARGUMENTS(text(name)), &found, err);
	const struct catalog_sandbox *row = found;

	if (result > 0)
		husk_fail(err, HUSK_NOT_FOUND,
			  "sandbox '%.80s' not found; tenant '%.80s' has one of this name: use its id, %s", name,
			  row->tenant ? row->tenant : "", row->id);
	catalog_sandbox_free(found);
	return result;
}

static int not_found(struct catalog *catalog, const char *word, struct husk_error *err)
{
	if (!catalog->view.tenant && is_of_tenant(catalog, word, err) != 0)
		return -1;
	return catalog_not_found(
		catalog, "sandbox", word,
		"SELECT id FROM sandboxes WHERE state NOT IN ('preparing', 'pool', 'ended') "
		"AND (?1 IS NULL OR tenant = ?1) UNION "
		"SELECT name FROM sandboxes WHERE state NOT IN ('preparing', 'pool', 'ended') AND name IS NOT NULL "
		"AND tenant IS ?1",
		"husk ls", err);
}

/* The error for a row that a conditional update did not change: the row is missing or in another state. */
static int untouched(struct catalog *catalog, const char *id, enum husk_code code, struct husk_error *err)
{
	void *found = NULL;
	int result = table_one(catalog, &sandboxes, "WHERE id = ?1", ARGUMENTS(text(id)), &found, err);

	if (result <= 0)
		return result < 0 ? -1 : not_found(catalog, id, err);
	struct catalog_sandbox *row = found;

	if (row->state == CATALOG_ENDED)
		result = husk_fail(err, code, "sandbox %s has ended (%s)", id,
				   row->end_reason ? row->end_reason : "unknown");
	else
		result = husk_fail(err, code, "sandbox %s is %s", id, catalog_state_name(row->state));
	catalog_sandbox_free(row);
	return result;
}

int catalog_sandbox_get(struct catalog *catalog, const char *id_or_name, struct catalog_sandbox **out,
			struct husk_error *err)
{
	char whole[16];
	void *row = NULL;

	if (!id_or_name || !*id_or_name)
		return husk_fail(err, HUSK_INVALID, "no sandbox given: pass an id or a name (husk ls)");
	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	snprintf(whole, sizeof(whole), "sb-%s", is_random_id(id_or_name, "sb", 10) ? id_or_name + 2 : "");
	/* An id always wins, so that a name cannot hide the sandbox of another user. */
	int result =
		table_one(catalog, &sandboxes,
			  "WHERE ((id IN (?1, ?3) AND (?2 IS NULL OR tenant = ?2)) OR (name = ?1 AND tenant IS ?2)) "
			  "AND state <> 'pool' "
			  "ORDER BY id IN (?1, ?3) DESC, state = 'ended', ended_ms DESC, rowid DESC LIMIT 1",
			  ARGUMENTS(text(id_or_name), text(catalog->view.tenant), text(whole)), &row, err);

	if (result == 0)
		result = not_found(catalog, id_or_name, err);
	result = catalog_finish(catalog, result, err);
	struct catalog_sandbox *found = row;

	if (result < 0 || values_get(catalog, found->id, &found->environment, err) < 0) {
		catalog_sandbox_free(row);
		return -1;
	}
	*out = row;
	return 0;
}

/* "'running', 'paused'" for a mask of states. */
static int append_states(struct buf *sql, unsigned mask)
{
	const char *separator = "";

	for (enum catalog_state state = CATALOG_PREPARING; state <= CATALOG_ENDED; state++) {
		if (!(mask & 1u << state))
			continue;
		if (buf_printf(sql, "%s'%s'", separator, catalog_state_name(state)))
			return -1;
		separator = ", ";
	}
	return 0;
}

/* Only the requested conditions are part of the statement, so that each can use its index. */
static int query_tail(const struct catalog *catalog, const struct catalog_query *query, struct buf *tail)
{
	if (buf_append_string(tail, "WHERE state IN (") || append_states(tail, query->mask) ||
	    buf_append_string(tail, ")"))
		return -1;
	if (catalog->view.tenant && buf_append_string(tail, " AND tenant = ?1"))
		return -1;
	if (query->template_name && buf_append_string(tail, " AND template_name = ?2"))
		return -1;
	if (query->without_builds &&
	    buf_append_string(tail, " AND json_extract(metadata, '$.\"husk.build\"') IS NULL"
				    " AND json_extract(metadata, '$.\"husk.moment\"') IS NULL"))
		return -1;
	if (query->after &&
	    buf_append_string(tail,
			      " AND (created_ms, rowid) < (SELECT created_ms, rowid FROM sandboxes WHERE id = ?3)"))
		return -1;
	return buf_append_string(tail, " ORDER BY created_ms DESC, rowid DESC LIMIT ?4");
}

static int run_query(struct catalog *catalog, const struct catalog_query *query, const char *tail, void ***list,
		     struct husk_error *err)
{
	int64_t limit = query->limit && query->limit <= INT64_MAX ? (int64_t)query->limit : -1, known = 0;

	if (query->after &&
	    catalog_number(catalog, "SELECT 1 FROM sandboxes WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2)",
			   ARGUMENTS(text(query->after), text(catalog->view.tenant)), &known, err) < 0)
		return -1;
	if (query->after && !known)
		return husk_fail_field(err, "cursor", "cursor '%.64s' is no longer valid; list from the start again",
				       query->after);
	return table_all(
		catalog, &sandboxes, tail,
		ARGUMENTS(text(catalog->view.tenant), text(query->template_name), text(query->after), number(limit)),
		list, err);
}

int catalog_sandbox_query(struct catalog *catalog, const struct catalog_query *query, struct catalog_sandbox ***out,
			  struct husk_error *err)
{
	cleanup_buf struct buf tail = { 0 };
	void **list = NULL;

	if (query_tail(catalog, query, &tail))
		return husk_fail_memory(err);
	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	if (catalog_finish(catalog, run_query(catalog, query, tail.data, &list, err), err)) {
		table_free_list(&sandboxes, list);
		return -1;
	}
	*out = (struct catalog_sandbox **)list;
	return 0;
}

int catalog_sandbox_list(struct catalog *catalog, unsigned mask, struct catalog_sandbox ***out, struct husk_error *err)
{
	return catalog_sandbox_query(catalog, &(struct catalog_query){ .mask = mask }, out, err);
}

int catalog_sandbox_by_key(struct catalog *catalog, const char *key, struct catalog_sandbox **out,
			   struct husk_error *err)
{
	void *row = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = table_one(catalog, &sandboxes, "WHERE idempotency_key = ?1 AND tenant IS ?2 AND created_ms > ?3",
			       ARGUMENTS(text(key), text(catalog->view.tenant), number(time_wall_ms() - KEY_LIFE_MS)),
			       &row, err);

	result = catalog_finish(catalog, result, err);
	if (result == 1)
		*out = row;
	else
		catalog_sandbox_free(row);
	return result;
}

/* ---- adding ---- */

/* CONFLICT if a live sandbox other than `id` has this name. */
static int check_name(struct catalog *catalog, const char *name, const char *id, struct husk_error *err)
{
	int64_t taken = 0;

	if (!name)
		return 0;
	if (catalog_number(catalog,
			   "SELECT 1 FROM sandboxes WHERE name = ?1 AND id <> ?2 AND state <> 'ended' AND tenant IS ?3",
			   ARGUMENTS(text(name), text(id), text(catalog->view.tenant)), &taken, err) < 0)
		return -1;
	if (taken)
		return husk_fail(err, HUSK_CONFLICT,
				 "a live sandbox is named '%s' already; choose another name, or end it (husk rm %s)",
				 name, name);
	return 0;
}

/* CONFLICT if another sandbox has the key; a key that is too old is removed. */
static int check_key(struct catalog *catalog, const char *key, const char *id, struct husk_error *err)
{
	int64_t taken = 0;

	if (!key)
		return 0;
	if (catalog_run(catalog,
			"UPDATE sandboxes SET idempotency_key = NULL, request = NULL "
			"WHERE idempotency_key = ?1 AND tenant IS ?2 AND created_ms <= ?3",
			ARGUMENTS(text(key), text(catalog->view.tenant), number(time_wall_ms() - KEY_LIFE_MS)),
			err) < 0 ||
	    catalog_number(catalog, "SELECT 1 FROM sandboxes WHERE idempotency_key = ?1 AND tenant IS ?2 AND id <> ?3",
			   ARGUMENTS(text(key), text(catalog->view.tenant), text(id)), &taken, err) < 0)
		return -1;
	return taken ? husk_fail(err, HUSK_CONFLICT, "another request has this idempotency key") : 0;
}

/* NOT_FOUND if one of the volumes was removed since the lookup. From here on none can be removed. */
static int check_volumes(struct catalog *catalog, const char *volumes, struct husk_error *err)
{
	cleanup_strv char **gone = NULL;

	if (!volumes)
		return 0;
	if (catalog_strings(catalog,
			    "SELECT json_extract(value, '$.name') FROM json_each(?1) "
			    "WHERE json_extract(value, '$.id') NOT IN (SELECT id FROM volumes)",
			    ARGUMENTS(text(volumes)), &gone, err) < 0)
		return -1;
	return gone && gone[0]
		       ? husk_fail(err, HUSK_NOT_FOUND, "volume '%s', which this comes with, was removed", gone[0])
		       : 0;
}

/* Checks a row that will belong to the view: its name and key must be free, and the quotas must allow it. */
static int check_new(struct catalog *catalog, const struct catalog_sandbox *row, struct husk_error *err)
{
	if (check_name(catalog, row->name, row->id, err) || check_key(catalog, row->idempotency_key, row->id, err) ||
	    check_volumes(catalog, row->volumes, err))
		return -1;
	return quota_check(catalog, row->id, 1, row->memory_bytes, err);
}

/* The lowest free number. */
static int free_slot(struct catalog *catalog, uint32_t *out, struct husk_error *err)
{
	int64_t slot = 0;

	if (catalog_number(catalog,
			   "SELECT min(candidate) FROM (SELECT 1 AS candidate UNION ALL "
			   "SELECT slot + 1 FROM sandboxes WHERE slot > 0) "
			   "WHERE NOT EXISTS (SELECT 1 FROM sandboxes WHERE slot > 0 AND slot = candidate)",
			   NULL, &slot, err) < 0)
		return -1;
	if (slot < 1 || slot > SLOT_MAX)
		return husk_fail(err, HUSK_LIMIT,
				 "this instance has %d sandboxes, the most it can have; end some (husk rm)", SLOT_MAX);
	*out = (uint32_t)slot;
	return 0;
}

static int insert_sandbox(struct catalog *catalog, struct catalog_sandbox *row, struct husk_error *err)
{
	int64_t taken = 0;

	if (catalog_number(catalog, "SELECT 1 FROM sandboxes WHERE id = ?1", ARGUMENTS(text(row->id)), &taken, err) < 0)
		return -1;
	if (taken)
		return husk_fail(err, HUSK_CONFLICT, "sandbox %s exists already", row->id);
	if (check_new(catalog, row, err) || free_slot(catalog, &row->slot, err))
		return -1;
	cleanup_free char *names = NULL;
	struct catalog_sandbox owned = *row;

	if (values_put(catalog, row->id, row->environment, &names, err) < 0)
		return -1;
	owned.tenant = (char *)catalog->view.tenant;
	owned.environment = names;
	return table_insert(catalog, &sandboxes, &owned, err);
}

int catalog_sandbox_add(struct catalog *catalog, struct catalog_sandbox *row, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	if (catalog_finish(catalog, insert_sandbox(catalog, row, err), err)) {
		if (row->slot) /* set late, so the stored values are of this row and of no other */
			values_drop(catalog, row->id);
		row->slot = 0;
		return -1;
	}
	return 0;
}

/* ---- changing ---- */

/* A waking sandbox uses memory again. */
static int quota_check_wake(struct catalog *catalog, const char *id, struct husk_error *err)
{
	int64_t memory = 0;

	if (!catalog->view.tenant)
		return 0;
	if (catalog_number(catalog, "SELECT memory_bytes FROM sandboxes WHERE id = ?1", ARGUMENTS(text(id)), &memory,
			   err) < 0)
		return -1;
	return quota_check(catalog, id, 0, (uint64_t)memory, err);
}

int catalog_sandbox_move(struct catalog *catalog, const char *id, unsigned from_mask, enum catalog_state to,
			 struct husk_error *err)
{
	cleanup_buf struct buf sql = { 0 };

	if (to == CATALOG_ENDED)
		return husk_fail(err, HUSK_INTERNAL, "sandbox %s cannot be moved to ended without a reason", id);
	if (buf_append_string(&sql, "UPDATE sandboxes SET state = ?2 WHERE id = ?1 AND state IN (") ||
	    append_states(&sql, from_mask & ~(1u << CATALOG_ENDED)) || buf_append_string(&sql, ")"))
		return husk_fail_memory(err);
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int changed = to == CATALOG_CREATING ? quota_check_wake(catalog, id, err) : 0;

	if (changed == 0)
		changed = catalog_run(catalog, sql.data, ARGUMENTS(text(id), text(catalog_state_name(to))), err);
	if (changed == 0)
		changed = untouched(catalog, id, HUSK_CONFLICT, err);
	return catalog_finish(catalog, changed, err) < 0 ? -1 : 0;
}

/* Updates a sandbox that has not ended; ?1 is its id. GONE if it has ended. */
static int update_live(struct catalog *catalog, const char *id, const char *sql, const struct argument *arguments,
		       struct husk_error *err)
{
	int changed = catalog_run(catalog, sql, arguments, err);

	if (changed == 0)
		changed = untouched(catalog, id, HUSK_GONE, err);
	return changed < 0 ? -1 : 0;
}

int catalog_sandbox_update(struct catalog *catalog, const struct catalog_sandbox *row, struct husk_error *err)
{
	if (row->state == CATALOG_ENDED)
		return husk_fail(err, HUSK_INTERNAL, "sandbox %s cannot be updated to ended without a reason", row->id);
	cleanup_free char *names = NULL;

	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int result = check_new(catalog, row, err);

	if (result == 0)
		result = values_put(catalog, row->id, row->environment, &names, err);
	if (result == 0)
		result = update_live(
			catalog, row->id,
			"UPDATE sandboxes SET name = ?2, parent = ?3, expires_ms = ?4, idle_seconds = ?5, "
			"persistent = ?6, memory_bytes = ?7, disk_bytes = ?8, cpu_milli = ?9, pids = ?10, "
			"metadata = ?11, environment = ?12, created_ms = ?13, state = ?14, "
			"tenant = ?15, idempotency_key = ?16, request = ?17, egress = ?18, volumes = ?19, "
			"hibernates = ?20, origin = ?21, effect = ?22, each_call = ?23 "
			"WHERE id = ?1 AND state <> 'ended'",
			ARGUMENTS(text(row->id), text(row->name), text(row->parent), number(row->expires_ms),
				  number(row->idle_seconds), number(row->persistent),
				  number((int64_t)row->memory_bytes), number((int64_t)row->disk_bytes),
				  number(row->cpu_milli), number(row->pids), text(row->metadata), text(names),
				  number(row->created_ms), text(catalog_state_name(row->state)),
				  text(catalog->view.tenant), text(row->idempotency_key), text(row->request),
				  text(row->egress), text(row->volumes), number(row->hibernates), text(row->origin),
				  number(row->effect), number(row->each_call)),
			err);
	return catalog_finish(catalog, result, err);
}

int catalog_sandbox_set_expiry(struct catalog *catalog, const char *id, int64_t expires_ms, bool persistent,
			       struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int result = update_live(
		catalog, id, "UPDATE sandboxes SET expires_ms = ?2, persistent = ?3 WHERE id = ?1 AND state <> 'ended'",
		ARGUMENTS(text(id), number(expires_ms), number(persistent)), err);

	return catalog_finish(catalog, result, err);
}

int catalog_sandbox_set_idle(struct catalog *catalog, const char *id, int64_t idle_seconds, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int result =
		update_live(catalog, id, "UPDATE sandboxes SET idle_seconds = ?2 WHERE id = ?1 AND state <> 'ended'",
			    ARGUMENTS(text(id), number(idle_seconds)), err);

	return catalog_finish(catalog, result, err);
}

int catalog_sandbox_resize(struct catalog *catalog, const char *id, uint32_t cpu_milli, uint64_t memory_bytes,
			   bool asleep, struct husk_error *err)
{
#define RESIZE                                                                                                         \
	"UPDATE sandboxes SET cpu_milli = coalesce(nullif(?2, 0), cpu_milli), "                                        \
	"memory_bytes = coalesce(nullif(?3, 0), memory_bytes) WHERE id = ?1 AND state "
	static const char awake_sql[] = RESIZE "<> 'ended'", asleep_sql[] = RESIZE "= 'hibernated'";
#undef RESIZE

	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int changed = catalog_run(catalog, asleep ? asleep_sql : awake_sql,
				  ARGUMENTS(text(id), number(cpu_milli), number((int64_t)memory_bytes)), err);
	if (changed == 0 && !asleep)
		changed = untouched(catalog, id, HUSK_GONE, err);
	if (catalog_finish(catalog, MIN(changed, 0), err) < 0)
		return -1;
	return changed > 0;
}

/* Sets one text column of a sandbox that has not ended. */
static int set_text(struct catalog *catalog, const char *id, const char *sql, const char *value, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int result = update_live(catalog, id, sql, ARGUMENTS(text(id), text(value)), err);

	return catalog_finish(catalog, result, err);
}

int catalog_sandbox_set_metadata(struct catalog *catalog, const char *id, const char *metadata, struct husk_error *err)
{
	return set_text(catalog, id, "UPDATE sandboxes SET metadata = ?2 WHERE id = ?1 AND state <> 'ended'", metadata,
			err);
}

int catalog_sandbox_set_egress(struct catalog *catalog, const char *id, const char *egress, struct husk_error *err)
{
	return set_text(catalog, id, "UPDATE sandboxes SET egress = ?2 WHERE id = ?1 AND state <> 'ended'", egress,
			err);
}

/* Inside a transaction. NOT_FOUND: no such row. */
static int end_row(struct catalog *catalog, const char *id, const char *reason, struct husk_error *err)
{
	int64_t known = 0;
	int changed = catalog_run(catalog,
				  "UPDATE sandboxes SET state = 'ended', end_reason = ?2, ended_ms = ?3, "
				  "environment = NULL WHERE id = ?1 AND state <> 'ended'",
				  ARGUMENTS(text(id), text(reason), number(time_wall_ms())), err);

	if (changed != 0)
		return changed;
	int found = catalog_number(catalog, "SELECT 1 FROM sandboxes WHERE id = ?1", ARGUMENTS(text(id)), &known, err);
	return found == 0 ? not_found(catalog, id, err) : MIN(found, 0);
}

int catalog_sandbox_ending(struct catalog *catalog, const char *id, const char *reason, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	if (catalog_finish(catalog, end_row(catalog, id, reason, err), err) < 0)
		return -1;
	values_drop(catalog, id);
	return 0;
}

int catalog_sandbox_end(struct catalog *catalog, const char *id, const char *reason, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int changed = end_row(catalog, id, reason, err);
	if (changed >= 0 &&
	    catalog_run(catalog, "UPDATE sandboxes SET slot = 0 WHERE id = ?1", ARGUMENTS(text(id)), err) < 0)
		changed = -1;
	if (catalog_finish(catalog, changed, err) < 0)
		return -1;
	values_drop(catalog, id);
	return 0;
}

int catalog_sandbox_remains(struct catalog *catalog, struct catalog_sandbox ***out, struct husk_error *err)
{
	void **list = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	if (catalog_finish(catalog,
			   table_all(catalog, &sandboxes, "WHERE state = 'ended' AND slot > 0", NULL, &list, err),
			   err)) {
		table_free_list(&sandboxes, list);
		return -1;
	}
	*out = (struct catalog_sandbox **)list;
	return 0;
}

int catalog_sandbox_forget(struct catalog *catalog, const char *id, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int result = catalog_run(catalog, "DELETE FROM sandboxes WHERE id = ?1", ARGUMENTS(text(id)), err);

	if (catalog_finish(catalog, result, err) < 0)
		return -1;
	values_drop(catalog, id);
	return 0;
}

/* ---- the pool ---- */

/* The row, already moved to CREATING; NULL: none. */
static int claim(struct catalog *catalog, const char *template_digest, uint64_t disk_bytes, bool warm, void **row,
		 struct husk_error *err)
{
	int found = table_one(catalog, &sandboxes,
			      "WHERE state = 'pool' AND template_digest = ?1 AND disk_bytes = ?2 AND warm = ?3 "
			      "ORDER BY created_ms, rowid LIMIT 1",
			      ARGUMENTS(text(template_digest), number((int64_t)disk_bytes), number(warm)), row, err);

	if (found <= 0)
		return found;
	struct catalog_sandbox *claimed = *row;

	claimed->state = CATALOG_CREATING;
	return catalog_run(catalog, "UPDATE sandboxes SET state = 'creating' WHERE id = ?1",
			   ARGUMENTS(text(claimed->id)), err);
}

int catalog_pool_claim(struct catalog *catalog, const char *template_digest, uint64_t disk_bytes, bool warm,
		       struct catalog_sandbox **out, struct husk_error *err)
{
	void *row = NULL;

	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int result = catalog_finish(catalog, claim(catalog, template_digest, disk_bytes, warm, &row, err), err);

	if (result < 0) {
		catalog_sandbox_free(row);
		return -1;
	}
	if (result > 0)
		*out = row;
	return result;
}

int catalog_pool_count(struct catalog *catalog, const char *template_digest, uint64_t disk_bytes, bool warm,
		       struct husk_error *err)
{
	int64_t count = 0;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = catalog_number(
		catalog,
		"SELECT count(*) FROM sandboxes WHERE state IN ('pool', 'preparing') AND template_digest = ?1 "
		"AND disk_bytes = ?2 AND warm = ?3",
		ARGUMENTS(text(template_digest), number((int64_t)disk_bytes), number(warm)), &count, err);

	return catalog_finish(catalog, result, err) < 0 ? -1 : (int)count;
}

/* Inside a transaction: the entry is deleted first, because a slot belongs to one row at a time. */
static int adopt(struct catalog *catalog, const char *id, const char *entry, struct husk_error *err)
{
	int64_t slot = 0;
	int found =
		catalog_number(catalog, "SELECT slot FROM sandboxes WHERE id = ?1", ARGUMENTS(text(entry)), &slot, err);

	if (found < 0)
		return -1;
	if (found == 0)
		return husk_fail(err, HUSK_NOT_FOUND, "pool entry %s does not exist any longer", entry);
	if (catalog_run(catalog, "DELETE FROM sandboxes WHERE id = ?1", ARGUMENTS(text(entry)), err) < 0)
		return -1;
	int changed = catalog_run(catalog, "UPDATE sandboxes SET slot = ?2 WHERE id = ?1 AND state = 'creating'",
				  ARGUMENTS(text(id), number(slot)), err);
	if (changed < 0)
		return -1;
	return changed == 1 ? 0 : husk_fail(err, HUSK_CONFLICT, "sandbox %s is not waking", id);
}

int catalog_pool_adopt(struct catalog *catalog, const char *id, const char *entry, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, adopt(catalog, id, entry, err), err);
}
