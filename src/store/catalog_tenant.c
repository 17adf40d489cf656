/*
 * Tenants in the catalog: handles that see one tenant's rows only, quotas for what is added through such a handle, and the
 * tokens that give access to a tenant. Each table's own file has its condition on `tenant`; this file has what they share.
 * A token's secret must never be stored: only its hash arrives here.
 */
#include "store/catalog_kit.h"

/* ---- views ---- */

int catalog_as(struct catalog *catalog, const struct catalog_view *view, struct catalog **out, struct husk_error *err)
{
	if (view->instance == !!view->tenant)
		return husk_fail(err, HUSK_INTERNAL, "a view is a tenant's or the instance's, one of the two");
	struct catalog *made = calloc(1, sizeof *made);
	if (!made)
		return husk_fail_memory(err);
	*made = (struct catalog){
		.db = catalog->db, .lock = catalog->lock, .values = catalog->values, .is_view = true, .view = *view
	};
	made->view.tenant = view->tenant ? strdup(view->tenant) : NULL;
	if (view->tenant && !made->view.tenant) {
		free(made);
		return husk_fail_memory(err);
	}
	*out = made;
	return 0;
}

const char *catalog_tenant(const struct catalog *catalog)
{
	return catalog->view.tenant;
}

/* ---- quotas ---- */

static int check_count(struct catalog *catalog, const char *id, size_t count, struct husk_error *err)
{
	int64_t used = 0;

	if (!catalog->view.max_sandboxes)
		return 0;
	if (catalog_number(catalog,
			   "SELECT count(*) FROM sandboxes WHERE tenant = ?1 AND id IS NOT ?2 "
			   "AND state IN ('creating', 'running', 'paused', 'hibernated')",
			   ARGUMENTS(text(catalog->view.tenant), text(id)), &used, err) < 0)
		return -1;
	if ((uint64_t)used + count <= catalog->view.max_sandboxes)
		return 0;
	return husk_fail(err, HUSK_LIMIT,
			 "the quota max_sandboxes does not allow it: %lld of %u sandboxes are live, and this needs %zu "
			 "more; end some first",
			 (long long)used, catalog->view.max_sandboxes, count);
}

/* Limits come from callers and may be near the maximum of their type. */
static bool exceeds(uint64_t used, uint64_t more, uint64_t limit)
{
	uint64_t total;

	return __builtin_add_overflow(used, more, &total) || total > limit;
}

int quota_check(struct catalog *catalog, const char *id, size_t count, uint64_t memory_bytes, struct husk_error *err)
{
	int64_t used = 0;

	if (!catalog->view.tenant)
		return 0;
	if (check_count(catalog, id, count, err))
		return -1;
	if (!catalog->view.max_memory_bytes)
		return 0;
	if (catalog_number(catalog,
			   "SELECT coalesce(sum(memory_bytes), 0) FROM sandboxes WHERE tenant = ?1 AND id IS NOT ?2 "
			   "AND state IN ('creating', 'running', 'paused')",
			   ARGUMENTS(text(catalog->view.tenant), text(id)), &used, err) < 0)
		return -1;
	if (!exceeds((uint64_t)used, memory_bytes, catalog->view.max_memory_bytes))
		return 0;
	return husk_fail(err, HUSK_LIMIT,
			 "the quota max_memory_bytes does not allow it: %lld of %llu bytes are taken by running "
			 "sandboxes, and this needs %llu more; end or hibernate some, or ask for less memory",
			 (long long)used, (unsigned long long)catalog->view.max_memory_bytes,
			 (unsigned long long)memory_bytes);
}

/* The bytes of the snapshots, checkpoints and recordings of a tenant. */
#define USED_BY(tenant_sql)                                                                                            \
	"(SELECT coalesce(sum(bytes), 0) FROM snapshots WHERE tenant = " tenant_sql " AND ready AND NOT moment) + "    \
	"(SELECT coalesce(sum(p.bytes), 0) FROM points p JOIN sandboxes s ON s.id = p.sandbox "                        \
	"WHERE s.tenant = " tenant_sql " AND p.ready) + "                                                              \
	"(SELECT coalesce(sum(r.bytes), 0) FROM recordings r JOIN sandboxes s ON s.id = r.sandbox "                    \
	"WHERE s.tenant = " tenant_sql ")"

int quota_check_snapshots(struct catalog *catalog, uint64_t bytes, struct husk_error *err)
{
	int64_t used = 0;

	if (!catalog->view.tenant || !catalog->view.max_snapshot_bytes)
		return 0;
	if (catalog_number(catalog, "SELECT " USED_BY("?1"), ARGUMENTS(text(catalog->view.tenant)), &used, err) < 0)
		return -1;
	if (!exceeds((uint64_t)used, bytes, catalog->view.max_snapshot_bytes))
		return 0;
	return husk_fail(err, HUSK_LIMIT,
			 "the quota max_snapshot_bytes does not allow it: snapshots, checkpoints and recordings take "
			 "%lld of %llu bytes, and this needs %llu more; remove some first",
			 (long long)used, (unsigned long long)catalog->view.max_snapshot_bytes,
			 (unsigned long long)bytes);
}

int catalog_quota(struct catalog *catalog, size_t sandboxes, uint64_t memory_bytes, struct husk_error *err)
{
	if (!catalog->view.max_sandboxes && !catalog->view.max_memory_bytes)
		return 0;
	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	return catalog_finish(catalog, quota_check(catalog, NULL, sandboxes, memory_bytes, err), err);
}

int catalog_quota_snapshots(struct catalog *catalog, struct husk_error *err)
{
	if (!catalog->view.max_snapshot_bytes)
		return 0;
	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	return catalog_finish(catalog, quota_check_snapshots(catalog, 1, err), err);
}

int catalog_quota_excess(struct catalog *catalog, const char *sandbox, uint64_t *out, struct husk_error *err)
{
	int64_t excess = 0;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	/* Each token has its own quota: the largest counts, and one without a quota ends it. */
	int result =
		catalog_number(catalog,
			       "WITH owner AS (SELECT tenant FROM sandboxes WHERE id = ?1 AND tenant IS NOT NULL), "
			       "quota AS (SELECT max(max_snapshot_bytes) AS bytes FROM tokens JOIN owner USING "
			       "(tenant) WHERE NOT revoked "
			       "HAVING min(max_snapshot_bytes) > 0) "
			       "SELECT max(0, " USED_BY("(SELECT tenant FROM owner)") " - quota.bytes) FROM quota",
			       ARGUMENTS(text(sandbox)), &excess, err);
	*out = (uint64_t)excess;
	return catalog_finish(catalog, result, err) < 0 ? -1 : 0;
}

/* ---- tokens ---- */

static const struct field token_fields[] = {
	FIELD(husk_token, FIELD_TEXT, id),
	FIELD(husk_token, FIELD_TEXT, name),
	FIELD(husk_token, FIELD_TEXT, tenant),
	FIELD(husk_token, FIELD_INT64, created_ms),
	FIELD(husk_token, FIELD_INT64, expires_ms),
	FIELD(husk_token, FIELD_BOOL, revoked),
	FIELD(husk_token, FIELD_UINT32, max_sandboxes),
	FIELD(husk_token, FIELD_UINT64, max_memory_bytes),
	FIELD(husk_token, FIELD_UINT64, max_snapshot_bytes),
};
static const struct table tokens = { "tokens", sizeof(struct husk_token), token_fields, ARRAY_SIZE(token_fields) };

static int insert_token(struct catalog *catalog, const struct husk_token *token, const char *hash,
			struct husk_error *err)
{
	int64_t taken = 0;

	if (catalog_number(catalog, "SELECT 1 FROM tokens WHERE name = ?1 AND NOT revoked",
			   ARGUMENTS(text(token->name)), &taken, err) < 0)
		return -1;
	if (taken)
		return husk_fail(err, HUSK_CONFLICT,
				 "a token is named '%s' already; choose another name, or revoke it (husk token rm %s)",
				 token->name, token->name);
	return catalog_run(
		catalog,
		"INSERT INTO tokens (id, name, tenant, hash, created_ms, expires_ms, revoked, max_sandboxes, "
		"max_memory_bytes, max_snapshot_bytes) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?8, ?9)",
		ARGUMENTS(text(token->id), text(token->name), text(token->tenant), text(hash),
			  number(token->created_ms), number(token->expires_ms), number(token->max_sandboxes),
			  number((int64_t)token->max_memory_bytes), number((int64_t)token->max_snapshot_bytes)),
		err);
}

int catalog_token_add(struct catalog *catalog, const struct husk_token *token, const char *hash, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, insert_token(catalog, token, hash, err), err) < 0 ? -1 : 0;
}

int catalog_token_list(struct catalog *catalog, struct husk_token ***out, struct husk_error *err)
{
	void **list = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = table_all(catalog, &tokens, "ORDER BY created_ms, rowid", NULL, &list, err);

	if (catalog_finish(catalog, result, err)) {
		table_free_list(&tokens, list);
		return -1;
	}
	*out = (struct husk_token **)list;
	for (size_t i = 0; (*out)[i]; i++)
		(*out)[i]->admin = !(*out)[i]->tenant;
	return 0;
}

int catalog_token_find(struct catalog *catalog, const char *hash, struct husk_token **out, struct husk_error *err)
{
	void *row = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = catalog_finish(
		catalog, table_one(catalog, &tokens, "WHERE hash = ?1", ARGUMENTS(text(hash)), &row, err), err);

	if (result == 1) {
		*out = row;
		(*out)->admin = !(*out)->tenant;
	} else {
		table_free_row(&tokens, row);
	}
	return result;
}

int catalog_token_revoke(struct catalog *catalog, const char *id_or_name, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int changed = catalog_run(catalog, "UPDATE tokens SET revoked = 1 WHERE (id = ?1 OR name = ?1) AND NOT revoked",
				  ARGUMENTS(text(id_or_name)), err);

	/* ?1 is the tenant; only the instance has tokens to suggest. */
	if (changed == 0)
		changed = catalog_not_found(catalog, "token", id_or_name,
					    "SELECT name FROM tokens WHERE NOT revoked AND ?1 IS NULL", "husk token ls",
					    err);
	return catalog_finish(catalog, changed, err) < 0 ? -1 : 0;
}

void husk_token_free(struct husk_token *token)
{
	table_free_row(&tokens, token);
}

void husk_token_list_free(struct husk_token **list)
{
	table_free_list(&tokens, (void **)list);
}
